//! GPUs and devices as other programs write them: NVML, CUDA, nvidia-smi, CDI, Kubernetes, Slurm and the kernel.

use super::device_word::{is_index, one_gpu_each};
use super::{Device, NoSuchDevice, Node};
use crate::geometry::ProfileName;
use crate::profile::PciAddress;

/// A GPU by one of its marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GpuMark<'a> {
    Index(u32),
    /// `GPU-…`, or the beginning of it.
    Uuid(&'a str),
    Pci(PciAddress),
    /// The number of the file in `/dev`.
    Minor(u32),
}

/// The meaning of a word.
#[derive(Debug, PartialEq, Eq)]
enum Meaning<'a> {
    Gpu(GpuMark<'a>),
    /// The MIG device with these numbers of its GPU instance and its compute instance; any of that GPU instance without
    /// the second.
    Instance(GpuMark<'a>, u32, Option<u32>),
    /// The MIG device with this number in the list of nvidia-smi, which follows no order of ours.
    Listed(GpuMark<'a>, u32),
    /// Any MIG device of this profile.
    Profile(String),
}

/// Returns a word without the names of the things that other programs put in front: `nvidia.com/gpu=`, `device=`, and
/// without the number of a replica in Kubernetes behind it.
pub(super) fn bare(word: &str) -> &str {
    let word = word.trim();
    let word = match word.rsplit_once('=') {
        Some((kind, word)) if is_kind(kind) => word,
        _ => word,
    };
    word.split("::").next().unwrap_or(word)
}

/// True for a kind of CDI devices, and for Docker's `device`. A number behind another word, such as `gres/gpu`, counts devices.
fn is_kind(word: &str) -> bool {
    match word.rsplit_once('/') {
        Some((vendor, class)) => vendor != "gres" && ["gpu", "mig", "device"].contains(&class),
        None => word == "device",
    }
}

/// Reads `GPU-…`, `GPU 0`, `gpu:0`, `0000:17:00.0`, `nvidia0`, `/dev/nvidia0`.
fn gpu_mark(word: &str) -> Option<GpuMark<'_>> {
    if let Some(address) = PciAddress::parse(word) {
        return Some(GpuMark::Pci(address));
    }
    let file = word.strip_prefix("/dev/").unwrap_or(word);
    if let Some(minor) = file.strip_prefix("nvidia").and_then(number) {
        return Some(GpuMark::Minor(minor));
    }
    let is_gpu = word
        .get(..3)
        .is_some_and(|start| start.eq_ignore_ascii_case("gpu"));
    if !is_gpu {
        return None;
    }
    // More digits are the beginning of a UUID.
    let rest = word[3..].trim_start_matches([' ', ':', '-', '=']);
    match number(rest).filter(|_| rest.len() < 4) {
        Some(index) => Some(GpuMark::Index(index)),
        None if word[3..].starts_with('-') && rest.len() >= 4 => Some(GpuMark::Uuid(rest)),
        None => None,
    }
}

fn number(digits: &str) -> Option<u32> {
    digits.parse().ok().filter(|_| is_index(digits))
}

fn meaning(word: &str) -> Option<Meaning<'_>> {
    let of_gpu = |word| number(word).map(GpuMark::Index).or_else(|| gpu_mark(word));
    // `MIG-GPU-…/1/0`, as older drivers have it.
    let old = word
        .strip_prefix("MIG-")
        .filter(|rest| rest.starts_with("GPU-"));
    let mut parts = old.unwrap_or(word).rsplitn(3, '/');
    if let (Some(compute), Some(instance), Some(gpu)) = (parts.next(), parts.next(), parts.next())
        && let (Some(compute), Some(instance)) = (number(compute), number(instance))
    {
        return Some(Meaning::Instance(of_gpu(gpu)?, instance, Some(compute)));
    }
    if let Some(mark) = gpu_mark(word) {
        return Some(Meaning::Gpu(mark));
    }
    if let Some((gpu, nth)) = word.rsplit_once(':')
        && let Some(nth) = number(nth)
        && let Some(gpu) = of_gpu(gpu)
    {
        return Some(Meaning::Listed(gpu, nth));
    }
    profile(word).map(Meaning::Profile)
}

