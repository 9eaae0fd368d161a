//! The options that other programs and earlier versions have, and our way.

use std::ffi::OsStr;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::UsageMistake;
use crate::host::quote_for_shell;
use crate::settings::find_setting;

/// Commands, the options that they have in other programs or had in earlier versions, and our way. No command stands for
/// every command.
type Row = (
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

const OTHER_OPTIONS: &[Row] = &[
    (
        &["up", "plan"],
        &["--gpu", "--gpus", "-i", "--id", "--device"],
        "select GPUs in the profile: select = { index = [0] }",
    ),
    (
        &["up", "down", "set", "restart", "start", "kill", "heal"],
        &["-n", "--check", "--diff"],
        "use --dry-run to see the plan without changing anything",
    ),
    (
        &["plan"],
        &["-n", "--dry-run"],
        "omit the option; plan changes nothing",
    ),
    (
        &["plan"],
        &[
            "--drain",
            "--force",
            "--keep-going",
            "--no-new",
            "--reset",
            "--stop-holders",
        ],
        "use `mig-mps up --dry-run` to see what up does with this option",
    ),
    (
        &["systemd"],
        &["-n", "--dry-run"],
        "omit --install to print the units without changing anything",
    ),
    (
        &["up"],
        &["--rollback", "--undo", "--revert"],
        "use --previous for the profile before the present one",
    ),
    (
        &["up", "down", "restart"],
        &["--wait"],
        "use --drain 5m to wait for clients in the way",
    ),
    (
        &["run"],
        &[
            "--gpus",
            "--rm",
            "-i",
            "-t",
            "-d",
            "-e",
            "-p",
            "-u",
            "--name",
            "--volume",
            "--mount",
            "--network",
            "--ipc",
            "--privileged",
            "--runtime",
        ],
        "use run to start a program here (`mig-mps run DEVICE -- PROGRAM`), or `docker run $(mig-mps env DEVICE \
         --format docker) IMAGE` for a container",
    ),
    (
        &["run"],
        &[
            "--np",
            "--ntasks",
            "-N",
            "--nodes",
            "-c",
            "--cpus-per-task",
            "--gres",
            "--mem",
        ],
        "use -n N to start N copies, or --by-rank under srun and mpirun (`mig-mps help running`)",
    ),
    (
        &["run", "env", "compare"],
        &["--gpu", "-g", "-i", "--id", "--gpu-id"],
        "give a device; `mig-mps status --gpu N` shows the devices of a GPU",
    ),
    (
        &[
            "run", "env", "set", "kill", "restart", "start", "heal", "down", "verify", "logs",
            "list", "status",
        ],
        &["-d", "--device", "--name"],
        "give the device without an option",
    ),
    (
        &["restart", "start"],
        &["-a", "--all"],
        "use '*' for every device",
    ),
    (
        &["list", "status", "logs", "verify", "heal", "down"],
        &["-a", "--all", "-A", "--all-namespaces", "-L", "--list-gpus"],
        "omit DEVICE for every device",
    ),
    (
        &[
            "list", "status", "logs", "verify", "restart", "start", "heal", "down",
        ],
        &["-i", "--id"],
        "use --gpu N for the GPU with index N",
    ),
    (
        &["status", "list"],
        &["--user", "-u"],
        "run `mig-mps status --by-user` to see the clients of each user",
    ),
    (
        &["status"],
        &["-w"],
        "use --watch to refresh the display, or --columns to select the columns",
    ),
    (
        &["status"],
        &["--wide"],
        "use --columns to select the columns",
    ),
    (
        &["list", "status"],
        &[
            "-l",
            "--loop",
            "-n",
            "-f",
            "--follow",
            "--watch",
            "--interval",
        ],
        "run `mig-mps status --watch` to refresh the display",
    ),
    (
        &["doctor"],
        &["--fix", "--repair", "--heal"],
        "run `mig-mps heal` to start daemons that died",
    ),
    (
        &["doctor"],
        &["--attach"],
        "run `mig-mps verify` to run a CUDA program on each device",
    ),
    (
        &["export"],
        &["--format"],
        "run `nvidia-mig-parted export` for a configuration of mig-parted; `mig-mps export` writes a profile",
    ),
    (
        &["profiles"],
        &["--diff"],
        "run `diff <(mig-mps profiles --history 1) <(mig-mps profiles --history 2)` in bash or zsh",
    ),
    (
        &["slurm"],
        &["--profile-from-feature"],
        "drain the node with `scontrol update NodeName=NODE State=DRAIN Reason=mig-mps`, then run `mig-mps up PROFILE` there",
    ),
    (
        &["heal"],
        &["--watch", "-w", "--loop", "--interval", "--daemon"],
        "run `mig-mps systemd --install --enable` to start a timer that heals",
    ),
    (
        &["kill"],
        &["-9", "-15", "-s", "-K", "-S", "-T"],
        "use --signal=KILL to end the process as well",
    ),
    (
        &["kill"],
        &["-p", "--pid", "-u", "--user", "-a", "--all"],
        "run `mig-mps kill DEVICE PID`; `mig-mps status` shows the clients of each device",
    ),
    (
        &["metrics"],
        &[
            "--port",
            "--listen",
            "--address",
            "--web.listen-address",
            "--daemon",
            "--serve",
        ],
        "use `mig-mps systemd --metrics DIR` to write metrics for a node exporter; no port is opened",
    ),
    (
        &["logs"],
        &["--tail", "--head", "--since", "--until"],
        "use -n N for the last N lines",
    ),
    (
        &["check", "init", "advise"],
        &["--model", "-m", "--device"],
        "use --gpu MODEL to plan for GPUs of another machine",
    ),
    (&[], &["-V", "--version"], "run `mig-mps --version`"),
];

/// Returns what does here what an unknown option does in other programs.
pub(super) fn other_option(mistake: &UsageMistake<'_>) -> Option<String> {
    let Some(typed) = mistake.unexpected() else {
        return other_progress(mistake);
    };
    let row = OTHER_OPTIONS.iter().find(|(commands, options, _)| {
        let is_of_command = commands.is_empty() || commands.contains(&mistake.command);
        is_of_command && !mistake.command.is_empty() && options.contains(&typed)
    });
    row.map(|(.., hint)| (*hint).to_owned())
        .or_else(|| form_of_profile(mistake, typed))
        .or_else(|| form_of_output(mistake, typed))
}

/// Returns what replaces `--progress json`, which version 0.2 had.
fn other_progress(mistake: &UsageMistake<'_>) -> Option<String> {
    let error = mistake.error;
    let value_of = |kind| match error.get(kind) {
        Some(ContextValue::String(value)) => Some(value.as_str()),
        _ => None,
    };
    let is_of_progress = value_of(ContextKind::InvalidArg)?.starts_with("--progress ");
    let is_json = value_of(ContextKind::InvalidValue) == Some("json");
    let command = mistake.command;
    (error.kind() == ErrorKind::InvalidValue && is_of_progress && is_json).then(|| {
        format!(
            "run `mig-mps {command} --json` for the outcome, or `mig-mps {command} --progress plain` for a line for \
             each step"
        )
    })
}

/// Returns the form of a command whose profile is named by an option: `up -f lab.toml`.
fn form_of_profile(mistake: &UsageMistake<'_>, typed: &str) -> Option<String> {
    let command = mistake.command;
    if !["up", "plan", "check", "systemd"].contains(&command)
        || !["-f", "--file", "-p", "--profile", "-c", "--config"].contains(&typed)
    {
        return None;
    }
    let what = "give the profile without an option";
    let Some(path) = word_behind(mistake, typed) else {
        return Some(what.to_owned());
    };
    let extension = Path::new(&path).extension().and_then(OsStr::to_str);
    let path = quote_for_shell(&path);
    Some(match extension {
        Some("yaml" | "yml" | "json") => format!(
            "give a profile (TOML); `mig-mps import {path} -o profile.toml` converts a configuration of mig-parted"
        ),
        _ => format!("{what}: `mig-mps {command} {path}`"),
    })
}

/// Returns the form of a command whose output is to have another format: `list -o json`.
fn form_of_output(mistake: &UsageMistake<'_>, typed: &str) -> Option<String> {
    if mistake.command.is_empty() || !["-o", "--output", "--format"].contains(&typed) {
        return None;
    }
    let command = mistake.command;
    let has_json = [
        "list", "status", "plan", "check", "doctor", "logs", "verify",
    ]
    .contains(&command);
    let format = word_behind(mistake, typed);
    Some(match format.as_deref() {
        Some("json" | "yaml") | None if has_json => {
            format!("run `mig-mps {command} --json` for JSON")
        }
        Some("wide") if command == "status" => "use --columns to select the columns".to_owned(),
        _ => "use --json in commands that have it".to_owned(),
    })
}

/// Returns the value of an option: the word behind it, or behind its equals sign.
fn word_behind(mistake: &UsageMistake<'_>, typed: &str) -> Option<String> {
    let own = mistake.own_words();
    let at = own.iter().position(|word| word.starts_with(typed))?;
    match own[at].split_once('=') {
        Some((_, value)) => Some(value.to_owned()),
        None => own
            .get(at + 1)
            .filter(|word| !word.starts_with('-'))
            .cloned(),
    }
}

/// Returns the option of `run` and `env` for a setting that is typed as an option of theirs.
pub(super) fn option_for_setting(mistake: &UsageMistake<'_>) -> Option<String> {
    let typed = mistake.unexpected()?;
    if !["run", "env"].contains(&mistake.command) || !typed.starts_with("--") {
        return None;
    }
    let name = typed.trim_start_matches('-').split('=').next()?;
    let option = find_setting(name)?.short_name()?;
    Some(format!("use --{option} instead of {name}"))
}

/// The options of which one does what another one asks for, and what to do.
const NEEDLESS_OPTIONS: [(&str, &[&str], &str); 2] = [
    (
        "--private",
        &[
            "[DEVICE]",
            "--any",
            "--profile <NAME>",
            "--min-memory <SIZE>",
            "--product <REGEX>",
        ],
        "omit the device; --private uses the GPUs in CUDA_VISIBLE_DEVICES, or those of the Slurm job",
    ),
    (
        "--copies <N>",
        &["--any"],
        "omit --any; -n N already uses free devices",
    ),
];

/// Says that an option does what another one asks for, too.
pub(super) fn needless_option(mistake: &UsageMistake<'_>) -> Option<String> {
    let error = mistake.error;
    if error.kind() != ErrorKind::ArgumentConflict {
        return None;
    }
    let both = [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| error.get(kind));
    let has = |option: &str| {
        both.iter().flatten().any(|named| match named {
            ContextValue::String(named) => named == option,
            ContextValue::Strings(named) => named.iter().any(|named| named == option),
            _ => false,
        })
    };
    NEEDLESS_OPTIONS
        .iter()
        .find(|(option, others, _)| has(option) && others.iter().any(|other| has(other)))
        .map(|(.., hint)| (*hint).to_owned())
}

/// Returns the hint for a command without the profile that it needs.
pub(super) fn missing_profile(mistake: &UsageMistake<'_>) -> Option<String> {
    let command = mistake.command;
    mistake.lacks("<PROFILE>").then(|| {
        format!("give the path of a profile, or a built-in profile: `mig-mps {command} balanced`")
    })
}

/// Returns the form of an option that goes with others only: `--map` is for ranks, `--share` for copies, `--joint` for a
/// private daemon, `-np 4` is `-n 4`.
pub(super) fn incomplete_option(mistake: &UsageMistake<'_>) -> Option<String> {
    if mistake.command != "run" {
        return None;
    }
    let own = mistake.own_words();
    let number = |at: usize| own.get(at + 1).filter(|word| word.parse::<u32>().is_ok());
    if let Some(at) = own.iter().position(|word| word == "-np") {
        return Some(format!(
            "write -n {}",
            number(at).map_or("N", String::as_str)
        ));
    }
    let has = |option: &str| own.iter().any(|word| word.starts_with(option));
    let hint = if has("--map") && mistake.lacks("--by-rank") {
        "add --by-rank or --private; --map spreads ranks"
    } else if has("--share") && mistake.lacks("--copies") {
        "add -n N, the number of copies; --share divides the SMs of a device among them"
    } else if has("--joint") && mistake.lacks("--private") {
        "add --private to start a private daemon for all GPUs, or name a joint device without --joint"
    } else {
        return None;
    };
    Some(hint.to_owned())
}
