//! A device in a container, and the Container Device Interface: a file of devices that container engines take by name.

use std::fmt::Write as _;
use std::path::PathBuf;

use serde_json::{Value, json};
use thiserror::Error;

use super::admission::ADMISSION_LIMIT;
use crate::config::{ROOT, RUN_DIR};
use crate::host::ADMIT;

/// The first driver whose servers share memory without `/dev/shm`.
const FIRST_ANONYMOUS_MEMORY_DRIVER: u32 = 580;

/// A value that a shell or a YAML reader would not take as one word.
#[derive(Debug, Error)]
#[error("{0:?} has characters that cannot be written for a container")]
pub struct UnsafeValue(String);

/// The way in which clients and servers of a driver share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedMemory {
    /// By descriptors: a container needs nothing.
    Anonymous,
    /// By files in `/dev/shm`, which the container must share with the host.
    Files,
    /// The driver's version cannot be read.
    Unknown,
}

impl SharedMemory {
    /// Returns the way of a driver with this version, such as `580.159.04`.
    pub fn of_driver(version: Option<&str>) -> Self {
        let major = version.and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        match major {
            Some(major) if major >= FIRST_ANONYMOUS_MEMORY_DRIVER => Self::Anonymous,
            Some(_) => Self::Files,
            None => Self::Unknown,
        }
    }
}

/// A device as containers use it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerDevice {
    pub name: String,
    pub uuid: String,
    /// The UUIDs by which the driver knows it: those of all GPUs of a joint device.
    pub gpus: Vec<String>,
    /// The run directory that its record is in.
    pub run_dir: PathBuf,
    /// The pipe directory on the host, and in the container.
    pub pipe: String,
    /// The variables of a client.
    pub variables: Vec<(String, String)>,
    /// The only user whose programs the device takes.
    pub user: Option<u32>,
    /// The group that a program must be in to reach the daemon.
    pub group: Option<u32>,
    /// True if the container must share `/dev/shm` with the host.
    pub shares_files: bool,
}

impl ContainerDevice {
    /// Refuses values that the text for a container cannot have.
    fn check_values(&self) -> Result<(), UnsafeValue> {
        let values = self.variables.iter().map(|(_, value)| (value, ","));
        // A comma ends the value of an option of --mount.
        for (value, separators) in values.chain([(&self.pipe, "")]) {
            let is_plain = value.chars().all(|c| {
                c.is_ascii_alphanumeric() || "/._-=".contains(c) || separators.contains(c)
            });
            if !is_plain {
                return Err(UnsafeValue(value.clone()));
            }
        }
        Ok(())
    }

    /// Returns the option by which docker gives its GPUs to a container.
    pub fn docker_gpus(&self) -> String {
        match self.gpus.as_slice() {
            [one] => format!("--gpus device={one}"),
            // Docker reads quotes, as around a value with commas. The shell leaves those in the output of a command.
            several => format!("--gpus \"device={}\"", several.join(",")),
        }
    }

    /// Returns the options by which podman gives its GPUs to a container.
    pub fn podman_gpus(&self) -> String {
        self.gpus
            .iter()
            .map(|gpu| format!("--device nvidia.com/gpu={gpu}"))
            .collect::<Vec<String>>()
            .join(" ")
    }

    /// Returns options of `docker run` and `podman run`, on one line; `gpus` are those for the GPUs.
    pub fn engine_options(&self, gpus: &str) -> Result<String, UnsafeValue> {
        self.check_values()?;
        let pipe = &self.pipe;
        let mut text = format!("{gpus} --mount type=bind,src={pipe},dst={pipe},readonly");
        for (name, value) in &self.variables {
            let _ = write!(text, " --env {name}={value}");
        }
        if let Some(user) = self.user {
            let _ = write!(text, " --user {user}");
        }
        if let Some(group) = self.group {
            let _ = write!(text, " --group-add {group}");
        }
        if self.shares_files {
            text.push_str(" --ipc host");
        }
        Ok(text + "\n")
    }

    /// Returns a part of a pod's specification, in YAML.
    pub fn pod_spec(&self) -> Result<String, UnsafeValue> {
        self.check_values()?;
        let Self { name, pipe, .. } = self;
        let mut text = format!(
            "# A pod on device {name} of this node. NVIDIA's container runtime brings the GPU in.\nspec:\n  runtimeClassName: nvidia\n"
        );
        if self.shares_files {
            text.push_str("  hostIPC: true\n");
        }
        if let Some(group) = self.group {
            let _ = write!(
                text,
                "  securityContext:\n    supplementalGroups: [{group}]\n"
            );
        }
        text.push_str("  containers:\n  - name: main\n");
        if let Some(user) = self.user {
            let _ = write!(text, "    securityContext:\n      runAsUser: {user}\n");
        }
        text.push_str("    env:\n");
        let gpu = ("NVIDIA_VISIBLE_DEVICES".to_owned(), self.gpus.join(","));
        for (name, value) in [&gpu].into_iter().chain(&self.variables) {
            let _ = write!(text, "    - name: {name}\n      value: \"{value}\"\n");
        }
        let _ = write!(
            text,
            "    volumeMounts:\n    - name: mps\n      mountPath: {pipe}\n      readOnly: true\n\
             \x20 volumes:\n  - name: mps\n    hostPath:\n      path: {pipe}\n      type: Directory\n"
        );
        Ok(text)
    }

