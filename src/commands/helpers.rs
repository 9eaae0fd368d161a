//! The internal subcommands that mig-mps starts: `mig-mps launch` runs the control program as another user or within
//! limits, and no other program; `mig-mps attach` initialises CUDA as a user and reports the result.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;

use clap::Parser;

use crate::cuda;
use crate::error::{Context as _, Result};
use crate::host::{Environment, Limits};
use crate::mps::Invocation;
use crate::render::print;

#[derive(Debug, Parser)]
#[command(name = crate::host::LAUNCH)]
pub struct LaunchArgs {
    #[command(flatten)]
    limits: Limits,
    #[command(flatten)]
    invocation: Invocation,
}

/// Becomes the control program. Returns only if that fails: nothing has been started then.
pub fn launch(args: &LaunchArgs) -> Result<Infallible> {
    let programs = Environment::read().mps_programs()?;
    args.limits.take()?;
    let error = args.invocation.command(&programs).exec();
    Err(error).context(format!("cannot start {}", programs.control.display()))
}

#[derive(Debug, Parser)]
#[command(name = crate::host::ATTACH)]
pub struct AttachArgs {
    #[command(flatten)]
    limits: Limits,
}

/// Initialises CUDA, which may never return, and prints the result as a line of JSON.
pub fn attach(args: &AttachArgs) -> Result<()> {
    let library = Environment::read().cuda_library;
    args.limits.take()?;
    let result = cuda::attach(library.as_deref());
    print(&(serde_json::to_string(&result).map_err(anyhow::Error::from)? + "\n"))?;
    Ok(())
}
