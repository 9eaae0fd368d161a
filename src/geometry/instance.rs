//! GPU instances and compute instances: their ids, placements and profiles.

use std::cmp::Reverse;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};

use super::ProfileName;

/// Where a GPU instance lies, in the GPU's own placement units (8 on A100 and H100, 4 on A30, 12 on
/// RTX PRO 6000).
///
/// The size is not the slice count: `3g` has size 4 and `7g` size 8 on a GPU with 8 units
/// (`nvmlDeviceGetGpuInstancePossiblePlacements_v2`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct Placement {
    /// The first unit.
    pub start: u32,
    /// The number of units.
    pub size: u32,
}

impl Placement {
    /// The placement of `size` units from `start` on.
    pub fn new(start: u32, size: u32) -> Self {
        Self { start, size }
    }

    /// The first unit behind it.
    pub fn end(self) -> u32 {
        self.start.saturating_add(self.size)
    }

    /// Its units: `4`, `4-5`.
    pub fn format_range(self) -> String {
        match self.size {
            0 | 1 => self.start.to_string(),
            _ => format!("{}-{}", self.start, self.end() - 1),
        }
    }

    /// True if both occupy a common unit.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// `slice 4`, `slices 4-5`
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.size == 1 { "slice" } else { "slices" };
        write!(f, "{noun} {}", self.format_range())
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
            JsonSchema,
        )]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// The argument of `nvmlDeviceGetGpuInstanceProfileInfo` (`NVML_GPU_INSTANCE_PROFILE_*`).
    ProfileEnum
}
number! {
    /// A GPU instance profile's id: what every call but the profile query wants, and what
    /// `nvidia-smi mig -lgip` prints. The same id can mean another size on another model.
    ProfileId
}
number! {
    /// A compute instance profile's id, valid within its GPU instance profile.
    ComputeProfileId
}
number! {
    /// A GPU instance's id, chosen by the driver. It does not tell the placement.
    GpuInstanceId
}
number! {
    /// A compute instance's id, counted within its GPU instance.
    ComputeInstanceId
}

/// Which compute instance is to be made in a GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ComputeChoice {
    /// The one that has all the SMs.
    Full,
    /// One of so many slices.
    Slices {
        /// Compute slices.
        count: u32,
        /// The first slice; `None` if the driver chooses, in an empty GPU instance.
        at: Option<u32>,
    },
    /// One as it was.
    Exactly {
        profile: ComputeProfileId,
        /// Where it lay, in compute slices.
        placement: Placement,
    },
}

impl ComputeChoice {
    /// The profile to make it of, and its place where that is not left to the driver; `None` where
    /// nothing of what is offered will do.
    ///
    /// The full one is found by its SM count, not its slice number: the double-memory `1g` profile
    /// offers two of one slice, and the one with the slice's number loses up to 40 % of the SMs.
    pub fn choose_profile(
        self,
        offered: &[ComputeInstanceProfile],
    ) -> Option<(&ComputeInstanceProfile, Option<Placement>)> {
        let chosen = match self {
            Self::Full => offered
                .iter()
                .max_by_key(|profile| (profile.multiprocessors, Reverse(profile.id))),
            // The plain one has the lowest id.
            Self::Slices { count, .. } => offered
                .iter()
                .filter(|profile| profile.slices == count)
                .min_by_key(|profile| profile.id),
            Self::Exactly { profile, .. } => offered.iter().find(|offer| offer.id == profile),
        }?;
        let place = match self {
            Self::Exactly { placement, .. } => Some(placement),
            Self::Slices { at: Some(at), .. } => chosen
                .placements
                .iter()
                .find(|place| place.start == at)
                .copied(),
            _ => None,
        };
        Some((chosen, place))
    }
}

/// One compute instance profile that a GPU instance offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComputeInstanceProfile {
    /// The number by which other calls name it.
    pub id: ComputeProfileId,
    /// Compute slices.
    pub slices: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// The number that fits into the GPU instance, by the driver.
    pub most: u32,
    /// Every place it may take, in compute slices; empty where the driver does not tell.
    pub placements: Vec<Placement>,
}

/// The engines of a GPU instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Engines {
    /// Copy engines.
    #[serde(rename = "copy_engines")]
    pub copy: u32,
    /// Video decoders (NVDEC).
    pub video_decoders: u32,
    /// Video encoders (NVENC).
    pub video_encoders: u32,
    /// JPEG decoders (NVJPG).
    pub jpeg_decoders: u32,
    /// Optical flow accelerators (OFA).
    pub optical_flow_accelerators: u32,
}

/// `copy 1, NVDEC 2, NVENC 0, NVJPG 1, OFA 0`
impl fmt::Display for Engines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "copy {}, NVDEC {}, NVENC {}, NVJPG {}, OFA {}",
            self.copy,
            self.video_decoders,
            self.video_encoders,
            self.jpeg_decoders,
            self.optical_flow_accelerators
        )
    }
}

/// A GPU instance profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct GpuInstanceProfile {
    /// The name, such as `3g.40gb`.
    #[serde(rename = "profile")]
    #[schemars(with = "String")]
    pub name: ProfileName,
    /// The number.
    // It names the profile in all calls but the query.
    #[serde(rename = "profile_id")]
    pub id: ProfileId,
    /// The number by which its properties are asked for.
    #[serde(skip)]
    pub query: ProfileEnum,
    /// Compute slices.
    pub slices: u32,
    /// Streaming multiprocessors; null if nobody has published them.
    pub multiprocessors: Option<u32>,
    /// Device memory; null if the GPU shares the machine's memory.
    // It differs between driver versions: show it, never match on it.
    #[serde(rename = "memory_total_bytes", serialize_with = "as_bytes")]
    #[schemars(with = "Option<u64>")]
    pub memory_mib: u64,
    /// Its engines; null if nobody has published them.
    pub engines: Option<Engines>,
    /// The number that fits on an empty GPU.
    // Counted from the placements: `instanceCount` is wrong on A30.
    pub most: u32,
    /// The number that still fits now; null if unknown.
    pub free: Option<u32>,
    /// Every placement it may take.
    pub placements: Vec<Placement>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it")]
fn as_bytes<S: Serializer>(mib: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    Some(mib << 20)
        .filter(|bytes| *bytes > 0)
        .serialize(serializer)
}

impl GpuInstanceProfile {
    /// The number of units that it takes.
    pub fn placement_size(&self) -> u32 {
        self.placements.first().map_or(0, |place| place.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbors_do_not_overlap() {
        let left = Placement::new(0, 4);
        assert!(!left.overlaps(Placement::new(4, 4)));
        assert_eq!(left.to_string(), "slices 0-3");
        assert_eq!(Placement::new(3, 1).to_string(), "slice 3");
        assert!(left.overlaps(Placement::new(3, 1)));
        assert!(Placement::new(0, 8).overlaps(left));
    }
}
