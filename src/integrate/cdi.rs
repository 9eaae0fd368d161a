//! The Container Device Interface: a file of devices that container engines take by name.
//!
//! Source: the specification of the Container Device Interface. Podman 4.3 already works with version 0.5.0. Groups came
//! with 0.7.0, and an engine that does not know them refuses the whole file.

use serde_json::{Value, json};

use super::ContainerDevice;

/// The kind of the devices, before `=` in `--device mig-mps/device=NAME`.
pub const CDI_KIND: &str = "mig-mps/device";

const VERSION: &str = "0.5.0";
/// The first version with `additionalGids`.
const VERSION_WITH_GROUPS: &str = "0.7.0";

/// Returns the specification of the devices, each by its name and by its UUID.
pub fn cdi_specification(devices: &[ContainerDevice]) -> Value {
    let mut entries: Vec<Value> = Vec::new();
    for device in devices {
        let edits = edits(device);
        for name in [&device.name, &device.uuid] {
            entries.push(json!({ "name": name, "containerEdits": edits }));
        }
    }
    let has_groups = devices.iter().any(|device| device.group.is_some());
    let version = if has_groups {
        VERSION_WITH_GROUPS
    } else {
        VERSION
    };
    json!({ "cdiVersion": version, "kind": CDI_KIND, "devices": entries })
}

/// Returns the changes of a container that gets the device.
fn edits(device: &ContainerDevice) -> Value {
    let variables = device.variables.iter();
    let variables: Vec<String> = variables
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let mount = |path: &str, mode: &str| {
        let options = [mode, "nosuid", "nodev", "noexec", "bind"];
        json!({ "hostPath": path, "containerPath": path, "options": options })
    };
    let mut mounts = vec![mount(&device.pipe, "ro")];
    if device.shares_files() {
        mounts.push(mount("/dev/shm", "rw"));
    }
    let mut edits = json!({ "env": variables, "mounts": mounts });
    if let Some(group) = device.group {
        edits["additionalGids"] = json!([group]);
    }
    edits
}
