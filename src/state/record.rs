//! The content of the files of a run directory.

use std::collections::BTreeMap;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use super::writer::Writer;
use crate::config::JOINT;
use crate::failure::Problem;
use crate::geometry::{Placement, ProfileId};
use crate::host::{
    Account, FileResult, Host, Machine, Pid, Process, StartTime, Uid, Unit, fnv1a, group_id,
    shorten_command,
};
use crate::nvml::GpuInstanceReading;
use crate::settings::{Serve, Settings};

/// The time for which `heal` counts its starts.
const HEALS_COUNT_FOR: SignedDuration = SignedDuration::from_hours(1);

/// Identifies a device across boots: a MIG UUID is opaque and may change.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceKey {
    /// The GPU's UUID; that of the first GPU of a joint device.
    pub gpu: String,
    /// The compute instance; `None` for whole GPUs.
    pub instance: Option<InstanceKey>,
    /// The UUIDs of all GPUs of a joint device, in the order of their indices; none for another device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joint: Vec<String>,
}

impl DeviceKey {
    /// Identifies a whole GPU.
    pub fn for_whole_gpu(gpu: &str) -> Self {
        Self {
            gpu: gpu.to_owned(),
            ..Self::default()
        }
    }

    /// Identifies several whole GPUs as one device, by their UUIDs in the order of their indices.
    pub fn for_joint_device(gpus: Vec<String>) -> Self {
        Self {
            gpu: gpus.first().cloned().unwrap_or_default(),
            instance: None,
            joint: gpus,
        }
    }

    /// True for several GPUs as one device.
    pub fn is_joint(&self) -> bool {
        !self.joint.is_empty()
    }

    /// Returns the number of its GPUs, which is at least one.
    pub fn gpu_count(&self) -> u32 {
        u32::try_from(self.gpus().len()).unwrap_or(1)
    }

    /// Returns the UUIDs of its GPUs.
    pub fn gpus(&self) -> &[String] {
        if self.is_joint() {
            &self.joint
        } else {
            std::slice::from_ref(&self.gpu)
        }
    }

    /// True if two devices are the same, or share a GPU as a whole.
    pub fn excludes(&self, other: &Self) -> bool {
        self == other
            || (self.is_joint() || other.is_joint())
                && self.gpus().iter().any(|gpu| other.has_gpu(gpu))
    }

    /// True if it is, or has, the GPU with this UUID.
    pub fn has_gpu(&self, uuid: &str) -> bool {
        self.gpus().iter().any(|own| own == uuid)
    }

    /// Returns the UUIDs by which the driver knows the device with this UUID: those of all GPUs of a joint one.
    pub fn driver_uuids<'a>(&'a self, uuid: &'a String) -> &'a [String] {
        if self.is_joint() {
            &self.joint
        } else {
            std::slice::from_ref(uuid)
        }
    }

    /// Returns the devices as CUDA takes them, where the device has this UUID.
    pub fn cuda_devices(&self, uuid: &str) -> String {
        if self.is_joint() {
            self.joint.join(",")
        } else {
            uuid.to_owned()
        }
    }

    /// Returns the UUID of a joint device, which no driver gives it: the same for the same GPUs, whatever their indices are.
    pub fn joint_uuid(&self) -> String {
        let mut gpus: Vec<&str> = self.joint.iter().map(String::as_str).collect();
        gpus.sort_unstable();
        format!("{JOINT}{:016x}", fnv1a(&gpus.join(" ")))
    }
}

/// The profile and placements of a compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceKey {
    /// The GPU instance's profile.
    pub profile: ProfileId,
    /// The GPU instance's placement.
    pub placement: Placement,
    /// The compute instance's placement, in compute slices.
    pub compute: Placement,
}

