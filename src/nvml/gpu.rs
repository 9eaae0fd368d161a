use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_uint};

use nvml_wrapper::Device;
use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t,
    nvmlGpuInstanceProfileInfo_v2_t, nvmlMemory_t,
};

use super::{Code, MigMode, NvmlError, Session};
use crate::geometry::{GpuInstanceProfile, Placement, ProfileEnum, ProfileId, ProfileName};

/// What one GPU says of itself.
#[derive(Clone, Debug)]
pub struct GpuReading {
    /// NVML's index, in PCI order.
    pub index: u32,
    /// `GPU-…`
    pub uuid: String,
    /// `NVIDIA A100-SXM4-80GB`
    pub product: String,
    /// `0000:17:00.0`, as `/sys/bus/pci/devices` spells it.
    pub pci: String,
    /// The number in `/dev/nvidia<minor>`; it may be another one after the MIG mode has changed.
    /// `None` where the driver does not tell, or was not asked.
    pub minor: Option<u32>,
    /// Whole memory and what is in use; `None` where the driver does not tell, or was not asked.
    pub memory: Option<Memory>,
    /// `None` for a GPU that has no MIG.
    pub mig: Option<MigMode>,
    /// What it offers; empty where it has no MIG, where an older driver tells only with MIG on, or
    /// where that was not asked.
    pub profiles: Vec<GpuInstanceProfile>,
}

/// Memory of a device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All there is.
    pub total: u64,
    /// What is in use, the driver's own share left out.
    pub used: u64,
}

/// NVML's profile queries end with `INVALID_ARGUMENT`; this bounds the walk for a driver that does
/// not (18 profiles are known as of NVML 13.3).
const MOST_PROFILES: u32 = 64;

