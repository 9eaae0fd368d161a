//! `mig-mps launch`, which starts daemons for other users and within limits; nobody calls it by hand.

use std::convert::Infallible;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use anyhow::{Context as _, Result};
use clap::Parser;

use crate::host::Limits;

/// What to become, and then which program.
#[derive(Debug, Parser)]
#[command(name = crate::host::LAUNCH)]
pub struct LaunchArgs {
    /// The user
    #[arg(long, requires = "gid")]
    uid: Option<u32>,
    /// The user's own group
    #[arg(long, requires = "uid")]
    gid: Option<u32>,
    /// The user whose groups it gets
    #[arg(long, requires = "uid", value_name = "USER")]
    groups_of: Option<String>,
    /// The CPUs
    #[arg(long, value_delimiter = ',')]
    cpus: Option<Vec<usize>>,
    /// How many files it may have open
    #[arg(long)]
    files: Option<u64>,
    /// Fewer files will do where the system does not allow so many
    #[arg(long)]
    or_fewer: bool,
    /// The program and its arguments
    #[arg(last = true, required = true)]
    program: Vec<OsString>,
}

/// Becomes another program.
///
/// # Errors
/// Where that could not be done: nothing has been started.
pub fn run(args: &LaunchArgs) -> Result<Infallible> {
    let limits = Limits {
        user: args.uid.zip(args.gid),
        groups_of: args.groups_of.clone(),
        cpus: args.cpus.clone(),
        files: args.files,
        or_fewer: args.or_fewer,
    };
    limits.take()?;
    let (program, rest) = args.program.split_first().context("no program is named")?;
    let error = Command::new(program).args(rest).exec();
    Err(error).with_context(|| format!("cannot start {}", program.display()))
}
