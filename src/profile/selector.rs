use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};
use toml::Spanned;

use super::check::Check;
use super::diagnostic::ProfileError;
use super::schema::SelectTable;

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
    /// True if it selects the GPU with these properties.
    pub fn selects(&self, index: u32, uuid: &str, product: &str, pci: &str) -> bool {
        match self {
            Self::All => true,
            Self::Index(indices) => indices.contains(&index),
            Self::Product(regex) => regex.is_match(product),
            Self::Uuid(prefix) => uuid.starts_with(prefix.as_str()),
            Self::Pci(address) => PciAddress::parse(pci) == Some(*address),
        }
    }

    /// True if it can select a GPU of that product, whatever its index, UUID and PCI address are.
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

    /// True if it means certain GPUs, so that finding none is a mistake; a product's name or `all`
    /// may well select nothing on one node of a fleet.
    pub fn names_a_gpu(&self) -> bool {
        matches!(self, Self::Index(_) | Self::Uuid(_) | Self::Pci(_))
    }

    /// True if it means one GPU, so that finding several is a mistake.
    pub fn names_one_gpu(&self) -> bool {
        matches!(self, Self::Uuid(_))
    }

    /// True if no GPU can be left for `self` after the blocks before it have taken theirs.
    pub(super) fn is_shadowed_by<'a>(
        &self,
        mut earlier: impl Iterator<Item = &'a Self> + Clone,
    ) -> bool {
        if let Self::Index(indices) = self {
            let taken: BTreeSet<u32> = earlier.clone().flat_map(Self::indices).collect();
            if indices.iter().all(|index| taken.contains(index)) {
                return true;
            }
        }
        earlier.any(|other| match (other, self) {
            (Self::All, _) => true,
            (Self::Uuid(taken), Self::Uuid(prefix)) => prefix.starts_with(taken),
            (Self::Pci(taken), Self::Pci(address)) => taken == address,
            (Self::Product(taken), Self::Product(regex)) => taken.as_str() == regex.as_str(),
            _ => false,
        })
    }
}

/// The longest regular expression for a product, and how large a compiled one may be, in bytes: matching takes memory
/// for each of its groups in each of its states.
const LONGEST_PRODUCT: usize = 256;
const LARGEST_REGEX: usize = 1 << 20;

impl Check<'_> {
    /// Checks the selector of a block.
    pub(super) fn selector(&self, select: Spanned<SelectTable>) -> Result<Selector, ProfileError> {
        let span = select.span();
        let mut found = Vec::new();
        let select = select.into_inner();
        if let Some(index) = select.index {
            if index.is_empty() {
                return Err(self.error(span, "index = [] selects nothing"));
            }
            found.push(Selector::Index(index));
        }
        if let Some(product) = select.product {
            found.push(Selector::Product(self.product(&product)?));
        }
        if let Some(uuid) = select.uuid {
            if !uuid.get_ref().starts_with("GPU-") {
                return Err(self.error(uuid.span(), "a GPU's UUID begins with \"GPU-\""));
            }
            found.push(Selector::Uuid(uuid.into_inner()));
        }
        if let Some(pci) = select.pci {
            let message = "not a PCI address: expected one like \"0000:17:00.0\"";
            let address = PciAddress::parse(pci.get_ref());
            found.push(Selector::Pci(
                address.ok_or_else(|| self.error(pci.span(), message))?,
            ));
        }
        if let Some(all) = select.all {
            if !all.get_ref() {
                return Err(self.error(all.span(), "all = false selects nothing: leave it out"));
            }
            found.push(Selector::All);
        }
        let count = found.len();
        found.pop().filter(|_| count == 1).ok_or_else(|| {
            let form = "select takes exactly one of index, product, uuid, pci and all";
            self.error(span, format!("{form}; here are {count}"))
        })
    }

    fn product(&self, product: &Spanned<String>) -> Result<Regex, ProfileError> {
        let (span, product) = (product.span(), product.get_ref());
        if product.is_empty() {
            return Err(self
                .error(span, "an empty product name matches every GPU")
                .with_hint("write all = true for that"));
        }
        if product.len() > LONGEST_PRODUCT {
            let message = format!("a product is at most {LONGEST_PRODUCT} bytes long");
            return Err(self.error(span, message));
        }
        let regex = RegexBuilder::new(product).size_limit(LARGEST_REGEX).build();
        regex.map_err(|error| {
            let error = error.to_string();
            let why = error.lines().last().unwrap_or_default();
            self.error(span, format!("not a regular expression: {why}"))
        })
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
