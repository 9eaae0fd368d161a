//! The environment variables that the program reads, and the default names and paths.

use std::env;
use std::time::Duration;

/// Returns the time that one NVML call may take. Destroying a GPU instance takes about 1 s, and switching the MIG mode of
/// an A100 resets it, which takes several.
pub fn nvml_call_limit() -> Duration {
    one_minute_unless_tested("MIG_MPS_TEST_CALL_LIMIT")
}

/// Returns the time that a program may take that follows a change.
pub fn after_change_limit() -> Duration {
    one_minute_unless_tested("MIG_MPS_TEST_PROGRAM_LIMIT")
}

/// Returns a minute. Tests set another time in milliseconds; a release has no such variable.
fn one_minute_unless_tested(variable: &str) -> Duration {
    let of_a_test = if cfg!(debug_assertions) {
        env::var(variable).ok().and_then(|limit| limit.parse().ok())
    } else {
        None
    };
    of_a_test.map_or(Duration::from_secs(60), Duration::from_millis)
}

/// The time limit for the removal of files that users may have written.
pub const PURGE_LIMIT: Duration = Duration::from_secs(30);

/// Path of the NVML library.
pub const NVML_LIBRARY: &str = "MIG_MPS_NVML_LIBRARY";
/// Path of the CUDA library.
pub const CUDA_LIBRARY: &str = "MIG_MPS_CUDA_LIBRARY";
/// Path of NVIDIA's MPS control program.
pub const CONTROL: &str = "MIG_MPS_CONTROL";
/// Path of the program that resets GPUs.
pub const NVIDIA_SMI: &str = "MIG_MPS_NVIDIA_SMI";
/// Path of the program that stops and starts services.
pub const SYSTEMCTL: &str = "MIG_MPS_SYSTEMCTL";
/// Path of the program that starts daemons in scopes of their own.
pub const SYSTEMD_RUN: &str = "MIG_MPS_SYSTEMD_RUN";
/// The run directory.
pub const RUN_DIR: &str = "MIG_MPS_RUN_DIR";
/// The log directory.
pub const LOG_DIR: &str = "MIG_MPS_LOG_DIR";
/// The directory of applied profiles.
pub const STATE_DIR: &str = "MIG_MPS_STATE_DIR";
/// The trace file.
pub const LOG: &str = "MIG_MPS_LOG";
/// The directory in which Node Feature Discovery of Kubernetes reads labels of the node.
pub const NODE_FEATURES: &str = "/etc/kubernetes/node-feature-discovery/features.d";
/// The root of the system's paths.
pub const ROOT: &str = "MIG_MPS_ROOT";

/// The beginnings of the UUIDs of devices: of whole GPUs, of MIG devices, and of several GPUs as one device.
const UUID_BEGINNINGS: [&str; 3] = ["GPU-", "MIG-", JOINT];

/// The beginning of the UUIDs of joint devices, which mig-mps gives them.
pub const JOINT: &str = "JOINT-";

/// Returns what follows the beginning of the UUID of a device; `None` for a text that does not begin as such a UUID.
pub fn end_of_uuid(text: &str) -> Option<&str> {
    UUID_BEGINNINGS
        .iter()
        .find_map(|beginning| text.strip_prefix(beginning))
}

/// True for a text that begins as the UUID of a device does.
pub fn begins_as_uuid(text: &str) -> bool {
    end_of_uuid(text).is_some()
}

/// Every variable with its meaning, for the help and the manual.
pub const VARIABLES: [(&str, &str); 11] = [
    (
        NVML_LIBRARY,
        "path of libnvidia-ml.so.1 [default: the dynamic linker finds it]",
    ),
    (
        CUDA_LIBRARY,
        "path of libcuda.so.1 [default: the dynamic linker finds it]",
    ),
    (
        CONTROL,
        "path of nvidia-cuda-mps-control [default: found in PATH]",
    ),
    (
        NVIDIA_SMI,
        "path of nvidia-smi, which resets GPUs [default: found in PATH]",
    ),
    (
        SYSTEMCTL,
        "path of systemctl, which stops monitoring services [default: found in PATH]",
    ),
    (
        SYSTEMD_RUN,
        "path of systemd-run, which gives each daemon a scope [default: found in PATH]",
    ),
    (
        RUN_DIR,
        "directory of state and pipes [default: /run/mig-mps for root, $XDG_RUNTIME_DIR/mig-mps for others]",
    ),
    (
        LOG_DIR,
        "directory of daemon logs [default: /var/log/mig-mps for root, $XDG_STATE_HOME/mig-mps for others]",
    ),
    (
        STATE_DIR,
        "directory of applied profiles [default: /var/lib/mig-mps for root, $XDG_STATE_HOME/mig-mps/HOSTNAME for others]",
    ),
    (
        LOG,
        "file to which every NVML call, control command and program is appended, with its time",
    ),
    (
        ROOT,
        "directory below which /proc and /dev are looked for [default: /]",
    ),
];

/// The pipe directories that CUDA programs use by default: the documented one, and root's with protocol 3.
pub const DEFAULT_PIPE_DIRECTORIES: [&str; 2] = ["/tmp/nvidia-mps", "/run/nvidia-mps"];

/// The start of the name of a private daemon's directory, and the number of letters after it, which nobody can guess.
pub const PRIVATE_DIRECTORY_PREFIX: &str = "mig-mps-";
pub const PRIVATE_DIRECTORY_LETTERS: usize = 6;

/// The MPS programs. The daemon starts the server by name. The kernel cuts both names to the same 15 bytes.
pub const MPS_PROGRAM_PREFIX: &str = "nvidia-cuda-mps";
pub const CONTROL_PROGRAM: &str = "nvidia-cuda-mps-control";
pub const SERVER_PROGRAM: &str = "nvidia-cuda-mps-server";
pub const NVIDIA_SMI_PROGRAM: &str = "nvidia-smi";
pub const SYSTEMCTL_PROGRAM: &str = "systemctl";
pub const SYSTEMD_RUN_PROGRAM: &str = "systemd-run";
/// The service of NVIDIA's mig-parted, which applies a MIG configuration at boot.
pub const MIG_MANAGER_UNIT: &str = "nvidia-mig-manager.service";
pub const SCONTROL_PROGRAM: &str = "scontrol";

/// The programs that follow a change of the devices.
pub const AFTER_CHANGE_DIR: &str = "/etc/mig-mps/after-change.d";

/// The state and logs of root's daemons, and the profiles that root applied.
pub const SYSTEM_RUN_DIR: &str = "/run/mig-mps";
pub const SYSTEM_LOG_DIR: &str = "/var/log/mig-mps";
pub const SYSTEM_STATE_DIR: &str = "/var/lib/mig-mps";
