use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

/// A PCI device or subsystem id as NVML gives it: `device << 16 | vendor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciId(u32);

impl From<u32> for PciId {
    fn from(id: u32) -> Self {
        Self(id)
    }
}

impl FromStr for PciId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
        let plain =
            |digits: &&str| digits.len() <= 8 && digits.chars().all(|c| c.is_ascii_hexdigit());
        let digits = digits.filter(plain);
        let id = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        id.map(Self).ok_or_else(|| {
            format!("\"{text}\" is not a PCI id: expected one like \"0x20B210DE\", the device's id before the vendor's")
        })
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
