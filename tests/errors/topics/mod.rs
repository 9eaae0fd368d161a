//! The scenes, by topic.

use crate::book::Play;

mod profile;

/// All topics, in the order in which they are read.
pub(crate) const TOPICS: &[(&str, Play)] = &[("Profile files", profile::play)];
