use thiserror::Error;

use crate::host::nearest;

/// The name matches no device, or several.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoSuchDevice {
    /// No device has this name or UUID.
    #[error(
        "no device is called \"{wanted}\"; there {}",
        there_are_devices(wanted, known)
    )]
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

/// The most names of a message.
const MOST: usize = 8;

/// All names, or how many there are and the nearest one.
fn there_are_devices(wanted: &str, known: &[String]) -> String {
    if known.len() <= MOST {
        return there_are(known);
    }
    let near = nearest(wanted, known.iter().map(String::as_str));
    let near = near.map(|near| format!(", of which {near} is the nearest name"));
    format!("are {} devices{}", known.len(), near.unwrap_or_default())
}

/// `0.0, 0.2 or 0.4`, and not more than a line of names.
fn list(names: &[String]) -> String {
    match names {
        [all @ .., last] if all.len() < MOST => format!("{} or {last}", all.join(", ")),
        _ => format!(
            "{} or {} others",
            names[..MOST].join(", "),
            names.len() - MOST
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_devices_the_nearest_is_named() {
        let unknown = |wanted: &str, count: usize| {
            let known = (0..count)
                .map(|number| format!("trainer-{number}"))
                .collect();
            let wanted = wanted.to_owned();
            NoSuchDevice::Unknown { wanted, known }.to_string()
        };
        assert_eq!(
            unknown("trainr-7", 56),
            "no device is called \"trainr-7\"; there are 56 devices, of which trainer-7 is the nearest name"
        );
        assert_eq!(
            unknown("x", 56),
            "no device is called \"x\"; there are 56 devices"
        );
        assert!(unknown("x", 2).ends_with("there are trainer-0, trainer-1"));
    }
}
