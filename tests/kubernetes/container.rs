//! Containers of a real engine, started from what the plugin answers.

use testkit::App;

use super::kubelet::Kubelet;
use super::{Plugin, SHARED, SHARES, SMALL};
use crate::cli::run::containers::Engine;
use mig_mps::internals::kubernetes::v1beta1::ContainerAllocateResponse;

const UID: &str = "6dbbf17e-94e1-4b10-8555-9bfe510c25d5";

/// The options by which podman makes the container that the kubelet would have the runtime make. `devices` are the CDI
/// devices.
fn options(answer: &ContainerAllocateResponse, devices: &[String]) -> Vec<String> {
    let mut options = Vec::new();
    for (name, value) in &answer.envs {
        options.push(format!("--env={name}={value}"));
    }
    for mount in &answer.mounts {
        let mode = if mount.read_only { ",readonly" } else { "" };
        let (from, to) = (&mount.host_path, &mount.container_path);
        options.push(format!("--mount=type=bind,src={from},dst={to}{mode}"));
    }
    options.extend(devices.iter().map(|device| format!("--device={device}")));
    options
}

#[test]
fn a_container_is_a_client_of_the_device_that_was_allocated() {
    let test = "a_container_is_a_client_of_the_device_that_was_allocated";
    let Some(engine) = Engine::of(test, &format!("cdi = true\n{SHARED}")) else {
        return;
    };
    let sim = &engine.sim;
    let kubelet = Kubelet::on(sim);
    let _plugin = Plugin::on(sim);
    kubelet.await_shares(&SHARES);
    for (share, device) in [("0.0::1", "0.0"), ("0.1::0", "0.1")] {
        let answer = kubelet.allocate(SMALL, &[share]).unwrap();
        let by_cdi: Vec<String> = answer
            .cdi_devices
            .iter()
            .map(|cdi| cdi.name.clone())
            .collect();
        let [own, gpu] =
            ["mig-mps/device", "nvidia.com/gpu"].map(|kind| format!("{kind}={}", sim.uuid(device)));
        assert_eq!(by_cdi, [own, gpu.clone()]);
        // Without CDI, NVIDIA's runtime brings in what its own CDI file has.
        for devices in [by_cdi, vec![gpu]] {
            let options = options(&answer, &devices);
            let options: Vec<&str> = options.iter().map(String::as_str).collect();
            let mut app = App::start(engine.run(&options, &["cuda-app", "hold"]));
            let up = app.wait_up();
            assert!(
                up.contains("MIG 1g.10gb") && up.ends_with("mps yes"),
                "{up}"
            );
            let client = sim.status()["clients"][0].clone();
            assert_eq!(client["device"], device, "{client}");
            // In a group as the kubelet makes it.
            let pid = u32::try_from(client["pid"].as_u64().unwrap()).unwrap();
            let group = format!(
                "/kubepods.slice/kubepods-pod{}.slice",
                UID.replace('-', "_")
            );
            sim.node.node().show_in_cgroup(pid, &group).unwrap();
            let client = sim.status()["clients"][0].clone();
            assert_eq!(client["workload"]["pod_uid"], UID, "{client}");
            assert!(app.finish().status.success());
        }
    }
}