/// `device.json`: the state of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct DeviceRecord {
    pub name: String,
    /// Its identity across boots.
    pub key: DeviceKey,
    /// Its UUID when the daemon was started, and the name of the directory.
    pub uuid: String,
    /// Its GPU's index at that time; `None` in records of earlier versions, like `profile`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The indices of the GPUs of a joint device at that time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub joint_gpus: Vec<u32>,
    /// Its profile name, such as `3g.40gb`; `None` for whole GPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The settings of its daemon; `serve` is always set.
    pub settings: Settings,
    /// The uid or gid of the single user or group that it serves; `None` for others, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_id: Option<u32>,
    /// The keys of the settings that `mig-mps set` changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_hand: Vec<String>,
    /// The clients that started before a setting changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub older_clients: Vec<OlderClient>,
    /// The GPU's compute mode before this daemon changed it, by NVML's number. It is restored when the daemon stops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_mode_before: Option<u32>,
    /// The control daemon; `None` until it holds its lock.
    pub daemon: Option<ProcessId>,
    /// True once everything was set, started and read back. An interrupted start leaves it false.
    pub finished: bool,
    /// The boot in which it was started.
    pub boot_id: String,
    /// The machine of that boot; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The time at which it was started.
    pub since: Timestamp,
    /// The number of times that its daemon, or its server that hung, was started again since `up` made the record.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub restarts: u64,
    /// The times at which `heal` started the daemon, within the hour before the last one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub healed: Vec<Timestamp>,
    /// Set while the device admits no new programs, and until the change that wants this goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closing: Option<Closing>,
    /// True while a change takes the device from mig-mps: if that is interrupted, `heal` does not start it again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub leaving: bool,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde passes a reference"
)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl DeviceRecord {
    /// Returns the indices of its GPUs at the time of the record, as far as they are recorded.
    pub fn gpu_indices(&self) -> &[u32] {
        if self.joint_gpus.is_empty() {
            self.gpu.as_slice()
        } else {
            &self.joint_gpus
        }
    }

    /// Returns the UUIDs of its GPUs, each with its index at the time of the record, if that is recorded.
    pub fn gpus_with_indices(&self) -> impl Iterator<Item = (&str, Option<u32>)> {
        let indices = self.gpu_indices().iter().copied().map(Some);
        self.key
            .gpus()
            .iter()
            .map(String::as_str)
            .zip(indices.chain(std::iter::repeat(None)))
    }

    /// Returns the UUIDs by which the driver knows the device: those of all GPUs of a joint one.
    pub fn driver_uuids(&self) -> &[String] {
        self.key.driver_uuids(&self.uuid)
    }

    /// Returns the positions of all its GPUs.
    pub fn gpu_positions(&self) -> Vec<usize> {
        (0..self.driver_uuids().len()).collect()
    }

    /// Returns the devices as CUDA takes them in `CUDA_VISIBLE_DEVICES`.
    pub fn cuda_devices(&self) -> String {
        self.key.cuda_devices(&self.uuid)
    }

    /// The number of times that `heal` starts a daemon within an hour before it gives up.
    pub const MAX_HEALS_PER_HOUR: usize = 5;

    /// Returns the single user that the device serves, if there is one. Only for a record of an earlier version is the user
    /// looked up.
    pub fn only_user(&self) -> Option<Uid> {
        match self.settings.serve.as_ref()? {
            Serve::User(name) => match self.served_id {
                Some(id) => Some(Uid(id)),
                None => Some(Account::from_name(name).ok()??.uid),
            },
            Serve::Own => self.daemon?.user,
            _ => None,
        }
    }

    /// Returns the group that the device serves, if there is one, in the same way.
    pub fn only_group(&self) -> FileResult<Option<u32>> {
        match (&self.settings.serve, self.served_id) {
            (Some(Serve::Group(_)), Some(id)) => Ok(Some(id)),
            (Some(Serve::Group(name)), None) => group_id(name),
            _ => Ok(None),
        }
    }

    /// Returns the user that the daemon runs as, if mig-mps 0.2 started it for that user alone. Root opens no session with
    /// such a daemon and looks at nothing that it has written.
    pub fn runs_as_its_user(&self) -> Option<Uid> {
        let is_a_users = matches!(self.settings.serve, Some(Serve::User(_)));
        self.daemon?
            .user
            .filter(|user| is_a_users && *user != Uid::ROOT)
    }

    /// Returns the times within the last hour at which `heal` started its daemon.
    pub fn recent_heals(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> {
        self.healed
            .iter()
            .copied()
            .filter(move |&at| at <= now && now.duration_since(at) < HEALS_COUNT_FOR)
    }

    /// True if `heal` has given up: somebody ends the daemon again and again, or it cannot run.
    pub fn is_given_up(&self, now: Timestamp) -> bool {
        self.recent_heals(now).count() >= Self::MAX_HEALS_PER_HOUR
    }
}

/// What becomes of a device that admits no new programs, when the last one has left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Closing {
    #[serde(flatten)]
    pub origin: Origin,
    /// The process of that command.
    #[serde(flatten)]
    pub writer: Writer,
    /// The time until which it waits: that of the command if it does not wait.
    pub until: Timestamp,
    /// The daemon that follows; `None` if the device stays without one.
    pub next: Option<NextDaemon>,
    /// True once the daemon was asked to end.
    #[serde(default)]
    pub is_asked: bool,
    /// The idle client that keeps the daemon, so that newcomers are refused until the change goes on; `None` if no client
    /// could be started, and in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<ProcessId>,
}

