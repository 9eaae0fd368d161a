//! `mig-mps kill`

use clap::{Args, ValueEnum as _};

use super::Context;
use super::args::{ConsentArgs, DeviceArgs, number};
use super::change::ChangeOptions;
use crate::error::{CommandError, Result, usage_error};
use crate::failure::ExitStatus;
use crate::host::{Environment, Pid, Uid, caller, user_name};
use crate::mps::ClientPolicy;
use crate::node::{Client, Detail, Node, Observer, observe};
use crate::plan::{self, KillRequest, Plan, Signal};
use crate::render::{examples_and_statuses, note};

/// End the work of MPS clients of a device
///
/// The server drops each client, and the CUDA calls of the client fail with error 810. The process continues, and gets a
/// signal only with --signal. Other clients are not affected. With --drain, the clients first have time to exit, and the
/// remaining clients are ended only with --force.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps kill [OPTIONS] <DEVICE> <PID>...\n       mig-mps kill [OPTIONS] --gpu <N> <PID>...",
    after_help = examples_and_statuses(&[
        ("mig-mps kill 0.0 4711", "End a client of device 0.0"),
        ("mig-mps kill 0.0 4711 --signal", "Then send SIGTERM to its process"),
        ("mig-mps kill --gpu 0 4711 4712", "Look for the clients on GPU 0"),
    ], &[("4", "a client remains after --drain, or another change is in progress")])
)]
pub struct KillArgs {
    /// Device name, UUID, unique prefix, or glob
    device: String,
    /// Process IDs of clients, as `status` shows them
    #[arg(value_name = "PID")]
    pids: Vec<String>,
    /// Look for the clients on GPU N, instead of on DEVICE
    #[arg(long = "gpu", value_name = "N")]
    gpus: Vec<String>,
    /// Then send a signal: TERM (default) or KILL
    #[arg(
        long,
        hide_possible_values = true,
        value_name = "SIGNAL",
        num_args = 0..=1,
        default_missing_value = "TERM",
        require_equals = true,
        ignore_case = true
    )]
    signal: Option<Signal>,
    #[command(flatten)]
    consent: ConsentArgs,
}

/// Reads a process id.
fn parse_pid(text: &str) -> Result<u32, String> {
    number::<1, { u32::MAX }>(text)
}

/// Ends the work of clients on a device.
pub fn run(args: &KillArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let as_word = |word: &str| Ok::<_, String>(word.to_owned());
    let (devices, words) =
        DeviceArgs::parse_with_values(&args.device, &args.gpus, &args.pids, as_word)?;
    let pids = words
        .iter()
        .map(|word| match parse_pid(word) {
            Ok(pid) => Ok(Pid(pid)),
            Err(why) => Err(invalid_pid_error(word, &why, &devices, &words, environment)),
        })
        .collect::<Result<Vec<Pid>>>()?;
    if pids.is_empty() {
        return Err(missing_pid_error(&args.device, environment));
    }
    environment.mps_programs()?;
    let mut shown: Option<Plan> = None;
    let directories = environment.directories_or_system();
    let options = ChangeOptions {
        observer: Observer::new(environment).asking_only(&devices),
        ..ChangeOptions::new(environment, &directories, &args.consent)
    };
    let outcome = options.run_plan(|node, run_dir| {
        let shown_kill = shown.as_ref().and_then(|plan| plan.kill.as_ref());
        let device = match shown_kill {
            Some(kill) => kill.name.clone(),
            None => plan::device_with_clients(node, &devices.resolve_names(node)?, &pids)?,
        };
        let served = node.served_named(&device);
        let request = KillRequest {
            device: &device,
            pids: &pids,
            signal: args.signal,
            patience: match args.consent.drain {
                Some(_) if !args.consent.force => ClientPolicy::Idle,
                drain => ClientPolicy::Force(drain.unwrap_or(0)),
            },
            caller: environment.caller,
            owner: served.and_then(|served| served.run_dir.owner()),
            shown: shown.as_ref(),
        };
        let plan = plan::kill(node, run_dir, &request)?;
        shown.get_or_insert_with(|| plan.clone());
        Ok(plan)
    })?;
    if let Some(outcome) = outcome {
        if !outcome.is_unchanged
            && let Some(shown) = &shown
        {
            remark_on_departed_clients(shown, &outcome.plan);
        }
        if args.consent.json {
            outcome.report(environment, &[], &args.consent, None)?;
        }
    }
    Ok(ExitStatus::Done)
}

