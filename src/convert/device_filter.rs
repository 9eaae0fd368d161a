//! The words of mig-parted's `device-filter`.

use std::fmt;

use crate::catalog::{PciId, products_of};

/// A word of `device-filter`: `0x20B210DE`, `0x20B210DE:0x147F10DE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceFilter {
    text: String,
    /// The device id, and the subsystem id if there is one; `None` for other words, by which mig-parted selects no GPU.
    ids: Option<(PciId, Option<PciId>)>,
}

impl DeviceFilter {
    pub(super) fn new(text: String) -> Self {
        let (device, subsystem) = match text.split_once(':') {
            Some((device, subsystem)) => (device, Some(subsystem)),
            None => (text.as_str(), None),
        };
        let ids = match (number(device), subsystem.map(number)) {
            (Some(device), None) => Some((device, None)),
            (Some(device), Some(Some(subsystem))) => Some((device, Some(subsystem))),
            _ => None,
        };
        Self { text, ids }
    }

    /// The product names of its GPUs, as far as the catalog knows them.
    pub(super) fn products(&self) -> Vec<&'static str> {
        let products = |(device, subsystem)| products_of(device, subsystem);
        self.ids.map(products).unwrap_or_default()
    }

    pub(super) fn is_id(&self) -> bool {
        self.ids.is_some()
    }

    pub(super) fn has_subsystem(&self) -> bool {
        self.ids.is_some_and(|(_, subsystem)| subsystem.is_some())
    }
}

/// A PCI id in hexadecimal or decimal digits (`NewDeviceIDFromString`).
fn number(text: &str) -> Option<PciId> {
    let is_decimal = !text.starts_with('0') && text.bytes().all(|byte| byte.is_ascii_digit());
    let decimal = || text.parse::<u32>().ok().filter(|_| is_decimal);
    text.parse().ok().or_else(|| decimal().map(PciId::from))
}

impl fmt::Display for DeviceFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ids {
            Some((device, Some(subsystem))) => write!(f, "{device}:{subsystem}"),
            Some((device, None)) => device.fmt(f),
            None => write!(f, "{:?}", self.text),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal_or_decimal_and_other_words_select_nothing() {
        let shown = |text: &str| DeviceFilter::new(text.to_owned()).to_string();
        assert_eq!(shown("548540638"), "0x20B210DE");
        assert_eq!(shown("0X20b210de:343871710"), "0x20B210DE:0x147F10DE");
        for word in [
            "A100",
            "",
            "-1",
            "+1",
            "0x20B210DE:x",
            "4294967296",
            "1:2:3",
        ] {
            assert!(!DeviceFilter::new(word.to_owned()).is_id(), "{word}");
        }
    }
}