impl Closing {
    /// Returns the idle client that keeps the daemon, if it is still there.
    pub fn find_held_client(&self, host: &Host) -> Option<Process> {
        self.held?.find_process(host)
    }
}

/// `root since 2026-11-29T14:54:08Z (mig-mps restart trainer --drain 8h --no-new), which waits until 2026-…`
impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (origin, until) = (&self.origin, format_second(self.until));
        if self.until <= origin.since {
            return write!(f, "{origin}");
        }
        write!(f, "{origin}, which waits until {until} at the latest")
    }
}

/// A daemon that takes the place of one that is closing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NextDaemon {
    /// The name of the device.
    pub name: String,
    pub settings: Settings,
    /// The keys of the settings that `mig-mps set` changed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_hand: Vec<String>,
}

impl NextDaemon {
    /// Describes the daemon of a record.
    pub fn same_as(record: &DeviceRecord) -> Self {
        Self {
            name: record.name.clone(),
            settings: record.settings.clone(),
            by_hand: record.by_hand.clone(),
        }
    }
}

/// A client that was there when a setting changed: it keeps the values that it started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct OlderClient {
    pub pid: Pid,
    /// The start time of that process, in clock ticks since boot.
    pub start_time: StartTime,
    /// Its values by key, as text, where they are not those of the device's settings.
    pub values: BTreeMap<String, String>,
}

/// The identity of a control daemon, or of another process of mig-mps that goes on after its command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct ProcessId {
    pub pid: Pid,
    /// The start time of that process, in clock ticks since boot.
    pub start_time: StartTime,
    /// Its user; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Uid>,
    /// The pid namespace of the process id; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid_namespace: Option<u64>,
}

impl ProcessId {
    /// Returns the identity of a running process.
    pub fn from_process(process: &Process, host: &Host) -> Self {
        Self {
            pid: process.pid,
            start_time: process.started,
            user: process.owner(),
            pid_namespace: host.pid_namespace(),
        }
    }

    /// True if this is the recorded process.
    pub fn matches_process(&self, process: &Process) -> bool {
        // The owner is read from the file system.
        process.pid == self.pid
            && process.started == self.start_time
            && (self.user.is_none() || self.user == process.owner())
    }

    /// Returns the process if it still runs and can be seen.
    pub fn find_process(&self, host: &Host) -> Option<Process> {
        host.find_process(self.pid)
            .filter(|process| self.matches_process(process))
    }

    /// True if the process is known to have ended.
    pub fn has_died(&self, host: &Host) -> bool {
        self.find_process(host).is_none() && !self.is_hidden(host)
    }

    /// True if the process may run and cannot be seen: it is in another pid namespace, `/proc` hides it, or its owner is
    /// not the recorded one, as where a user namespace does not map the owner.
    pub fn is_hidden(&self, host: &Host) -> bool {
        let namespaces = self.pid_namespace.zip(host.pid_namespace());
        namespaces.is_some_and(|(its, own)| its != own)
            || match host.find_process(self.pid) {
                Some(process) => {
                    process.started == self.start_time && !self.matches_process(&process)
                }
                None => !host.has_ended(self.pid),
            }
    }
}

/// `node.json`: the state of the node as a whole.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NodeFile {
    /// The boot in which `created` were made: instances do not survive a boot.
    pub boot_id: String,
    /// The instances that mig-mps made and has not destroyed.
    #[serde(default)]
    pub created: Vec<RecordedInstance>,
    /// The UUIDs of the GPUs whose MIG mode mig-mps switched on.
    #[serde(default)]
    pub switched_on: Vec<String>,
    /// The parts of the applied profile that were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Problem>,
    /// The devices that `down` has stopped by name. One that is served again, or does not exist, is not stopped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stopped: Vec<StoppedDevice>,
}

/// A device that `down` has stopped by name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoppedDevice {
    /// The record of its last daemon: the next one has the same name and settings.
    pub record: DeviceRecord,
    #[serde(flatten)]
    pub origin: Origin,
}

/// The command that has led to a state of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Origin {
    /// Its command line.
    pub command: String,
    /// The name of its user.
    pub by: String,
    pub since: Timestamp,
}

/// `root since 2026-11-29T14:54:08Z (mig-mps down trainer)`
impl Origin {
    /// Describes it with this word before the time: `root at 2026-11-29T14:54:08Z (mig-mps down 0.4)`.
    pub fn describe(&self, preposition: &str) -> String {
        let (command, by) = (shorten_command(&self.command), &self.by);
        format!(
            "{by} {preposition} {} ({command})",
            format_second(self.since)
        )
    }