/// Returns the number in the name of a capability's file, such as `/dev/nvidia-caps/nvidia-cap12`.
fn capability_number(word: &str) -> Option<u32> {
    let file = word.strip_prefix("/dev/nvidia-caps/").unwrap_or(word);
    file.strip_prefix("nvidia-cap").and_then(number)
}

/// Reads the name of a capability: `gpu0/gi1/ci0/access`, `/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access`.
fn capability(name: &str) -> Option<Meaning<'static>> {
    let below = name.strip_prefix("/proc/driver/nvidia/capabilities/");
    let mut parts = below.unwrap_or(name).strip_suffix("/access")?.split('/');
    let numbered = |part: &str, kind: &str| part.strip_prefix(kind).and_then(number);
    let gpu = numbered(parts.next()?, "gpu")?;
    let mut parts = parts.filter(|part| *part != "mig");
    let instance = numbered(parts.next()?, "gi")?;
    let compute = match parts.next() {
        Some(part) => Some(numbered(part, "ci")?),
        None => None,
    };
    Some(Meaning::Instance(GpuMark::Minor(gpu), instance, compute))
}

/// Reads `MIG 1g.10gb`, `mig-1g.10gb`, `nvidia.com/mig-1g.10gb.me`, `gpu:1g.10gb:2`, `1c.3g.40gb`, and CUDA's
/// `NVIDIA A100-SXM4-80GB MIG 1g.10gb`.
fn profile(word: &str) -> Option<String> {
    let word = word.to_ascii_lowercase();
    let word = word.rsplit('/').next()?;
    let word = word.rsplit(" mig ").next()?;
    let word = word.strip_prefix("gres:").unwrap_or(word);
    let starts = ["gpu:", "mig-", "mig ", "mig_"];
    let word = starts
        .iter()
        .find_map(|start| word.strip_prefix(start))
        .unwrap_or(word);
    let word = word.split([':', '=']).next()?.replace("gb.me", "gb+me");
    let of = word
        .split_once("c.")
        .map_or(word.as_str(), |(_, profile)| profile);
    of.parse::<ProfileName>().ok()?;
    Some(word)
}

impl Node {
    /// Returns the device that a word of another program means, if the word is one of theirs.
    pub fn spelled(&self, word: &str) -> Option<Result<&Device, NoSuchDevice>> {
        let meaning = self.meaning(bare(word))?;
        let found: Vec<&Device> = match &meaning {
            Meaning::Gpu(mark) => self.devices_with(*mark),
            Meaning::Listed(mark, nth) => {
                let mut devices = self.devices_with(*mark);
                devices.retain(|device| device.part.is_some());
                if devices.len() <= *nth as usize {
                    return None;
                }
                devices
            }
            Meaning::Instance(mark, instance, compute) => {
                let mut devices = self.devices_with(*mark);
                devices.retain(|device| {
                    device.part.as_ref().is_some_and(|part| {
                        part.gpu_instance.0 == *instance
                            && compute.is_none_or(|compute| part.compute_instance.0 == compute)
                    })
                });
                devices
            }
            Meaning::Profile(title) => {
                let devices = self.devices.iter();
                devices.filter(|device| has_title(device, title)).collect()
            }
        };
        let wanted = word.to_owned();
        let known = found.iter().map(|device| device.name.clone()).collect();
        match (found.as_slice(), &meaning) {
            ([only], _) => Some(Ok(only)),
            ([], Meaning::Gpu(mark)) => Some(Err(match self.index_with(*mark) {
                Some(index) => self.no_device_on(index),
                None => self.no_gpu(word, true),
            })),
            ([], _) => None,
            (_, Meaning::Profile(_)) => Some(Err(NoSuchDevice::Ambiguous { wanted, known })),
            ([first, ..], _) => Some(Err(NoSuchDevice::OfOneGpu {
                wanted,
                gpu: first.gpu?,
                known,
            })),
        }
    }

