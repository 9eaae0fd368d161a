//! GPUs and devices as other programs write them: NVML, CUDA, nvidia-smi, CDI, Kubernetes, Slurm and the kernel.

use super::device_selector::{known_devices_hint, parse_index, repeat_gpu_hint};
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
enum WordMeaning<'a> {
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
pub(super) fn strip_affixes(word: &str) -> &str {
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
fn parse_gpu_mark(word: &str) -> Option<GpuMark<'_>> {
    if let Some(address) = PciAddress::parse(word) {
        return Some(GpuMark::Pci(address));
    }
    let file = word.strip_prefix("/dev/").unwrap_or(word);
    if let Some(minor) = file.strip_prefix("nvidia").and_then(parse_index) {
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
    if rest.len() < 4 {
        parse_index(rest).map(GpuMark::Index)
    } else {
        word[3..].starts_with('-').then_some(GpuMark::Uuid(rest))
    }
}

fn parse_word(word: &str) -> Option<WordMeaning<'_>> {
    let of_gpu = |word| {
        parse_index(word)
            .map(GpuMark::Index)
            .or_else(|| parse_gpu_mark(word))
    };
    // `MIG-GPU-…/1/0`, as older drivers have it.
    let mut parts = word
        .strip_prefix("MIG-")
        .filter(|rest| rest.starts_with("GPU-"))
        .unwrap_or(word)
        .rsplitn(3, '/');
    if let (Some(compute), Some(instance), Some(gpu)) = (parts.next(), parts.next(), parts.next())
        && let (Some(compute), Some(instance)) = (parse_index(compute), parse_index(instance))
    {
        return Some(WordMeaning::Instance(of_gpu(gpu)?, instance, Some(compute)));
    }
    if let Some(meaning) = parse_numbers(word) {
        return Some(meaning);
    }
    if let Some(mark) = parse_gpu_mark(word) {
        return Some(WordMeaning::Gpu(mark));
    }
    if let Some((gpu, nth)) = word.rsplit_once(':')
        && let Some(nth) = parse_index(nth)
        && let Some(gpu) = of_gpu(gpu)
    {
        return Some(WordMeaning::Listed(gpu, nth));
    }
    parse_profile(word).map(WordMeaning::Profile)
}

/// Reads the numbers of a GPU, a GPU instance and a compute instance as nvidia-smi shows them: `0 7 0`, `GPU 0 GI 7 CI 0`,
/// `gpu0/gi7`.
fn parse_numbers(word: &str) -> Option<WordMeaning<'static>> {
    let lower = word.to_ascii_lowercase();
    let mut numbers = Vec::new();
    for part in lower.split([' ', '/']).filter(|part| !part.is_empty()) {
        let digits = part.trim_start_matches(|c: char| c.is_ascii_alphabetic());
        if !["", "gpu", "gi", "ci"].contains(&part.strip_suffix(digits)?) {
            return None;
        }
        if !digits.is_empty() {
            numbers.push(parse_index(digits)?);
        }
    }
    match numbers[..] {
        [gpu, instance, compute] => Some(WordMeaning::Instance(
            GpuMark::Index(gpu),
            instance,
            Some(compute),
        )),
        [gpu, instance] if lower.contains("gi") => {
            Some(WordMeaning::Instance(GpuMark::Index(gpu), instance, None))
        }
        _ => None,
    }
}

/// Returns the number in the name of a capability's file, such as `/dev/nvidia-caps/nvidia-cap12`.
fn parse_capability_number(word: &str) -> Option<u32> {
    let file = word.strip_prefix("/dev/nvidia-caps/").unwrap_or(word);
    file.strip_prefix("nvidia-cap").and_then(parse_index)
}

