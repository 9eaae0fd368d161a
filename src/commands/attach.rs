//! `mig-mps attach`, the helper that initialises CUDA as a user and reports the result. It is internal.

use clap::Parser;

use crate::cuda::attach;
use crate::error::Result;
use crate::host::{Environment, Limits};
use crate::render::print;

#[derive(Debug, Parser)]
#[command(name = crate::host::ATTACH)]
pub struct AttachArgs {
    #[command(flatten)]
    limits: Limits,
}

/// Initialises CUDA, which may never return, and prints the result as a line of JSON.
pub fn run(args: &AttachArgs) -> Result<()> {
    let library = Environment::read().cuda_library;
    args.limits.take()?;
    let result = attach(library.as_deref());
    print(&(serde_json::to_string(&result).map_err(anyhow::Error::from)? + "\n"))?;
    Ok(())
}
