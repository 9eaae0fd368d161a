//! The options that other programs have, and our way.

use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::UsageMistake;
use crate::settings::find_setting;

/// Commands, the options that they have in other programs, and our way. No command stands for every command.
type Row = (
    &'static [&'static str],
    &'static [&'static str],
    &'static str,
);

const OTHER_OPTIONS: &[Row] = &[
    (
        &["up", "plan", "check", "systemd"],
        &["-f", "--file", "-p", "--profile", "-c", "--config"],
        "the profile is named without an option",
    ),
    (
        &["up", "plan"],
        &["--gpu", "--gpus", "-i", "--id", "--device"],
        "the profile selects GPUs: select = { index = [0] }",
    ),
    (
        &["up", "down", "set", "restart", "start", "kill", "heal"],
        &["-n", "--check", "--diff"],
        "--dry-run shows the plan and changes nothing",
    ),
    (&["plan"], &["-n", "--dry-run"], "plan changes nothing"),
    (
        &["systemd"],
        &["-n", "--dry-run"],
        "without --install it prints the units and changes nothing",
    ),
    (
        &["up"],
        &["--rollback", "--undo", "--revert"],
        "--previous takes the profile before the present one",
    ),
    (
        &["up", "down", "restart"],
        &["--wait"],
        "--drain 5m waits for clients in the way",
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
        "mig-mps run DEVICE -- PROGRAM; mig-mps help containers shows containers",
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
        "-n N starts N copies; under srun and mpirun, as mig-mps help running shows, --by-rank gives each rank its device",
    ),
    (
        &["run", "env", "compare"],
        &["--gpu", "-g", "-i", "--id", "--gpu-id"],
        "name a device: mig-mps status --gpu N shows those of a GPU",
    ),
    (
        &[
            "run", "env", "set", "kill", "restart", "start", "heal", "down", "verify", "logs",
            "list", "status",
        ],
        &["-d", "--device", "--name"],
        "the device is named without an option",
    ),
    (
        &["restart", "start"],
        &["-a", "--all"],
        "'*' takes every device",
    ),
    (
        &["list", "status", "logs", "verify", "heal", "down"],
        &["-a", "--all", "-A", "--all-namespaces", "-L", "--list-gpus"],
        "without DEVICE the command is about every device",
    ),
    (
        &[
            "list", "status", "logs", "verify", "restart", "start", "heal", "down",
        ],
        &["-i", "--id"],
        "--gpu N takes the GPU with index N",
    ),
    (
        &["status"],
        &["-w"],
        "--watch shows it again and again; --columns all shows every column",
    ),
    (&["status"], &["--wide"], "--columns all shows every column"),
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
        "mig-mps status --watch shows it again and again",
    ),
    (
        &["doctor"],
        &["--fix", "--repair", "--heal"],
        "mig-mps heal starts daemons that died",
    ),
    (
        &["heal"],
        &["--watch", "-w", "--loop", "--interval", "--daemon"],
        "mig-mps systemd --install --enable starts a timer that heals",
    ),
    (
        &["kill"],
        &["-9", "-15", "-s", "-K", "-S", "-T"],
        "--signal=KILL also ends the process",
    ),
    (
        &["kill"],
        &["-p", "--pid", "-u", "--user", "-a", "--all"],
        "mig-mps kill DEVICE PID; mig-mps status shows the clients of each device",
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
        "it opens no port: mig-mps systemd --metrics DIR writes them for a node exporter",
    ),
    (
        &["logs"],
        &["--tail", "--head", "--since", "--until"],
        "-n N shows the last N lines",
    ),
    (
        &["check", "init", "advise"],
        &["--model", "-m", "--device"],
        "--gpu MODEL plans for GPUs that are not here",
    ),
    (
        &[],
        &["-o", "--output", "--format"],
        "--json prints JSON, where a command has it",
    ),
    (
        &[],
        &["-V", "--version"],
        "mig-mps --version shows the version",
    ),
];

/// Returns what does here what an unknown option does in other programs.
pub(super) fn other_option(mistake: &UsageMistake<'_>) -> Option<String> {
    let typed = mistake.unexpected()?;
    let (.., hint) = OTHER_OPTIONS.iter().find(|(commands, options, _)| {
        let is_of_command = commands.is_empty() || commands.contains(&mistake.command);
        is_of_command && !mistake.command.is_empty() && options.contains(&typed)
    })?;
    Some((*hint).to_owned())
}

/// Returns the option of `run` and `env` for a setting that is typed as an option of theirs.
pub(super) fn option_for_setting(mistake: &UsageMistake<'_>) -> Option<String> {
    let typed = mistake.unexpected()?;
    if !["run", "env"].contains(&mistake.command) || !typed.starts_with("--") {
        return None;
    }
    let name = typed.trim_start_matches('-').split('=').next()?;
    let option = find_setting(name)?.short_name()?;
    Some(format!("{name} is called --{option} here"))
}

/// The options of which one does what another one asks for, and what to do.
const NEEDLESS_OPTIONS: [(&str, &[&str], &str); 2] = [
    (
        "--private",
        &[
            "[DEVICE]",
            "--any",
            "--profile <PROFILE>",
            "--min-memory <SIZE>",
            "--product <REGEX>",
        ],
        "--private takes the GPUs that the environment names, or those of the Slurm job: leave the other one out",
    ),
    (
        "--copies <N>",
        &["--any"],
        "-n N takes devices that are free: leave --any out",
    ),
];

/// Says that an option does what another one asks for, too.
pub(super) fn needless_option(mistake: &UsageMistake<'_>) -> Option<String> {
    let error = mistake.error;
    let both = [ContextKind::InvalidArg, ContextKind::PriorArg].map(|kind| error.get(kind));
    let has = |option: &str| {
        both.iter().flatten().any(|named| match named {
            ContextValue::String(named) => named == option,
            ContextValue::Strings(named) => named.iter().any(|named| named == option),
            _ => false,
        })
    };
    let mut rows = NEEDLESS_OPTIONS.iter();
    let row = rows.find(|(option, others, _)| has(option) && others.iter().any(|other| has(other)));
    row.filter(|_| error.kind() == ErrorKind::ArgumentConflict)
        .map(|(.., hint)| (*hint).to_owned())
}

/// Returns the form of an option that goes with others only: `--map` is for ranks, `-np 4` is `-n 4`.
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
    let has_map = own.iter().any(|word| word.starts_with("--map"));
    let is_missing = mistake.error.kind() == ErrorKind::MissingRequiredArgument;
    (has_map && is_missing && mistake.lacks("--by-rank"))
        .then(|| "--map spreads ranks: add --by-rank, or --private".to_owned())
}
