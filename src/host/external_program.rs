//! Programs of the system that mig-mps runs, and what they say when they refuse: `nvidia-smi` and `scontrol` here,
//! `systemctl` in [`units`](super::units).

use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use super::{
    Output, RunError, Unit, clean_command, environment_variable, host_name, root_hint, run,
};
use crate::failure::Failure;

/// A program of the system.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    program: PathBuf,
    /// Its name in errors.
    name: &'static str,
    /// The options of every request, which errors omit.
    options: &'static [&'static str],
}

/// A request that a program of the system has not carried out.
#[derive(Debug, Error)]
pub enum ToolError {
    /// The system has no systemd, like most containers.
    #[error("systemd does not run here: {0}")]
    NoSystemd(String),
    /// The program refused.
    #[error("{asked} ({status}) said: {said}")]
    Refused {
        asked: String,
        status: ExitStatus,
        said: String,
    },
    /// The program reported success, but the result is another one.
    #[error("{asked} exited without an error{result}")]
    NotDone {
        asked: String,
        result: String,
        /// The unit that has another state, if the request was about one.
        unit: Option<Unit>,
    },
    /// The program gave an unexpected answer.
    #[error("{asked} answered {answer:?}")]
    Strange { asked: String, answer: String },
    /// The program could not be run to its end. At its limit it was killed, and the result is unknown.
    #[error("{asked}: {error}")]
    Program { asked: String, error: RunError },
}

/// Said by `nvidia-smi` if a process has the GPU open.
const IN_USE: &[&str] = &[
    "In use by another client",
    "in use by another process",
    "being used by",
    "is in use",
];

const NO_SYSTEMD: &[&str] = &["not been booted with systemd", "Failed to connect to bus"];

const NOT_PERMITTED: &[&str] = &[
    "Insufficient Permissions",
    "Access denied",
    "authentication",
];

fn contains_any(said: &str, words: &[&str]) -> bool {
    words.iter().any(|words| said.contains(words))
}

impl ToolError {
    /// True if it was refused with one of these words.
    pub(super) fn was_refused_with(&self, words: &[&str]) -> bool {
        matches!(self, Self::Refused { said, .. } if contains_any(said, words))
    }

    /// True if a GPU was not reset because a process still used it.
    pub fn is_in_use(&self) -> bool {
        self.was_refused_with(IN_USE)
    }
}

impl Failure for ToolError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            _ if self.was_refused_with(NOT_PERMITTED) => return Some(root_hint()),
            _ if self.was_refused_with(IN_USE) => {
                "wait until every program that has /dev/nvidiaN open has exited, also in containers; persistence mode \
                 (disable with `nvidia-smi -pm 0`) and the module nvidia_drm also keep a GPU open"
            }
            _ if self.was_refused_with(&["Not Supported"]) => {
                "reboot, because this GPU cannot be reset from here, for example in a virtual machine"
            }
            _ if self.was_refused_with(&["slurm_"]) => {
                "run `scontrol ping` to check whether Slurm's controller answers"
            }
            Self::NoSystemd(_) => {
                "stop the services that keep the GPU open with the tool that started them; in a container, on the host"
            }
            Self::Refused { asked, .. } | Self::Strange { asked, .. } => {
                return Some(format!(
                    "find out why `{asked}` fails, then run this command again"
                ));
            }
            Self::NotDone { unit, .. } => {
                let unit = (*unit)?;
                return Some(format!(
                    "run `systemctl status {unit}` to see the cause, then run this command again"
                ));
            }
            Self::Program { error, .. } => return error.hint(),
        };
        Some(hint.to_owned())
    }
}

impl Tool {
    pub(super) fn new(
        program: PathBuf,
        name: &'static str,
        options: &'static [&'static str],
    ) -> Self {
        Self {
            program,
            name,
            options,
        }
    }

    /// Returns a request as errors name it.
    pub(super) fn describe_request(&self, words: &[&str]) -> String {
        format!("{} {}", self.name, words.join(" "))
    }

    /// Runs the program to its end in a clean environment. Its output is parsed, so the locale is C.
    pub(super) fn run(&self, words: &[&str], limit: Duration) -> Result<Output, ToolError> {
        let mut command = clean_command(&self.program, &KEPT_VARIABLES);
        command.args(self.options).args(words).env("LC_ALL", "C");
        let output = run(&command, "", limit).map_err(|error| ToolError::Program {
            asked: self.describe_request(words),
            error,
        })?;
        if output.status.success() {
            return Ok(output);
        }
        let said = join_output_lines(&output);
        if contains_any(&said, NO_SYSTEMD) {
            return Err(ToolError::NoSystemd(said));
        }
        Err(ToolError::Refused {
            asked: self.describe_request(words),
            status: output.status,
            said,
        })
    }
}

