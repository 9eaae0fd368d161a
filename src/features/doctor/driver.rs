//! The driver, its libraries, the programs of MPS, and the errors of CUDA that programs under MPS get.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::check::{Check, Examined, Explanation, Finding, Judge, Subject};
use crate::cuda::{self, CudaError};
use crate::failure::Failure;
use crate::host::run;
use crate::mps::ControlProgram;
use crate::nvml::NvmlError;

/// The first driver whose programs tell their version.
const FIRST_WITH_VERSION: u32 = 580;

/// The time that a program may take to tell it.
const VERSION_LIMIT: Duration = Duration::from_secs(2);

const RESTART_HINT: &str = "reboot, or unload and load the kernel module";

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "kernel-module",
        subject: Subject::Driver,
        fault: "the driver's kernel module is not loaded, or is not of the version of its libraries",
        why: "no GPU can be used; after an upgrade of the driver only the libraries are new",
        remedy: "`sudo modprobe nvidia`; after an upgrade reboot, or unload and load the kernel module",
        judge: Judge::Own(kernel_module),
    },
    Check {
        id: "nvml-library",
        subject: Subject::Driver,
        fault: "libnvidia-ml cannot be loaded",
        why: "GPUs and MIG are managed through it",
        remedy: "install the driver's libraries, or set MIG_MPS_NVML_LIBRARY",
        judge: Judge::Own(nvml_library),
    },
    Check {
        id: "driver-silent",
        subject: Subject::Driver,
        fault: "the driver does not answer",
        why: "nothing can be changed, and no CUDA program starts",
        remedy: "`nvidia-smi` and `sudo dmesg | grep NVRM` may say why",
        judge: Judge::Own(driver_silent),
    },
    Check {
        id: "driver-too-old",
        subject: Subject::Driver,
        fault: "the driver is older than 535",
        why: "its MPS lacks commands that mig-mps needs, or was never tried: nothing is changed with it",
        remedy: "install driver 535 or newer",
        judge: Judge::Own(too_old),
    },
    Check {
        id: "libcuda",
        subject: Subject::Driver,
        fault: "libcuda cannot be loaded",
        why: "daemon, server and every CUDA program need it: without it the daemon exits with status 244 and says nothing",
        remedy: "install the driver's libraries, or set MIG_MPS_CUDA_LIBRARY or LD_LIBRARY_PATH",
        judge: Judge::Own(libcuda),
    },
    Check {
        id: "mps-programs",
        subject: Subject::Driver,
        fault: "nvidia-cuda-mps-control or nvidia-cuda-mps-server is not installed",
        why: "they are MPS",
        remedy: "install them with the driver (Debian: nvidia-cuda-mps), or set MIG_MPS_CONTROL",
        judge: Judge::Own(programs),
    },
    Check {
        id: "mps-versions",
        subject: Subject::Driver,
        fault: "the programs of MPS are of another version than the driver, or not of one installation",
        why: "server and control program of different versions do not understand each other",
        remedy: "install the programs of the running driver",
        judge: Judge::Own(versions),
    },
];

fn kernel_module(examined: &Examined<'_>) -> Vec<Finding> {
    let Some(loaded) = examined.environment.host.driver_version() else {
        let seen = "/proc/driver/nvidia/version is not there: the kernel module is not loaded";
        return vec![Finding::fail(seen).run("sudo modprobe nvidia")];
    };
    let libraries = &examined.node.driver;
    if libraries.is_empty() || *libraries == loaded {
        return vec![Finding::ok(loaded)];
    }
    let seen =
        format!("the kernel module is {loaded}, the libraries are {libraries}: {RESTART_HINT}");
    vec![Finding::fail(seen).run("sudo reboot")]
}

fn nvml_library(examined: &Examined<'_>) -> Vec<Finding> {
    match examined.node.driver_error() {
        Some(error @ NvmlError::NotFound { .. }) => {
            vec![Finding::fail(error.to_string()).run("ldconfig -p | grep libnvidia-ml")]
        }
        _ => vec![Finding::ok("loaded")],
    }
}

