use super::Access;
use crate::host::Reader;
use crate::settings::Cpus;

/// The options of a daemon's start.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The UUID of its device.
    pub device: String,
    /// One server of root serves all users at once.
    pub multiuser: bool,
    /// The users who may connect.
    pub access: Access,
    /// Users and groups that must be able to enter the directories above, with their names.
    pub readers: Vec<(String, Reader)>,
    pub cpus: Option<Cpus>,
    /// The limit of open files; by default [`NOFILE`](crate::settings::NOFILE), or the system's limit if that is lower.
    pub nofile: Option<u64>,
}
