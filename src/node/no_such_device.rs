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

fn there_are(known: &[String]) -> String {
    if known.is_empty() {
        return "is none".to_owned();
    }
    format!("are {}", known.join(", "))
}
