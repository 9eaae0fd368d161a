//! Messages that cannot be provoked on a simulated node.

use std::collections::BTreeMap;

/// A reason why no scene shows them, and a fixed piece of each such message.
const UNPROVOKED: &[(&str, &[&str])] = &[
    (
        "a daemon would have to fail to start and then to end",
        &["and what had been started could not be ended:"],
    ),
    (
        "the account would have to be removed between the check of the profile and the change",
        &["\" on this machine", ", or name another one in the profile"],
    ),
    (
        "the driver would have to forget an instance between two calls of one change",
        &[
            "the device is not there",
            "its GPU instance is not there",
            "run the same command again: it plans anew",
        ],
    ),
    (
        "the links to the daemon are not seen by a user whom a directory keeps out, and the name is not known then",
        &[
            ", which leads to the daemon of",
            "let the user in, or start the daemon in another run directory",
        ],
    ),
    (
        "the simulated CUDA agrees with the daemon about who is a client",
        &["CUDA takes programs for ones outside MPS, though the daemon runs"],
    ),
    (
        "the simulated CUDA shows the device that was named",
        &["CUDA shows another device:"],
    ),
    (
        "the node would have to change between two steps",
        &["MIG mode is on now, and the rest of the profile is refused"],
    ),
    (
        "the driver would have to report success and do nothing",
        &[
            "the node was changed, and does not read back as the profile says: still to do:",
            "nothing is undone: every step has reported success; run the same command again: it goes on from here",
        ],
    ),
    (
        "a directory's name would have to be no text, and scenes are text",
        &[
            "is not UTF-8 text, as other programs need it",
            "to a directory whose name is UTF-8 text, and apply the profile again",
        ],
    ),
    (
        "a note on a file that the profile does not ask for: tests/cli/containers.rs has it",
        &["cannot read the CDI file"],
    ),
    (
        "the command line refuses the topic before",
        &["no topic \"", "mig-mps help lists the topics"],
    ),
    (
        "a terminal would have to end while its question stands",
        &["cannot ask on the terminal", "cannot ask on the terminal:"],
    ),
    (
        "an answer to a question of init: tests/cli/init.rs gives it",
        &["Nothing was written."],
    ),
    (
        "the logs would have to vanish while logs --follow reads them",
        &[
            "was removed or moved away",
            "run this again: a daemon that is started there has new logs",
        ],
    ),
    (
        "every driver in use tells the minor number",
        &[
            "the driver does not tell the device file of GPU",
            "update the driver, which tells it from version 450 on",
        ],
    ),
    (
        "the command needs a terminal: tests/cli/watch.rs runs it in one",
        &[
            "write the seconds after an =: --watch=",
            "mig-mps status --watch=",
        ],
    ),
    (
        "a terminal would have to end while the screen is drawn",
        &["cannot draw on the terminal"],
    ),
    (
        "the kernel would have to fail to read /proc/self/exe",
        &["cannot tell the path of this program"],
    ),
    (
        "the group would have to be removed while a device serves it",
        &[
            ", and this machine has no group of that name",
            "make the group again, or name another one in the profile, and apply it",
        ],
    ),
    (
        "what keeps it from being copied is found before the first file is written",
        &["cannot copy the profile"],
    ),
    (
        "what keeps it from being written is found before the first file is written",
        &["cannot write the unit"],
    ),
    (
        "a file that was just read could not be removed",
        &["cannot remove the profile"],
    ),
    (
        "a defect of mig-mps",
        &[
            "a thread of mig-mps has crashed",
            "this is a defect of mig-mps: please report it",
        ],
    ),
    (
        "the program would have to run for hours",
        &[
            "the program has not ended within",
            "compare needs a program that ends, or prints a rate: mig-mps compare --help",
        ],
    ),
    (
        "the run directory would have to become full after the change",
        &["the node is as the profile says, but its name cannot be noted"],
    ),
    (
        "a program of NVIDIA's would have to hang for its whole limit: tests/host waits for one",
        &[
            "did not answer within",
            "search the kernel log for Xid messages and hung tasks; the GPU may need a reset",
        ],
    ),
    (
        "the kernel would have to keep a process in a hanging call",
        &[
            ") was sent SIGKILL and has not ended: the kernel cannot end it now",
            "it ends when its call of the kernel does; the kernel log may say which one hangs",
            "the node needs a reboot if the process stays: search the kernel log",
        ],
    ),
    (
        "a debugger would have to trace the process",
        &[
            "traces it and keeps its exit status",
            "end what traces it, and run this again",
        ],
    ),
    (
        "the kernel would have to refuse waitid",
        &[
            "cannot wait for",
            "run it by hand: it does not start, either",
        ],
    ),
    ("root may become any user", &["cannot become user"]),
    (
        "a directory's name would have to have a line end",
        &["has characters that cannot be written for a container"],
    ),
    (
        "a daemon would have to end between the plan and the change",
        &["no control daemon runs in"],
    ),
    (
        "somebody would have to open a control session between the plan and the change",
        &[
            "the control daemon in",
            "either another mig-mps is waiting for clients to exit, or somebody left nvidia-cuda-mps-control open: wait, or close it",
        ],
    ),
    (
        "a hanging driver is waited for 60 s",
        &[
            "s: the driver or the GPU hangs",
            "the driver does not answer",
            "search the kernel log for Xid messages; the GPU may need a reset",
        ],
    ),
    (
        "the system would have to refuse a thread: tests/cli/limits.rs has it do so",
        &["cannot start a thread for a call of NVML:"],
    ),
    (
        "no driver gives an answer outside its documentation",
        &[
            ", which this version does not understand",
            "try a newer mig-mps, or another version of the driver",
        ],
    ),
    (
        "the driver would have to fail to create and then to destroy",
        &["; what had been made is still there:"],
    ),
    (
        "the node would have to change between the question and its answer",
        &["the node has changed, and this would now"],
    ),
    (
        "a user's daemon that mig-mps has not started would have to die and leave its record",
        &[
            ") is not known: its daemon is dead, and was another user's",
            "mig-mps logs of that user finds them",
        ],
    ),
    (
        "no command moves a name whose daemon may stay",
        &["another daemon is still called \""],
    ),
    (
        "root's own run directory, the machine's, would have to be one that others cannot read",
        &[": whether daemons run there is unknown"],
    ),
    (
        "a program would have to begin between the plan and the change",
        &["let them end, and run this again: it goes on from here"],
    ),
    (
        "a filter of system calls that refuses in another way than an old kernel does",
        &["a container's filter of system calls refuses it: update the container engine"],
    ),
    (
        "a file system would have to be mounted for reading alone",
        &["choose a path that can be written"],
    ),
    (
        "a reset that is not supported leaves the change pending, and the hint of that is shown",
        &["this GPU cannot be reset from here, as in a virtual machine: reboot"],
    ),
    (
        "a mount: tests/cli/boundary/mounts.rs makes one",
        &["somebody has mounted a file system there"],
    ),
    (
        "the kernel would have to leave it out of /proc/self/fdinfo",
        &["/proc/self/fdinfo does not name the mount"],
    ),
    (
        "another user's program would have to wait: tests/cli/kill.rs starts one",
        &[
            "yet: it waits in cuInit until another user's programs have exited, and has nothing on the GPU",
            "end the process itself: kill",
        ],
    ),
    (
        "65535 files would have to be in the way: tests/cli/boundary/logs.rs makes them",
        &["is not a regular file, and no name is left to put it aside under: remove it, or"],
    ),
    (
        "a daemon would have to die while the prolog of a task runs",
        &["mig-mps heal starts daemons that have died"],
    ),
    (
        "root removes every file, unless there are too many for 30 s",
        &[
            "removing logs",
            "removing what users left in pipe directories",
        ],
    ),
    (
        "the kernel would have to let a process become root again",
        &["the way back to root is open"],
    ),
];

/// What is wrong: messages that are neither provoked nor in the table, and rows of the table that are of no use.
pub(crate) fn faults(pieces: &BTreeMap<String, String>, messages: &str) -> Vec<String> {
    let all = || UNPROVOKED.iter().flat_map(|(_, pieces)| *pieces);
    let excused = |piece: &str| all().any(|text| *text == piece);
    let missing = pieces
        .iter()
        .filter(|(piece, _)| !messages.contains(piece.as_str()) && !excused(piece))
        .map(|(piece, file)| format!("{file}: no scene provokes: {piece}\n"));
    let provoked = all()
        .filter(|text| messages.contains(**text))
        .map(|text| format!("in the table, and provoked: {text}\n"));
    let unknown = all()
        .filter(|text| !pieces.contains_key(**text))
        .map(|text| format!("in the table, and in no source: {text}\n"));
    missing.chain(provoked).chain(unknown).collect()
}
