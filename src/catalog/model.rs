//! GPU models as data, and the evidence for each value.

use std::fmt;

use serde::Deserialize;

use super::find::PciId;
use crate::geometry::{
    Engines, GpuInstanceProfile, Placement, ProfileEnum, ProfileId, ProfileName,
};

/// A GPU model of which enough is known to plan for it without the GPU.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Model {
    /// Its key, such as `a100-80gb`.
    pub key: String,
    /// Shorter names for it.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// NVML's names for its boards; none where no driver that was seen has a name for it.
    pub product_names: Vec<String>,
    /// `ampere`, `hopper`, `blackwell`
    pub architecture: String,
    /// Memory of the whole GPU in MiB as NVML gives it, where it is known.
    pub memory_total_mib: Option<u64>,
    /// SMs of the whole GPU, where they are known: no driver tells them.
    pub sm_total: Option<u32>,
    /// The first driver that offers MIG on it, where that is known.
    pub minimum_driver: Option<String>,
    /// True if its boards have a mode for displays, in which they offer no MIG.
    #[serde(default)]
    pub display_mode: bool,
    /// Other facts about it.
    #[serde(default)]
    pub notes: Vec<String>,
    pub(super) pci_device_ids: Vec<PciId>,
    #[serde(default)]
    pub(super) boards: Vec<Board>,
    #[serde(rename = "gpu-instance")]
    profiles: Vec<ModelProfile>,
}

/// Which of a model's product names goes with which ids.
#[derive(Debug, Deserialize)]
pub(super) struct Board {
    pub(super) product: String,
    pub(super) device: PciId,
    #[serde(default)]
    pub(super) subsystems: Vec<PciId>,
}

/// A model of which too little is known to plan for it without the GPU.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Incomplete {
    /// The key it would have.
    pub key: String,
    /// NVML's names for it.
    pub product_names: Vec<String>,
    /// The first driver that offers MIG on it, where that is known.
    pub minimum_driver: Option<String>,
    /// True if its boards have a mode for displays, in which they offer no MIG.
    #[serde(default)]
    pub display_mode: bool,
    /// The facts that nobody has published.
    pub missing: Vec<String>,
    /// The names of its profiles, as far as they are known.
    #[serde(default)]
    pub profiles: Vec<String>,
    #[serde(default)]
    pub(super) pci_device_ids: Vec<PciId>,
    /// Its PCI subsystem ids, where they are known.
    #[serde(default)]
    pub(super) pci_subsystems: Vec<PciId>,
}

/// A GPU instance profile as a file has it: what nobody has evidence for is absent.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct ModelProfile {
    name: ProfileName,
    #[serde(rename = "profile-id")]
    id: u32,
    nvml_enum: u32,
    slices: u32,
    maximum: u32,
    sm: Option<u32>,
    memory_mib: Option<u64>,
    copy_engines: Option<u32>,
    decoders: Option<u32>,
    encoders: Option<u32>,
    jpeg: Option<u32>,
    ofa: Option<u32>,
    placements: Placements,
    provenance: ProfileProvenance,
    #[serde(rename = "compute-instance")]
    compute: Vec<Compute>,
}

impl ModelProfile {
    /// Its engines, if all kinds are published.
    fn published_engines(&self) -> Option<Engines> {
        Some(Engines {
            copy: self.copy_engines?,
            video_decoders: self.decoders?,
            video_encoders: self.encoders?,
            jpeg_decoders: self.jpeg?,
            optical_flow_accelerators: self.ofa?,
        })
    }
}

/// A compute instance profile.
#[derive(Debug, Deserialize)]
struct Compute {
    slices: u32,
}

#[derive(Debug, Deserialize)]
struct Placements {
    starts: Vec<u32>,
    size: u32,
}

#[derive(Debug, Deserialize)]
struct ProfileProvenance {
    default: Provenance,
    placements: Option<Provenance>,
}

impl Model {
    /// NVML's name for it; for a board without one, what the driver then says.
    pub fn product_or_default(&self) -> &str {
        let first = self.product_names.first();
        first.map_or("NVIDIA Graphics Device", String::as_str)
    }

    /// NVML's names for its boards, one at least.
    pub fn products_or_default(&self) -> Vec<&str> {
        match self.product_names.as_slice() {
            [] => vec![self.product_or_default()],
            names => names.iter().map(String::as_str).collect(),
        }
    }

