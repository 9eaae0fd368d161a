//! The driver, its libraries, and the programs of MPS.

use std::fs;

use super::{Report, doctor, healthy};
use testkit::{Sim, as_typed};

/// The doctor's report with a variable set.
fn with(sim: &Sim, name: &str, value: &str) -> Report {
    Report::of(sim.command(&["doctor", "--json"]).env(name, value))
}

fn calls_itself(sim: &Sim, version: &str) {
    let update = sim.node.node();
    update
        .update(|state| version.clone_into(&mut state.driver.version))
        .unwrap();
}

#[test]
fn a_kernel_module_that_is_missing_or_another_one() {
    let sim = healthy();
    let version = sim.machine("proc/driver/nvidia/version");
    sim.prepare(
        "proc/driver/nvidia/version",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build\n",
    );
    let command = doctor(&sim, &[]).check("kernel-module").is(
        "fail",
        None,
        "the kernel module is 570.86.15, the libraries are 580.159.04",
    );
    assert_eq!(command, as_typed("sudo reboot"));
    fs::remove_file(version).unwrap();
    let command = doctor(&sim, &[])
        .check("kernel-module")
        .is("fail", None, "is not loaded");
    assert_eq!(command, as_typed("sudo modprobe nvidia"));
}

#[test]
fn a_missing_nvml_library_hides_the_driver() {
    let unserved = Sim::with("h200", 1);
    for sim in [unserved, healthy()] {
        let report = with(&sim, "MIG_MPS_NVML_LIBRARY", "/no/libnvidia-ml.so.1");
        report
            .check("nvml-library")
            .is("fail", None, "/no/libnvidia-ml.so.1");
        report
            .check("driver-silent")
            .is("unknown", None, "the driver does not answer");
        report
            .check("driver-too-old")
            .is("unknown", None, "does not answer");
        report.check("kernel-module").is("ok", None, "580.159.04");
        for id in ["architecture", "gpu-held", "outside-mps"] {
            let check = report.check(id).0;
            assert_eq!(check["severity"], "unknown", "{check:#}");
        }
    }
}

#[test]
fn the_driver_of_a_container_is_named() {
    let sim = Sim::with("h200", 1);
    fs::create_dir_all(sim.machine("run/nvidia/driver/usr")).unwrap();
    for (variable, id) in [
        ("MIG_MPS_NVML_LIBRARY", "nvml-library"),
        ("MIG_MPS_CUDA_LIBRARY", "libcuda"),
        ("MIG_MPS_CONTROL", "mps-programs"),
    ] {
        let report = with(&sim, variable, "/no/such-file");
        let advice = "install the driver on the host";
        report.check(id).is("fail", None, advice);
    }
}

#[test]
fn a_driver_that_answers_with_errors() {
    let sim = healthy();
    sim.node.fault("nvmlInit_v2").every().fails(9).unwrap();
    let report = doctor(&sim, &[]);
    let command = report
        .check("driver-silent")
        .is("fail", None, "Driver Not Loaded (9)");
    assert_eq!(command, as_typed("sudo dmesg | grep NVRM"));
    report.check("nvml-library").is("ok", None, "loaded");
}

#[test]
fn a_driver_that_is_too_old() {
    let sim = Sim::with("h200", 1);
    for version in ["470.256.02", "525.147.05"] {
        calls_itself(&sim, version);
        let seen = format!("driver {version} is older than 535");
        let report = doctor(&sim, &[]);
        report.check("driver-too-old").is("fail", None, &seen);
    }
}

#[test]
fn libcuda_that_cannot_be_loaded() {
    let sim = healthy();
    let report = with(&sim, "MIG_MPS_CUDA_LIBRARY", "/no/libcuda.so.1");
    let command = report.check("libcuda").is("fail", None, "/no/libcuda.so.1");
    assert_eq!(command, "ldconfig -p | grep libcuda");
}

#[test]
fn programs_that_are_missing_or_of_another_version() {
    let sim = healthy();
    let report = with(&sim, "MIG_MPS_CONTROL", "/no/nvidia-cuda-mps-control");
    report
        .check("mps-programs")
        .is("fail", None, "but no program is there");
    report
        .check("mps-versions")
        .is("unknown", None, "the programs do not exist");
    let control =
        sim.control_script("echo 'CUDA MPS Control for Linux/Unix/QNX. Binary version: 12040'");
    let report = with(&sim, "MIG_MPS_CONTROL", control.to_str().unwrap());
    let command = report.check("mps-versions").is(
        "fail",
        None,
        "is of CUDA version 12040, and the driver of 13000",
    );
    assert_eq!(command, format!("{} -v", control.display()));
    let control = sim.control_script("exec $real \"$@\"");
    let report = with(&sim, "MIG_MPS_CONTROL", control.to_str().unwrap());
    report
        .check("mps-versions")
        .is("warn", None, "are in different directories");
    let control = sim.control_script("echo what");
    let report = with(&sim, "MIG_MPS_CONTROL", control.to_str().unwrap());
    report
        .check("mps-versions")
        .is("warn", None, "different directories");
    let server = sim.program_script(
        "nvidia-cuda-mps-server",
        "echo 'CUDA MPS Server for Linux/Unix. Binary version: 12080'",
    );
    let first = server.parent().unwrap().to_str().unwrap();
    let path = format!("{first}:{}/bin", sim.node.dir().display());
    let command = with(&sim, "PATH", &path).check("mps-versions").is(
        "fail",
        None,
        "is of CUDA version 12080",
    );
    assert_eq!(command, format!("{} -v", server.display()));
    doctor(&sim, &[]).check("mps-versions").is(
        "ok",
        None,
        "nvidia-cuda-mps-server is of CUDA 13.0",
    );
}