/// The error for a word in the place of a pid: the user or the program of clients, or a device behind its clients.
fn invalid_pid_error(
    word: &str,
    why: &str,
    devices: &DeviceArgs,
    words: &[String],
    environment: &Environment,
) -> CommandError {
    let error = usage_error(format_args!("\"{word}\" is not a process id: {why}"));
    let first = devices.words.first().map_or("", String::as_str);
    if Signal::from_str(first, true).is_ok() {
        return error.with_hint(format!("write --signal={first}, with an equals sign"));
    }
    let Ok(node) = observe(environment, Detail::STATUS) else {
        return error;
    };
    let Ok(names) = devices.resolve_names(&node) else {
        let first = devices.words.iter().chain(words);
        let numbers: Vec<String> = first
            .filter(|word| parse_pid(word).is_ok())
            .cloned()
            .collect();
        return if node.device_named(word).is_some() && !numbers.is_empty() {
            let numbers = numbers.join(" ");
            error.with_hint(format!(
                "put the device first: `mig-mps kill {word} {numbers}`"
            ))
        } else {
            error.with_hint(CLIENTS_HINT)
        };
    };
    if word.starts_with(|c: char| c.is_ascii_digit()) {
        return error.with_hint(CLIENTS_HINT);
    }
    let is_meant = |client: &Client| has_user_or_program(client, word);
    let purpose = format!("for the clients of {word}");
    let hint = hint_for_clients(&node, &names, is_meant, &purpose);
    error.with_hint(hint.unwrap_or_else(|| hint_without_clients(&node, &names, word)))
}

/// The hint if these devices have no clients of a user or program: where there are some, and what runs outside MPS.
fn hint_without_clients(node: &Node, names: &[String], word: &str) -> String {
    let devices = names.join(", ");
    let fact = match names {
        [_] => format!("device {devices} has no clients of {word}"),
        _ => format!("devices {devices} have no clients of {word}"),
    };
    let all: Vec<String> = node
        .served()
        .map(|served| served.record.name.clone())
        .collect();
    let is_meant = |client: &Client| has_user_or_program(client, word);
    if let Some(hint) = hint_for_clients(node, &all, is_meant, "for other devices") {
        return format!("{hint}; {fact}");
    }
    let outside: Vec<String> = names
        .iter()
        .filter_map(|name| node.device_named(name))
        .flat_map(|device| &device.outside_mps)
        .filter(|program| is_user_or_program(program.user, &program.command, word))
        .map(|program| program.pid.to_string())
        .collect();
    match outside.as_slice() {
        [] => format!("{CLIENTS_HINT}; {fact}"),
        pids => {
            let pids = pids.join(" ");
            format!("run `kill {pids}` to end the program outside MPS; {fact}")
        }
    }
}