fn driver_silent(examined: &Examined<'_>) -> Vec<Finding> {
    match examined.node.driver_error() {
        None => vec![Finding::ok(examined.node.driver.as_str())],
        Some(NvmlError::NotFound { .. }) => {
            vec![Finding::unknown("it cannot be asked without libnvidia-ml")]
        }
        Some(error) => vec![Finding::fail(error.to_string()).run("sudo dmesg | grep NVRM")],
    }
}

fn too_old(examined: &Examined<'_>) -> Vec<Finding> {
    let driver = &examined.node.driver;
    if driver.is_empty() {
        return vec![Finding::unknown("the driver's version is not known")];
    }
    if !examined.node.control_program().is_too_old {
        return vec![Finding::ok(driver.as_str())];
    }
    let first = ControlProgram::FIRST;
    vec![Finding::fail(format!(
        "driver {driver} is older than {first}, and mig-mps changes nothing with it"
    ))]
}

fn libcuda(examined: &Examined<'_>) -> Vec<Finding> {
    match cuda::load(examined.environment.cuda_library.as_deref()) {
        Ok(()) => vec![Finding::ok("loaded")],
        Err(error) => vec![Finding::fail(error).run("ldconfig -p | grep libcuda")],
    }
}

fn programs(examined: &Examined<'_>) -> Vec<Finding> {
    match examined.environment.mps_programs() {
        Ok(programs) => vec![Finding::ok(programs.control.display().to_string())],
        Err(error) => {
            let seen = format!("{error}: {}", error.hints().join("; "));
            vec![
                Finding::fail(seen)
                    .run("command -v nvidia-cuda-mps-control nvidia-cuda-mps-server"),
            ]
        }
    }
}

fn versions(examined: &Examined<'_>) -> Vec<Finding> {
    let environment = examined.environment;
    let (Ok(programs), Some(server)) = (environment.mps_programs(), environment.server_program())
    else {
        return vec![Finding::unknown("the programs are not there")];
    };
    let mut findings = Vec::new();
    if directories(&programs.control).is_disjoint(&directories(&server)) {
        let seen = format!(
            "{} and {} are in different directories",
            programs.control.display(),
            server.display()
        );
        findings.push(
            Finding::warn(seen)
                .run("ls -lL $(command -v nvidia-cuda-mps-control nvidia-cuda-mps-server)"),
        );
    }
    // Older ones would begin a control session.
    if examined
        .branch()
        .is_none_or(|branch| branch < FIRST_WITH_VERSION)
    {
        return findings;
    }
    let Some(wanted) = examined.node.cuda_version else {
        findings.push(Finding::unknown(
            "the driver does not tell its CUDA version",
        ));
        return findings;
    };
    findings.extend([&programs.control, &server].map(|program| judged(program, wanted)));
    findings
}

/// Compares the version of a program of MPS with the driver's.
fn judged(program: &Path, wanted: u32) -> Finding {
    let (path, show) = (program.display(), format!("{} -v", program.display()));
    match version_of(program) {
        Some(version) if version == wanted => {
            let (major, minor) = (wanted / 1000, wanted % 1000 / 10);
            Finding::ok(format!("{path} is of CUDA {major}.{minor}"))
        }
        Some(version) => Finding::fail(format!(
            "{path} is of CUDA version {version}, and the driver of {wanted}"
        ))
        .run(show),
        None => Finding::unknown(format!("{path} does not tell its version")).run(show),
    }
}

/// The directory in which a program was found, and the one in which it is: Debian's are links.
fn directories(program: &Path) -> std::collections::BTreeSet<PathBuf> {
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
    let output = run(&command, "", VERSION_LIMIT).ok()?;
    let (_, version) = output.stdout.split_once("Binary version:")?;
    version.split_whitespace().next()?.parse().ok()
}

