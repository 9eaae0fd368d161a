use std::collections::BTreeSet;

use regex::{Regex, RegexBuilder};

use super::diagnostic::Span;
use super::read::{Noted, ProfileCheck};
use super::schema::{At, SelectTable};

/// Which GPUs a block selects: those for which all of its keys hold. Without a key (`all = true`) every GPU.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// `index = [0, 2]`: NVML's indices, in PCI order.
    pub index: Option<Vec<u32>>,
    /// `product = "A100.*80GB"`: a regular expression that finds a match in NVML's product name.
    pub product: Option<Regex>,
    /// `uuid = "GPU-5f1c"`: the unique beginning of a GPU's UUID.
    uuid: Option<String>,
    /// `pci = "0000:17:00.0"`: a PCI address, the domain with 4 or 8 digits or left out.
    pci: Option<PciAddress>,
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
        let mut parts = address.rsplit(':');
        let device = parse_hex(parts.next()?)?;
        let bus = parse_hex(parts.next()?)?;
        let domain = parts.next().map_or(Some(0), parse_hex)?;
        (function == "0" && parts.next().is_none()).then_some(Self {
            domain,
            bus,
            device,
        })
    }
}

fn parse_hex(digits: &str) -> Option<u32> {
    // A sign would count as a part of the number.
    let is_hex = digits.chars().all(|digit| digit.is_ascii_hexdigit());
    if is_hex {
        u32::from_str_radix(digits, 16).ok()
    } else {
        None
    }
}

impl Selector {
    /// The selector of these indices.
    pub fn from_indices(index: Vec<u32>) -> Self {
        Self {
            index: Some(index),
            ..Self::default()
        }
    }

    /// True if it selects the GPU with these properties.
    pub fn selects_gpu(&self, index: u32, uuid: &str, product: &str, pci: &str) -> bool {
        let has_index = self.index.as_ref().is_none_or(|own| own.contains(&index));
        let has_uuid = self.uuid.as_ref().is_none_or(|own| uuid.starts_with(own));
        let has_address = self.pci.is_none() || self.pci == PciAddress::parse(pci);
        has_index && has_uuid && has_address && self.may_select(product)
    }

    /// True if it can select a GPU of that product, whatever its index, UUID and PCI address are.
    pub fn may_select(&self, product: &str) -> bool {
        self.product
            .as_ref()
            .is_none_or(|regex| regex.is_match(product))
    }

    /// True if it selects every GPU of that product.
    pub fn selects_all(&self, product: &str) -> bool {
        self.index.is_none() && !self.names_a_real_gpu() && self.may_select(product)
    }

    /// The indices it names.
    pub fn indices(&self) -> impl Iterator<Item = u32> {
        self.index.iter().flatten().copied()
    }

    /// True if it means certain GPUs, so that finding none is a mistake; one with a product may well select nothing on
    /// one node of a fleet.
    pub fn names_a_gpu(&self) -> bool {
        self.product.is_none() && (self.index.is_some() || self.names_a_real_gpu())
    }

    /// True if it goes by a UUID or PCI address, which only a real GPU has.
    pub fn names_a_real_gpu(&self) -> bool {
        self.uuid.is_some() || self.pci.is_some()
    }

    /// True if it means one GPU, so that finding several is a mistake.
    pub fn names_one_gpu(&self) -> bool {
        self.uuid.is_some()
    }

    /// True if no GPU can be left for `self` after the blocks before it have taken theirs.
    pub(super) fn is_shadowed_by<'a>(
        &self,
        mut earlier: impl Iterator<Item = &'a Self> + Clone,
    ) -> bool {
        let taken: BTreeSet<u32> = earlier
            .clone()
            .filter(|other| other.product.is_none() && !other.names_a_real_gpu())
            .flat_map(Self::indices)
            .collect();
        let has_indices = self.index.is_some();
        (has_indices && self.indices().all(|index| taken.contains(&index)))
            || earlier.any(|other| other.covers(self))
    }

    /// True if each key of `self` holds for every GPU that `other` selects.
    fn covers(&self, other: &Self) -> bool {
        let index = is_implied(self.index.as_ref(), other.index.as_ref(), |own, others| {
            others.iter().all(|index| own.contains(index))
        });
        let (own, others) = (self.product.as_ref(), other.product.as_ref());
        let product = is_implied(own.map(Regex::as_str), others.map(Regex::as_str), str::eq);
        let uuid = is_implied(self.uuid.as_ref(), other.uuid.as_ref(), |own, others| {
            others.starts_with(own)
        });
        index && product && uuid && is_implied(self.pci, other.pci, |own, others| own == others)
    }
}

