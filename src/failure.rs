//! The exit statuses of the program, and the trait of errors that can end a command.

/// The program's exit status. The numbers are a promise to scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ExitStatus {
    Done = 0,
    Failed = 1,
    Usage = 2,
    /// The node differs from the profile, or a reset or reboot is due.
    Drift = 3,
    /// Something runs that would be disrupted, or another change is under way.
    Refused = 4,
    Infeasible = 5,
    /// `run --wait`: the device was not free in time.
    WaitOver = 124,
    /// `run` did not start the program.
    NotRun = 125,
    /// `run` found the program, and cannot execute it, as shells have it.
    NotExecutable = 126,
    NotFound = 127,
    /// Ended by Ctrl-C, SIGTERM or SIGHUP; what had been changed was undone.
    Interrupted = 130,
}

impl ExitStatus {
    /// Every status with its meaning, for the help and the manual.
    pub const MEANINGS: [(Self, &'static str); 11] = [
        (Self::Done, "done"),
        (Self::Failed, "failed"),
        (Self::Usage, "wrong usage or bad profile"),
        (
            Self::Drift,
            "not (yet) as the profile says: a reset or reboot is due, or a check finds something (plan and status with --exit-code, heal, doctor, slurm gres --check, slurm health)",
        ),
        (
            Self::Refused,
            "refused because something runs, or another change is under way; verify: a device that serves others was not checked",
        ),
        (
            Self::Infeasible,
            "the profile asks for more than fits on a GPU",
        ),
        (Self::WaitOver, "run: the time of --wait is over"),
        (
            Self::NotRun,
            "run: the program was not started; else the exit status is its own",
        ),
        (Self::NotExecutable, "run: the program cannot be executed"),
        (Self::NotFound, "run: there is no such program"),
        (Self::Interrupted, "interrupted (Ctrl-C, SIGTERM, SIGHUP)"),
    ];
}

/// An error that can end a command.
pub trait Failure: std::error::Error + Send + Sync + 'static {
    /// The exit status of a command that it ends.
    fn status(&self) -> ExitStatus {
        ExitStatus::Failed
    }

    /// Advice on what to do about it, if there is any.
    fn hint(&self) -> Option<String> {
        None
    }

    /// All advice, each piece once.
    fn hints(&self) -> Vec<String> {
        self.hint().into_iter().collect()
    }
}
