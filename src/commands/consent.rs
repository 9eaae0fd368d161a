//! The flags by which a user consents to a change.

use clap::Args;

use super::drain::AT_ONCE;
use super::duration::seconds;
use crate::render::ProgressForm;

/// The hint about clients in the way.
pub(super) const HINT: &str = "wait for them with --drain SECONDS, or end them with --force";

/// The flags of every command that changes the node.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct ConsentArgs {
    /// Show the plan and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Do not ask before something that runs is disrupted
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Wait up to SECONDS for clients in the way to exit (30, 30s, 5m); new ones are still admitted
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(super) drain: Option<u32>,
    /// End clients in the way; with --drain, refuse new ones and end the rest after SECONDS
    #[arg(long)]
    pub(super) force: bool,
    /// Print the plan and the outcome as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Form of the progress on standard error [default: auto; with --json, none unless a terminal]
    #[arg(long, value_name = "FORM")]
    pub(super) progress: Option<ProgressForm>,
}

impl ConsentArgs {
    /// The time that clients get before they are ended; `None` without `--force`.
    pub(super) fn force(&self) -> Option<u32> {
        self.force.then(|| self.drain.unwrap_or(AT_ONCE))
    }
}
