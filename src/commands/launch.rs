//! `mig-mps launch`, the helper that runs the control program as another user or within limits. It is internal, and
//! runs no other program.

use std::convert::Infallible;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::error::{Context as _, Result};
use crate::host::Environment;
use crate::host::Limits;
use crate::mps::{Invocation, Task};

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
    /// The number of files it may have open
    #[arg(long)]
    files: Option<u64>,
    /// Take fewer files where the system does not allow so many
    #[arg(long)]
    or_fewer: bool,
    /// The pipe directory
    #[arg(long)]
    pipe: PathBuf,
    #[command(subcommand)]
    task: TaskArgs,
}

#[derive(Debug, Subcommand)]
enum TaskArgs {
    /// Become the daemon of a device
    Daemon {
        #[arg(long)]
        device: String,
        #[arg(long)]
        log: PathBuf,
        #[arg(long)]
        multiuser: bool,
        #[arg(long)]
        user_dir: Option<PathBuf>,
    },
    /// Pass on the commands on standard input
    Session,
}

/// Becomes the control program. Returns only if that fails: nothing has been started then.
pub fn run(args: LaunchArgs) -> Result<Infallible> {
    let programs = Environment::read().mps_programs()?;
    let limits = Limits {
        user: args.uid.zip(args.gid),
        groups_of: args.groups_of,
        cpus: args.cpus,
        files: args.files,
        or_fewer: args.or_fewer,
    };
    let invocation = Invocation {
        pipe: args.pipe,
        task: match args.task {
            TaskArgs::Session => Task::Session,
            TaskArgs::Daemon {
                device,
                log,
                multiuser,
                user_dir,
            } => Task::Daemon {
                device,
                log,
                multiuser,
                user_dir,
            },
        },
    };
    limits.take()?;
    let error = invocation.command(&programs).exec();
    Err(error).context(format!("cannot start {}", programs.control.display()))
}
