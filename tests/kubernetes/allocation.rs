//! The answers to the kubelet: resources, the choice of a share, and what a container gets.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use insta::assert_snapshot;
use mig_mps::internals::kubernetes::v1beta1::{
    CdiDevice, ContainerAllocateResponse, Device, Mount, NumaNode, RegisterRequest, TopologyInfo,
};
use prost::Message;
use serde_json::json;
use testkit::{Ran, Sim, can_run, judges, needs_root, repository};
use tonic::Code;

use super::kubelet::Kubelet;
use super::{Plugin, SHARED, SHARES, SMALL, TRAINER, command, shared};

/// A container's variables, mounts and devices, without the places of this node.
fn tidy(sim: &Sim, answer: &ContainerAllocateResponse) -> String {
    let mut text = String::new();
    for (name, value) in answer.envs.iter().collect::<BTreeMap<_, _>>() {
        let _ = writeln!(text, "{name}={value}");
    }
    for mount in &answer.mounts {
        let mode = if mount.read_only { "ro" } else { "rw" };
        let _ = writeln!(
            text,
            "mount {} at {} {mode}",
            mount.host_path, mount.container_path
        );
    }
    for cdi in &answer.cdi_devices {
        let _ = writeln!(text, "device {}", cdi.name);
    }
    assert!(answer.devices.is_empty() && answer.annotations.is_empty());
    let run_dir = sim.node.run_dir().to_str().unwrap();
    let devices = sim.status()["devices"].clone();
    let mut text = text.replace(run_dir, "/run/mig-mps");
    for device in devices.as_array().unwrap() {
        let uuid = device["uuid"].as_str().unwrap();
        text = text.replace(
            uuid,
            &format!("UUID of {}", device["name"].as_str().unwrap()),
        );
    }
    text
}

/// The resources as the program lists them.
fn list(sim: &Sim) -> Ran {
    Ran::of(command(sim).arg("--list")).ended(0)
}

