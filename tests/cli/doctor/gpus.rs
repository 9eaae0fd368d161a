//! GPUs and their instances.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use simnode::node::ComputeMode;

use super::{Report, doctor, healthy};
use testkit::{App, NOBODY, Ran, Sim, as_typed, copy_program, needs_root, whole};

fn whole_gpus() -> Sim {
    Sim::served("h200", 2, &whole(""))
}

fn set(sim: &Sim, change: impl FnOnce(&mut simnode::node::State)) {
    sim.node.node().update(change).unwrap();
}

#[test]
fn a_gpu_before_volta_or_one_that_does_not_tell() {
    let sim = whole_gpus();
    set(&sim, |state| state.gpus[1].capability = Some((6, 0)));
    let report = doctor(&sim, &[]);
    report.check("architecture").is(
        "warn",
        None,
        "GPU 1 (NVIDIA H200) has compute capability 6.0",
    );
    // Another device is not concerned.
    assert_eq!(doctor(&sim, &["0"]).ills().len(), 0);
    let call = "nvmlDeviceGetCudaComputeCapability";
    sim.node.fault(call).every().fails(999).unwrap();
    doctor(&sim, &[]).check("architecture").is(
        "unknown",
        None,
        "GPU 0 does not report its compute capability",
    );
}

#[test]
fn a_gpu_whose_mig_the_driver_does_not_offer() {
    let sim = whole_gpus();
    sim.node
        .fault("nvmlDeviceGetMigMode")
        .every()
        .fails(3)
        .unwrap();
    doctor(&sim, &[])
        .check("mig-support")
        .is("warn", None, "GPU 0: NVIDIA H200 supports MIG");
}

#[test]
fn a_mig_mode_that_waits_and_who_is_in_the_way() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    doctor(&sim, &[])
        .check("gpu-held")
        .is("ok", None, "GPU 0: kept open by pid ");
    set(&sim, |state| state.gpus[0].mig.pending = true);
    let report = doctor(&sim, &[]);
    let command =
        report
            .check("mig-pending")
            .is("fail", None, "GPU 0: MIG mode changes to on with a reset");
    assert_eq!(command, as_typed("sudo nvidia-smi --gpu-reset -i 0"));
    let command = report
        .check("gpu-held")
        .is("warn", None, &format!("pid {} (", holder.pid()));
    assert_eq!(command, as_typed("sudo mig-mps up PROFILE --stop-holders"));
    drop(holder);
    assert!(!doctor(&sim, &[]).ills().contains("gpu-held"));
}

/// A plain user does not see who has the GPU open.
#[test]
fn hidden_processes_may_be_in_the_way_of_a_mig_mode() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let _holder = sim.node.holder(&[0]);
    set(&sim, |state| state.gpus[0].mig.pending = true);
    let report = Report::after_any(&mut sim.by_nobody(&["doctor", "--json"]));
    let command = report.check("gpu-held").is(
        "unknown",
        None,
        "processes are hidden, and each may keep it open",
    );
    assert!(command.starts_with("sudo "), "{command}");
}

/// `--stop-holders` stops no slurmd.
#[test]
fn slurms_daemon_is_stopped_by_hand() {
    let sim = Sim::with("a100-80gb", 1);
    let slurmd = sim.node.dir().join("slurmd");
    copy_program(sim.node.dir().join("bin/simnode"), &slurmd);
    let mut command = Command::new(&slurmd);
    command.env_clear().envs(sim.node.env());
    command.arg("hold").arg(sim.node.dir()).args(["--gpu", "0"]);
    let mut holder = App::start(command);
    let _ = holder.wait_up();
    set(&sim, |state| state.gpus[0].mig.pending = true);
    let command = doctor(&sim, &[])
        .check("gpu-held")
        .is("warn", None, "slurmd hold");
    assert_eq!(command, as_typed("sudo systemctl stop slurmd"));
}

#[test]
fn a_service_is_named_with_its_unit() {
    let sim = Sim::with("a100-80gb", 1);
    sim.node.service("nvidia-dcgm.service");
    set(&sim, |state| state.gpus[0].mig.pending = true);
    doctor(&sim, &[])
        .check("gpu-held")
        .is("warn", None, "nvidia-dcgm.service");
}