/// The variables that programs keep; the last two are those of Slurm's programs.
const KEPT_VARIABLES: [&str; 5] = [
    "PATH",
    "LD_LIBRARY_PATH",
    "HOME",
    "SLURM_CONF",
    "SLURMD_NODENAME",
];

/// Returns the whole output of a program on one line, for an error.
pub(super) fn join_output_lines(output: &Output) -> String {
    let said = format!("{}\n{}", output.stdout, output.stderr);
    let lines: Vec<_> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

/// The time that a reset may take: seconds for a single GPU, longer with a fabric manager.
const RESET_TIMEOUT: Duration = Duration::from_secs(180);

/// `nvidia-smi`, used only for resets, which NVML lacks.
#[derive(Clone, Debug)]
pub struct NvidiaSmi(Tool);

impl NvidiaSmi {
    pub fn at(program: PathBuf) -> Self {
        Self(Tool::new(program, "nvidia-smi", &[]))
    }

    /// Resets a GPU, given by its bus id in the form of `/sys/bus/pci/devices`. This destroys all its GPU instances and
    /// activates a pending MIG mode. No process may have the GPU open, including this one: see [`Nvml::while_shut_down`](crate::nvml::Nvml::while_shut_down).
    pub fn reset(&self, pci: &str) -> Result<(), ToolError> {
        let words = ["--gpu-reset", "-i", pci];
        let said = join_output_lines(&self.0.run(&words, RESET_TIMEOUT)?);
        if said.contains("was successfully reset") {
            return Ok(());
        }
        Err(ToolError::NotDone {
            asked: self.0.describe_request(&words),
            result: format!(" but did not report that the GPU was reset: {said}"),
            unit: None,
        })
    }
}

/// The time limit of one request to Slurm's controller.
const SLURM_TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the name of this node in Slurm: that of the slurmd that runs this, or else of the machine.
pub fn slurm_node_name() -> String {
    environment_variable("SLURMD_NODENAME")
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| {
            let name = host_name();
            name.split('.').next().unwrap_or_default().to_owned()
        })
}

/// Slurm's controller, through `scontrol`.
#[derive(Clone, Debug)]
pub struct Slurm(Tool);

impl Slurm {
    pub fn at(scontrol: PathBuf) -> Self {
        Self(Tool::new(scontrol, "scontrol", &[]))
    }

    /// Returns the reason for which no job is started on a node, without the user and the time; `None` if jobs are started
    /// there, or nobody gave one.
    pub fn drain_reason(&self, node: &str) -> Result<Option<String>, ToolError> {
        let shown = self.0.run(&["show", "node", node], SLURM_TIMEOUT)?;
        Ok(drain_reason(&shown.stdout).map(str::to_owned))
    }

    /// True if no job is started on a node, and none runs there.
    pub fn is_drained(&self, node: &str) -> Result<bool, ToolError> {
        let shown = self.0.run(&["show", "node", node], SLURM_TIMEOUT)?;
        Ok(is_drained(&shown.stdout))
    }

    /// Keeps jobs from being started on a node; those that run there go on.
    pub fn drain_node(&self, node: &str, reason: &str) -> Result<(), ToolError> {
        self.update_node(node, &["State=DRAIN", &format!("Reason={reason}")])
    }

    /// Lets jobs be started on a node again.
    pub fn resume_node(&self, node: &str) -> Result<(), ToolError> {
        self.update_node(node, &["State=RESUME"])
    }

    fn update_node(&self, node: &str, values: &[&str]) -> Result<(), ToolError> {
        let node = format!("NodeName={node}");
        let words = [&["update", &node], values].concat();
        self.0.run(&words, SLURM_TIMEOUT).map(drop)
    }
}

/// The words of a state in which no job is started, and of one in which jobs run.
const CLOSED_STATES: [&str; 3] = ["DRAIN", "DRAINED", "DOWN"];
const BUSY_STATES: [&str; 3] = ["MIXED", "ALLOCATED", "COMPLETING"];

/// Returns the words of a node's state, such as `IDLE` and `DRAIN`, in the output of `scontrol show node`.
fn state_words(shown: &str) -> impl Iterator<Item = &str> {
    shown
        .split_whitespace()
        .find_map(|word| word.strip_prefix("State="))
        .into_iter()
        .flat_map(|state| state.split('+'))
        // A character such as `*` may follow each word.
        .map(|word| word.trim_end_matches(|c: char| !c.is_ascii_alphabetic()))
}

fn is_drained(shown: &str) -> bool {
    let has_one_of = |words: [&str; 3]| state_words(shown).any(|word| words.contains(&word));
    let is_free = shown
        .split_whitespace()
        .find_map(|word| word.strip_prefix("CPUAlloc="))
        .is_none_or(|count| count == "0");
    has_one_of(CLOSED_STATES) && !has_one_of(BUSY_STATES) && is_free
}

