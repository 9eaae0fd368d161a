//! The words that other programs have in the place of our commands.

use crate::host::quote_for_shell;

/// The words that other programs have for what a command does, and those that a topic of the manual explains.
const OTHER_WORDS: &[(&str, &[&str])] = &[
    ("up", &["apply", "create", "partition", "split"]),
    (
        "up --previous",
        &["rollback", "roll-back", "undo", "revert"],
    ),
    ("profiles --history", &["history"]),
    ("down", &["stop", "delete", "destroy", "remove", "rm"]),
    ("set", &["limit", "modify", "edit"]),
    ("kill", &["end", "terminate", "evict"]),
    (
        "status",
        &["show", "stats", "ps", "top", "info", "get", "describe"],
    ),
    (
        "status --by-user",
        &["who", "w", "users", "clients", "jobs", "squeue"],
    ),
    ("status --watch", &["watch", "monitor", "dmon", "pmon"]),
    (
        "list",
        &[
            "ls",
            "gpus",
            "device",
            "devices",
            "gpu",
            "nodes",
            "nvidia-smi",
            "smi",
        ],
    ),
    (
        "run",
        &["exec", "launch", "attach", "enter", "shell", "use"],
    ),
    ("plan", &["diff"]),
    ("check", &["validate", "lint"]),
    ("init", &["setup", "configure", "config", "new"]),
    ("logs", &["log"]),
    ("doctor", &["diagnose", "diag", "health"]),
    ("selftest", &["test"]),
    ("compare", &["benchmark", "bench"]),
    ("explain", &["error", "errors"]),
    ("--version", &["version"]),
    (
        "help tutorial",
        &[
            "quickstart",
            "quick-start",
            "getting-started",
            "intro",
            "introduction",
            "guide",
            "howto",
            "begin",
            "beginner",
            "first",
        ],
    ),
    (
        "help containers",
        &["container", "docker", "podman", "apptainer"],
    ),
    ("help kubernetes", &["pod", "pods", "kubelet", "k8s"]),
    ("help running", &["mpi", "mpirun", "srun", "pipes"]),
    (
        "help recipes",
        &["student", "students", "class", "course", "examples"],
    ),
    (
        "help troubleshooting",
        &["slow", "performance", "hang", "hangs"],
    ),
    ("explain device-hung", &["hang", "hangs", "hung"]),
    ("explain daemon-dead", &["dead", "died"]),
    ("explain daemon-silent", &["no answer"]),
    ("explain daemon-orphan", &["orphan"]),
    ("explain device-closing", &["closing"]),
    ("explain device-failing", &["failing"]),
    ("explain device-gone", &["no device"]),
    ("explain device-stopped", &["stopped"]),
    ("explain gpu-fault", &["fault"]),
    ("explain gpu-lost", &["gpu lost"]),
    ("help concepts", &["words", "mps", "mig", "slice", "slices"]),
    ("help profile", &["settings", "configuration", "sharing"]),
    ("help install", &["install", "uninstall"]),
    ("help upgrades", &["upgrade", "update"]),
];

/// Returns the words of other programs for a command, such as `up` or `help running`, with those for its options.
pub fn words_for(command: &str) -> Vec<&'static str> {
    let is_its = |ours: &str| {
        ours.strip_prefix(command)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(" --"))
    };
    OTHER_WORDS
        .iter()
        .filter(|(ours, _)| is_its(ours))
        .flat_map(|(_, words)| *words)
        .copied()
        .collect()
}

/// Returns the command that does what another program has this word for.
pub fn command_for(word: &str) -> Option<&'static str> {
    let (command, _) = OTHER_WORDS
        .iter()
        .find(|(_, words)| words.contains(&word))?;
    Some(command)
}

/// The options of nvidia-smi for what mig-mps does not do.
const ONLY_IN_NVIDIA_SMI: [&str; 9] = [
    "-pm",
    "--persistence-mode",
    "-pl",
    "--power-limit",
    "-c",
    "--compute-mode",
    "-r",
    "--gpu-reset",
    "topo",
];

