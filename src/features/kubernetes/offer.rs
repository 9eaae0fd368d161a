//! The resources, the shares of their devices, and what a container with a share gets.

use std::collections::HashMap;

use super::v1beta1::{self as api, ContainerAllocateResponse, Mount};
use crate::client::cdi_files::NVIDIA_KIND;
use crate::client::{CDI_KIND, CdiFiles, ContainerDevice};
use crate::host::Host;
use crate::state::DeviceRecord;

/// The domain of the resources.
pub const DOMAIN: &str = "mig-mps.io";

/// The resource of whole GPUs that have no name of their own.
const WHOLE_GPU_RESOURCE: &str = "gpu";

/// The most characters of the name of a resource or label after its domain.
pub const MAX_NAME_CHARS: usize = 63;

/// Everything that pods can have.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResourceOffers {
    pub devices: Vec<OfferedDevice>,
    /// The names of devices that cannot be offered, with the reason.
    pub refused: Vec<(String, String)>,
}

impl ResourceOffers {
    /// Returns the devices of a resource.
    pub fn devices_for<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a OfferedDevice> {
        self.devices
            .iter()
            .filter(move |offered| offered.resource == resource)
    }

    pub fn device_named(&self, name: &str) -> Option<&OfferedDevice> {
        self.devices.iter().find(|offered| offered.name == name)
    }
}

/// A device as pods can have it.
#[derive(Clone, Debug, PartialEq)]
pub struct OfferedDevice {
    pub name: String,
    pub uuid: String,
    /// `mig-mps.io/1g.10gb`
    pub resource: String,
    /// The number of containers that can have it at once.
    pub shares: u32,
    /// The reason why no container can have it now.
    pub ill: Option<String>,
    /// The NUMA node that its GPU is near.
    pub numa_node: Option<u32>,
    /// Its memory; `None` if the driver does not tell it.
    pub memory_mib: Option<u64>,
    /// The variables and mounts of a container, or the reason why they are not known.
    pub container: Result<ContainerDevice, String>,
}

/// The mark between a device's name and the number of a share: `0.4::3`.
const SHARE_SEPARATOR: &str = "::";

/// Returns the name of the device that a share is of.
pub fn device_of(share: &str) -> &str {
    share
        .rsplit_once(SHARE_SEPARATOR)
        .map_or(share, |(name, _)| name)
}

impl OfferedDevice {
    /// Returns the ids of its shares.
    fn share_ids(&self) -> impl Iterator<Item = String> {
        (0..self.shares).map(|number| format!("{}{SHARE_SEPARATOR}{number}", self.name))
    }

    /// True if the share is one of its own.
    pub fn has_share(&self, share: &str) -> bool {
        device_of(share) == self.name && self.share_ids().any(|id| id == share)
    }

    /// Returns its shares as the kubelet lists them.
    pub fn kubelet_devices(&self) -> impl Iterator<Item = api::Device> {
        let health = match self.ill {
            None => "Healthy",
            Some(_) => "Unhealthy",
        };
        let topology = self.numa_node.map(|node| api::TopologyInfo {
            nodes: vec![api::NumaNode { id: node.into() }],
        });
        self.share_ids().map(move |id| api::Device {
            id,
            health: health.to_owned(),
            topology: topology.clone(),
        })
    }

    /// Returns what a container with a share gets: variables and a mount for every runtime, and the names of the device
    /// and of its GPU for runtimes that know CDI, as far as there are files that define them.
    pub fn allocation_response(&self, host: &Host) -> Result<ContainerAllocateResponse, String> {
        if let Some(why) = &self.ill {
            return Err(format!("device {} is not healthy: {why}", self.name));
        }
        let device = self.container.as_ref().map_err(Clone::clone)?;
        let files = CdiFiles::load(host);
        let names = [
            (CDI_KIND, format!("\"{}\"", self.uuid)),
            (NVIDIA_KIND, self.uuid.clone()),
        ];
        // By UUID: the kubelet keeps the answer, and the name may be another device's later.
        let cdi_devices: Vec<_> = names
            .iter()
            .filter(|(kind, text)| files.contain_text(kind, text))
            .map(|(kind, _)| api::CdiDevice {
                name: format!("{kind}={}", self.uuid),
            })
            .collect();
        let is_in_cdi = cdi_devices.iter().any(|cdi| cdi.name.starts_with(CDI_KIND));
        if device.group.is_some() && !is_in_cdi {
            // It would not reach the daemon, and run outside MPS.
            return Err(format!(
                "device {} serves a group, which only a CDI file lets a container join; set cdi = true in the profile",
                self.name
            ));
        }
        let mount = |path: &str, read_only| Mount {
            container_path: path.to_owned(),
            host_path: path.to_owned(),
            read_only,
        };
        let mut mounts = vec![mount(&device.pipe, true)];
        if device.shares_files {
            mounts.push(mount("/dev/shm", false));
        }
        let mut envs: HashMap<String, String> = device
            .variables
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        if cdi_devices.len() < names.len() {
            // For NVIDIA's container runtime without CDI.
            envs.insert("NVIDIA_VISIBLE_DEVICES".to_owned(), self.uuid.clone());
        }
        Ok(ContainerAllocateResponse {
            envs,
            mounts,
            cdi_devices,
            ..ContainerAllocateResponse::default()
        })
    }
}

