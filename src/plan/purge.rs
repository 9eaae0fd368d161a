/// The devices whose logs are removed, with what users left in their pipe directories.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// Every device that has no daemon then.
    All,
    /// The devices with these UUIDs.
    Devices(Vec<String>),
}
