//! The hidden subcommands, which mig-mps and container engines start as separate processes:
//!
//! - `launch` runs the control program, and no other program, within limits.
//! - `attach` initializes CUDA as a user and reports the result.
//! - `compute` is a program of the self-test.
//! - `keep` keeps the daemon of a device for the programs of `run --private`.
//! - `admit` checks, before a container engine starts a container, that the device takes a client.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use clap::Parser;

use crate::client::{ADMISSION_LIMIT, check_admission, hold_device};
use crate::cuda;
use crate::error::{ErrorContext as _, Result, command_error};
use crate::host::{BecomeUser, Environment, Limits};
use crate::mps::become_daemon_command;
use crate::render::json::to_json_line;
use crate::render::print;
use crate::shared::private::KeepArgs;
use crate::state::RunDir;

#[derive(Debug, Parser)]
pub enum InternalCommand {
    Launch {
        #[command(flatten)]
        limits: Limits,
        /// Let one server of root serve all users at once
        #[arg(long)]
        multiuser: bool,
    },
    Attach {
        #[command(flatten)]
        user: BecomeUser,
        /// Stay until standard input ends.
        #[arg(long)]
        hold: bool,
        /// Stay longer, while the record of this device has this process.
        #[arg(long, num_args = 2, value_names = ["RUN_DIR", "UUID"], requires = "hold")]
        record: Vec<PathBuf>,
    },
    /// Computes on the device as a client, prints what it saw, and holds the device until standard input ends.
    Compute {
        #[command(flatten)]
        user: BecomeUser,
        /// Memory to allocate, in bytes
        #[arg(long)]
        allocate: Vec<u64>,
    },
    Keep(KeepArgs),
    /// Fails if the daemon of the device would not take a client now.
    Admit {
        name: String,
        uuid: String,
    },
}

impl InternalCommand {
    /// Runs the helper. One that becomes the control program returns only if that fails: nothing has been started then.
    pub fn run(&self) -> Result<()> {
        match self {
            Self::Launch { limits, multiuser } => {
                let control = Environment::read().mps_programs()?.control;
                limits.apply()?;
                let error = become_daemon_command(&control, *multiuser).exec();
                Err(error).context(format!("cannot start {}", control.display()))
            }
            Self::Attach { user, hold, record } => {
                let environment = Environment::read();
                user.apply()?;
                // It may never return.
                let result = cuda::attach(environment.cuda_library.as_deref());
                print(&to_json_line(&result)?)?;
                let device = match record.as_slice() {
                    [run_dir, uuid] => Some((RunDir::at(run_dir), uuid.display().to_string())),
                    _ => None,
                };
                if *hold {
                    hold_device(&environment, device)?;
                }
                Ok(())
            }
            Self::Compute { user, allocate } => {
                let library = Environment::read().cuda_library;
                user.apply()?;
                let (result, program) = cuda::run_compute_test(library.as_deref(), allocate);
                print(&to_json_line(&result)?)?;
                // Its caller may have ended, and closes it so.
                io::copy(&mut io::stdin(), &mut io::sink())?;
                // The program computes again at its end, whatever has happened to other programs.
                match program.map_or(Ok(true), |program| program.compute_and_leave()) {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(command_error(
                        "the kernel computed wrong numbers at the end",
                    )),
                    Err(error) => Err(command_error(format_args!(
                        "CUDA fails at the end: {error}"
                    ))),
                }
            }
            Self::Keep(args) => args.run(),
            Self::Admit { name, uuid } => {
                let admitted = check_admission(&Environment::read(), uuid, ADMISSION_LIMIT);
                admitted.map_err(|why| {
                    command_error(format_args!("device {name} accepts no programs now: {why}"))
                })
            }
        }
    }
}
