use regex::Regex;

/// Which GPUs a block selects.
#[derive(Clone, Debug)]
pub enum Selector {
    /// `all = true`
    All,
    /// `index = [0, 2]`: NVML's indices, in PCI order.
    Index(Vec<u32>),
    /// `product = "A100.*80GB"`: a regular expression that finds a match in NVML's product name.
    Product(Regex),
    /// `uuid = "GPU-5f1c"`: the unique beginning of a GPU's UUID.
    Uuid(String),
    /// `pci = "0000:17:00.0"`: a PCI address, the domain with 4 or 8 digits or left out.
    Pci(PciAddress),
}

/// A GPU's PCI address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciAddress {
    domain: u32,
    bus: u32,
    device: u32,
}

impl PciAddress {
    /// Reads `17:00.0`, `0000:17:00.0` or `00000000:17:00.0`; the function is always 0.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, function) = text.rsplit_once('.')?;
        let hex = |part: &str| u32::from_str_radix(part, 16).ok();
        let mut parts = address.rsplit(':');
        let device = hex(parts.next()?)?;
        let bus = hex(parts.next()?)?;
        let domain = parts.next().map_or(Some(0), hex)?;
        (function == "0" && parts.next().is_none()).then_some(Self {
            domain,
            bus,
            device,
        })
    }
}

impl Selector {
    /// Whether it selects the GPU with these properties.
    pub fn selects(&self, index: u32, uuid: &str, product: &str, pci: &str) -> bool {
        match self {
            Self::All => true,
            Self::Index(indices) => indices.contains(&index),
            Self::Product(regex) => regex.is_match(product),
            Self::Uuid(prefix) => uuid.starts_with(prefix.as_str()),
            Self::Pci(address) => PciAddress::parse(pci) == Some(*address),
        }
    }

    /// Whether it can select a GPU of that product, whatever its index, UUID and PCI address are.
    pub fn may_select(&self, product: &str) -> bool {
        match self {
            Self::Product(regex) => regex.is_match(product),
            Self::All | Self::Index(_) | Self::Uuid(_) | Self::Pci(_) => true,
        }
    }

    /// The indices it names.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        let indices = match self {
            Self::Index(indices) => indices.as_slice(),
            _ => &[],
        };
        indices.iter().copied()
    }

    /// Whether it means certain GPUs, so that finding none is a mistake; a product's name or `all`
    /// may well select nothing on one node of a fleet.
    pub fn names_a_gpu(&self) -> bool {
        matches!(self, Self::Index(_) | Self::Uuid(_) | Self::Pci(_))
    }

    /// Whether it means one GPU, so that finding several is a mistake.
    pub fn names_one_gpu(&self) -> bool {
        matches!(self, Self::Uuid(_))
    }

    /// Whether no GPU can be left for `self` after the blocks before it have taken theirs.
    pub(super) fn is_shadowed_by(&self, earlier: &[&Self]) -> bool {
        let all = earlier.iter().any(|other| matches!(other, Self::All));
        all || match self {
            Self::Index(indices) => indices.iter().all(|index| {
                earlier
                    .iter()
                    .any(|other| matches!(other, Self::Index(taken) if taken.contains(index)))
            }),
            Self::Uuid(prefix) => earlier.iter().any(
                |other| matches!(other, Self::Uuid(taken) if prefix.starts_with(taken.as_str())),
            ),
            Self::Pci(address) => earlier
                .iter()
                .any(|other| matches!(other, Self::Pci(taken) if taken == address)),
            Self::Product(regex) => earlier.iter().any(
                |other| matches!(other, Self::Product(taken) if taken.as_str() == regex.as_str()),
            ),
            Self::All => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pci_address_is_the_same_in_every_spelling() {
        let long = PciAddress::parse("00000000:17:00.0");
        assert!(long.is_some());
        assert_eq!(PciAddress::parse("0000:17:00.0"), long);
        assert_eq!(PciAddress::parse("17:00.0"), long);
        assert_ne!(PciAddress::parse("0001:17:00.0"), long);
        for wrong in ["", "17", "17:00", "17:00.1", "1:2:3:4.0", "xx:00.0"] {
            assert_eq!(PciAddress::parse(wrong), None, "{wrong}");
        }
    }
}
