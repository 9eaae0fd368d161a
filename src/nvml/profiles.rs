//! The GPU instance profiles that a GPU supports.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use nvml_wrapper_sys::bindings::nvmlGpuInstanceProfileInfo_v2_t as ProfileInfo;

use super::session::{GpuHandle, get, list, parse_c_string, query_by_number, symbol, version_of};
use super::{Code, GpuReading, NvmlError};
use crate::geometry::{
    Engines, GpuInstanceProfile, Placement, ProfileEnum, ProfileId, ProfileName,
};
use crate::host::lock;

/// The limit for profile queries of a driver that never answers `INVALID_ARGUMENT` (NVML 13.3 has 18 profiles).
const MAX_PROFILES: u32 = 64;

type OfferCache = BTreeMap<(String, bool), Vec<GpuInstanceProfile>>;

/// The profiles of GPUs, by UUID and MIG mode.
static OFFER_CACHE: Mutex<OfferCache> = Mutex::new(BTreeMap::new());

impl GpuHandle {
    /// Returns the profiles with these ids, without placements and free counts. Not every driver has a call for one id, so
    /// profiles are queried until all are found.
    pub fn profiles_in_use(
        &self,
        ids: &BTreeSet<ProfileId>,
    ) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
        query_by_number(MAX_PROFILES, |query| self.bare_profile(ProfileEnum(query)))
            .filter(|profile| !matches!(profile, Ok(profile) if !ids.contains(&profile.id)))
            .take(ids.len())
            .collect()
    }

    /// Returns the profiles of a GPU with their placements; none for a GPU without MIG, and on driver 535 while MIG is off.
    /// This takes about 40 calls (8 ms on an H200). The result depends only on the GPU and its MIG mode, so it is kept.
    pub fn offered_profiles(&self, gpu: &GpuReading) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
        let Some(mode) = gpu.mig else {
            return Ok(Vec::new());
        };
        let key = (gpu.uuid.clone(), mode.current);
        if let Some(offers) = lock(&OFFER_CACHE).get(&key) {
            return Ok(offers.clone());
        }
        let mut offers: Vec<GpuInstanceProfile> = query_by_number(MAX_PROFILES, |query| {
            let mut profile = self.bare_profile(ProfileEnum(query))?;
            profile.placements = self.possible_placements(profile.id)?;
            profile.most = max_instances(&profile.placements, profile.most);
            Ok(profile)
        })
        .collect::<Result<_, _>>()?;
        offers.sort_by_key(|profile| (profile.slices, profile.memory_mib, profile.id));
        lock(&OFFER_CACHE).insert(key, offers.clone());
        Ok(offers)
    }

    /// Returns the profiles that the GPU offers, without their placements, each of which takes another call.
    pub fn profiles_without_placements(&self) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
        query_by_number(MAX_PROFILES, |query| self.bare_profile(ProfileEnum(query))).collect()
    }

    /// Returns how many more instances of this profile fit now. Driver 535 answers only while MIG is on.
    pub fn remaining_capacity(&self, profile: ProfileId) -> Option<u32> {
        get!(self.nvmlDeviceGetGpuInstanceRemainingCapacity(profile.0)).ok()
    }

    /// Reads a profile without its placements.
    fn bare_profile(&self, query: ProfileEnum) -> Result<GpuInstanceProfile, NvmlError> {
        let symbol = symbol!(self.session, nvmlDeviceGetGpuInstanceProfileInfoV);
        let info = self.get(symbol, |function, info: *mut ProfileInfo| {
            // SAFETY: the handle came from this library, and the version tells it the size of `info`.
            unsafe {
                (*info).version = version_of::<ProfileInfo>(2);
                function(self.raw, query.0, info)
            }
        })?;
        let name = parse_c_string(&info.name);
        let name = name.strip_prefix("MIG ").unwrap_or(&name);
        // A name of a newer driver takes away nothing but itself.
        let name = name.parse().unwrap_or_else(|_| {
            tracing::debug!(target: "nvml", "{}: profile {} is called \"{name}\"", self.subject, info.id);
            ProfileName::from(ProfileId(info.id))
        });
        Ok(GpuInstanceProfile {
            id: ProfileId(info.id),
            query,
            name,
            slices: info.sliceCount,
            multiprocessors: Some(info.multiprocessorCount),
            memory_mib: info.memorySizeMB,
            engines: Some(Engines {
                copy: info.copyEngineCount,
                video_decoders: info.decoderCount,
                video_encoders: info.encoderCount,
                jpeg_decoders: info.jpegCount,
                optical_flow_accelerators: info.ofaCount,
            }),
            most: info.instanceCount,
            free: None,
            placements: Vec::new(),
        })
    }

    /// Returns the possible placements of a profile, or none if the driver shows them only to root.
    fn possible_placements(&self, profile: ProfileId) -> Result<Vec<Placement>, NvmlError> {
        let found = match list!(
            self.nvmlDeviceGetGpuInstancePossiblePlacements_v2(profile.0),
            MAX_PLACEMENTS
        ) {
            Err(error) if error.code() == Some(Code::NO_PERMISSION) => return Ok(Vec::new()),
            found => found?,
        };
        Ok(found
            .into_iter()
            .map(|place| Placement::new(place.start, place.size))
            .collect())
    }
}

/// More placements than any profile has, so that one call reads them: each begins at another unit of the GPU, and no GPU has
/// more than 12 units.
const MAX_PLACEMENTS: usize = 128;

/// Returns how many instances fit at once: as many as have separate placements, but no more than the driver reports. It
/// reports 1 for `+me`, which has seven placements but can exist only once, and too many for some profiles of an A30
/// (mig-parted hard-codes that GPU).
fn max_instances(placements: &[Placement], reported: u32) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_fit_as_have_separate_placements() {
        let at = |starts: &[u32], size| -> Vec<_> {
            starts
                .iter()
                .map(|&start| Placement::new(start, size))
                .collect()
        };
        assert_eq!(max_instances(&at(&[0, 1, 2, 3, 4, 5, 6], 1), 7), 7);
        assert_eq!(
            max_instances(&at(&[0, 1, 2, 3, 4, 5, 6], 1), 1),
            1,
            "+me exists once"
        );
        assert_eq!(max_instances(&at(&[0, 4], 4), 2), 2);
        assert_eq!(
            max_instances(&at(&[0, 2], 2), 4),
            2,
            "A30 says more than fit"
        );
        assert_eq!(max_instances(&[], 3), 3, "placements may be hidden");
    }
}
