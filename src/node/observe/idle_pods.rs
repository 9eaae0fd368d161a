//! The pods that hold shares of devices, as the device plugin has written them.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::host::Environment;
use crate::node::Node;
use crate::state::RunDir;

/// Finds the pods that hold a share of a device, and of which no program is a client. A file that is old is no evidence.
pub(super) fn find_idle(environment: &Environment, node: &mut Node) {
    let file = match RunDir::at(&environment.roots_run_dir()).load_pods() {
        Ok(None) => {
            if environment.host.starts_device_plugin() {
                node.pods_unknown = Some("mig-mps-device-plugin has not reported them".to_owned());
            }
            return;
        }
        Ok(Some(file)) if !file.is_stale(&node.boot_id, Timestamp::now()) => file,
        Ok(Some(_)) => {
            node.pods_unknown =
                Some("mig-mps-device-plugin has not reported them for a minute".to_owned());
            return;
        }
        Err(error) => {
            node.pods_unknown = Some(error.to_string());
            return;
        }
    };
    for served in node
        .devices
        .iter_mut()
        .filter_map(|device| device.served.as_mut())
    {
        let clients = served.clients.as_slice().iter().chain(&served.waiting);
        let busy: BTreeSet<&str> = clients
            .filter_map(|client| client.workload.as_ref()?.pod_name.as_deref())
            .collect();
        let idle: BTreeSet<&String> = file
            .pods
            .iter()
            .filter(|share| share.device == served.record.uuid)
            .map(|share| &share.pod)
            .filter(|pod| !busy.contains(pod.as_str()))
            .collect();
        served.idle_pods = idle.into_iter().cloned().collect();
    }
}
