use std::path::PathBuf;

/// Logged over and over by a daemon that may open no more files.
pub(super) const CANNOT_ACCEPT: &str = "Unable to accept connection";

/// A log that its daemon writes without pause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogGrowth {
    /// The log.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// Bytes that are added each second.
    pub per_second: u64,
    /// The line that the daemon repeats.
    pub text: String,
}

impl LogGrowth {
    /// True if its daemon accepts no clients.
    pub fn accepts_nobody(&self) -> bool {
        self.text == CANNOT_ACCEPT
    }
}
