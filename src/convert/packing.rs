//! MIG devices as mig-parted names them, and the GPU instances they lie in.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use crate::geometry::{ComputeName, ProfileName};
use crate::nvml::GpuInstanceReading;

/// A MIG device as mig-parted names it: `3g.40gb`, `1g.10gb+me`, or `1c.3g.40gb` for one that has part
/// of a GPU instance's SMs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MigDevice {
    /// The GPU instance profile.
    pub profile: ProfileName,
    /// The slices of its compute instance, if it does not have all.
    pub compute: Option<u32>,
}

impl FromStr for MigDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || {
            format!(
                "\"{text}\" is not a MIG device: expected one like \"3g.40gb\", \"1g.10gb+me\" or \"1c.3g.40gb\""
            )
        };
        let (compute, profile) = match text.split_once("c.") {
            Some((slices, profile)) => (Some(slices), profile),
            None => (None, text),
        };
        let profile: ProfileName = profile.parse().map_err(|_| wrong())?;
        if profile.is_short() {
            return Err(format!(
                "\"{text}\" does not say its memory, as mig-parted demands: \"3g.40gb\", not \"3g\""
            ));
        }
        if !has_one_list(text) {
            return Err(format!(
                "\"{text}\" is not as mig-parted writes attributes: once each, in one list behind one sign"
            ));
        }
        let number = |digits: &str| digits.parse().ok().filter(|&n: &u32| n > 0);
        let compute = compute
            .map(|digits| number(digits).ok_or_else(wrong))
            .transpose()?;
        if compute.is_some_and(|slices| slices > profile.slices()) {
            let error = "has more compute slices than its GPU instance";
            return Err(format!("\"{text}\" {error}"));
        }
        if compute.is_some_and(|slices| !ComputeName { slices }.fits(profile.slices())) {
            let error = "a GPU instance of that size offers no such compute instance";
            return Err(format!("\"{text}\": {error}"));
        }
        // `3c.3g.40gb` is `3g.40gb`.
        let compute = compute.filter(|slices| *slices < profile.slices());
        Ok(Self { profile, compute })
    }
}

/// True if a name has no attributes or one list in which each is once (`parseMigProfileAttributes` of go-nvlib).
fn has_one_list(name: &str) -> bool {
    let mut parts = name.split(['+', '-']).skip(1);
    let Some(list) = parts.next() else {
        return true;
    };
    let words: Vec<&str> = list.split(',').collect();
    let is_once = |(nth, word): (usize, &&str)| !word.is_empty() && !words[..nth].contains(word);
    parts.next().is_none() && words.iter().enumerate().all(is_once)
}

impl fmt::Display for MigDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.compute {
            Some(slices) => write!(f, "{slices}c.{}", self.profile),
            None => self.profile.fmt(f),
        }
    }
}

/// A GPU instance with the compute instances that share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackedInstance {
    pub profile: ProfileName,
    /// The slices of its compute instances, largest first; empty for the one that has all its SMs.
    pub compute: Vec<u32>,
}

impl PackedInstance {
    /// Its MIG devices, those with the most slices first.
    pub(super) fn devices(&self) -> Vec<MigDevice> {
        let device = |compute| MigDevice {
            profile: self.profile.clone(),
            compute,
        };
        if self.compute.is_empty() {
            return vec![device(None)];
        }
        let slices = self.compute.iter();
        slices.map(|&slices| device(Some(slices))).collect()
    }
}

/// The GPU instances that mig-parted makes for these MIG devices, largest first.
///
/// It goes through the devices from large to small and puts one into the GPU instance before it where
/// that is of the same profile and has slices left (`SetMigConfig`, `reuseGI`); where that does not
/// lead to a geometry that the GPU takes, it tries other orders. Putting each into the first instance
/// with room leads to the same without trying: it differs only where more than two `3g` would be
/// needed, which no GPU has.
pub fn pack(devices: &[MigDevice]) -> Vec<PackedInstance> {
    let mut sorted: Vec<&MigDevice> = devices.iter().collect();
    let slices = |device: &MigDevice| device.compute.unwrap_or(device.profile.slices());
    sorted.sort_by_key(|device| {
        let profile = &device.profile;
        let size = (Reverse(profile.slices()), Reverse(profile.gigabytes()));
        (size, profile.clone(), Reverse(slices(device)))
    });
    let mut instances: Vec<PackedInstance> = Vec::new();
    for device in sorted {
        let has_room = |instance: &&mut PackedInstance| {
            let used: u32 = instance.compute.iter().sum();
            let has_room = |wanted| used + wanted <= device.profile.slices();
            let is_shared = !instance.compute.is_empty();
            is_shared && instance.profile == device.profile && device.compute.is_some_and(has_room)
        };
        match instances.iter_mut().find(has_room) {
            Some(instance) => instance.compute.extend(device.compute),
            None => instances.push(PackedInstance {
                profile: device.profile.clone(),
                compute: device.compute.into_iter().collect(),
            }),
        }
    }
    instances
}

/// Returns the slices of the compute instances; none for a single one that has all SMs.
pub(super) fn compute_slices(instance: &GpuInstanceReading, all: u32) -> Vec<u32> {
    match instance.compute.as_slice() {
        [one] if one.multiprocessors >= all => Vec::new(),
        several => several.iter().map(|compute| compute.slices).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(devices: &str) -> String {
        let devices: Vec<MigDevice> = devices
            .split_whitespace()
            .map(|word| word.parse().unwrap())
            .collect();
        let show = |shared: &PackedInstance| format!("{}{:?}", shared.profile, shared.compute);
        pack(&devices)
            .iter()
            .map(show)
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn compute_profiles_share_gpu_instances_as_with_mig_parted() {
        assert_eq!(
            packed("1c.3g.40gb 1c.3g.40gb 1c.3g.40gb"),
            "3g.40gb[1, 1, 1]"
        );
        assert_eq!(
            packed("1c.3g.40gb 1c.3g.40gb 1c.3g.40gb 1c.3g.40gb"),
            "3g.40gb[1, 1, 1] 3g.40gb[1]"
        );
        assert_eq!(packed("1c.3g.40gb 2c.3g.40gb"), "3g.40gb[2, 1]");
        assert_eq!(packed("1c.3g.40gb 3g.40gb"), "3g.40gb[] 3g.40gb[1]");
        // Largest first, one after the other, would need three: mig-parted finds another order.
        assert_eq!(
            packed("2c.3g.40gb 2c.3g.40gb 1c.3g.40gb 1c.3g.40gb"),
            "3g.40gb[2, 1] 3g.40gb[2, 1]"
        );
        assert_eq!(
            packed("1g.10gb 1g.20gb 2g.20gb 1g.10gb+me 1c.2g.20gb"),
            "2g.20gb[] 2g.20gb[1] 1g.20gb[] 1g.10gb[] 1g.10gb+me[]"
        );
    }

    #[test]
    fn all_slices_are_the_plain_device() {
        let full: MigDevice = "3c.3g.40gb".parse().unwrap();
        assert_eq!(full.to_string(), "3g.40gb");
        for text in ["1c.3g.40gb", "1g.10gb+me", "1g.24gb+me.all", "2g.48gb-me"] {
            assert_eq!(text.parse::<MigDevice>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "3g",
            "c.3g.40gb",
            "0c.3g.40gb",
            "4c.3g.40gb",
            "1c.1c.3g.40gb",
            "1g.10gb+me,me",
            "1g.10gb+me+me",
            "1g.10gb+me,",
            "all",
        ] {
            assert!(wrong.parse::<MigDevice>().is_err(), "{wrong}");
        }
    }
}
