//! The boundary between root and the users it serves: what a user can write, answer or hold is input.

mod claims;
mod directories;
mod earlier;
mod hers;
mod inherited;
mod locks;
mod mounts;
mod named_files;

const HERS: &str = r#"serve = "user:nobody""#;