/// Returns the resource of a device, or the reason why it cannot have one. Devices of one resource can take the place of each
/// other.
pub fn resource_for(record: &DeviceRecord, all: &[&DeviceRecord]) -> Result<String, String> {
    if record.key.is_joint() {
        return Err("it is a joint device, and the plugin offers devices on one GPU".to_owned());
    }
    let word = if has_default_name(record) {
        resource_word(record)
            .ok_or("its record is from an earlier version; apply the profile again")?
    } else {
        let is_like = |other: &&DeviceRecord| {
            other.profile == record.profile && other.settings.serve == record.settings.serve
        };
        let mut alike = all.iter().filter(|other| {
            !has_default_name(other) && name_stem(&other.name) == name_stem(&record.name)
        });
        let name = if alike.all(is_like) {
            name_stem(&record.name)
        } else {
            &record.name
        };
        let mut kinds = all.iter().filter(|other| has_default_name(other));
        if kinds.any(|other| resource_word(other).as_deref() == Some(name)) {
            return Err(
                "its name looks like that of a device without a name; choose another name"
                    .to_owned(),
            );
        }
        name.to_owned()
    };
    let ends = [word.chars().next(), word.chars().next_back()];
    if word.len() > MAX_NAME_CHARS
        || !ends
            .iter()
            .all(|end| end.is_some_and(|c| c.is_ascii_alphanumeric()))
    {
        return Err(format!(
            "\"{word}\" is not a resource name: it needs at most {MAX_NAME_CHARS} characters, and a letter or digit \
             at both ends"
        ));
    }
    Ok(format!("{DOMAIN}/{word}"))
}

/// True if nobody has given the device a name: it is called by its GPU and its placement.
fn has_default_name(record: &DeviceRecord) -> bool {
    let Some(gpu) = record.gpu else {
        return false;
    };
    let Some(instance) = record.key.instance else {
        return record.name == gpu.to_string();
    };
    let default = format!("{gpu}.{}", instance.placement.start);
    let rest = record.name.strip_prefix(&default);
    rest.is_some_and(|rest| match rest.strip_prefix(".c") {
        Some(number) => number.parse::<u32>().is_ok(),
        None => rest.is_empty(),
    })
}

/// Returns the word for a device without a name of its own. Names of devices have no `+`, and those of resources neither.
fn resource_word(record: &DeviceRecord) -> Option<String> {
    let profile = record.profile.as_deref();
    let word = profile.or_else(|| record.key.instance.is_none().then_some(WHOLE_GPU_RESOURCE));
    word.map(|word| word.replace('+', "."))
}

/// Returns a name without the numbers at its end: `trainer` of `trainer-0` and `trainer-3-1`.
fn name_stem(name: &str) -> &str {
    let mut stem = name;
    while let Some((before, number)) = stem.rsplit_once(['-', '.', '_'])
        && !before.is_empty()
        && !number.is_empty()
        && number.chars().all(|c| c.is_ascii_digit())
    {
        stem = before;
    }
    stem
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::{Placement, ProfileId};
    use crate::state::{DeviceKey, InstanceKey};

    fn record(name: &str, profile: Option<&str>) -> DeviceRecord {
        let part = |start| Placement { start, size: 1 };
        let instance = profile.map(|_| InstanceKey {
            profile: ProfileId(19),
            placement: part(4),
            compute: part(0),
        });
        DeviceRecord {
            name: name.to_owned(),
            gpu: Some(0),
            profile: profile.map(str::to_owned),
            key: DeviceKey {
                joint: Vec::new(),
                gpu: "GPU-0".to_owned(),
                instance,
            },
            ..DeviceRecord::default()
        }
    }

    /// The resources of devices, without the domain.
    fn resources(devices: &[(&str, Option<&str>)]) -> Vec<String> {
        let records: Vec<_> = devices
            .iter()
            .map(|(name, profile)| record(name, *profile))
            .collect();
        let all: Vec<_> = records.iter().collect();
        let resource = |record| match resource_for(record, &all) {
            Ok(resource) => resource.strip_prefix("mig-mps.io/").unwrap().to_owned(),
            Err(why) => format!("- {why}"),
        };
        all.iter().map(|record| resource(record)).collect()
    }

    #[test]
    fn a_device_is_called_by_its_name_or_its_size() {
        let (small, large) = (Some("1g.10gb"), Some("3g.40gb"));
        assert_eq!(
            resources(&[("0.4", small), ("0", None)]),
            ["1g.10gb", "gpu"]
        );
        assert_eq!(resources(&[("0.4", Some("1g.10gb+me"))]), ["1g.10gb.me"]);
        assert_eq!(resources(&[("0.4.c1", Some("1c.3g.40gb"))]), ["1c.3g.40gb"]);
        assert_eq!(
            resources(&[("trainer-0", large), ("trainer-3-1", large)]),
            ["trainer", "trainer"]
        );
        // Of two sizes, each is one of its own.
        assert_eq!(resources(&[("a-1", large), ("a-2", small)]), ["a-1", "a-2"]);
        assert_eq!(
            resources(&[("model2", small), ("7-1", small)]),
            ["model2", "7"]
        );
    }

    #[test]
    fn a_name_that_no_resource_can_have_is_refused() {
        let long = "x".repeat(64);
        for name in ["a-", "_a", &long] {
            let found = resources(&[(name, Some("1g.10gb"))]);
            assert!(found[0].starts_with("- \""), "{found:?}");
        }
        let found = resources(&[("0.4", Some("1g.10gb")), ("1g.10gb", Some("3g.40gb"))]);
        assert_eq!(found[0], "1g.10gb");
        assert!(found[1].starts_with("- its name looks like"), "{found:?}");
        let found = resources(&[("0.4", Some("1g.10gb+me")), ("1g.10gb.me", Some("3g.40gb"))]);
        assert!(found[1].starts_with("- its name looks like"), "{found:?}");
    }

    #[test]
    fn a_share_is_a_device_and_a_number() {
        assert_eq!(device_of("0.4::3"), "0.4");
        assert_eq!(device_of("0.4"), "0.4");
    }
}
