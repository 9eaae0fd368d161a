//! The GPU instance profiles that a GPU supports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::nvmlGpuInstanceProfileInfo_v2_t;

use super::library::{Plain, handle, numbered, symbol, text, version_of};
use super::{Code, GpuReading, NvmlError, Session};
use crate::geometry::{GpuInstanceProfile, Placement, ProfileEnum, ProfileId, ProfileName};

/// The limit for profile queries of a driver that never answers `INVALID_ARGUMENT` (NVML 13.3 has 18 profiles).
const MOST_PROFILES: u32 = 64;

type Offers = BTreeMap<(String, bool), Vec<GpuInstanceProfile>>;

/// The profiles of GPUs, by UUID and MIG mode.
static OFFERS: Mutex<Offers> = Mutex::new(BTreeMap::new());

fn known_offers() -> MutexGuard<'static, Offers> {
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Session {
    /// Returns the profiles with these ids, without placements and free counts. Not every driver has a call for one id, so
    /// profiles are queried until all are found.
    pub fn profiles_in_use(
        &self,
        gpu: &str,
        ids: &BTreeSet<ProfileId>,
    ) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
        let device = self.device(gpu)?;
        numbered(MOST_PROFILES, |query| {
            self.bare_profile(&device, gpu, ProfileEnum(query))
        })
        .filter(|profile| !matches!(profile, Ok(profile) if !ids.contains(&profile.id)))
        .take(ids.len())
        .collect()
    }

    /// Returns the profiles of a GPU with their placements; none for a GPU without MIG, and on older drivers while MIG is
    /// off. This takes about 50 calls (10 ms on an H200). The result depends only on the GPU and its MIG mode, so it is
    /// kept.
    pub fn offers(&self, gpu: &GpuReading) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
        let Some(mode) = gpu.mig else {
            return Ok(Vec::new());
        };
        let key = (gpu.uuid.clone(), mode.current);
        if let Some(offers) = known_offers().get(&key) {
            return Ok(offers.clone());
        }
        let device = self.device(&gpu.uuid)?;
        let mut offers: Vec<GpuInstanceProfile> = numbered(MOST_PROFILES, |query| {
            let mut profile = self.bare_profile(&device, &gpu.uuid, ProfileEnum(query))?;
            profile.placements = self.placements(&device, &gpu.uuid, profile.id)?;
            profile.most = most(&profile.placements, profile.most);
            Ok(profile)
        })
        .collect::<Result<_, _>>()?;
        offers.sort_by_key(|profile| (profile.slices, profile.memory_mib, profile.id));
        known_offers().insert(key, offers.clone());
        Ok(offers)
    }

    /// Returns how many more instances of this profile fit now. Old drivers answer only while MIG is on.
    pub fn free(&self, gpu: &str, profile: ProfileId) -> Option<u32> {
        let device = self.device(gpu).ok()?;
        let symbol = symbol!(self, nvmlDeviceGetGpuInstanceRemainingCapacity);
        let free = self.get(symbol, gpu, |function, count| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(&device), profile.0, count) }
        });
        free.ok()
    }

    /// Reads a profile without its placements.
    fn bare_profile(
        &self,
        device: &Device<'_>,
        subject: &str,
        query: ProfileEnum,
    ) -> Result<GpuInstanceProfile, NvmlError> {
        let (info, name) = match self.profile_v2(device, subject, query) {
            Ok(info) => (info, text(&info.name)),
            Err(NvmlError::TooOld { .. }) => {
                let info = self.profile_v1(device, subject, query)?;
                // Drivers without names of profiles.
                let memory = self.memory(device, subject);
                let total = memory.map_or(info.memorySizeMB << 20, |memory| memory.total);
                let name = derived_name(query, info.sliceCount, info.memorySizeMB, total);
                (info, name)
            }
            Err(error) => return Err(error),
        };
        let name = name.strip_prefix("MIG ").unwrap_or(&name);
        let name: ProfileName = name.parse().map_err(|_| NvmlError::Strange {
            call: "nvmlDeviceGetGpuInstanceProfileInfoV",
            subject: subject.to_owned(),
            answer: format!("the profile name \"{name}\""),
        })?;
        Ok(GpuInstanceProfile {
            id: ProfileId(info.id),
            query,
            name,
            slices: info.sliceCount,
            multiprocessors: info.multiprocessorCount,
            memory_mib: info.memorySizeMB,
            most: info.instanceCount,
            free: None,
            placements: Vec::new(),
        })
    }

    fn profile_v2(
        &self,
        device: &Device<'_>,
        subject: &str,
        query: ProfileEnum,
    ) -> Result<nvmlGpuInstanceProfileInfo_v2_t, NvmlError> {
        type Info = nvmlGpuInstanceProfileInfo_v2_t;
        let symbol = symbol!(self, nvmlDeviceGetGpuInstanceProfileInfoV);
        self.get(symbol, subject, |function, info: *mut Info| {
            // SAFETY: the handle came from this library, and the version tells it the size of `info`.
            unsafe {
                (*info).version = version_of::<Info>(2);
                function(handle(device), query.0, info)
            }
        })
    }

    /// Reads a profile with the first version of the query, which has no name.
    fn profile_v1(
        &self,
        device: &Device<'_>,
        subject: &str,
        query: ProfileEnum,
    ) -> Result<nvmlGpuInstanceProfileInfo_v2_t, NvmlError> {
        let symbol = symbol!(self, nvmlDeviceGetGpuInstanceProfileInfo);
        let info = self.get(symbol, subject, |function, info| {
            // SAFETY: the handle came from this library.
            unsafe { function(handle(device), query.0, info) }
        })?;
        Ok(nvmlGpuInstanceProfileInfo_v2_t {
            id: info.id,
            sliceCount: info.sliceCount,
            instanceCount: info.instanceCount,
            multiprocessorCount: info.multiprocessorCount,
            memorySizeMB: info.memorySizeMB,
            ..Plain::zeroed()
        })
    }

    fn placements(
        &self,
        device: &Device<'_>,
        subject: &str,
        profile: ProfileId,
    ) -> Result<Vec<Placement>, NvmlError> {
        let symbol = symbol!(self, nvmlDeviceGetGpuInstancePossiblePlacements_v2);
        let counted = self.get(symbol, subject, |function, count| {
            // SAFETY: a null buffer asks for the count (`nvml.h`).
            unsafe { function(handle(device), profile.0, std::ptr::null_mut(), count) }
        });
        let count = match counted {
            Err(error) if error.code() == Some(Code::NO_PERMISSION) => return Ok(Vec::new()),
            counted => counted?,
        };
        let found = self.list(symbol, subject, count as usize, |function, count, found| {
            // SAFETY: the handle came from this library; the buffer has room for `count` entries.
            unsafe { function(handle(device), profile.0, found, count) }
        })?;
        Ok(found
            .into_iter()
            .map(|place| Placement::new(place.start, place.size))
            .collect())
    }
}

