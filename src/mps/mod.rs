//! Controls one MPS daemon: its directories, launch, control sessions, servers and stop.
//!
//! NVIDIA's control program exits with status 0 when it refuses, ignores commands given as arguments, admits one session
//! at a time and may refuse a second one without a message. So commands are sent on standard input, every session ends
//! with a command that must have an answer, every wait has a limit, and every value is read back.

mod configure;
mod context_memory;
mod control_program;
mod daemon;
mod directories;
mod error;
mod invocation;
mod launch;
mod launch_limits;
mod launch_options;
mod lock;
mod log;
mod mps_program;
mod pending;
mod pipe_files;
mod processes;
mod session;
mod setting_command;
mod status;
mod stop;
mod terminate_client;
mod unrecorded;

pub use context_memory::ContextMemory;
pub use control_program::ControlProgram;
pub use daemon::Daemon;
pub use error::MpsError;
pub use invocation::Invocation;
pub use launch::Launched;
pub use launch_options::{Access, LaunchOptions};
pub use lock::LockHolder;
pub(crate) use log::{KEPT, split};
pub use log::{Kind, LogDir, LogFile, LogLine, LogTail, logged_ready};
pub use mps_program::{MpsProgram, is_daemon, servers_of};
pub use pending::pending;
pub use pipe_files::{LEFT, MAX_PIPE_DIR};
pub use processes::serves_in;
pub use session::is_query;
pub use status::{DaemonStatus, ServerState, ServerStatus};
pub use stop::{Means, Patience};