impl Session {
    /// How many GPUs the driver shows.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn gpu_count(&self) -> Result<u32, NvmlError> {
        self.ask("nvmlDeviceGetCount_v2", "the driver", || {
            self.library.device_count()
        })
    }

    /// The driver's version, such as `580.159.04`.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn driver_version(&self) -> Result<String, NvmlError> {
        self.ask("nvmlSystemGetDriverVersion", "the driver", || {
            self.library.sys_driver_version()
        })
    }

    /// Reads the GPU with that index.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn read_gpu(&self, index: u32) -> Result<GpuReading, NvmlError> {
        let (device, mut reading) = self.identify(index)?;
        let subject = format!("GPU {index}");
        let call = "nvmlDeviceGetMinorNumber";
        reading.minor = self.ask(call, &subject, || device.minor_number()).ok();
        reading.memory = self.memory(&device, &subject).ok();
        if reading.mig.is_some() {
            let total = reading.memory.map(|memory| memory.total);
            reading.profiles = self.profiles(&device, &subject, total)?;
        }
        Ok(reading)
    }

    /// Reads which GPU has that index, and whether it is partitioned: without its minor number, its
    /// memory, and what it offers, which takes some 50 calls.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn read_gpu_briefly(&self, index: u32) -> Result<GpuReading, NvmlError> {
        self.identify(index).map(|(_, reading)| reading)
    }

    fn identify(&self, index: u32) -> Result<(Device<'static>, GpuReading), NvmlError> {
        let subject = format!("GPU {index}");
        let device = self.ask("nvmlDeviceGetHandleByIndex_v2", &subject, || {
            self.library.device_by_index(index)
        })?;
        let uuid = self.ask("nvmlDeviceGetUUID", &subject, || device.uuid())?;
        let product = self.ask("nvmlDeviceGetName", &subject, || device.name())?;
        let pci = self.ask("nvmlDeviceGetPciInfo_v3", &subject, || device.pci_info())?;
        let mig = self.mig_mode(&device, &subject)?;
        let reading = GpuReading {
            index,
            uuid,
            product,
            pci: pci
                .bus_id
                .strip_prefix("0000")
                .unwrap_or(&pci.bus_id)
                .to_lowercase(),
            minor: None,
            memory: None,
            mig,
            profiles: Vec::new(),
        };
        Ok((device, reading))
    }

    /// The profiles with these ids, without their places and how many of them are free. There is no
    /// call for one id that every driver has: the profiles are gone through until all are found.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn profiles_in_use(
        &self,
        gpu: &str,
        ids: &BTreeSet<ProfileId>,
    ) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
        let device = self.device(gpu)?;
        let mut found: Vec<GpuInstanceProfile> = Vec::new();
        for query in (0..MOST_PROFILES).map(ProfileEnum) {
            if found.len() == ids.len() {
                break;
            }
            let total = || Some(self.memory(&device, gpu).ok()?.total);
            match self.bare_profile(handle(&device), gpu, query, total) {
                Ok(profile) if ids.contains(&profile.id) => found.push(profile),
                Ok(_) => {}
                Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => {}
                Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// How much of the last sampling period a GPU was computing, in percent; the driver does not
    /// tell for MIG devices, nor for a GPU in MIG mode.
    pub fn utilization(&self, gpu: &str) -> Option<u32> {
        let device = self.device(gpu).ok()?;
        let call = "nvmlDeviceGetUtilizationRates";
        let rates = self.ask(call, gpu, || device.utilization_rates()).ok()?;
        Some(rates.gpu)
    }

    /// The number in `/dev/nvidia<minor>`: it may change with the MIG mode.
    ///
    /// # Errors
    /// [`NvmlError`]
    pub fn minor_number(&self, uuid: &str) -> Result<u32, NvmlError> {
        let device = self.device(uuid)?;
        self.ask("nvmlDeviceGetMinorNumber", uuid, || device.minor_number())
    }

    /// The GPU or MIG device with that UUID.
    pub(super) fn device(&self, uuid: &str) -> Result<Device<'static>, NvmlError> {
        self.ask("nvmlDeviceGetHandleByUUID", uuid, || {
            self.library.device_by_uuid(uuid)
        })
    }

    /// Memory of a GPU or MIG device. Drivers before R510 know only the first version of the call,
    /// which counts the driver's own share as used.
    pub(super) fn memory(&self, device: &Device<'_>, subject: &str) -> Result<Memory, NvmlError> {
        let call = "nvmlDeviceGetMemoryInfo_v2";
        match self.ask(call, subject, || device.memory_info()) {
            Ok(info) => Ok(Memory {
                total: info.total,
                used: info.used,
            }),
            Err(NvmlError::TooOld { .. }) => self.memory_v1(handle(device), subject),
            Err(error) => Err(error),
        }
    }

    fn memory_v1(&self, device: nvmlDevice_t, subject: &str) -> Result<Memory, NvmlError> {
        let mut info = nvmlMemory_t {
            total: 0,
            free: 0,
            used: 0,
        };
        let symbol = &self.symbols().nvmlDeviceGetMemoryInfo;
        self.call("nvmlDeviceGetMemoryInfo", subject, symbol, |function| {
            // SAFETY: the handle came from this library and `info` outlives the call.
            unsafe { function(device, &raw mut info) }
        })?;
        Ok(Memory {
            total: info.total,
            used: info.used,
        })
    }

    fn profiles(
        &self,
        device: &Device<'_>,
        subject: &str,
        memory: Option<u64>,
    ) -> Result<Vec<GpuInstanceProfile>, NvmlError> {
        let mut profiles = Vec::new();
        for query in (0..MOST_PROFILES).map(ProfileEnum) {
            match self.profile(handle(device), subject, query, memory) {
                Ok(profile) => profiles.push(profile),
                Err(error) if error.code() == Some(Code::NOT_SUPPORTED) => {}
                Err(error) if error.code() == Some(Code::INVALID_ARGUMENT) => break,
                Err(error) => return Err(error),
            }
        }
        profiles.sort_by_key(|profile| (profile.slices, profile.memory_mib, profile.id));
        Ok(profiles)
    }

    fn profile(
        &self,
        device: nvmlDevice_t,
        subject: &str,
        query: ProfileEnum,
        memory: Option<u64>,
    ) -> Result<GpuInstanceProfile, NvmlError> {
        let mut profile = self.bare_profile(device, subject, query, || memory)?;
        profile.placements = self.placements(device, subject, profile.id)?;
        profile.most = most(&profile.placements, profile.most);
        profile.free = self.free(device, subject, profile.id);
        Ok(profile)
    }

    /// A profile without its places; `memory` says how much the GPU has, for drivers that do not
    /// tell a profile's name.
    fn bare_profile(
        &self,
        device: nvmlDevice_t,
        subject: &str,
        query: ProfileEnum,
        memory: impl FnOnce() -> Option<u64>,
    ) -> Result<GpuInstanceProfile, NvmlError> {
        let (info, name) = match self.profile_v2(device, subject, query) {
            Err(NvmlError::TooOld { .. }) => {
                let info = self.profile_v1(device, subject, query)?;
                let total = memory().unwrap_or(info.memorySizeMB << 20);
                (
                    info,
                    spell_name(query, info.sliceCount, info.memorySizeMB, total),
                )
            }
            answer => answer?,
        };
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
        device: nvmlDevice_t,
        subject: &str,
        query: ProfileEnum,
    ) -> Result<(nvmlGpuInstanceProfileInfo_t, String), NvmlError> {
        let mut info = nvmlGpuInstanceProfileInfo_v2_t {
            version: version_of::<nvmlGpuInstanceProfileInfo_v2_t>(2),
            id: 0,
            isP2pSupported: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: 0,
            name: [0; 96],
        };
        let symbol = &self.symbols().nvmlDeviceGetGpuInstanceProfileInfoV;
        let call = "nvmlDeviceGetGpuInstanceProfileInfoV";
        self.call(call, subject, symbol, |function| {
            // SAFETY: the handle came from this library, `info` outlives the call and says its version.
            unsafe { function(device, query.0, &raw mut info) }
        })?;
        let name = text(&info.name);
        let plain = nvmlGpuInstanceProfileInfo_t {
            id: info.id,
            isP2pSupported: info.isP2pSupported,
            sliceCount: info.sliceCount,
            instanceCount: info.instanceCount,
            multiprocessorCount: info.multiprocessorCount,
            copyEngineCount: info.copyEngineCount,
            decoderCount: info.decoderCount,
            encoderCount: info.encoderCount,
            jpegCount: info.jpegCount,
            ofaCount: info.ofaCount,
            memorySizeMB: info.memorySizeMB,
        };
        Ok((plain, name.strip_prefix("MIG ").unwrap_or(&name).to_owned()))
    }

    fn profile_v1(
        &self,
        device: nvmlDevice_t,
        subject: &str,
        query: ProfileEnum,
    ) -> Result<nvmlGpuInstanceProfileInfo_t, NvmlError> {
        let mut info = nvmlGpuInstanceProfileInfo_t {
            id: 0,
            isP2pSupported: 0,
            sliceCount: 0,
            instanceCount: 0,
            multiprocessorCount: 0,
            copyEngineCount: 0,
            decoderCount: 0,
            encoderCount: 0,
            jpegCount: 0,
            ofaCount: 0,
            memorySizeMB: 0,
        };
        let symbol = &self.symbols().nvmlDeviceGetGpuInstanceProfileInfo;
        self.call(
            "nvmlDeviceGetGpuInstanceProfileInfo",
            subject,
            symbol,
            |function| {
                // SAFETY: the handle came from this library and `info` outlives the call.
                unsafe { function(device, query.0, &raw mut info) }
            },
        )?;
        Ok(info)
    }

    fn placements(
        &self,
        device: nvmlDevice_t,
        subject: &str,
        profile: ProfileId,
    ) -> Result<Vec<Placement>, NvmlError> {
        let call = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
        let symbol = &self.symbols().nvmlDeviceGetGpuInstancePossiblePlacements_v2;
        let mut count: c_uint = 0;
        let asked = self.call(call, subject, symbol, |function| {
            // SAFETY: a null buffer asks for the count (`nvml.h`).
            unsafe { function(device, profile.0, std::ptr::null_mut(), &raw mut count) }
        });
        match asked {
            Err(error) if error.code() == Some(Code::NO_PERMISSION) => return Ok(Vec::new()),
            other => other?,
        }
        let mut placements = vec![nvmlGpuInstancePlacement_t { start: 0, size: 0 }; count as usize];
        self.call(call, subject, symbol, |function| {
            // SAFETY: the buffer has room for the `count` entries it is said to have.
            unsafe { function(device, profile.0, placements.as_mut_ptr(), &raw mut count) }
        })?;
        placements.truncate(count as usize);
        Ok(placements
            .into_iter()
            .map(|placement| Placement::new(placement.start, placement.size))
            .collect())
    }

    /// How many more of this profile the driver says would fit now; old drivers tell only with MIG on.
    fn free(&self, device: nvmlDevice_t, subject: &str, profile: ProfileId) -> Option<u32> {
        let mut count: c_uint = 0;
        let symbol = &self.symbols().nvmlDeviceGetGpuInstanceRemainingCapacity;
        let call = "nvmlDeviceGetGpuInstanceRemainingCapacity";
        self.call(call, subject, symbol, |function| {
            // SAFETY: the handle came from this library and `count` outlives the call.
            unsafe { function(device, profile.0, &raw mut count) }
        })
        .ok()
        .map(|()| count)
    }
}

