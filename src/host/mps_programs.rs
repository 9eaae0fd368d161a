use std::ffi::OsString;
use std::path::PathBuf;

/// The programs that run MPS, and the search path under which they find each other.
#[derive(Clone, Debug, Default)]
pub struct MpsPrograms {
    /// The control program.
    pub control: PathBuf,
    /// The daemon's `PATH`: it finds the server program there by name.
    pub path: OsString,
    /// `mig-mps` itself, as the helper that becomes another user and then the control program.
    pub helper: PathBuf,
}
