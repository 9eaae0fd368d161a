use thiserror::Error;

use crate::host::{nearest, ranges};

/// The name matches no device, or several.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NoSuchDevice {
    /// No device has this name or UUID.
    #[error("no device is called \"{wanted}\"{}", if known.is_empty() { ": this node has no devices" } else { "" })]
    Unknown {
        /// The name from the command line.
        wanted: String,
        /// The names of all devices.
        known: Vec<String>,
    },
    /// No record has this name or UUID, and nobody has looked for devices without one.
    #[error("no daemon serves \"{wanted}\"{}", seen(unread.as_deref()))]
    NotServed {
        wanted: String,
        /// The names of the devices with a record.
        known: Vec<String>,
        /// The reason why a record cannot be read.
        unread: Option<String>,
    },
    /// No record is of a device of this GPU, and nobody has looked for GPUs.
    #[error("no daemon serves a device of GPU {index}{}", seen(unread.as_deref()))]
    NoneServedOn {
        index: u32,
        /// The indices of the GPUs in records.
        gpus: Vec<u32>,
        /// The reason why a record cannot be read.
        unread: Option<String>,
    },
    /// There is no GPU with this index, or it has no device.
    #[error("{}", no_device_on(*index, gpus))]
    OfGpu {
        index: u32,
        /// The indices of all GPUs.
        gpus: Vec<u32>,
    },
    /// The GPU is lost or cannot be read, with the driver's error.
    #[error("{0}")]
    Lost(String),
    /// Several devices match.
    #[error("\"{wanted}\" can mean {}", list(known))]
    Ambiguous {
        /// The name from the command line.
        wanted: String,
        /// The names of the devices that match, or their UUIDs.
        known: Vec<String>,
    },
}

impl NoSuchDevice {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Unknown { known, .. } if known.is_empty() => {
                "mig-mps up PROFILE makes devices; mig-mps doctor finds out why one is not seen"
                    .to_owned()
            }
            Self::Unknown { wanted, known } => devices(wanted, known, "device"),
            Self::NotServed {
                unread: Some(_), ..
            }
            | Self::NoneServedOn {
                unread: Some(_), ..
            } => "mig-mps doctor checks directories and records".to_owned(),
            Self::NotServed { known, .. } if known.is_empty() => NO_DAEMON.to_owned(),
            Self::NotServed { wanted, known, .. } => {
                let served = devices(wanted, known, "device with a daemon");
                format!("{served}; mig-mps list shows all devices")
            }
            Self::NoneServedOn { gpus, .. } if gpus.is_empty() => NO_DAEMON.to_owned(),
            Self::NoneServedOn { gpus, .. } => format!(
                "GPU {} has daemons; mig-mps list shows all devices",
                ranges(gpus)
            ),
            Self::OfGpu { index, gpus } if gpus.contains(index) => {
                "mig-mps status shows the devices".to_owned()
            }
            Self::OfGpu { gpus, .. } => match gpus.as_slice() {
                [] => "mig-mps doctor finds out why there is no GPU".to_owned(),
                [only] => format!("the only GPU is {only}"),
                _ => format!("the GPUs are {}", ranges(gpus)),
            },
            Self::Lost(_) => lost_hint(),
            Self::Ambiguous { wanted, .. } if is_index(wanted) => format!(
                "name one device; a command that takes several has --gpu {wanted} for all of GPU {wanted}"
            ),
            Self::Ambiguous { wanted, .. } => {
                format!("name one device; a command that takes several also takes '{wanted}*'")
            }
        }
    }
}

/// The remedy for a lost GPU.
pub(super) const LOST: &str = "`dmesg | grep NVRM` may say why; reset the GPU or reboot";

/// Returns that remedy as a hint.
pub fn lost_hint() -> String {
    LOST.replace('`', "")
}

/// ` that can be seen: …`, or nothing if every record was read.
fn seen(unread: Option<&str>) -> String {
    unread.map_or_else(String::new, |why| format!(" that can be seen: {why}"))
}

fn is_index(word: &str) -> bool {
    word.parse::<u32>().is_ok()
}

/// The remedy where no device has a daemon.
const NO_DAEMON: &str =
    "no device has a daemon: mig-mps up PROFILE starts daemons; mig-mps list shows the devices";

/// The most names of a message.
const MOST: usize = 8;

/// Names the devices, or the nearest of many.
fn devices(wanted: &str, known: &[String], kind: &str) -> String {
    let index = wanted.to_ascii_lowercase();
    let index = index.strip_prefix("gpu").filter(|index| is_index(index));
    if let Some(index) = index {
        return format!("--gpu {index} takes every device of GPU {index}");
    }
    if wanted.contains(',') {
        return format!("separate devices by blanks: {}", wanted.replace(',', " "));
    }
    let near = nearest(wanted, known.iter().map(String::as_str));
    let near = near.filter(|near| known.len() > MOST || near.contains(char::is_alphabetic));
    let near = near.map(|near| format!("did you mean \"{near}\"? "));
    let all = match known {
        [only] => format!("the only {kind} is {only}"),
        _ if known.len() <= MOST => {
            let kinds = kind.replacen("device", "devices", 1);
            format!("the {kinds} are {}", known.join(", "))
        }
        _ => format!("mig-mps status lists the {} devices", known.len()),
    };
    near.unwrap_or_default() + &all
}

fn no_device_on(index: u32, gpus: &[u32]) -> String {
    if gpus.contains(&index) {
        return format!("GPU {index} has no device");
    }
    format!("there is no GPU {index}")
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

    fn unknown(wanted: &str, known: Vec<String>) -> String {
        let wanted = wanted.to_owned();
        NoSuchDevice::Unknown { wanted, known }.hint()
    }

    #[test]
    fn of_many_devices_the_nearest_is_named() {
        let trainers = |count: usize| (0..count).map(|n| format!("trainer-{n}")).collect();
        assert_eq!(
            unknown("trainr-7", trainers(56)),
            "did you mean \"trainer-7\"? mig-mps status lists the 56 devices"
        );
        assert_eq!(
            unknown("x", trainers(56)),
            "mig-mps status lists the 56 devices"
        );
        assert_eq!(
            unknown("x", trainers(2)),
            "the devices are trainer-0, trainer-1"
        );
        let numbered = vec!["0.0".to_owned(), "0.2".to_owned()];
        assert_eq!(unknown("0.1", numbered), "the devices are 0.0, 0.2");
    }

    #[test]
    fn the_gpus_are_named() {
        let of = |gpus: &[u32]| {
            let gpus = gpus.to_vec();
            NoSuchDevice::OfGpu { index: 9, gpus }.hint()
        };
        assert_eq!(of(&[0, 1, 2, 3, 6]), "the GPUs are 0-3,6");
        assert_eq!(of(&[0]), "the only GPU is 0");
        assert_eq!(of(&[9]), "mig-mps status shows the devices");
    }

    #[test]
    fn an_index_means_the_option() {
        let hint = |wanted: &str| {
            let known = vec!["0.0".to_owned(), "0.2".to_owned()];
            let wanted = wanted.to_owned();
            NoSuchDevice::Ambiguous { wanted, known }.hint()
        };
        assert!(hint("0").contains("--gpu 0"));
        assert!(hint("infer").contains("'infer*'"));
    }
}