/// Reads the name of a capability: `gpu0/gi1/ci0/access`, `/proc/driver/nvidia/capabilities/gpu0/mig/gi1/access`.
fn parse_capability(name: &str) -> Option<WordMeaning<'static>> {
    let below = name.strip_prefix("/proc/driver/nvidia/capabilities/");
    let mut parts = below.unwrap_or(name).strip_suffix("/access")?.split('/');
    let numbered = |part: &str, kind: &str| part.strip_prefix(kind).and_then(parse_index);
    let gpu = numbered(parts.next()?, "gpu")?;
    let mut parts = parts.filter(|part| *part != "mig");
    let instance = numbered(parts.next()?, "gi")?;
    let compute = match parts.next() {
        Some(part) => Some(numbered(part, "ci")?),
        None => None,
    };
    Some(WordMeaning::Instance(
        GpuMark::Minor(gpu),
        instance,
        compute,
    ))
}

/// Reads `MIG 1g.10gb`, `mig-1g.10gb`, `nvidia.com/mig-1g.10gb.me`, `gpu:1g.10gb:2`, `1c.3g.40gb`, and CUDA's
/// `NVIDIA A100-SXM4-80GB MIG 1g.10gb`.
fn parse_profile(word: &str) -> Option<String> {
    let word = word.to_ascii_lowercase();
    let word = word.rsplit('/').next()?;
    let word = word.rsplit(" mig ").next()?;
    let word = word.strip_prefix("gres:").unwrap_or(word);
    let starts = ["gpu:", "mig-", "mig ", "mig_"];
    let bare = starts
        .iter()
        .find_map(|start| word.strip_prefix(start))
        .unwrap_or(word)
        .split([':', '='])
        .next()?
        .replace("gb.me", "gb+me");
    let profile = match bare.split_once("c.") {
        Some((_, profile)) => profile,
        None => &bare,
    };
    profile.parse::<ProfileName>().ok()?;
    Some(bare)
}

impl Node {
    /// Returns the device that a word of another program means, if the word is one of theirs.
    pub fn find_device_by_spelling(&self, word: &str) -> Option<Result<&Device, NoSuchDevice>> {
        let meaning = self.meaning_of_word(strip_affixes(word))?;
        let found: Vec<&Device> = match &meaning {
            WordMeaning::Gpu(mark) => self.devices_with(*mark),
            WordMeaning::Listed(mark, nth) => {
                let mut devices = self.devices_with(*mark);
                devices.retain(|device| device.part.is_some());
                if devices.len() <= *nth as usize {
                    return None;
                }
                devices
            }
            WordMeaning::Instance(mark, instance, compute) => {
                let mut devices = self.devices_with(*mark);
                devices.retain(|device| {
                    device.part.as_ref().is_some_and(|part| {
                        part.gpu_instance.0 == *instance
                            && compute.is_none_or(|compute| part.compute_instance.0 == compute)
                    })
                });
                devices
            }
            WordMeaning::Profile(title) => self
                .devices
                .iter()
                .filter(|device| has_title(device, title))
                .collect(),
        };
        let wanted = word.to_owned();
        let known = found.iter().map(|device| device.name.clone()).collect();
        match (found.as_slice(), &meaning) {
            ([only], _) => Some(Ok(only)),
            ([], WordMeaning::Gpu(mark)) => Some(Err(match self.index_with(*mark) {
                Some(index) => self.no_device_error(index),
                None => self.no_gpu_error(word, true),
            })),
            ([], _) => None,
            (_, WordMeaning::Profile(_)) => Some(Err(NoSuchDevice::Ambiguous { wanted, known })),
            ([first, ..], _) => Some(Err(NoSuchDevice::OfOneGpu {
                wanted,
                gpu: first.gpu?,
                known,
            })),
        }
    }

