//! The boundary between root and the users it serves: what a user can write, answer or hold is input.

mod claims;
mod delays;
mod directories;
mod failures;
mod inherited;
mod locks;
mod logs;
mod mounts;
mod named_files;

use std::path::PathBuf;

use testkit::Sim;

const HERS: &str = r#"serve = "user:nobody""#;

/// A control program in whose place a script runs first, where it becomes a daemon.
fn control_that(sim: &Sim, script: &str) -> PathBuf {
    sim.control_script(&format!(
        "if [ \"$1\" = -d ]; then\n{script}\nfi\nexec $real \"$@\""
    ))
}