/// True if the key is missing, or follows from the other selector's.
fn is_implied<T>(key: Option<T>, other: Option<T>, follows: impl Fn(T, T) -> bool) -> bool {
    match (key, other) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(key), Some(other)) => follows(key, other),
    }
}

/// The longest regular expression for a product, and how large a compiled one may be, in bytes: matching takes memory
/// for each of its groups in each of its states.
const MAX_PRODUCT_BYTES: usize = 256;
const MAX_REGEX_BYTES: usize = 1 << 20;

impl ProfileCheck<'_> {
    /// Checks the selector of a block.
    pub(super) fn check_selector(
        &self,
        (select, at): At<SelectTable<'_>>,
    ) -> Result<Selector, Noted> {
        let regex = select.product.and_then(|product| {
            product
                .map(|(product, span)| self.check_product(product, span))
                .transpose()
        });
        let index = select.index?.map(|(index, _)| index);
        let (product, uuid, pci) = (regex?, select.uuid?, select.pci?);
        let has_keys = index.is_some() || product.is_some() || uuid.is_some() || pci.is_some();
        match select.all? {
            Some((false, span)) => {
                return self.refuse(span, "all = false selects nothing; remove it");
            }
            Some((true, span)) if has_keys => {
                let message = "all = true selects every GPU; remove it, or the other keys";
                return self.refuse(span, message);
            }
            None if !has_keys => {
                let form = "select needs at least one of index, product, uuid, pci and all";
                return self.refuse(at, form);
            }
            Some((true, _)) | None => {}
        }
        if index.as_ref().is_some_and(Vec::is_empty) {
            let message = "index = [] selects nothing: write GPU indices, or all = true";
            return self.refuse(at, message);
        }
        if let Some((uuid, span)) = uuid
            && !uuid.starts_with("GPU-")
        {
            return self.refuse(span, "a GPU's UUID begins with \"GPU-\"");
        }
        let pci = pci
            .map(|(pci, span)| match PciAddress::parse(pci) {
                Some(address) => Ok(address),
                None => self.refuse(
                    span,
                    "not a PCI address: expected one like \"0000:17:00.0\"",
                ),
            })
            .transpose()?;
        Ok(Selector {
            index: index.map(|index| index.into_iter().map(|(index, _)| index).collect()),
            product,
            uuid: uuid.map(|(uuid, _)| uuid.to_owned()),
            pci,
        })
    }

    fn check_product(&self, product: &str, span: Span) -> Result<Regex, Noted> {
        if product.is_empty() {
            let error = self.error_at(span, "an empty product name matches every GPU");
            return Err(self.note(error.with_hint("use all = true for every GPU")));
        }
        if product.len() > MAX_PRODUCT_BYTES {
            let message = format!("a product is at most {MAX_PRODUCT_BYTES} bytes long");
            return self.refuse(span, message);
        }
        let regex = RegexBuilder::new(product)
            .size_limit(MAX_REGEX_BYTES)
            .build();
        regex.or_else(|error| {
            let text = error.to_string();
            let last = text.lines().last().unwrap_or_default();
            let why = last.trim_start_matches("error: ");
            self.refuse(span, format!("not a regular expression: {why}"))
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
        for wrong in [
            "",
            "17",
            "17:00",
            "17:00.1",
            "1:2:3:4.0",
            "xx:00.0",
            "+17:00.0",
        ] {
            assert_eq!(PciAddress::parse(wrong), None, "{wrong}");
        }
    }
}
