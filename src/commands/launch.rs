//! `mig-mps launch`, the helper that runs the control program as another user or within limits. It is internal, and
//! runs no other program.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;

use clap::Parser;

use crate::error::{Context as _, Result};
use crate::host::{Environment, Limits};
use crate::mps::Invocation;

#[derive(Debug, Parser)]
#[command(name = crate::host::LAUNCH)]
pub struct LaunchArgs {
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    invocation: Invocation,
}

/// Becomes the control program. Returns only if that fails: nothing has been started then.
pub fn run(args: &LaunchArgs) -> Result<Infallible> {
    let programs = Environment::read().mps_programs()?;
    args.limits.take()?;
    let error = args.invocation.command(&programs).exec();
    Err(error).context(format!("cannot start {}", programs.control.display()))
}
