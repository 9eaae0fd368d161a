//! A node for tests: GPU 0 with a GPU instance that two compute instances share, and GPU 1 whole, all served.

use std::path::Path;

use jiff::Timestamp;

use crate::geometry::{
    ComputeInstanceId, ComputeProfileId, GpuInstanceId, GpuInstanceProfile, Placement, ProfileEnum,
    ProfileId,
};
use crate::host::{Pid, StartTime, Uid};
use crate::node::{Client, Clients, DaemonState, Device, Gpu, Node, Served, ServerProcess};
use crate::nvml::{ComputeInstanceReading, GpuInstanceReading, MigMode};
use crate::settings::{Serve, Settings};
use crate::state::{DeviceKey, DeviceRecord, InstanceKey, ProcessId, RunDir};

pub(super) const ALICE: Uid = Uid(1000);
pub(super) const BOB: Uid = Uid(1001);

const PROFILE: ProfileId = ProfileId(14);

pub(super) fn run_dir() -> RunDir {
    RunDir::at(Path::new("/run/mig-mps"))
}

pub(super) fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// The devices are `0.0.c0`, `0.0.c1` and `1`; their servers are Alice's.
pub(super) fn node() -> Node {
    let at = |start| Placement::new(start, 1);
    let compute = |number: u32| ComputeInstanceReading {
        id: ComputeInstanceId(number),
        profile: ComputeProfileId(0),
        uuid: format!("MIG-{number}"),
        placement: at(number),
        slices: 1,
        multiprocessors: 14,
    };
    let mut partitioned = gpu(0);
    partitioned.mig = Some(MigMode {
        current: true,
        pending: true,
    });
    partitioned.profiles = vec![GpuInstanceProfile {
        id: PROFILE,
        query: ProfileEnum(1),
        name: "2g.20gb".parse().expect("a profile name"),
        slices: 2,
        multiprocessors: Some(28),
        memory_mib: 20_000,
        engines: None,
        most: 3,
        free: None,
        placements: vec![Placement::new(0, 2)],
    }];
    partitioned.instances = vec![GpuInstanceReading {
        id: GpuInstanceId(3),
        profile: PROFILE,
        placement: Placement::new(0, 2),
        compute: vec![compute(0), compute(1)],
        offered: Vec::new(),
    }];
    let part = |number| {
        Some(InstanceKey {
            profile: PROFILE,
            placement: Placement::new(0, 2),
            compute: at(number),
        })
    };
    let devices = [
        served_device("0.0.c0", "MIG-0", "GPU-0", part(0)),
        served_device("0.0.c1", "MIG-1", "GPU-0", part(1)),
        served_device("1", "GPU-1", "GPU-1", None),
    ];
    let mut node = Node {
        boot_id: "boot".to_owned(),
        gpus: vec![partitioned, gpu(1)],
        devices: devices.into_iter().map(Device::recorded).collect(),
        ..Node::default()
    };
    node.join();
    node
}

/// The record of the device that is the `nth` of the three.
pub(super) fn nth_served(node: &mut Node, nth: usize) -> &mut Served {
    node.devices[nth].served.as_mut().expect("all are served")
}

fn gpu(index: u32) -> Gpu {
    Gpu {
        index,
        uuid: format!("GPU-{index}"),
        product: "NVIDIA A100-SXM4-80GB".to_owned(),
        ..Gpu::default()
    }
}

/// The server of a device has the pid of its place among them, from 1; its daemon 100 more.
fn served_device(name: &str, uuid: &str, gpu: &str, instance: Option<InstanceKey>) -> Served {
    let server = match name {
        "0.0.c0" => 1,
        "0.0.c1" => 2,
        _ => 3,
    };
    let record = DeviceRecord {
        joint_gpus: Vec::new(),
        name: name.to_owned(),
        key: DeviceKey {
            joint: Vec::new(),
            gpu: gpu.to_owned(),
            instance,
        },
        uuid: uuid.to_owned(),
        gpu: None,
        profile: None,
        served_id: None,
        settings: Settings {
            serve: Some(Serve::OneAtATime),
            nofile: Some(4096),
            ..Settings::default()
        },
        by_hand: Vec::new(),
        older_clients: Vec::new(),
        compute_mode_before: None,
        daemon: Some(ProcessId {
            pid: Pid(100 + server),
            start_time: StartTime(1),
            user: None,
            pid_namespace: None,
        }),
        finished: true,
        boot_id: "boot".to_owned(),
        machine: None,
        since: Timestamp::UNIX_EPOCH,
        restarts: 0,
        healed: Vec::new(),
        closing: None,
        leaving: false,
    };
    Served {
        state: DaemonState::Ready,
        servers: vec![ServerProcess {
            pid: Pid(server),
            user: Some(ALICE),
            started: None,
        }],
        clients: Clients::Known(Vec::new()),
        ..Served::new(record, &run_dir())
    }
}

/// A client of a device's server.
pub(super) fn client(served: &Served, pid: u32) -> Client {
    Client {
        pid: Some(Pid(pid)),
        started: Some(StartTime(u64::from(pid))),
        server: Some(served.servers[0].pid),
        user: Some(ALICE),
        command: Some("train".to_owned()),
        workload: None,
        memory: None,
        gpus: Vec::new(),
        age: None,
    }
}
