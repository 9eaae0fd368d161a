/// The change of the file by which container engines find the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CdiChange {
    /// It is written, or written again.
    Write,
    /// It is removed.
    Remove,
}
