//! The driver, its libraries, and the programs of MPS.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::check::{Examined, Judge};
use crate::cuda;
use crate::failure::Failure;
use crate::host::{driver_container_hint, run};
use crate::mps::ControlProgram;
use crate::node::{Finding, NO_DRIVER};
use crate::nvml::NvmlError;

/// The first driver whose programs tell their version.
const FIRST_WITH_VERSION: u32 = 580;

/// The time that a program may take to tell it.
const VERSION_TIMEOUT: Duration = Duration::from_secs(2);

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("kernel-module", Judge::Always(kernel_module)),
    ("nvml-library", Judge::Always(nvml_library)),
    ("driver-silent", Judge::Always(driver_silent)),
    ("driver-too-old", Judge::Always(too_old)),
    ("libcuda", Judge::Always(libcuda)),
    ("mps-programs", Judge::Always(mps_programs)),
    ("mps-versions", Judge::Node(mps_versions)),
];

fn kernel_module(id: &'static str, examined: &Examined<'_>) -> Finding {
    let Some(loaded) = examined.environment.host.driver_version() else {
        let seen = "/proc/driver/nvidia/version does not exist: the kernel module is not loaded";
        return Finding::fail(id, seen).with_command("sudo modprobe nvidia");
    };
    let libraries = &examined.node.driver;
    if libraries.is_empty() || *libraries == loaded {
        return Finding::ok(id, loaded);
    }
    let seen = format!(
        "the kernel module is {loaded}, the libraries are {libraries}: reboot, or unload and load the kernel module"
    );
    Finding::fail(id, seen).with_command("sudo reboot")
}

fn nvml_library(id: &'static str, examined: &Examined<'_>) -> Finding {
    match examined.node.driver_error() {
        Some(error @ NvmlError::NotFound { .. }) => {
            Finding::fail(id, with_container(error.to_string()))
                .with_command("ldconfig -p | grep libnvidia-ml")
        }
        _ => Finding::ok(id, "loaded"),
    }
}

fn driver_silent(id: &'static str, examined: &Examined<'_>) -> Finding {
    match examined.node.driver_error() {
        None => Finding::ok(id, examined.node.driver.as_str()),
        Some(NvmlError::NotFound { .. }) => Finding::unknown(id, NO_DRIVER),
        Some(error) => Finding::fail(id, error.to_string()).with_command("sudo dmesg | grep NVRM"),
    }
}

fn too_old(id: &'static str, examined: &Examined<'_>) -> Finding {
    let driver = &examined.node.driver;
    if driver.is_empty() {
        return Finding::unknown(id, NO_DRIVER);
    }
    if !examined.node.control_program().is_too_old {
        return Finding::ok(id, driver.as_str());
    }
    let first = ControlProgram::FIRST_SUPPORTED_BRANCH;
    Finding::fail(
        id,
        format!("driver {driver} is older than {first}, and mig-mps changes nothing with it"),
    )
}

fn libcuda(id: &'static str, examined: &Examined<'_>) -> Finding {
    match cuda::check_library(examined.environment.cuda_library.as_deref()) {
        Ok(()) => Finding::ok(id, "loaded"),
        Err(error) => {
            Finding::fail(id, with_container(error)).with_command("ldconfig -p | grep libcuda")
        }
    }
}

/// Adds to a missing library that a container has the driver, if one has it.
fn with_container(missing: String) -> String {
    match driver_container_hint() {
        Some(hint) => format!("{missing}; {hint}"),
        None => missing,
    }
}

fn mps_programs(id: &'static str, examined: &Examined<'_>) -> Finding {
    match examined.environment.mps_programs() {
        Ok(programs) => Finding::ok(id, programs.control.display().to_string()),
        Err(error) => {
            let seen = format!("{error}; {}", error.hints().join("; "));
            Finding::fail(id, seen)
                .with_command("command -v nvidia-cuda-mps-control nvidia-cuda-mps-server")
        }
    }
}

fn mps_versions(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let environment = examined.environment;
    let (Ok(programs), Some(server)) = (environment.mps_programs(), environment.server_program())
    else {
        return vec![Finding::unknown(id, "the programs do not exist")];
    };
    let mut findings = Vec::new();
    if program_directories(&programs.control).is_disjoint(&program_directories(&server)) {
        let seen = format!(
            "{} and {} are in different directories",
            programs.control.display(),
            server.display()
        );
        findings.push(
            Finding::warn(id, seen).with_command(
                "ls -lL $(command -v nvidia-cuda-mps-control nvidia-cuda-mps-server)",
            ),
        );
    }
    // Older ones would begin a control session.
    if examined
        .driver_branch()
        .is_none_or(|branch| branch < FIRST_WITH_VERSION)
    {
        return findings;
    }
    let Some(wanted) = examined.node.cuda_version else {
        findings.push(Finding::unknown(
            id,
            "the driver does not report its CUDA version",
        ));
        return findings;
    };
    findings.extend([&programs.control, &server].map(|program| judge_version(id, program, wanted)));
    findings
}

/// Compares the version of a program of MPS with the driver's.
fn judge_version(id: &'static str, program: &Path, wanted: u32) -> Finding {
    let (path, show) = (program.display(), format!("{} -v", program.display()));
    match version_of(program) {
        Some(version) if version == wanted => {
            let (major, minor) = (wanted / 1000, wanted % 1000 / 10);
            Finding::ok(id, format!("{path} is of CUDA {major}.{minor}"))
        }
        Some(version) => Finding::fail(
            id,
            format!("{path} is of CUDA version {version}, and the driver of {wanted}"),
        )
        .with_command(show),
        None => {
            Finding::unknown(id, format!("{path} does not contain its version")).with_command(show)
        }
    }
}

/// The directory in which a program was found, and the one in which it is: Debian's are links.
fn program_directories(program: &Path) -> std::collections::BTreeSet<PathBuf> {
    let real = program.canonicalize().ok();
    [Some(program.to_owned()), real]
        .into_iter()
        .flatten()
        .filter_map(|path| Some(path.parent()?.to_owned()))
        .collect()
}

/// `CUDA MPS Control for Linux/Unix/QNX. Binary version: 13000`
fn version_of(program: &Path) -> Option<u32> {
    let mut command = Command::new(program);
    command.arg("-v").env_clear();
    let output = run(&command, "", VERSION_TIMEOUT).ok()?;
    let (_, version) = output.stdout.split_once("Binary version:")?;
    version.split_whitespace().next()?.parse().ok()
}
