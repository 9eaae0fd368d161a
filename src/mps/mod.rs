//! Controls one MPS daemon: its directories, launch, control sessions, servers and stop.
//!
//! NVIDIA's control program exits with status 0 when it refuses, ignores commands given as arguments, admits one session
//! at a time and may refuse a second one without a message. So commands are sent on standard input, every session ends
//! with a command that must have an answer, every wait has a limit, and every value is read back.

mod configure;
mod control_program;
mod daemon;
mod launch;
mod log;
mod processes;
mod session;
mod stop;

pub use configure::ContextMemory;
pub use control_program::ControlProgram;
pub use daemon::{Daemon, MAX_PIPE_DIR, MpsError, QUARANTINE};
pub use launch::{LaunchRequest, Launched, become_daemon_command};
pub(crate) use log::parse_lines;
pub use log::{
    LineKind, LogDir, LogFile, LogLine, LogTail, log_shows_ready, logged_fault_victims,
    needs_rotation, rotate_logs,
};
pub use processes::{
    LockHolder, MpsProcesses, MpsProgram, is_daemon, read_mps_table, servers_of, uses_pipe_dir,
};
pub use session::{DaemonStatus, ServerState, ServerStatus, is_query};
pub use stop::{ClientPolicy, StopMethod, pending_clients};
