use std::ffi::OsString;
use std::path::PathBuf;

/// The programs of MPS, and the search path by which they find each other.
#[derive(Clone, Debug, Default)]
pub struct MpsPrograms {
    pub control: PathBuf,
    /// The daemon's `PATH`, in which it finds the server program.
    pub path: OsString,
    /// `mig-mps` as the helper that becomes another user and then the control program.
    pub helper: PathBuf,
}