    /// Returns a file for docker compose, in YAML.
    pub fn compose_file(&self) -> Result<String, UnsafeValue> {
        self.check_values()?;
        let Self { name, pipe, .. } = self;
        let gpus = self.gpus.join("\", \"");
        let mut text = format!(
            "# For docker compose, as a second file: it gives device {name} to the service main.\nservices:\n  main:\n"
        );
        if let Some(user) = self.user {
            let _ = writeln!(text, "    user: \"{user}\"");
        }
        if let Some(group) = self.group {
            let _ = writeln!(text, "    group_add: [\"{group}\"]");
        }
        if self.shares_files {
            text.push_str("    ipc: host\n");
        }
        text.push_str("    environment:\n");
        for (name, value) in &self.variables {
            let _ = writeln!(text, "      {name}: \"{value}\"");
        }
        let _ = write!(
            text,
            "    volumes:\n    - type: bind\n      source: {pipe}\n      target: {pipe}\n      read_only: true\n\
             \x20     bind: {{ create_host_path: false }}\n\
             \x20   deploy:\n      resources:\n        reservations:\n          devices:\n\
             \x20         - {{ driver: nvidia, device_ids: [\"{gpus}\"], capabilities: [gpu] }}\n"
        );
        Ok(text)
    }
}

/// The kind of the devices, before `=` in `--device mig-mps/device=NAME`.
pub const CDI_KIND: &str = "mig-mps/device";

/// The program that an engine runs before it starts a container, to have a device checked.
#[derive(Clone, Debug)]
pub struct AdmissionHook {
    /// The path of mig-mps.
    pub program: PathBuf,
    /// The directory in the place of `/`, if there is one.
    pub root: Option<PathBuf>,
}

impl AdmissionHook {
    /// Returns the hook for a device. The engine ends it after the time limit.
    fn json_for_device(&self, device: &ContainerDevice) -> Value {
        let root = self.root.as_ref().map(|root| (ROOT, root));
        let variables = [(RUN_DIR, &device.run_dir)].into_iter().chain(root);
        let variables: Vec<String> = variables
            .map(|(name, path)| format!("{name}={}", path.display()))
            .collect();
        json!({
            "hookName": "createRuntime",
            "path": self.program,
            "args": ["mig-mps", ADMIT, device.name, device.uuid],
            "env": variables,
            "timeout": ADMISSION_LIMIT.as_secs() * 3,
        })
    }
}

/// Returns the specification of the devices, each by its name and by its UUID.
pub fn cdi_specification(devices: &[ContainerDevice], hook: Option<&AdmissionHook>) -> Value {
    let mut entries: Vec<Value> = Vec::new();
    for device in devices {
        let mut edits = container_edits(device);
        if let Some(hook) = hook {
            edits["hooks"] = json!([hook.json_for_device(device)]);
        }
        for name in [&device.name, &device.uuid] {
            entries.push(json!({ "name": name, "containerEdits": edits }));
        }
    }
    // The first version with `additionalGids` is 0.7.0.
    let has_groups = devices.iter().any(|device| device.group.is_some());
    let version = if has_groups { "0.7.0" } else { "0.5.0" };
    json!({ "cdiVersion": version, "kind": CDI_KIND, "devices": entries })
}

/// Returns the changes of a container that gets the device.
fn container_edits(device: &ContainerDevice) -> Value {
    let variables: Vec<String> = device
        .variables
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mut mounts = vec![bind_mount(&device.pipe, "ro")];
    if device.shares_files {
        mounts.push(bind_mount("/dev/shm", "rw"));
    }
    let mut edits = json!({ "env": variables, "mounts": mounts });
    if let Some(group) = device.group {
        edits["additionalGids"] = json!([group]);
    }
    edits
}

/// Returns a mount of a path of the host at the same path of the container.
fn bind_mount(path: &str, mode: &str) -> Value {
    let options = [mode, "nosuid", "nodev", "noexec", "bind"];
    json!({ "hostPath": path, "containerPath": path, "options": options })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drivers_before_580_share_memory_in_files() {
        let of = SharedMemory::of_driver;
        assert_eq!(of(Some("580.159.04")), SharedMemory::Anonymous);
        assert_eq!(of(Some("595.3")), SharedMemory::Anonymous);
        assert_eq!(of(Some("570.86.15")), SharedMemory::Files);
        assert_eq!(of(Some("unknown")), SharedMemory::Unknown);
        assert_eq!(of(None), SharedMemory::Unknown);
    }
}
