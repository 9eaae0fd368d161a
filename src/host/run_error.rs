use std::io;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use super::child_io::MOST_OUTPUT;

/// Why a child program has no output.
#[derive(Debug, Error)]
pub enum RunError {
    /// It could not be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        error: io::Error,
    },
    /// It did not end within its limit and was killed.
    #[error("{program} did not answer within {limit:?} and was ended")]
    Late {
        /// The program.
        program: String,
        /// The limit.
        limit: Duration,
    },
    /// It wrote without end and was killed.
    #[error("{program} wrote more than {} KiB and was ended; it began with {begun:?}", MOST_OUTPUT >> 10)]
    TooMuch {
        /// The program.
        program: String,
        /// The beginning of what it wrote.
        begun: String,
    },
    /// The kernel does not end it, as a process that waits for hardware or a file system that hangs.
    #[error(
        "{program} (pid {pid}) was sent SIGKILL and has not ended: the kernel cannot end it now"
    )]
    Unkillable {
        /// The program.
        program: String,
        /// Its process id.
        pid: u32,
    },
    /// It has ended, and the process that traces it keeps its exit status.
    #[error("{program} (pid {pid}) has ended, but {tracer} traces it and keeps its exit status")]
    Traced {
        /// The program.
        program: String,
        /// Its process id.
        pid: u32,
        /// Who traces it, as far as that can be seen.
        tracer: String,
    },
    /// Its end could not be waited for.
    #[error("cannot wait for {program}: {error}")]
    Wait {
        /// The program.
        program: String,
        /// What the system said.
        error: io::Error,
    },
}

impl RunError {
    /// The same about another program, which the one that was started has become.
    #[must_use]
    pub fn about(mut self, name: &Path) -> Self {
        match &mut self {
            Self::Start { program, .. }
            | Self::Late { program, .. }
            | Self::TooMuch { program, .. }
            | Self::Unkillable { program, .. }
            | Self::Traced { program, .. }
            | Self::Wait { program, .. } => *program = name.display().to_string(),
        }
        self
    }
}