    /// Its memory in GiB; where nobody has published that, what its largest profile is called by.
    pub fn memory_gib(&self) -> Option<u64> {
        let named = self.profiles.iter().filter_map(|p| p.name.gigabytes());
        self.memory_total_mib
            .map(|mib| mib.div_ceil(1024))
            .or(named.max().map(u64::from))
    }

    /// Every profile it offers, as a driver would report it.
    ///
    /// Unpublished facts do not decide what fits: the name gives the memory.
    pub fn offers(&self) -> Vec<GpuInstanceProfile> {
        let offers = self.profiles.iter().map(|known| {
            let named = u64::from(known.name.gigabytes().unwrap_or(0)) << 10;
            let Placements { starts, size } = &known.placements;
            GpuInstanceProfile {
                id: ProfileId(known.id),
                query: ProfileEnum(known.nvml_enum),
                name: known.name.clone(),
                slices: known.slices,
                multiprocessors: known.sm,
                memory_mib: known.memory_mib.unwrap_or(named),
                engines: known.published_engines(),
                most: known.maximum,
                free: None,
                placements: starts.iter().map(|&s| Placement::new(s, *size)).collect(),
            }
        });
        offers.collect()
    }

    /// Returns the compute slices of each profile.
    pub fn profile_slices(&self) -> impl Iterator<Item = u32> {
        self.profiles.iter().map(|profile| profile.slices)
    }

    /// Returns the memory of a profile in MiB; `None` if nobody has published it.
    pub fn memory_mib(&self, profile: &ProfileName) -> Option<u64> {
        self.find_profile(profile)?.memory_mib
    }

    fn find_profile(&self, name: &ProfileName) -> Option<&ModelProfile> {
        self.profiles.iter().find(|profile| profile.name == *name)
    }

    /// True if the profile has two compute instances with all its slices: one with all SMs, and one with fewer.
    pub fn has_smaller_compute(&self, profile: &ProfileName) -> bool {
        self.find_profile(profile).is_some_and(|known| {
            known
                .compute
                .iter()
                .filter(|own| own.slices == known.slices)
                .count()
                > 1
        })
    }

    /// The evidence for the least sure of its profiles.
    pub fn profiles_known(&self) -> Evidence {
        least_sure(
            self.profiles
                .iter()
                .map(|profile| profile.provenance.default),
        )
    }

    /// The evidence for the least sure of their placements.
    pub fn placements_known(&self) -> Evidence {
        let all = self.profiles.iter().map(|profile| &profile.provenance);
        least_sure(all.map(|known| known.placements.unwrap_or(known.default)))
    }
}

fn least_sure(known: impl Iterator<Item = Provenance>) -> Evidence {
    known
        .map(|provenance| provenance.confidence)
        .max()
        .unwrap_or(Evidence::Mock)
}

/// The evidence for a fact of the catalog, the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Read through NVML on such a GPU by this project.
    #[serde(rename = "real")]
    Measured,
    /// In a listing from such a GPU that somebody published.
    #[serde(rename = "real-thirdparty")]
    Seen,
    /// In NVIDIA's documents.
    #[serde(rename = "vendor-doc")]
    Documented,
    /// In NVIDIA's published source code or configuration files.
    #[serde(alias = "vendor-config")]
    VendorCode,
    /// Concluded from models of its family.
    Derived,
    /// In NVIDIA's mock of the GPU for tests, which is wrong elsewhere.
    Mock,
}

impl Evidence {
    /// Every kind with its meaning.
    pub const MEANINGS: [(Self, &'static str); 6] = [
        (Self::Measured, "read through NVML by this project"),
        (Self::Seen, "in a published listing"),
        (Self::Documented, "in NVIDIA's documents"),
        (Self::VendorCode, "in NVIDIA's source code or configuration"),
        (Self::Derived, "concluded from its family"),
        (Self::Mock, "in NVIDIA's mock for tests"),
    ];
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Seen => "seen",
            Self::Documented => "documented",
            Self::VendorCode => "vendor code",
            Self::Derived => "derived",
            Self::Mock => "mock",
        })
    }
}

/// The `provenance` of one value.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Provenance {
    pub(super) confidence: Evidence,
}