/// Returns the hint for a command line of nvidia-smi: our command, or nvidia-smi itself.
pub(super) fn hint_for_nvidia_smi(words: &[String]) -> Option<String> {
    let words = match words {
        [first, rest @ ..] if first == "nvidia-smi" => rest,
        words => words,
    };
    let first = words.first().map(String::as_str)?;
    if ONLY_IN_NVIDIA_SMI.contains(&first) {
        let quoted: Vec<_> = words.iter().map(|word| quote_for_shell(word)).collect();
        return Some(format!("use `nvidia-smi {}` for that", quoted.join(" ")));
    }
    let command = command_for_nvidia_smi(first, words)?;
    if command == "up PROFILE" {
        return Some(format!(
            "use `mig-mps {command}` to switch the MIG mode and create devices, and `mig-mps init` to write a profile"
        ));
    }
    Some(format!("did you mean `mig-mps {command}`?"))
}

fn command_for_nvidia_smi(first: &str, words: &[String]) -> Option<String> {
    let has = |options: &[&str]| {
        let name = |word: &String| word.split('=').next().map(str::to_owned);
        words
            .iter()
            .filter_map(name)
            .any(|name| options.contains(&name.as_str()))
    };
    let is_mig = first == "mig";
    let command = match () {
        () if is_mig && has(&["-lgip", "-lgipp", "-lcip", "-lcipp"]) => "list --offers",
        () if is_mig && has(&["-cgi", "-cci"]) => "up PROFILE",
        () if is_mig && has(&["-dgi", "-dci"]) => "down --destroy-mig",
        () if is_mig && words.len() > 1 => "list",
        () if has(&["-mig", "--multi-instance-gpu"]) && turns_mig_off(words) => {
            "down --disable-mig"
        }
        () if has(&["-mig", "--multi-instance-gpu"]) => "up PROFILE",
        () if !first.starts_with('-') => return None,
        () if has(&["-l", "--loop", "-lms", "--loop-ms"]) => "status --watch",
        () if has(&["-i", "--id"]) => return Some(list_of_gpu(words)),
        () if has(&["-L", "--list-gpus", "-q", "--query", "-x", "--query-gpu"]) => "list",
        () if has(&["--query-compute-apps"]) => "status",
        () => return None,
    };
    Some(command.to_owned())
}

/// True for `-mig 0`.
fn turns_mig_off(words: &[String]) -> bool {
    let behind = words.iter().skip_while(|word| !word.contains("-m")).nth(1);
    behind.is_some_and(|value| value == "0") || words.iter().any(|word| word.ends_with("gpu=0"))
}

/// Returns our command for `-i 0`, which shows one GPU.
fn list_of_gpu(words: &[String]) -> String {
    let mut after = words.iter().skip_while(|word| !word.starts_with("-i"));
    let index = after.nth(1).filter(|word| !word.starts_with('-'));
    format!("list --gpu {}", index.map_or("N", String::as_str))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_nvidia_smi_lead_to_our_commands() {
        for (line, command) in [
            ("-L", "did you mean `mig-mps list`?"),
            ("nvidia-smi --list-gpus", "did you mean `mig-mps list`?"),
            ("-i 0", "did you mean `mig-mps list --gpu 0`?"),
            ("--id=0", "did you mean `mig-mps list --gpu N`?"),
            (
                "-i 0 -mig 1",
                "use `mig-mps up PROFILE` to switch the MIG mode and create devices, and `mig-mps init` to write a profile",
            ),
            ("-mig 0", "did you mean `mig-mps down --disable-mig`?"),
            (
                "--multi-instance-gpu=0 -i 1",
                "did you mean `mig-mps down --disable-mig`?",
            ),
            (
                "-mig 1 -i 0",
                "use `mig-mps up PROFILE` to switch the MIG mode and create devices, and `mig-mps init` to write a profile",
            ),
            ("-q -d MEMORY", "did you mean `mig-mps list`?"),
            ("--query-gpu=name", "did you mean `mig-mps list`?"),
            ("-l 1", "did you mean `mig-mps status --watch`?"),
            ("mig -lgip", "did you mean `mig-mps list --offers`?"),
            ("-pm 1", "use `nvidia-smi -pm 1` for that"),
            ("topo -m", "use `nvidia-smi topo -m` for that"),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(
                hint_for_nvidia_smi(&words).as_deref(),
                Some(command),
                "{line}"
            );
        }
        for line in ["status -i", "up", "mig"] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(hint_for_nvidia_smi(&words), None, "{line}");
        }
    }
}