/// The handle inside nvml-wrapper's device, for the calls it does not have.
pub(super) fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only passed back to the library it came from, which is never unloaded.
    unsafe { device.handle() }
}

/// The version word of a struct: its size and the number of its form (`NVML_STRUCT_VERSION`).
pub(super) fn version_of<T>(form: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX) | form << 24
}

/// A C string in a fixed buffer, which need not be terminated.
fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> = buffer
        .iter()
        .map(|c| c.cast_unsigned())
        .chain([0])
        .collect();
    CStr::from_bytes_until_nul(&bytes)
        .map(|text| text.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// How many instances fit at once: as many as lie side by side, but never more than the driver says
/// unless it is known to be wrong. It says 1 for `+me`, which has seven placements and exists once;
/// on A30 it is wrong for other profiles (mig-parted hard-codes that GPU).
fn most(placements: &[Placement], said: u32) -> u32 {
    let mut next = 0;
    let mut side_by_side = 0;
    let mut sorted = placements.to_vec();
    sorted.sort_by_key(|placement| placement.end());
    for placement in sorted {
        if placement.start >= next {
            next = placement.end();
            side_by_side += 1;
        }
    }
    match (side_by_side, said) {
        (0, said) => said,
        (fit, 0) => fit,
        (fit, said) => fit.min(said),
    }
}

/// The profile's name as drivers without the second version of the query would print it (go-nvlib's
/// formula; checked against every model of known size).
fn spell_name(query: ProfileEnum, slices: u32, memory_mib: u64, total: u64) -> String {
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
    fn names_are_spelled_as_newer_drivers_spell_them() {
        let h200 = 143_771 << 20;
        let name = |query, slices, mib| spell_name(ProfileEnum(query), slices, mib, h200);
        assert_eq!(name(0, 1, 16_384), "1g.18gb");
        assert_eq!(name(7, 1, 16_384), "1g.18gb+me");
        assert_eq!(name(9, 1, 33_280), "1g.35gb");
        assert_eq!(name(2, 3, 71_424), "3g.71gb");
        assert_eq!(name(4, 7, 143_360), "7g.141gb");
    }

    #[test]
    fn as_many_fit_as_lie_side_by_side() {
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
