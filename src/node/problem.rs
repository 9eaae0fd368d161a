use std::fmt;

use super::served::Served;

/// A problem or a remark, with its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The device's name; `None` if it concerns the node.
    pub device: Option<String>,
    /// The description.
    pub what: String,
    /// True if a table of `status` shows it already.
    pub is_listed: bool,
}

/// `0.2: its daemon has died: …`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.device {
            Some(device) => write!(f, "{device}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Problem {
    pub(super) fn of(served: &Served, what: String) -> Self {
        Self {
            device: Some(served.record.name.clone()),
            what,
            is_listed: false,
        }
    }

    pub(super) fn of_node(what: String) -> Self {
        Self {
            device: None,
            what,
            is_listed: false,
        }
    }
}
