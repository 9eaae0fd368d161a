//! The Container Device Interface: a file of devices that container engines take by name.
//!
//! Source: the specification of the Container Device Interface, version 0.5.0, with which podman 4.3 already works.

use serde_json::{Value, json};

use super::ContainerDevice;

/// The kind of the devices, before `=` in `--device mig-mps/device=NAME`.
pub const CDI_KIND: &str = "mig-mps/device";

const VERSION: &str = "0.5.0";

/// Returns the specification of the devices, each by its name and by its UUID.
pub fn cdi_specification(devices: &[ContainerDevice]) -> Value {
    let mut entries: Vec<Value> = Vec::new();
    for device in devices {
        let edits = edits(device);
        for name in [&device.name, &device.uuid] {
            entries.push(json!({ "name": name, "containerEdits": edits }));
        }
    }
    json!({ "cdiVersion": VERSION, "kind": CDI_KIND, "devices": entries })
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
    json!({ "env": variables, "mounts": mounts })
}