/// The number, the meaning under MPS, the causes, and the remedy.
const CODES: [(u32, &str, &str, &str); 17] = [
    (
        2,
        "no memory is left",
        "the device is full, or the client's memory limit is used up; a limit below about 520 MiB leaves nothing on a whole H200",
        "`mig-mps status` shows the memory of each client; `mig-mps set DEVICE pinned-memory-limit=…`",
    ),
    (
        46,
        "the device is busy or unavailable",
        "the program does not reach a daemon and the GPU is in the mode exclusive-process; or the server has all the clients that it can have; or the client may open fewer than about 48 files",
        "`mig-mps run DEVICE -- PROGRAM` checks before it starts; `mig-mps doctor` shows the compute mode; `ulimit -n 1024`",
    ),
    (
        100,
        "the program sees no device",
        "CUDA_VISIBLE_DEVICES names a device that the daemon does not serve, or an old UUID; or the device nodes may not be opened",
        "unset CUDA_VISIBLE_DEVICES, or `eval \"$(mig-mps env DEVICE)\"`",
    ),
    (
        700,
        "a kernel accessed an illegal address",
        "the program itself, or another client of the same server: a fatal fault reaches every client",
        "`mig-mps logs DEVICE` names the client that caused it; the device takes clients again when all have exited",
    ),
    (
        719,
        "a kernel failed to launch or to run",
        "the program itself, or another client of the same server: a fatal fault reaches every client",
        "`mig-mps logs DEVICE` names the client that caused it; the device takes clients again when all have exited",
    ),
    (
        801,
        "the operation is not supported",
        "the GPU, its mode or the virtual machine cannot do MPS",
        "`mig-mps doctor` shows architecture and modes",
    ),
    (
        802,
        "the system is not ready",
        "the machine has NVSwitches, and the fabric manager has not set them up",
        "`sudo systemctl enable --now nvidia-fabricmanager`",
    ),
    (
        803,
        "driver and libraries differ",
        "the driver was upgraded and its kernel module is still the old one",
        "reboot, or unload and load the kernel module",
    ),
    (
        804,
        "a compatibility library does not fit the GPU or its driver",
        "a container brings its own libcuda",
        "let the container use the driver's libraries",
    ),
    (
        805,
        "no connection to the daemon or server",
        "the daemon has ended and left its socket, is ending, or may not be reached from this container; the user is another one than the server's; or the client may open too few files (10)",
        "`mig-mps status DEVICE`; `mig-mps restart DEVICE`; `ulimit -n 1024`",
    ),
    (
        806,
        "the connection to the server broke",
        "the server or the daemon was ended while the program ran",
        "start the program again; `mig-mps logs DEVICE` shows why",
    ),
    (
        807,
        "the server takes no client now",
        "it is starting, recovers from a GPU fault, or ends a client",
        "try again; after a fault all its clients must exit: `mig-mps kill DEVICE PID --signal`",
    ),
    (
        808,
        "the server has all the clients that it can have",
        "48 on a whole GPU up to driver 589; fewer on a MIG device",
        "use another device: `mig-mps run --any`",
    ),
    (
        809,
        "the server has no connection left",
        "clients with a large CUDA_DEVICE_MAX_CONNECTIONS use them up",
        "unset CUDA_DEVICE_MAX_CONNECTIONS",
    ),
    (
        810,
        "the client was terminated",
        "somebody ended it with `terminate_client`, as `mig-mps kill` does",
        "start the program again",
    ),
    (
        811,
        "kernels cannot start kernels",
        "dynamic parallelism is not supported under MPS on this GPU",
        "run the program outside MPS, on a device without a daemon",
    ),
    (
        915,
        "no resources are configured for the client",
        "the daemon has static SM partitions, and the client names none or too large a one",
        "set CUDA_MPS_SM_PARTITION, or start the daemon without -S",
    ),
];

/// Explains an error by its number.
pub(super) fn explain(code: u32) -> Option<Explanation> {
    let (_, meaning, causes, remedy) = CODES.iter().find(|(number, ..)| *number == code)?;
    let error = CudaError(code).to_string();
    Some(Explanation {
        id: code.to_string(),
        meaning: format!("CUDA {error}: {meaning}"),
        why: (*causes).to_owned(),
        remedy: (*remedy).to_owned(),
    })
}

/// Returns the numbers that can be explained.
pub(super) fn codes() -> impl Iterator<Item = u32> {
    CODES.iter().map(|(code, ..)| *code)
}
