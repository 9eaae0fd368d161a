/// A daemon's two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFile {
    /// Written by the control daemon.
    Control,
    /// Messages of servers and clients, which the daemon copies there.
    Server,
}

impl LogFile {
    pub const ALL: [Self; 2] = [Self::Control, Self::Server];

    /// Its file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control.log",
            Self::Server => "server.log",
        }
    }

    /// The file name of an older part. 1 is the youngest.
    pub(crate) fn older(self, number: u32) -> String {
        format!("{}.{number}", self.name())
    }
}

/// The number of older parts of a log that are kept.
pub(crate) const KEPT: u32 = 3;