    fn meaning<'a>(&self, word: &'a str) -> Option<Meaning<'a>> {
        match capability_number(word) {
            Some(minor) => capability(&self.host.as_ref()?.capability_with(minor)?),
            None => capability(word).or_else(|| meaning(word)),
        }
    }

    fn devices_with(&self, mark: GpuMark<'_>) -> Vec<&Device> {
        let index = self.index_with(mark);
        let devices = self.devices.iter();
        devices
            .filter(|device| device.gpu.is_some() && device.gpu == index)
            .collect()
    }

    /// Returns the index of the GPU with that mark; of a unique beginning of its UUID.
    fn index_with(&self, mark: GpuMark<'_>) -> Option<u32> {
        let mut indices: Vec<u32> = match mark {
            GpuMark::Index(index) => return Some(index),
            // Without a driver, only records have UUIDs.
            GpuMark::Uuid(start) => {
                let gpus = self.gpus.iter().map(|gpu| (Some(gpu.index), &gpu.uuid));
                let recorded = self
                    .devices
                    .iter()
                    .map(|device| (device.gpu, &device.key.gpu));
                let is_meant = |uuid: &str| {
                    let own = uuid
                        .get("GPU-".len()..)
                        .and_then(|own| own.get(..start.len()));
                    own.is_some_and(|own| own.eq_ignore_ascii_case(start))
                };
                let meant = gpus.chain(recorded).filter(|(_, uuid)| is_meant(uuid));
                meant.filter_map(|(index, _)| index).collect()
            }
            GpuMark::Pci(address) => {
                let gpus = self.gpus.iter();
                let meant = gpus.filter(|gpu| PciAddress::parse(&gpu.pci) == Some(address));
                meant.map(|gpu| gpu.index).collect()
            }
            GpuMark::Minor(minor) => {
                let meant = self.gpus.iter().filter(|gpu| gpu.minor == Some(minor));
                meant.map(|gpu| gpu.index).collect()
            }
        };
        indices.sort_unstable();
        indices.dedup();
        match indices.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// Returns the index of the GPU that a word of `--gpu` means.
    pub fn gpu_index(&self, word: &str) -> Result<u32, NoSuchDevice> {
        let mark = number(bare(word))
            .map(GpuMark::Index)
            .or_else(|| gpu_mark(bare(word)));
        let index = mark.and_then(|mark| self.index_with(mark));
        index.ok_or_else(|| self.no_gpu(word, mark.is_some()))
    }

    /// Returns the error for a GPU's mark that no GPU has, or for a word that is no such mark.
    fn no_gpu(&self, word: &str, is_mark: bool) -> NoSuchDevice {
        let mut lost = self.lost_gpus();
        if self.has_no_driver() {
            // Records have no PCI addresses and no device files.
            let what = if is_mark {
                format!("only the driver can tell which GPU \"{word}\" is")
            } else {
                format!("no GPU is called \"{word}\"")
            };
            let hint = if word.contains(',') {
                one_gpu_each(word)
            } else if self.driver_error().is_some() {
                "mig-mps doctor finds out why the driver does not answer".to_owned()
            } else if self.devices.is_empty() {
                "no device has a daemon: mig-mps up PROFILE starts daemons".to_owned()
            } else {
                "name the device as mig-mps status lists it".to_owned()
            };
            NoSuchDevice::NotServed { what, hint }
        } else if let Some((_, why)) = lost.next().filter(|_| is_mark) {
            NoSuchDevice::Lost(format!(
                "no GPU that can be read is called \"{word}\"; {why}"
            ))
        } else {
            NoSuchDevice::NoGpu {
                wanted: word.to_owned(),
                gpus: self.gpus.iter().map(|gpu| gpu.index).collect(),
            }
        }
    }
}

