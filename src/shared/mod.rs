//! What several features share, and the core does without.

pub mod program;
