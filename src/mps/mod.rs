//! Door 2: one MPS control daemon: its directories, launch, control sessions, servers and end.
//!
//! NVIDIA's control program exits 0 when it refuses, ignores commands given as arguments, admits one
//! session at a time and may refuse a second one without a word. So commands go in on standard
//! input, every session ends with a command that must answer, every wait has a limit, and what was
//! set is read back.

mod context_memory;
mod daemon;
mod defaults;
mod driver;
mod error;
mod glance;
mod invocation;
mod launch;
mod lock;
mod log;
mod order;
mod pending;
mod processes;
mod program;
mod servers;
mod session;
mod settings;
mod stop;
mod terminate;

pub use context_memory::ContextMemory;
pub use daemon::{Daemon, LEFT, MAX_PIPE_DIR, WhoMay};
pub use defaults::Defaults;
pub use driver::{ControlProgram, Support};
pub use error::MpsError;
pub use glance::{Glance, ServerSeen, ServerState};
pub use invocation::{Invocation, Task};
pub use launch::{Launch, Launched};
pub use lock::LockHolder;
pub use log::{
    Commands, Entry, Folder, Follower, Kind, LOG_LIMIT, LogDir, LogFile, LogLine, Meaning, Past,
    PutAside, Sessions, Woken, merge,
};
pub use pending::pending;
pub use processes::serves_in;
pub use program::{MpsProgram, is_daemon, servers_of};
pub use stop::{Means, Patience};