/// Returns how many instances fit at once: as many as have separate placements, but no more than the driver reports. It
/// reports 1 for `+me`, which has seven placements but can exist only once, and too many for some profiles of an A30
/// (mig-parted hard-codes that GPU).
fn most(placements: &[Placement], reported: u32) -> u32 {
    let mut next = 0;
    let mut disjoint = 0;
    let mut sorted = placements.to_vec();
    sorted.sort_by_key(|placement| placement.end());
    for placement in sorted {
        if placement.start >= next {
            next = placement.end();
            disjoint += 1;
        }
    }
    match (disjoint, reported) {
        (0, reported) => reported,
        (fit, 0) => fit,
        (fit, reported) => fit.min(reported),
    }
}

/// Derives the name of a profile on drivers without the second version of the query (go-nvlib's formula, checked against
/// every model of known size).
fn derived_name(query: ProfileEnum, slices: u32, memory_mib: u64, total: u64) -> String {
    let total_mib = (total >> 20).max(1);
    let eighths = (memory_mib * 8).div_ceil(total_mib);
    let gigabytes = (eighths * total.div_ceil(1 << 30) + 4) / 8;
    let attribute = match query.0 {
        7 | 8 => "+me",
        10..=12 | 17 => "+gfx",
        13 | 14 => "-me",
        15 | 16 => "+me.all",
        _ => "",
    };
    format!("{slices}g.{gigabytes}gb{attribute}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_names_equal_those_of_newer_drivers() {
        let h200 = 143_771 << 20;
        let name = |query, slices, mib| derived_name(ProfileEnum(query), slices, mib, h200);
        assert_eq!(name(0, 1, 16_384), "1g.18gb");
        assert_eq!(name(7, 1, 16_384), "1g.18gb+me");
        assert_eq!(name(9, 1, 33_280), "1g.35gb");
        assert_eq!(name(2, 3, 71_424), "3g.71gb");
        assert_eq!(name(4, 7, 143_360), "7g.141gb");
    }

    #[test]
    fn as_many_fit_as_have_separate_placements() {
        let at = |starts: &[u32], size| -> Vec<_> {
            starts
                .iter()
                .map(|&start| Placement::new(start, size))
                .collect()
        };
        assert_eq!(most(&at(&[0, 1, 2, 3, 4, 5, 6], 1), 7), 7);
        assert_eq!(
            most(&at(&[0, 1, 2, 3, 4, 5, 6], 1), 1),
            1,
            "+me exists once"
        );
        assert_eq!(most(&at(&[0, 4], 4), 2), 2);
        assert_eq!(most(&at(&[0, 2], 2), 4), 2, "A30 says more than fit");
        assert_eq!(most(&[], 3), 3, "placements may be hidden");
    }
}