fn drain_reason(shown: &str) -> Option<&str> {
    if !state_words(shown).any(|word| ["DRAIN", "DRAINED"].contains(&word)) {
        return None;
    }
    let reason = shown
        .lines()
        .find_map(|line| line.trim_start().strip_prefix("Reason="))?;
    Some(reason.rsplit_once(" [").map_or(reason, |(own, _)| own))
}

#[cfg(test)]
pub(super) use tests::Fake;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    use super::*;

    /// A shell script in a temporary file, in the place of a program.
    pub(in crate::host) struct Fake {
        pub(in crate::host) path: PathBuf,
    }

    impl Fake {
        pub(in crate::host) fn new(name: &str, script: &str) -> Self {
            let name = format!("mig-mps-{name}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            // Written by another process: while another test starts a program, a file that this process has open for
            // writing cannot be executed (`ETXTBSY`).
            let mut shell = Command::new("/bin/sh");
            shell
                .args(["-c", "cat >\"$0\"; chmod 755 \"$0\""])
                .arg(&path);
            let text = format!("#!/bin/sh\n{script}\n");
            let output = run(&shell, &text, Duration::from_secs(20)).unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(fs::metadata(&path).unwrap().permissions().mode() & 0o111 != 0);
            Self { path }
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.path);
        }
    }

    #[test]
    fn only_its_own_report_counts() {
        let smi = |name: &str, script: &str| {
            let fake = Fake::new(name, script);
            NvidiaSmi::at(fake.path.clone()).reset("0000:17:00.0")
        };
        let done = r#"[ "$*" = "--gpu-reset -i 0000:17:00.0" ] && echo "GPU 00000000:17:00.0 was successfully reset.""#;
        smi("reset-done", done).unwrap();
        let silent = smi("reset-silent", "echo All done.").unwrap_err();
        assert!(
            silent.to_string().ends_with("the GPU was reset: All done."),
            "{silent}"
        );
        let busy = smi(
            "reset-busy",
            "echo 'The following GPUs could not be reset:'; echo '  GPU 00000000:17:00.0: In use by another client'; exit 255",
        )
        .unwrap_err();
        assert!(busy.is_in_use());
        assert_eq!(
            busy.to_string(),
            "nvidia-smi --gpu-reset -i 0000:17:00.0 (exit status: 255) said: The following GPUs could \
             not be reset: GPU 00000000:17:00.0: In use by another client"
        );
        let older = smi(
            "reset-older",
            "echo 'GPU 00000000:C1:00.0 is currently in use by another process.' >&2; exit 1",
        );
        assert!(older.unwrap_err().is_in_use());
        let never = NvidiaSmi::at("/no/nvidia-smi".into())
            .reset("0000:17:00.0")
            .unwrap_err();
        assert!(
            never.to_string().starts_with(
                "nvidia-smi --gpu-reset -i 0000:17:00.0: cannot start /no/nvidia-smi: "
            )
        );
    }

    /// Slurm 22.05.8.
    const SHOWN: &str = "NodeName=n1 Arch=x86_64 CoresPerSocket=1 
   State=IDLE+DRAIN ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=all 
   Reason=mig-mps: 0.4 hangs [root@2026-11-23T18:01:23]
";

    #[test]
    fn a_drained_node_has_a_reason() {
        assert_eq!(drain_reason(SHOWN), Some("mig-mps: 0.4 hangs"));
    }

    #[test]
    fn a_node_without_jobs_that_gets_none_is_drained() {
        let shown = |state: &str| format!("NodeName=n1 CPUAlloc=0 CPUTot=8\n   {state}\n");
        for drained in [
            "IDLE*+DRAIN",
            "IDLE+DRAIN*",
            "DRAINED",
            "DOWN",
            "DOWN*+DRAIN",
        ] {
            assert!(is_drained(&shown(&format!("State={drained}"))), "{drained}");
        }
        for other in [
            "MIXED+DRAIN",
            "ALLOCATED*+DRAIN",
            "IDLE+COMPLETING+DRAIN",
            "IDLE",
            "",
        ] {
            assert!(!is_drained(&shown(&format!("State={other}"))), "{other}");
        }
        assert!(!is_drained(&shown("Reason=none")), "there is no state");
        let busy = shown("State=IDLE+DRAIN").replace("CPUAlloc=0", "CPUAlloc=2");
        assert!(!is_drained(&busy));
    }

    #[test]
    fn a_node_that_does_not_answer_has_a_reason_too() {
        for state in ["IDLE*+DRAIN", "IDLE+DRAIN*", "DOWN+DRAIN"] {
            let shown = SHOWN.replace("IDLE+DRAIN", state);
            assert_eq!(drain_reason(&shown), Some("mig-mps: 0.4 hangs"), "{state}");
        }
    }

    #[test]
    fn a_node_that_takes_jobs_has_none() {
        let shown = "NodeName=n1\n   State=MIXED ThreadsPerCore=1\n";
        assert_eq!(drain_reason(shown), None);
    }
}