#[test]
fn resources_are_sizes_and_names() {
    let sim = shared();
    let listed = list(&sim);
    assert_eq!(listed.stderr, "");
    assert_snapshot!(listed.stdout, @"
    RESOURCE            DEVICE     SHARES  HEALTH
    mig-mps.io/1g.10gb  0.0             2  healthy
    mig-mps.io/1g.10gb  0.1             2  healthy
    mig-mps.io/trainer  trainer-0       1  healthy
    ");
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let plugin = kubelet.plugin(SMALL);
    assert!(plugin.options.get_preferred_allocation_available);
    assert!(plugin.options.pre_start_required);
}

#[test]
fn a_name_that_kubernetes_refuses_is_not_offered() {
    let profile = "[[gpu]]\nselect = { all = true }\n\
                   devices = [ { name = \"a-\", profile = \"1g\" }, { profile = \"1g+me\" } ]\n";
    let sim = Sim::served("a100-80gb", 1, profile);
    let listed = list(&sim);
    assert_snapshot!(listed.stdout, @"
    RESOURCE               DEVICE  SHARES  HEALTH
    mig-mps.io/1g.10gb.me  0.1          1  healthy
    ");
    assert_eq!(
        listed.stderr,
        "note: device a- is not offered: \"a-\" is not a resource name: it needs at most 63 characters, and a letter or digit at both ends\n"
    );
}

#[test]
fn a_joint_device_is_not_offered() {
    let profile = "[mps]\nserve = \"all\"\n\
                   [[gpu]]\nselect = { index = [0, 1] }\nmig = false\nname = \"trainers\"\njoint = true\n\
                   [[gpu]]\nselect = { index = [2] }\nmig = false\n";
    let sim = Sim::served("h200", 3, profile);
    let listed = list(&sim);
    assert_snapshot!(listed.stdout, @"
    RESOURCE        DEVICE  SHARES  HEALTH
    mig-mps.io/gpu  2            1  healthy
    ");
    assert_eq!(
        listed.stderr,
        "note: device trainers is not offered: it is a joint device, and the plugin offers devices on one GPU\n"
    );
}

/// A pod cannot choose between devices of one resource, and its user is not served by each of these.
#[test]
fn devices_for_different_users_are_different_resources() {
    needs_root!();
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [\n\
                   { name = \"a-0\", profile = \"1g\", mps = { serve = \"all\" } },\n\
                   { name = \"a-1\", profile = \"1g\", mps = { serve = \"user:nobody\" } } ]\n";
    let sim = Sim::served("a100-80gb", 1, profile);
    assert_snapshot!(list(&sim).stdout, @"
    RESOURCE        DEVICE  SHARES  HEALTH
    mig-mps.io/a-0  a-0          1  healthy
    mig-mps.io/a-1  a-1          1  healthy
    ");
}

/// More pods would get CUDA error 46.
#[test]
fn no_more_shares_are_offered_than_the_daemon_takes() {
    let profile = "[mps]\nserve = \"all\"\n[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = { share = 60 }\n\
                   [[gpu]]\nselect = { index = [1] }\ndevices = [ { profile = \"1g\", mps = { share = 7 } } ]\n";
    let sim = Sim::served("a100-80gb", 2, profile);
    assert_snapshot!(list(&sim).stdout, @"
    RESOURCE            DEVICE  SHARES  HEALTH
    mig-mps.io/gpu      0           48  healthy
    mig-mps.io/1g.10gb  1.0          6  healthy
    ");
}

#[test]
fn a_share_is_near_the_numa_node_of_its_gpu() {
    let sim = Sim::served("h200", 2, testkit::WHOLE);
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&["mig-mps.io/gpu 0::0 Healthy", "mig-mps.io/gpu 1::0 Healthy"]);
    let devices = kubelet.plugin("mig-mps.io/gpu").devices;
    let nodes: Vec<i64> = devices
        .iter()
        .flat_map(|device| &device.topology.as_ref().unwrap().nodes)
        .map(|node| node.id)
        .collect();
    assert_eq!(nodes, [0, 1]);
}

#[test]
fn a_container_gets_variables_and_a_mount() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let answer = kubelet.allocate(SMALL, &["0.0::1"]).unwrap();
    assert_snapshot!(tidy(&sim, &answer), @"
    CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0
    CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=
    CUDA_MPS_PIPE_DIRECTORY=/run/mig-mps/by-name/0.0/pipe
    CUDA_VISIBLE_DEVICES=UUID of 0.0
    NVIDIA_VISIBLE_DEVICES=UUID of 0.0
    mount /run/mig-mps/by-name/0.0/pipe at /run/mig-mps/by-name/0.0/pipe ro
    ");
    // The daemon limits each client to its share.
    let asked = sim.ask("0.0", "get_default_active_thread_percentage\n");
    assert_eq!(asked, "57.1\n");
}

#[test]
fn a_container_gets_names_that_cdi_files_define() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 1, &format!("cdi = true\n{SHARED}"));
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let devices = |share| {
        let answer = kubelet.allocate(SMALL, &[share]).unwrap();
        let text = tidy(&sim, &answer);
        let lines = text.lines().filter_map(|line| line.strip_prefix("device "));
        lines.map(str::to_owned).collect::<Vec<String>>()
    };
    assert_eq!(devices("0.0::0"), ["mig-mps/device=UUID of 0.0"]);
    // A file of NVIDIA's that has one of the two, by its UUID.
    let uuid = sim.uuid("0.1");
    let nvidia = format!("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: {uuid}\n");
    sim.prepare("etc/cdi/nvidia.yaml", &nvidia);
    assert_eq!(devices("0.0::0"), ["mig-mps/device=UUID of 0.0"]);
    assert_eq!(
        devices("0.1::0"),
        ["mig-mps/device=UUID of 0.1", "nvidia.com/gpu=UUID of 0.1"]
    );
    // The variable for NVIDIA's older runtime is only for containers that NVIDIA's CDI file does not serve.
    let has_variable = |share| {
        let answer = kubelet.allocate(SMALL, &[share]).unwrap();
        answer.envs.contains_key("NVIDIA_VISIBLE_DEVICES")
    };
    assert!(has_variable("0.0::0") && !has_variable("0.1::0"));
    fs::remove_file(sim.machine("var/run/cdi/mig-mps.json")).unwrap();
    assert_eq!(devices("0.1::0"), ["nvidia.com/gpu=UUID of 0.1"]);
}

/// Without the group it would not reach the daemon, and run outside MPS.
#[test]
fn a_device_for_a_group_needs_a_cdi_file() {
    needs_root!();
    let of_group =
        "[[gpu]]\nselect = { all = true }\nmig = false\nmps = { serve = \"group:users\" }\n";
    let sim = Sim::served("h200", 1, of_group);
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&["mig-mps.io/gpu 0::0 Healthy"]);
    let refused = kubelet.allocate("mig-mps.io/gpu", &["0::0"]).unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert_eq!(
        refused.message(),
        "device 0 serves a group, which only a CDI file lets a container join; set cdi = true in the profile"
    );
    // A file that names the device only in a path does not define it.
    let other = "{\"kind\": \"mig-mps/device\", \"devices\": [], \"path\": \"/log/UUID\"}\n";
    sim.prepare("etc/cdi/other.json", &other.replace("UUID", &sim.uuid("0")));
    assert!(kubelet.allocate("mig-mps.io/gpu", &["0::0"]).is_err());
    sim.up(&format!("cdi = true\n{of_group}"), &[]).ended(0);
    let answer = kubelet.allocate("mig-mps.io/gpu", &["0::0"]).unwrap();
    let device = format!("mig-mps/device={}", sim.uuid("0"));
    assert_eq!(answer.cdi_devices[0].name, device);
}

#[test]
fn servers_of_older_drivers_share_memory_with_the_container() {
    let sim = Sim::with("h200", 1);
    sim.prepare(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build\n",
    );
    sim.up(testkit::WHOLE, &[]).ended(0);
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&["mig-mps.io/gpu 0::0 Healthy"]);
    let answer = kubelet.allocate("mig-mps.io/gpu", &["0::0"]).unwrap();
    let text = tidy(&sim, &answer);
    assert!(text.ends_with("mount /dev/shm at /dev/shm rw\n"), "{text}");
}

#[test]
fn what_no_container_can_have_is_refused_in_a_sentence() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let refused = |shares: &[&str]| {
        let status = kubelet.allocate(SMALL, shares).unwrap_err();
        format!("{:?}: {}", status.code(), status.message())
    };
    assert_eq!(
        refused(&["0.0::0", "0.0::1"]),
        "InvalidArgument: a container can have one share of mig-mps.io/1g.10gb, not 2, because several shares could be on different GPUs"
    );
    for unknown in ["0.0::2", "0.0", "trainer-0::0", ""] {
        assert_eq!(
            refused(&[unknown]),
            format!(
                "NotFound: mig-mps serves no share {unknown:?} of mig-mps.io/1g.10gb on this node"
            )
        );
    }
    assert_eq!(refused(&[]), "InvalidArgument: the request names no share");
    let several = kubelet.preferred(SMALL, &["0.0::0", "0.1::0"], &[], 2);
    assert_eq!(
        several.unwrap_err().message(),
        "a container can have one share of mig-mps.io/1g.10gb, not 2, because several shares could be on different GPUs"
    );
    // It goes on.
    kubelet.allocate(TRAINER, &["trainer-0::0"]).unwrap();
}

#[test]
fn the_device_with_the_most_free_shares_is_preferred() {
    let sim = shared();
    let kubelet = Kubelet::on(&sim);
    let _plugin = Plugin::on(&sim);
    kubelet.await_shares(&SHARES);
    let preferred =
        |available: &[&str], must: &[&str]| kubelet.preferred(SMALL, available, must, 1).unwrap();
    assert_eq!(preferred(&["0.0::1", "0.1::0", "0.1::1"], &[]), ["0.1::0"]);
    assert_eq!(preferred(&["0.0::0", "0.0::1", "0.1::0"], &[]), ["0.0::0"]);
    assert_eq!(preferred(&["0.0::0", "0.1::0"], &["0.1::0"]), ["0.1::0"]);
    assert_eq!(preferred(&[], &[]), [""; 0]);
    assert_eq!(
        kubelet.preferred(SMALL, &["0.0::0"], &[], -1).unwrap(),
        [""; 0]
    );
}

/// The bytes of the public protocol, which no generated code has made.
#[test]
fn messages_have_the_bytes_of_the_protocol() {
    let register = RegisterRequest {
        version: "v1beta1".to_owned(),
        endpoint: "a".to_owned(),
        resource_name: "b/c".to_owned(),
        options: None,
    };
    assert_eq!(
        register.encode_to_vec(),
        b"\x0a\x07v1beta1\x12\x01a\x1a\x03b/c"
    );
    let device = Device {
        id: "0::0".to_owned(),
        health: "Healthy".to_owned(),
        topology: Some(TopologyInfo {
            nodes: vec![NumaNode { id: 1 }],
        }),
    };
    assert_eq!(
        device.encode_to_vec(),
        b"\x0a\x040::0\x12\x07Healthy\x1a\x04\x0a\x02\x08\x01"
    );
    let answer = ContainerAllocateResponse {
        envs: [("A".to_owned(), "b".to_owned())].into(),
        mounts: vec![Mount {
            container_path: "/c".to_owned(),
            host_path: "/h".to_owned(),
            read_only: true,
        }],
        cdi_devices: vec![CdiDevice {
            name: "v/c=n".to_owned(),
        }],
        ..ContainerAllocateResponse::default()
    };
    assert_eq!(
        answer.encode_to_vec(),
        b"\x0a\x06\x0a\x01A\x12\x01b\x12\x0a\x0a\x02/c\x12\x02/h\x18\x01\x2a\x07\x0a\x05v/c=n"
    );
    assert_eq!(json!(answer.envs)["A"], "b");
}

/// Another implementation of gRPC and of the messages, in the place of ours on both sides of the tests.
#[test]
fn an_outside_kubelet_understands_it() {
    let test = "an_outside_kubelet_understands_it";
    let python = judges().join("bin/python");
    let has_grpc = Command::new(&python).args(["-c", "import grpc"]).output();
    let has_grpc = has_grpc.is_ok_and(|ran| ran.status.success());
    if !can_run(test, has_grpc, "grpcio is not installed") {
        return;
    }
    let sim = Sim::served("h200", 2, &testkit::whole("share = 2"));
    let kubelet = Kubelet::of(&sim);
    let directory = kubelet.path("");
    fs::create_dir_all(&directory).unwrap();
    let _plugin = Plugin::on(&sim);
    let script = repository().join("tests/kubernetes/outside.py");
    let mut outside = Command::new(python);
    outside.arg(script).arg(directory).arg("1::1");
    let ran = Ran::of(&mut outside).ended(0);
    let run_dir = sim.node.run_dir().to_str().unwrap();
    let said = ran.stdout.replace(run_dir, "/run/mig-mps");
    assert_snapshot!(said.replace(&sim.uuid("1"), "UUID"), @r#"
    register v1beta1 mig-mps.io/gpu
    options [(1, 1), (2, 1)]
    device 0::0 Healthy numa [[]]
    device 0::1 Healthy numa [[]]
    device 1::0 Healthy numa [[(1, 1)]]
    device 1::1 Healthy numa [[(1, 1)]]
    1 ['CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING', '0']
    1 ['CUDA_MPS_PINNED_DEVICE_MEM_LIMIT']
    1 ['CUDA_MPS_PIPE_DIRECTORY', '/run/mig-mps/by-name/1/pipe']
    1 ['CUDA_VISIBLE_DEVICES', 'UUID']
    1 ['NVIDIA_VISIBLE_DEVICES', 'UUID']
    2 ['/run/mig-mps/by-name/1/pipe', '/run/mig-mps/by-name/1/pipe', 1]
    NOT_FOUND mig-mps serves no share "nosuch" of mig-mps.io/gpu on this node
    "#);
}
