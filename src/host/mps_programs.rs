use std::ffi::OsString;
use std::path::PathBuf;

use super::TimeForUsers;

/// The programs of MPS, the search path by which they find each other, and the time that other users' may take.
#[derive(Clone, Debug, Default)]
pub struct MpsPrograms {
    pub control: PathBuf,
    /// The daemon's `PATH`, in which it finds the server program.
    pub path: OsString,
    /// `mig-mps` as the helper that becomes another user and then the control program.
    pub helper: PathBuf,
    pub time_for_users: TimeForUsers,
}
