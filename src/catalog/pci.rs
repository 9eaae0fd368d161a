use std::fmt;
use std::str::FromStr;

use serde::Deserialize;
use thiserror::Error;

use super::{incomplete, models};

/// A PCI device or subsystem id as NVML gives it: `device << 16 | vendor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciId(u32);

/// Why a text is no PCI id.
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
    product: String,
    device: PciId,
    #[serde(default)]
    subsystems: Vec<PciId>,
}

/// NVML's names for the boards with that device id, and that subsystem id where one is given.
///
/// More names than one where several boards have the id, or where nobody has published which name
/// of its model it goes with. None where the catalog does not know the id.
pub fn products_of(device: PciId, subsystem: Option<PciId>) -> Vec<&'static str> {
    let mut products = Vec::new();
    for model in models()
        .iter()
        .filter(|m| m.pci_device_ids.contains(&device))
    {
        let of_device = |board: &&Board| board.device == device;
        let fits = |board: &&Board| {
            let known = subsystem.filter(|_| !board.subsystems.is_empty());
            known.is_none_or(|id| board.subsystems.contains(&id))
        };
        if model.boards.iter().any(|board| of_device(&board)) {
            let boards = model.boards.iter().filter(of_device).filter(fits);
            products.extend(boards.map(|board| board.product.as_str()));
        } else {
            products.extend(model.product_names.iter().map(String::as_str));
        }
    }
    for model in incomplete()
        .iter()
        .filter(|m| m.pci_device_ids.contains(&device))
    {
        let known = subsystem.filter(|_| !model.pci_subsystems.is_empty());
        if known.is_none_or(|id| model.pci_subsystems.contains(&id)) {
            products.extend(model.product_names.iter().map(String::as_str));
        }
    }
    products.sort_unstable();
    products.dedup();
    products
}

#[cfg(test)]
mod tests {
    use super::*;

    fn products(device: &str, subsystem: Option<&str>) -> Vec<&'static str> {
        products_of(
            device.parse().unwrap(),
            subsystem.map(|id| id.parse().unwrap()),
        )
    }

    #[test]
    fn an_id_means_its_boards_and_no_others_of_the_model() {
        assert_eq!(products("0x20B510DE", None), ["NVIDIA A100 80GB PCIe"]);
        assert_eq!(
            products("0x20b210de", None),
            ["NVIDIA A100-SXM4-80GB", "NVIDIA PG509-210"]
        );
        let sxm = products("0x20B210DE", Some("0x147F10DE"));
        assert_eq!(sxm, ["NVIDIA A100-SXM4-80GB"]);
        assert_eq!(products("0x20B210DE", Some("0x999910DE")), [""; 0]);
        assert_eq!(products("0x233510DE", None), ["NVIDIA H200"]);
        assert_eq!(products("0x1EB810DE", None), [""; 0]);
    }

    #[test]
    fn boards_have_names_and_ids_of_their_model() {
        for model in models() {
            for board in &model.boards {
                let product = &board.product;
                assert!(model.product_names.contains(product), "{product}");
                assert!(model.pci_device_ids.contains(&board.device), "{product}");
            }
        }
    }

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
