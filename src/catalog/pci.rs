use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

/// A PCI device or subsystem id as NVML gives it: `device << 16 | vendor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciId(u32);

/// An invalid PCI id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" is not a PCI id: expected one like \"0x20B210DE\", the device's id before the vendor's"
)]
pub struct PciIdError(String);

impl FromStr for PciId {
    type Err = PciIdError;

    fn from_str(text: &str) -> Result<Self, PciIdError> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let plain = |digits: &&str| {
            (1..=8).contains(&digits.len()) && digits.chars().all(|c| c.is_ascii_hexdigit())
        };
        let id = digits
            .filter(plain)
            .and_then(|d| u32::from_str_radix(d, 16).ok());
        id.map(Self).ok_or_else(|| PciIdError(text.to_owned()))
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08X}", self.0)
    }
}

impl<'de> Deserialize<'de> for PciId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Which of a model's product names goes with which ids.
#[derive(Debug, Deserialize)]
pub(super) struct Board {
    pub(super) product: String,
    pub(super) device: PciId,
    #[serde(default)]
    pub(super) subsystems: Vec<PciId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_id_is_refused() {
        for wrong in ["", "0x", "20B210DE", "0x20B210DE0", "0x20B2:10DE", "0x+1"] {
            assert!(wrong.parse::<PciId>().is_err(), "{wrong}");
        }
        assert_eq!(
            "0x20b210de".parse::<PciId>().unwrap().to_string(),
            "0x20B210DE"
        );
    }
}
