//! Names of the files in a pipe directory, and limits to its path.

/// The longest path of a pipe directory, in bytes. Measured on drivers 550 to 595: 87 work; with 88 the daemon exits
/// with status 1 and no message, because `control_privileged` no longer fits into a socket address.
pub const MAX_PIPE_DIR: usize = 87;

/// The socket by which clients and control sessions find a daemon.
pub(super) const SOCKET: &str = "control";
/// The file that a daemon locks up to driver 595.
pub(super) const LOCK_FILE: &str = "control_lock";
/// The file with a daemon's pid. From driver 615 on the daemon locks this one.
pub(super) const PID_FILE: &str = "nvidia-cuda-mps-control.pid";

/// The files that a control daemon makes in its pipe directory. After a clean stop the first three remain.
pub(super) const PIPE_FILES: [&str; 5] = [SOCKET, "control_privileged", LOCK_FILE, "log", PID_FILE];

/// The subdirectory of a run directory for pipe directories in which users keep files of their own.
pub const LEFT: &str = "left";
