//! Follows, merges and rotates the logs of daemons, and groups the control sessions in them.

mod follow;
mod sessions;

pub use follow::{FollowEvent, Follower, merge};
pub use sessions::{LogEntry, SessionGrouper, Sessions};