/// Returns the hint for these clients of devices: the commands that end their work, or for a user who may not do that, the
/// command that ends the user's own processes. `None` without such clients.
fn hint_for_clients(
    node: &Node,
    names: &[String],
    is_meant: impl Fn(&Client) -> bool,
    purpose: &str,
) -> Option<String> {
    let user = caller();
    let (mut commands, mut own) = (Vec::new(), Vec::new());
    let mut is_permitted = true;
    for served in names.iter().filter_map(|name| node.served_named(name)) {
        let (name, owner) = (&served.record.name, served.run_dir.owner());
        let clients = served.clients.as_slice();
        let mut pids = Vec::new();
        for client in clients.iter().filter(|client| is_meant(client)) {
            let Some(pid) = client.pid else { continue };
            pids.push(pid.to_string());
            if !plan::may_end_client(served, client, user, owner) {
                is_permitted = false;
                own.extend((client.user == Some(user)).then(|| (name, pid.to_string())));
            }
        }
        if !pids.is_empty() {
            commands.push(format!("`mig-mps kill {name} {}`", pids.join(" ")));
        }
    }
    let (pids, commands) = (own.iter().map(|(_, pid)| pid.as_str()), commands.join("; "));
    match own.as_slice() {
        _ if commands.is_empty() => None,
        [(name, pid)] => Some(format!(
            "run `kill {pid}` to end your own program on device {name}"
        )),
        [] if is_permitted => Some(format!("run {commands} {purpose}")),
        [] => Some(format!("ask root to run {commands} {purpose}")),
        _ => {
            let pids: Vec<&str> = pids.collect();
            Some(format!(
                "run `kill {}` to end your own programs",
                pids.join(" ")
            ))
        }
    }
}

const CLIENTS_HINT: &str = "run `mig-mps status` to see the clients of each device";

/// True if a word is the name of a client's user or program.
fn has_user_or_program(client: &Client, word: &str) -> bool {
    let command = client.command.as_deref().unwrap_or_default();
    is_user_or_program(client.user, command, word)
}

fn is_user_or_program(user: Option<Uid>, command: &str, word: &str) -> bool {
    let program = command.split(' ').next().unwrap_or_default();
    user.is_some_and(|user| user_name(user) == word)
        || (!program.is_empty() && program.rsplit('/').next() == Some(word))
}

/// The error if only one word is given: a device, or by mistake a pid, a user or a program.
fn missing_pid_error(word: &str, environment: &Environment) -> CommandError {
    let what = "mig-mps kill needs DEVICE and PID";
    let Ok(node) = observe(environment, Detail::STATUS) else {
        return usage_error(what).with_hint(CLIENTS_HINT);
    };
    if let Ok([name]) = node.resolve_words(&[word.to_owned()]).as_deref() {
        let names = [name.clone()];
        let purpose = format!("for every client of device {name}");
        let hint = hint_for_clients(&node, &names, |_| true, &purpose);
        let without_clients = || format!("{CLIENTS_HINT}; device {name} has none");
        return usage_error(what).with_hint(hint.unwrap_or_else(without_clients));
    }
    let names: Vec<String> = node
        .served()
        .map(|served| served.record.name.clone())
        .collect();
    let is_pid = |client: &Client| client.pid.is_some_and(|pid| pid.to_string() == word);
    let purpose = format!("to end the work of pid {word}");
    if let Some(hint) = hint_for_clients(&node, &names, is_pid, &purpose) {
        return usage_error(what).with_hint(hint);
    }
    let outside = node.devices.iter().find(|device| {
        device
            .outside_mps
            .iter()
            .any(|program| program.pid.to_string() == word)
    });
    if let Some(device) = outside {
        let name = &device.name;
        return usage_error(format!(
            "pid {word} computes on device {name} outside MPS, so it is no client"
        ))
        .with_hint(format!("end the process itself with `kill {word}`"));
    }
    let is_meant = |client: &Client| has_user_or_program(client, word);
    let purpose = format!("for the clients of {word}");
    if let Some(hint) = hint_for_clients(&node, &names, is_meant, &purpose) {
        return usage_error(what).with_hint(hint);
    }
    usage_error(format!(
        "{what}: no device has the name {word}, and status shows no such client"
    ))
    .with_hint(CLIENTS_HINT)
}

/// A client that has left between the plan and its turn is no mistake.
fn remark_on_departed_clients(shown: &Plan, carried_out: &Plan) {
    let ended: Vec<Pid> = carried_out
        .kill
        .iter()
        .flat_map(|kill| &kill.victims)
        .map(|victim| victim.pid)
        .collect();
    for victim in shown.kill.iter().flat_map(|kill| &kill.victims) {
        if !ended.contains(&victim.pid) {
            let device = &victim.client.device;
            note(&format!(
                "device {device}: pid {} is no longer a client; nothing was done",
                victim.pid
            ));
        }
    }
}