/// True if a device has that profile, whose name may be the short one.
fn has_title(device: &Device, title: &str) -> bool {
    let recorded = device
        .served
        .as_ref()
        .and_then(|served| served.record.profile.as_deref());
    let own = device
        .part
        .as_ref()
        .map(|part| part.title.as_str())
        .or(recorded);
    own.is_some_and(|own| {
        let short = own
            .parse::<ProfileName>()
            .map(|own| own.short().to_string());
        own == title || short.as_deref() == Ok(title)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_other_programs_are_read() {
        let uuid = "5f1c2a3b-0000-1111-2222-333344445555";
        let long = format!("GPU-{uuid}");
        let old = format!("MIG-{long}/7/0");
        let pci = || GpuMark::Pci(PciAddress::parse("0000:17:00.0").unwrap());
        for (word, expected) in [
            ("GPU 0", Meaning::Gpu(GpuMark::Index(0))),
            ("gpu0", Meaning::Gpu(GpuMark::Index(0))),
            ("GPU-12", Meaning::Gpu(GpuMark::Index(12))),
            ("gpu:3", Meaning::Gpu(GpuMark::Index(3))),
            (&long, Meaning::Gpu(GpuMark::Uuid(uuid))),
            ("/dev/nvidia3", Meaning::Gpu(GpuMark::Minor(3))),
            ("nvidia3", Meaning::Gpu(GpuMark::Minor(3))),
            ("00000000:17:00.0", Meaning::Gpu(pci())),
            ("0000:17:00.0", Meaning::Gpu(pci())),
            ("17:00.0", Meaning::Gpu(pci())),
            (&old, Meaning::Instance(GpuMark::Uuid(uuid), 7, Some(0))),
            ("0/7/0", Meaning::Instance(GpuMark::Index(0), 7, Some(0))),
            ("0:1", Meaning::Listed(GpuMark::Index(0), 1)),
            ("MIG 1g.10gb", Meaning::Profile("1g.10gb".to_owned())),
            ("mig-1g.10gb.me", Meaning::Profile("1g.10gb+me".to_owned())),
            (
                "nvidia.com/mig-3g.40gb",
                Meaning::Profile("3g.40gb".to_owned()),
            ),
            (
                "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb",
                Meaning::Profile("1c.3g.40gb".to_owned()),
            ),
            ("gres:gpu:1g.10gb:2", Meaning::Profile("1g.10gb".to_owned())),
            ("gres/gpu:1g.10gb=2", Meaning::Profile("1g.10gb".to_owned())),
            ("gpu:1g.10gb:2", Meaning::Profile("1g.10gb".to_owned())),
            ("1g.10gb:2", Meaning::Profile("1g.10gb".to_owned())),
            ("1c.3g.40gb", Meaning::Profile("1c.3g.40gb".to_owned())),
        ] {
            assert_eq!(meaning(word), Some(expected), "{word}");
        }
        for word in [
            "0",
            "trainer",
            "gpu",
            "GPU-",
            "a/b/c",
            "1/0",
            "x:1",
            "nvidia",
            "nvidiactl",
            "nvidia-cap3",
            "gres/gpu=1",
            "é",
        ] {
            assert_eq!(meaning(word), None, "{word}");
        }
    }

    #[test]
    fn capabilities_are_those_of_instances() {
        let instance = |compute| Some(Meaning::Instance(GpuMark::Minor(1), 13, compute));
        assert_eq!(capability("gpu1/gi13/access"), instance(None));
        assert_eq!(capability("gpu1/gi13/ci2/access"), instance(Some(2)));
        let file = "/proc/driver/nvidia/capabilities/gpu1/mig/gi13/ci2/access";
        assert_eq!(capability(file), instance(Some(2)));
        for name in [
            "config",
            "monitor",
            "gpu1/access",
            "gpu1/mig/access",
            "gpu1/gi13/x/access",
            "mig/config",
        ] {
            assert_eq!(capability(name), None, "{name}");
        }
    }

    #[test]
    fn the_kind_in_front_is_left_out() {
        for (word, bare_word) in [
            ("nvidia.com/gpu=0:1", "0:1"),
            ("mig-mps/device=trainer", "trainer"),
            ("device=0", "0"),
            ("GPU-5f1c::3", "GPU-5f1c"),
            ("k8s.device-plugin.nvidia.com/gpu=GPU-5f1c", "GPU-5f1c"),
            ("a=b", "a=b"),
            // These are numbers of devices.
            ("gres/gpu=1", "gres/gpu=1"),
            ("nvidia.com/mig-3g.40gb=1", "nvidia.com/mig-3g.40gb=1"),
        ] {
            assert_eq!(bare(word), bare_word);
        }
    }
}
