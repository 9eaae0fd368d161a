use thiserror::Error;

/// The name matches no device, or several.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoSuchDevice {
    /// No device has this name or UUID.
    #[error("no device is called \"{wanted}\"; there {}", there_are(known))]
    Unknown {
        /// The name from the command line.
        wanted: String,
        /// The names of all devices.
        known: Vec<String>,
    },
    /// Several devices match.
    #[error("\"{wanted}\" can mean {}", uuids.join(" and "))]
    Ambiguous {
        /// The name from the command line.
        wanted: String,
        /// The UUIDs of the devices that match.
        uuids: Vec<String>,
    },
}

impl NoSuchDevice {
    /// Returns the only match for a word of the command line. Each match has a UUID; `known` returns the names of all
    /// devices.
    pub(super) fn pick<T>(
        wanted: &str,
        mut matches: Vec<(T, &str)>,
        known: impl FnOnce() -> Vec<String>,
    ) -> Result<T, Self> {
        let wanted = wanted.to_owned();
        match matches.len() {
            1 => Ok(matches.remove(0).0),
            0 => Err(Self::Unknown {
                wanted,
                known: known(),
            }),
            _ => Err(Self::Ambiguous {
                wanted,
                uuids: matches.iter().map(|(_, uuid)| (*uuid).to_owned()).collect(),
            }),
        }
    }
}

fn there_are(known: &[String]) -> String {
    if known.is_empty() {
        return "is none".to_owned();
    }
    format!("are {}", known.join(", "))
}