#[test]
fn compute_modes_that_keep_programs_off() {
    let sim = whole_gpus();
    set(&sim, |state| {
        state.gpus[0].compute_mode = ComputeMode::Prohibited;
        state.gpus[1].compute_mode = ComputeMode::ExclusiveProcess;
    });
    let report = doctor(&sim, &[]);
    let command = report
        .check("compute-mode")
        .is("fail", None, "GPU 0: prohibited");
    assert_eq!(command, as_typed("sudo nvidia-smi -i 0 -c DEFAULT"));
    let command = doctor(&sim, &["1"]).check("compute-mode").is(
        "warn",
        None,
        "GPU 1: exclusive-process, but not by a profile",
    );
    assert_eq!(command, as_typed("sudo nvidia-smi -i 1 -c DEFAULT"));
    // By a profile it is in order, and its loss is what `status` reports.
    needs_root!();
    let sim = Sim::whole("compute-mode = \"exclusive-process\"");
    doctor(&sim, &[])
        .check("compute-mode")
        .is("ok", None, "GPU 0: exclusive-process");
    set(&sim, |state| {
        state.gpus[0].compute_mode = ComputeMode::Default;
    });
    let command = doctor(&sim, &[]).check("compute-mode").is(
        "fail",
        Some("0"),
        "was changed from outside mig-mps",
    );
    assert_eq!(command, "mig-mps restart 0");
    assert_eq!(sim.status()["problems"][0]["id"], "compute-mode");
}

#[test]
fn an_idle_gpu_that_nothing_keeps_initialised() {
    let sim = Sim::with("h200", 1);
    doctor(&sim, &[])
        .check("persistence")
        .is("ok", None, "persistence mode is on");
    set(&sim, |state| state.gpus[0].persistence = false);
    let command =
        doctor(&sim, &[])
            .check("persistence")
            .is("warn", None, "GPU 0: persistence mode is off");
    assert_eq!(
        command,
        as_typed("sudo systemctl enable --now nvidia-persistenced")
    );
    let daemon = sim.process("nvidia-persistenced");
    doctor(&sim, &[])
        .check("persistence")
        .is("ok", None, "by nvidia-persistenced");
    drop(daemon);
    sim.up(&whole(""), &[]).ended(0);
    doctor(&sim, &[])
        .check("persistence")
        .is("ok", None, "by the processes that have it open");
}

#[test]
fn a_gpu_that_is_lost() {
    let sim = whole_gpus();
    sim.node.node().lose_gpu(1).unwrap();
    let report = doctor(&sim, &[]);
    report
        .check("gpu-lost")
        .is("fail", Some("1"), "GPU is lost");
    let status = sim.status();
    let mut problems = status["problems"].as_array().unwrap().iter();
    assert!(
        problems.any(|problem| problem["id"] == "gpu-lost"),
        "{status:#}"
    );
}

#[test]
fn a_gpu_in_mig_mode_without_a_device() {
    let sim = Sim::with("a100-80gb", 1);
    set(&sim, |state| {
        state.gpus[0].mig.current = true;
        state.gpus[0].mig.pending = true;
    });
    let command = doctor(&sim, &[]).check("no-mig-devices").is(
        "warn",
        None,
        "GPU 0: MIG is on and there is no MIG device",
    );
    assert_eq!(command, "mig-mps up PROFILE");
    let remark = &sim.status()["remarks"][0];
    assert_eq!(remark["id"], "no-mig-devices");
    assert_eq!(
        remark["what"],
        "GPU 0: MIG is on and there is no MIG device; run `mig-mps up PROFILE` to create MIG devices"
    );
}

#[test]
fn a_profile_that_wants_no_devices_is_not_advised_to_make_some() {
    let none = "[[gpu]]\nselect = { index = [0] }\ndevices = []\n";
    let sim = Sim::served("a100-80gb", 2, none);
    assert_eq!(
        sim.status()["remarks"][0]["what"],
        "GPU 0: MIG is on and there is no MIG device; run `mig-mps up` with a profile that partitions GPU 0 to create MIG devices"
    );
    // Another GPU is in no block of the profile.
    set(&sim, |state| {
        state.gpus[1].mig.current = true;
        state.gpus[1].mig.pending = true;
    });
    let sim_says = &sim.status()["remarks"][0]["what"];
    assert!(
        sim_says.as_str().unwrap().ends_with(
            "run `mig-mps up` with a profile that partitions GPUs 0-1 to create MIG devices"
        ),
        "{sim_says}"
    );
}

#[test]
fn instances_of_another_tool() {
    let sim = healthy();
    let id = sim.foreign_instance(0, 5);
    let report = doctor(&sim, &[]);
    let command = report
        .check("instance-without-device")
        .is("warn", None, "GPU 0: GPU instance");
    assert_eq!(
        command,
        as_typed(&format!("sudo nvidia-smi mig -i 0 -gi {id} -cci"))
    );
    report.check("foreign-instances").is(
        "warn",
        None,
        "GPU 0: another tool created the instances at slice 5",
    );
    assert_eq!(doctor(&sim, &["1.0"]).ills().len(), 0);
}

