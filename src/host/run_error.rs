use std::io;
use std::time::Duration;

use thiserror::Error;

use super::child_io::MOST_OUTPUT;

/// A failed run of a child program.
#[derive(Debug, Error)]
pub enum RunError {
    /// The program could not be started.
    #[error("cannot start {program}: {error}")]
    Start { program: String, error: io::Error },
    /// The program did not exit within its limit and was killed.
    #[error("{program} did not answer within {limit:?} and was ended")]
    Late { program: String, limit: Duration },
    /// The program wrote too much and was killed.
    #[error("{program} wrote more than {} KiB and was ended; it began with {begun:?}", MOST_OUTPUT >> 10)]
    TooMuch {
        program: String,
        /// The start of its output.
        begun: String,
    },
    /// The kernel does not end the process, which waits for hanging hardware or a hanging file system.
    #[error(
        "{program} (pid {pid}) was sent SIGKILL and has not ended: the kernel cannot end it now"
    )]
    Unkillable { program: String, pid: u32 },
    /// The program has exited, and the process that traces it keeps the exit status.
    #[error("{program} (pid {pid}) has ended, but {tracer} traces it and keeps its exit status")]
    Traced {
        program: String,
        pid: u32,
        /// The tracing process, in words.
        tracer: String,
    },
    /// Waiting for the program failed.
    #[error("cannot wait for {program}: {error}")]
    Wait { program: String, error: io::Error },
}
