//! The errors of CUDA that programs under MPS get.

use super::Explanation;
use crate::cuda::CudaError;

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