    fn meaning_of_word<'a>(&self, word: &'a str) -> Option<WordMeaning<'a>> {
        match parse_capability_number(word) {
            Some(minor) => parse_capability(&self.host.as_ref()?.capability_name(minor)?),
            None => parse_capability(word).or_else(|| parse_word(word)),
        }
    }

    fn devices_with(&self, mark: GpuMark<'_>) -> Vec<&Device> {
        match self.index_with(mark) {
            Some(index) => self.devices_of_gpu(index).collect(),
            None => Vec::new(),
        }
    }

    /// Returns the error for a word that means none of the devices that have records: those are `known`.
    pub(super) fn not_served_error(&self, word: &str, known: &[String]) -> NoSuchDevice {
        // Records do not have the numbers of instances.
        let of_gpu = self.hint_for_instance(word);
        let served = |takes| {
            let kind = "device with a daemon";
            let all = (!known.is_empty()).then(|| known_devices_hint(word, known, kind, takes));
            of_gpu.clone().or(all)
        };
        let what = format!("\"{word}\"");
        NoSuchDevice::not_served(&what, served, self.first_unread_reason())
    }

    /// Names the devices of the GPU on which a word means an instance; `None` for another word.
    fn hint_for_instance(&self, word: &str) -> Option<String> {
        let (WordMeaning::Instance(mark, ..) | WordMeaning::Listed(mark, _)) =
            parse_word(strip_affixes(word))?
        else {
            return None;
        };
        let gpu = self.index_with(mark)?;
        let names = self.names_on(gpu).ok()?;
        Some(match names.as_slice() {
            [only] => format!("use device {only}, the only one of GPU {gpu}"),
            several => format!(
                "choose one of the devices of GPU {gpu}: {}",
                several.join(", ")
            ),
        })
    }

    /// Returns the index of the GPU with that mark; of a unique beginning of its UUID.
    fn index_with(&self, mark: GpuMark<'_>) -> Option<u32> {
        let mut indices: Vec<u32> = match mark {
            GpuMark::Index(index) => return Some(index),
            // Without a driver, only records have UUIDs. Another GPU may have the index of one that is gone.
            GpuMark::Uuid(start) => {
                let gpus = self.gpus.iter().map(|gpu| (Some(gpu.index), &gpu.uuid));
                let recorded = self
                    .devices
                    .iter()
                    .filter(|device| !device.is_gone())
                    .flat_map(|device| device.gpu_indices().iter().zip(device.key.gpus()))
                    .map(|(index, uuid)| (Some(*index), uuid));
                let is_meant = |uuid: &str| {
                    let own = uuid
                        .get("GPU-".len()..)
                        .and_then(|own| own.get(..start.len()));
                    own.is_some_and(|own| own.eq_ignore_ascii_case(start))
                };
                gpus.chain(recorded)
                    .filter(|(_, uuid)| is_meant(uuid))
                    .filter_map(|(index, _)| index)
                    .collect()
            }
            GpuMark::Pci(address) => self
                .gpus
                .iter()
                .filter(|gpu| PciAddress::parse(&gpu.pci) == Some(address))
                .map(|gpu| gpu.index)
                .collect(),
            GpuMark::Minor(minor) => self
                .gpus
                .iter()
                .filter(|gpu| gpu.minor == Some(minor))
                .map(|gpu| gpu.index)
                .collect(),
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
        let Some(mark) = parse_index(strip_affixes(word))
            .map(GpuMark::Index)
            .or_else(|| parse_gpu_mark(strip_affixes(word)))
        else {
            return Err(self.no_gpu_error(word, false));
        };
        self.index_with(mark)
            .ok_or_else(|| self.no_gpu_error(word, true))
    }

    /// Returns the error for a GPU's mark that no GPU has, or for a word that is no such mark.
    fn no_gpu_error(&self, word: &str, is_mark: bool) -> NoSuchDevice {
        let mut lost = self.lost_gpus();
        if self.has_no_driver() {
            // Records have no PCI addresses and no device files.
            let what = if is_mark {
                format!("only the driver can tell which GPU \"{word}\" is")
            } else {
                format!("no GPU has the name \"{word}\"")
            };
            let hint = if word.contains(',') {
                repeat_gpu_hint(word)
            } else if self.driver_error().is_some() {
                "run `mig-mps doctor` to find out why the driver does not answer".to_owned()
            } else if self.devices.is_empty() {
                "run `mig-mps up PROFILE` to start daemons; no device has one".to_owned()
            } else {
                "write the name of the device as in `mig-mps status`".to_owned()
            };
            NoSuchDevice::NotServed {
                what,
                hint_for_one: hint.clone(),
                hint,
            }
        } else if is_mark && let Some((_, why)) = lost.next() {
            NoSuchDevice::Lost(format!("no readable GPU has the name \"{word}\"; {why}"))
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
    device
        .part
        .as_ref()
        .map(|part| part.title.as_str())
        .or(recorded)
        .is_some_and(|own| {
            let short = own
                .parse::<ProfileName>()
                .map(|own| own.to_short().to_string());
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
            ("GPU 0", WordMeaning::Gpu(GpuMark::Index(0))),
            ("gpu0", WordMeaning::Gpu(GpuMark::Index(0))),
            ("GPU-12", WordMeaning::Gpu(GpuMark::Index(12))),
            ("gpu:3", WordMeaning::Gpu(GpuMark::Index(3))),
            (&long, WordMeaning::Gpu(GpuMark::Uuid(uuid))),
            ("/dev/nvidia3", WordMeaning::Gpu(GpuMark::Minor(3))),
            ("nvidia3", WordMeaning::Gpu(GpuMark::Minor(3))),
            ("00000000:17:00.0", WordMeaning::Gpu(pci())),
            ("0000:17:00.0", WordMeaning::Gpu(pci())),
            ("17:00.0", WordMeaning::Gpu(pci())),
            (&old, WordMeaning::Instance(GpuMark::Uuid(uuid), 7, Some(0))),
            (
                "0/7/0",
                WordMeaning::Instance(GpuMark::Index(0), 7, Some(0)),
            ),
            (
                "0 7 0",
                WordMeaning::Instance(GpuMark::Index(0), 7, Some(0)),
            ),
            (
                "GPU 0 GI 7 CI 0",
                WordMeaning::Instance(GpuMark::Index(0), 7, Some(0)),
            ),
            (
                "gpu0/gi7",
                WordMeaning::Instance(GpuMark::Index(0), 7, None),
            ),
            ("0:1", WordMeaning::Listed(GpuMark::Index(0), 1)),
            ("MIG 1g.10gb", WordMeaning::Profile("1g.10gb".to_owned())),
            (
                "mig-1g.10gb.me",
                WordMeaning::Profile("1g.10gb+me".to_owned()),
            ),
            (
                "nvidia.com/mig-3g.40gb",
                WordMeaning::Profile("3g.40gb".to_owned()),
            ),
            (
                "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb",
                WordMeaning::Profile("1c.3g.40gb".to_owned()),
            ),
            (
                "gres:gpu:1g.10gb:2",
                WordMeaning::Profile("1g.10gb".to_owned()),
            ),
            (
                "gres/gpu:1g.10gb=2",
                WordMeaning::Profile("1g.10gb".to_owned()),
            ),
            ("gpu:1g.10gb:2", WordMeaning::Profile("1g.10gb".to_owned())),
            ("1g.10gb:2", WordMeaning::Profile("1g.10gb".to_owned())),
            ("1c.3g.40gb", WordMeaning::Profile("1c.3g.40gb".to_owned())),
        ] {
            assert_eq!(parse_word(word), Some(expected), "{word}");
        }
    }

    #[test]
    fn other_words_are_not() {
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
            assert_eq!(parse_word(word), None, "{word}");
        }
    }

    #[test]
    fn capabilities_are_those_of_instances() {
        let instance = |compute| Some(WordMeaning::Instance(GpuMark::Minor(1), 13, compute));
        assert_eq!(parse_capability("gpu1/gi13/access"), instance(None));
        assert_eq!(parse_capability("gpu1/gi13/ci2/access"), instance(Some(2)));
        let file = "/proc/driver/nvidia/capabilities/gpu1/mig/gi13/ci2/access";
        assert_eq!(parse_capability(file), instance(Some(2)));
        for name in [
            "config",
            "monitor",
            "gpu1/access",
            "gpu1/mig/access",
            "gpu1/gi13/x/access",
            "mig/config",
        ] {
            assert_eq!(parse_capability(name), None, "{name}");
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
            assert_eq!(strip_affixes(word), bare_word);
        }
    }
}