#[test]
fn a_gpu_of_another_tool_alone_is_in_order() {
    let sim = Sim::with("a100-80gb", 1);
    set(&sim, |state| {
        state.gpus[0].mig.current = true;
        state.gpus[0].mig.pending = true;
    });
    sim.foreign_instance(0, 5);
    doctor(&sim, &[])
        .check("foreign-instances")
        .is("ok", None, "another tool");
}

/// Where `up` has added a compute instance, the GPU instance is still the other tool's.
#[test]
fn a_gpu_instance_of_another_tool_with_a_compute_instance_of_mig_mps() {
    let sim = Sim::with("a100-80gb", 1);
    set(&sim, |state| {
        state.gpus[0].mig.current = true;
        state.gpus[0].mig.pending = true;
    });
    sim.foreign_instance(0, 5);
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", at = 5 } ]\n";
    sim.up(profile, &["--yes"]).ended(0);
    doctor(&sim, &[]).check("foreign-instances").is(
        "warn",
        None,
        "GPU 0: another tool created the instances at slice 5",
    );
    set(&sim, |state| {
        state.gpus[0].instances[0].compute.clear();
        state.contexts.clear();
    });
    doctor(&sim, &[]).check("instances-missing").is(
        "warn",
        None,
        "GPU 0: compute instances that mig-mps created no longer exist: slice 5",
    );
}

#[test]
fn instances_that_the_driver_hides_are_unknown() {
    needs_root!();
    let sim = healthy();
    set(&sim, |state| {
        state.policy.permissions = simnode::node::Permissions::Strict;
    });
    let mut doctor = sim.by_nobody(&["doctor", "--json"]);
    let ran = Ran::of(doctor.env("MIG_MPS_RUN_DIR", sim.node.run_dir()));
    let report: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    super::Report(report)
        .check("instance-without-device")
        .is("unknown", None, "only to root");
}

#[test]
fn device_nodes_that_are_missing() {
    let sim = healthy();
    fs::remove_file(sim.machine("dev/nvidia-uvm")).unwrap();
    let command =
        doctor(&sim, &[])
            .check("device-nodes")
            .is("fail", None, "/dev/nvidia-uvm is missing");
    assert_eq!(command, as_typed("sudo nvidia-modprobe -c=0 -u"));
}

#[test]
fn device_nodes_that_the_caller_may_not_open() {
    needs_root!();
    let sim = healthy();
    let node = sim.machine("dev/nvidia-uvm");
    fs::set_permissions(node, fs::Permissions::from_mode(0o660)).unwrap();
    assert!(!doctor(&sim, &[]).ills().contains("device-nodes"));
    let report = super::Report::of(
        sim.by_nobody(&["doctor", "--json"])
            .env("MIG_MPS_RUN_DIR", sim.node.run_dir()),
    );
    report
        .check("device-nodes")
        .is("fail", None, "nobody may not open /dev/nvidia-uvm");
    // The members of its group may.
    let node = sim.machine("dev/nvidia-uvm");
    std::os::unix::fs::chown(node, None, Some(NOBODY)).unwrap();
    let report = super::Report::after_any(
        sim.by_nobody(&["doctor", "--json"])
            .env("MIG_MPS_RUN_DIR", sim.node.run_dir()),
    );
    report.check("device-nodes");
    assert!(!report.ills().contains("device-nodes"), "{report:#?}");
}

#[test]
fn capability_nodes_of_mig_devices() {
    let sim = healthy();
    let nodes = fs::read_dir(sim.machine("dev/nvidia-caps")).unwrap();
    let mut nodes: Vec<_> = nodes.map(|node| node.unwrap().path()).collect();
    nodes.sort();
    // A GPU instance and a compute instance for each device.
    assert_eq!(nodes.len(), 8, "{nodes:?}");
    fs::set_permissions(&nodes[0], fs::Permissions::from_mode(0o400)).unwrap();
    let report = doctor(&sim, &[]);
    let check = report.check("capability-nodes");
    let device = check.0["findings"][0]["device"]
        .as_str()
        .unwrap()
        .to_owned();
    check.is("warn", Some(&device), "has mode 0400");
    fs::remove_file(&nodes[0]).unwrap();
    let command =
        doctor(&sim, &[])
            .check("capability-nodes")
            .is("fail", Some(&device), "is missing");
    assert!(
        command.starts_with(&as_typed(
            "sudo nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu"
        )),
        "{command}"
    );
    fs::remove_dir_all(sim.machine("proc/driver/nvidia/capabilities")).unwrap();
    doctor(&sim, &[])
        .check("capability-nodes")
        .is("unknown", Some(&device), "cannot be read");
    // They come and go with the instances.
    let sim = healthy();
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_eq!(
        fs::read_dir(sim.machine("dev/nvidia-caps"))
            .unwrap()
            .count(),
        0
    );
}
