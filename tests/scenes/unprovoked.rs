//! Messages that cannot be provoked on a simulated node.

use std::collections::BTreeMap;

/// A fixed piece of each such message, and why no scene shows it.
const UNPROVOKED: &[(&str, &str)] = &[
    (
        "and what had been started could not be ended:",
        "a daemon would have to fail to start and then to end",
    ),
    (
        "\" on this machine",
        "the account would have to be removed between the check of the profile and the change",
    ),
    (
        "the device is not there",
        "the driver would have to forget an instance between two calls of one change",
    ),
    (
        "its GPU instance is not there",
        "the driver would have to forget an instance between two calls of one change",
    ),
    (
        ", which leads to the daemon of",
        "the links to the daemon are not seen by a user whom a directory keeps out, and the name is not known then",
    ),
    (
        "CUDA takes programs for ones outside MPS, though the daemon runs",
        "the simulated CUDA agrees with the daemon about who is a client",
    ),
    (
        "CUDA shows another device:",
        "the simulated CUDA shows the device that was named",
    ),
    (
        "MIG mode is on now, and the rest of the profile is refused",
        "the node would have to change between two steps",
    ),
    (
        "the node was changed, and does not read back as the profile says: still to do:",
        "the driver would have to report success and do nothing",
    ),
    (
        "is not UTF-8 text, as other programs need it",
        "a directory's name would have to be no text, and scenes are text",
    ),
    (
        "cannot read the CDI file",
        "a note on a file that the profile does not ask for: tests/cli/containers.rs has it",
    ),
    ("no topic \"", "the command line refuses the topic before"),
    (
        "cannot ask on the terminal",
        "a terminal would have to end while its question stands",
    ),
    (
        "Nothing was written.",
        "an answer to a question of init: tests/cli/init.rs gives it",
    ),
    (
        "was removed or moved away",
        "the logs would have to vanish while logs --follow reads them",
    ),
    (
        "the driver does not tell the device file of GPU",
        "every driver in use tells the minor number",
    ),
    (
        "write the seconds after an =: --watch=",
        "the command needs a terminal: tests/cli/watch.rs runs it in one",
    ),
    (
        "cannot draw on the terminal",
        "a terminal would have to end while the screen is drawn",
    ),
    (
        "cannot tell the path of this program",
        "the kernel would have to fail to read /proc/self/exe",
    ),
    (
        ", and this machine has no group of that name",
        "the group would have to be removed while a device serves it",
    ),
    (
        "cannot copy the profile",
        "what keeps it from being copied is found before the first file is written",
    ),
    (
        "cannot write the unit",
        "what keeps it from being written is found before the first file is written",
    ),
    (
        "cannot remove the profile",
        "a file that was just read could not be removed",
    ),
    ("a thread of mig-mps has crashed", "a defect of mig-mps"),
    (
        "the program has not ended within",
        "the program would have to run for hours",
    ),
    (
        "the node is as the profile says, but its name cannot be noted",
        "the run directory would have to become full after the change",
    ),
    (
        "did not answer within",
        "a program of NVIDIA's would have to hang for its whole limit: tests/host waits for one",
    ),
    (
        ") was sent SIGKILL and has not ended: the kernel cannot end it now",
        "the kernel would have to keep a process in a hanging call",
    ),
    (
        "traces it and keeps its exit status",
        "a debugger would have to trace the process",
    ),
    ("cannot wait for", "the kernel would have to refuse waitid"),
    ("cannot become user", "root may become any user"),
    (
        "has characters that cannot be written for a container",
        "a directory's name would have to have a line end",
    ),
    (
        "no control daemon runs in",
        "a daemon would have to end between the plan and the change",
    ),
    (
        "the control daemon in",
        "somebody would have to open a control session between the plan and the change",
    ),
    (
        "s: the driver or the GPU hangs",
        "a hanging driver is waited for 60 s",
    ),
    (
        "the driver does not answer",
        "a hanging driver is waited for 60 s",
    ),
    (
        "cannot start a thread for a call of NVML:",
        "the system would have to refuse a thread: tests/cli/limits.rs has it do so",
    ),
    (
        ", which this version does not understand",
        "no driver gives an answer outside its documentation",
    ),
    (
        "; what had been made is still there:",
        "the driver would have to fail to create and then to destroy",
    ),
    (
        "the node has changed, and this would now",
        "the node would have to change between the question and its answer",
    ),
    (
        "cannot ask on the terminal:",
        "a terminal would have to end while its question stands",
    ),
    (
        ") is not known: its daemon is dead, and was another user's",
        "a user's daemon that mig-mps has not started would have to die and leave its record",
    ),
    (
        "another daemon is still called \"",
        "no command moves a name whose daemon may stay",
    ),
    (
        "interrupted",
        "a signal ends compare or a change: tests/cli/compare.rs and tests/apply/interrupt.rs send it",
    ),
];

/// What is wrong: messages that are neither provoked nor in the table, and rows of the table that are of no use.
pub(crate) fn faults(pieces: &BTreeMap<String, String>, messages: &str) -> Vec<String> {
    let excused = |piece: &str| UNPROVOKED.iter().any(|(text, _)| *text == piece);
    let missing = pieces
        .iter()
        .filter(|(piece, _)| !messages.contains(piece.as_str()) && !excused(piece))
        .map(|(piece, file)| format!("{file}: no scene provokes: {piece}\n"));
    let provoked = UNPROVOKED
        .iter()
        .filter(|(text, _)| messages.contains(text))
        .map(|(text, _)| format!("in the table, and provoked: {text}\n"));
    let unknown = UNPROVOKED
        .iter()
        .filter(|(text, _)| !pieces.contains_key(*text))
        .map(|(text, _)| format!("in the table, and in no source: {text}\n"));
    missing.chain(provoked).chain(unknown).collect()
}