    /// True for a command `up`, which may be about more than one device.
    pub fn is_of_up(&self) -> bool {
        self.command.split_whitespace().nth(1) == Some("up")
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe("since"))
    }
}

/// `2026-11-29T14:54:08Z`
fn format_second(time: Timestamp) -> jiff::fmt::strtime::Display<'static> {
    time.strftime("%Y-%m-%dT%H:%M:%SZ")
}

/// An instance that mig-mps made, or that a change destroys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RecordedInstance {
    /// The GPU's UUID.
    pub gpu: String,
    /// The GPU instance's profile.
    pub profile: ProfileId,
    /// The GPU instance's placement.
    pub placement: Placement,
    /// The placement of a compute instance in a GPU instance that mig-mps did not make; `None` for a whole GPU
    /// instance.
    pub compute: Option<Placement>,
}

impl RecordedInstance {
    /// True if it is this GPU instance, or a compute instance in it.
    pub fn is_in(&self, gpu: &str, profile: ProfileId, placement: Placement) -> bool {
        self.gpu == gpu && (self.profile, self.placement) == (profile, placement)
    }

    /// True if one of these instances of its GPU is this one, or has this compute instance.
    pub fn is_among<'a>(
        &self,
        instances: impl IntoIterator<Item = &'a GpuInstanceReading>,
    ) -> bool {
        instances
            .into_iter()
            .filter(|one| (one.placement, one.profile) == (self.placement, self.profile))
            .any(|one| {
                self.compute
                    .is_none_or(|at| one.compute.iter().any(|part| part.placement == at))
            })
    }
}

/// `pods.json`: the pods that hold shares of devices, as the kubelet lists them to the device plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PodsFile {
    /// The boot in which it was written.
    pub boot_id: String,
    /// The time at which the kubelet listed them.
    pub at: Timestamp,
    pub pods: Vec<PodShare>,
}

/// The time for which `pods.json` counts: the plugin writes it every few seconds, and a kubelet restarts within half a minute.
const PODS_COUNT_FOR: SignedDuration = SignedDuration::from_secs(60);

impl PodsFile {
    /// True if the pods may be others by now.
    pub fn is_stale(&self, boot_id: &str, now: Timestamp) -> bool {
        self.boot_id != boot_id || self.at > now || now.duration_since(self.at) > PODS_COUNT_FOR
    }
}

/// A share of a device that a container of a pod holds, whether or not a program uses it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct PodShare {
    /// The namespace and the name of the pod, such as `default/trainer`.
    pub pod: String,
    /// The UUID of the device.
    pub device: String,
}

/// `journal.json`: a change in progress. If its process has exited, the change was killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Journal {
    /// The command line of the process.
    pub command: String,
    /// The time at which the change started.
    pub since: Timestamp,
    #[serde(flatten)]
    pub writer: Writer,
    /// Monitoring units that it stopped, or was about to, and that must be started again. After the next boot, systemd has
    /// started them.
    pub units: Vec<Unit>,
    /// GPU instances that it destroyed, or was about to.
    pub taken: Vec<DestroyedInstance>,
    /// True for `up` and `down`: another one of these resumes one that was killed.
    #[serde(default)]
    pub is_resumable: bool,
}

/// A GPU instance that a change destroys.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DestroyedInstance {
    #[serde(flatten)]
    pub instance: RecordedInstance,
    /// The name of its profile.
    pub name: String,
}

/// `mig-mps up profile.toml (process 4711, since …)`
impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} (process {}, since {})",
            shorten_command(&self.command),
            self.writer.pid,
            format_second(self.since)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_instances_are_read_from_both_files_of_earlier_versions() {
        let place = r#""gpu": "GPU-1", "profile": 9, "placement": {"start": 4, "size": 4}"#;
        let taken = format!(r#"{{{place}, "name": "3g.40gb"}}"#);
        let taken: DestroyedInstance = serde_json::from_str(&taken).unwrap();
        assert_eq!(
            (taken.name.as_str(), taken.instance.compute),
            ("3g.40gb", None)
        );
        let created = format!(r#"{{{place}, "compute": null}}"#);
        let created: RecordedInstance = serde_json::from_str(&created).unwrap();
        assert_eq!(created, taken.instance);
        let written = serde_json::to_value(&created).unwrap();
        assert_eq!(written.as_object().unwrap().len(), 4, "{written}");
        let written = serde_json::to_value(&taken).unwrap();
        assert_eq!(written.as_object().unwrap().len(), 5, "{written}");
    }
}
