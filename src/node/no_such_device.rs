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
    /// There is no GPU with this index, or it has no device.
    #[error("{}", no_device_on(*index, gpus))]
    OfGpu {
        index: u32,
        /// The indices of all GPUs.
        gpus: Vec<u32>,
    },
    /// Several devices match.
    #[error("\"{wanted}\" can mean {}", list(known))]
    Ambiguous {
        /// The name from the command line.
        wanted: String,
        /// The names of the devices that match, or their UUIDs.
        known: Vec<String>,
    },
}

fn no_device_on(index: u32, gpus: &[u32]) -> String {
    if gpus.contains(&index) {
        return format!("GPU {index} has no device");
    }
    let gpus: Vec<String> = gpus.iter().map(u32::to_string).collect();
    format!("there is no GPU {index}; there {}", there_are(&gpus))
}

fn there_are(known: &[String]) -> String {
    if known.is_empty() {
        return "is none".to_owned();
    }
    format!("are {}", known.join(", "))
}

/// `0.0, 0.2 or 0.4`, and not more than a line of names.
fn list(names: &[String]) -> String {
    const MOST: usize = 8;
    match names {
        [all @ .., last] if all.len() < MOST => format!("{} or {last}", all.join(", ")),
        _ => format!(
            "{} or {} others",
            names[..MOST].join(", "),
            names.len() - MOST
        ),
    }
}
