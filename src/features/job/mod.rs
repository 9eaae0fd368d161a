//! `mig-mps job`: the prolog and the epilog of batch systems that mig-mps has no commands of its own for.

use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;

use crate::client::{ClientOptions, NoAccess, NotReady, Variables};
use crate::commands::env::{check_utf8, find_served};
use crate::commands::{Context, verify};
use crate::error::{CommandError, ErrorContext as _, Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{
    Account, Environment, Host, Pid, Process, Uid, is_job_name, is_named_for_job, is_slot_group,
    reason_of_shared_group, root_hint, shorten_command,
};
use crate::node::{ONE_DEVICE_HINT, Served, observe_records};
use crate::render::json::{EnvDocument, VERSION, Version};
use crate::render::{examples, note, print_json};
use crate::shared::jobs::{end_leftovers, find_leftover, heal_devices};
use crate::state::{JobRecord, RunDir};

/// Prepare devices for a batch job, and clean up after it
///
/// Call these commands in the prolog and the epilog of PBS, LSF, Grid Engine, OAR, Flux and other batch systems. For
/// Slurm, use `mig-mps slurm`.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps job begin --id 7 --user alice --devices 0.0 --pid 4711", "Prolog"),
    ("mig-mps job end --id 7", "Epilog"),
]))]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    Begin(BeginArgs),
    End(EndArgs),
}

/// Prepare the devices of a job
///
/// Becomes a client of each device, as the user of the job. Heals a device if its daemon died, or hangs without clients.
/// Then records the job, so that `status` shows it with its programs. If a device does not accept the user's programs,
/// fails and records nothing.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps job begin [OPTIONS] --id <ID> --user <USER> --devices <DEVICE>\n                         [--cgroup <PATH>|--pid <PID>]",
    after_help = examples(&[
    ("mig-mps job begin --id 7 --user alice --devices 0.0,0.2 --pid 4711", ""),
    ("mig-mps job begin --id 7 --user alice --devices 0.0 --cgroup /jobs/7", ""),
]))]
struct BeginArgs {
    /// ID of the job, such as 7.server
    #[arg(long, value_parser = parse_id)]
    id: String,
    /// Name or number of the job's user
    #[arg(long)]
    user: String,
    /// Devices of the job, separated by commas or blanks
    #[arg(long, value_name = "DEVICE", num_args = 1.., required = true)]
    devices: Vec<String>,
    #[command(flatten)]
    group: GroupArgs,
    /// Print the environment for each device as JSON
    #[arg(long)]
    json: bool,
}

/// The two ways to name the control group of a job. By default it is that of the command, which a prolog may run in it.
#[derive(Args, Debug)]
#[group(multiple = false)]
struct GroupArgs {
    /// Control group of the job, as in /proc/PID/cgroup [default: the job's group in which the
    /// command runs]
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
    /// Use the control group of this process
    #[arg(long)]
    pid: Option<u32>,
}

/// Clean up after a job
///
/// Ends the programs on devices that are still in the job's control group, and lists them. Other programs of the same
/// user continue.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("mig-mps job end --id 7", "End the programs of job 7"),
]))]
struct EndArgs {
    /// ID of the job, as passed to `job begin`
    #[arg(long, value_parser = parse_id)]
    id: String,
}

fn parse_id(text: &str) -> std::result::Result<String, String> {
    if is_job_name(text) && !text.starts_with(['.', '-']) {
        return Ok(text.to_owned());
    }
    Err(
        "an id has 1 to 128 ASCII letters, digits, and the characters . _ - [ ] @ : # = ƒ, and does not begin with a dot or a hyphen"
            .to_owned(),
    )
}

/// The output of `mig-mps job begin --json`.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "job")]
pub struct JobDocument {
    version: Version,
    id: String,
    /// The uid of the job's user.
    uid: u32,
    control_group: String,
    /// The environment of the clients of each device.
    devices: Vec<EnvDocument>,
}

/// Begins or ends a job.
pub fn run(args: &JobArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if !context.environment.is_root() {
        return Err(command_error("only root can begin and end jobs").with_hint(root_hint()));
    }
    match &args.command {
        JobCommand::Begin(args) => begin(args, context),
        JobCommand::End(args) => end(args, context),
    }
}

fn begin(args: &BeginArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let user = find_user(&args.user)?;
    let control_group = args.group.find_control_group(context)?;
    verify::prepare_check(environment)?;
    let node = observe_records(environment)?;
    let mut devices: Vec<&Served> = Vec::new();
    for word in args.devices.iter().flat_map(|list| split_devices(list)) {
        let served = find_served(&node, word).map_err(with_hint_for_prolog)?;
        if devices
            .iter()
            .all(|known| known.record.uuid != served.record.uuid)
        {
            devices.push(served);
        }
    }
    let names: Vec<String> = devices
        .iter()
        .map(|served| served.record.name.clone())
        .collect();
    let not_ready = heal_devices(context, &names, Some(user))?;
    if let Some((_, cause)) = not_ready.into_iter().next() {
        return Err(not_ready_error(cause)).context(format_args!("job {}", args.id));
    }
    let mut documents = Vec::new();
    for served in &devices {
        let variables = Variables::for_device(environment, served, &ClientOptions::default())
            .with_apptainer(served.run_dir.path(), |_| None);
        check_utf8(&variables)?;
        documents.push(EnvDocument::new(&served.record.name, &variables));
    }
    let record = JobRecord {
        id: args.id.clone(),
        user,
        devices: devices
            .iter()
            .map(|served| served.record.uuid.clone())
            .collect(),
        control_group,
        boot_id: node.boot_id.clone(),
    };
    let run_dir = RunDir::at(&environment.roots_run_dir());
    remove_others_in_group(environment, &record, &run_dir)?;
    record.write(&run_dir).context("cannot record the job")?;
    if args.json {
        print_json(&JobDocument {
            version: VERSION,
            id: record.id,
            uid: user.0,
            control_group: record.control_group,
            devices: documents,
        })?;
    }
    Ok(ExitStatus::Done)
}

/// Splits a list of devices, such as the value of a variable of the batch system. Where a comma has no device, the word is
/// empty.
fn split_devices(list: &str) -> Vec<&str> {
    let mut words = Vec::new();
    for part in list.split(',') {
        match part.trim() {
            "" => words.push(""),
            part => words.extend(part.split_whitespace()),
        }
    }
    words
}

/// The hint for several devices in the place of one, such as those of a GPU.
const DEVICES_HINT: &str = "give --devices the names of the job's devices";

/// Replaces the hint that addresses the user of another command.
fn with_hint_for_prolog(mut error: CommandError) -> CommandError {
    for hint in &mut error.hints {
        if hint.starts_with(ONE_DEVICE_HINT) {
            DEVICES_HINT.clone_into(hint);
        }
    }
    error
}

/// Returns the error of a device that is not ready. The hints about a device for other users address these users, so the
/// author of a prolog gets another hint.
fn not_ready_error(cause: NotReady) -> CommandError {
    let is_for_others = matches!(cause, NotReady::NoAccess(NoAccess::Reserved { .. }));
    let error = CommandError::from(cause);
    if !is_for_others {
        return error;
    }
    let hint = "give the job another device, or change the key serve in the profile";
    CommandError {
        hints: vec![hint.to_owned()],
        ..error
    }
}

fn end(args: &EndArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let run_dir = RunDir::at(&environment.roots_run_dir());
    let path = JobRecord::path(&run_dir, &args.id);
    let with_remedy = |error: CommandError| CommandError {
        hints: vec![format!(
            "end the programs of the job with `mig-mps kill`, then remove {}",
            path.display()
        )],
        ..error
    };
    let found = JobRecord::load(&run_dir, &args.id);
    // The remedy for the directory of the records is another one.
    let is_of_record = matches!(&found, Err(error) if error.path() == Some(&path));
    let found = found.context("cannot read the job").map_err(|error| {
        if is_of_record {
            with_remedy(error)
        } else {
            error
        }
    })?;
    let Some(record) = found else {
        note(&format!(
            "job {} has not begun, or has ended already",
            args.id
        ));
        return Ok(ExitStatus::Done);
    };
    if record.boot_id == environment.host.boot_id()? {
        let host = &environment.host;
        let Some(group) = host.control_group_at(&record.control_group) else {
            let id = &record.id;
            return Err(with_remedy(command_error(format_args!(
                "the record of job {id} does not contain the path of a control group"
            ))));
        };
        // Others may be in it by now.
        check_control_group(context, &group).map_err(with_remedy)?;
        end_leftovers(context, &record.id, |process| {
            process.is_in_control_group(&group)
        })?;
    }
    record.remove(&run_dir)?;
    Ok(ExitStatus::Done)
}

/// Returns the records of other jobs in the control group. Refuses a group above or below that of another job.
fn others_in_group(job: &JobRecord, run_dir: &RunDir) -> Result<Vec<JobRecord>> {
    let mut others = JobRecord::load_all(run_dir, &job.boot_id);
    others.retain(|other| other.id != job.id);
    let is_below = |one: &str, other: &str| {
        one.strip_prefix(other)
            .is_some_and(|rest| rest.starts_with('/'))
    };
    for JobRecord {
        id, control_group, ..
    } in &others
    {
        if is_below(control_group, &job.control_group)
            || is_below(&job.control_group, control_group)
        {
            let what = format!("job {id} has the control group {control_group}");
            return Err(usage_error(what).with_hint(format!(
                "run `mig-mps job end --id {id}` if that job has ended"
            )));
        }
    }
    others.retain(|other| other.control_group == job.control_group);
    Ok(others)
}

/// Removes the records of earlier jobs in the control group of a slot. Refuses any other group that has a job, and a slot in
/// which a program of the earlier job may run: the end of the new job would end both.
fn remove_others_in_group(
    environment: &Environment,
    job: &JobRecord,
    run_dir: &RunDir,
) -> Result<()> {
    for other in others_in_group(job, run_dir)? {
        let id = &other.id;
        let what = format!("job {id} has the same control group");
        let refusal = |what: String| {
            let hint = format!("run `mig-mps job end --id {id}` if that job has ended");
            Err(usage_error(what).with_hint(hint))
        };
        if let Some((pid, command)) = find_program_of(environment, job, &other)? {
            let command = shorten_command(&command);
            return refusal(format!(
                "{what}, and pid {pid} ({command}) still runs in it"
            ));
        }
        if !is_slot_group(&job.control_group) {
            return refusal(what);
        }
        note(&format!("{what}, so it has ended"));
        other.remove(run_dir)?;
    }
    Ok(())
}

/// Returns a program of another job in its group: one on a device, or one of a user who is neither root nor the user of the
/// new job.
fn find_program_of(
    environment: &Environment,
    job: &JobRecord,
    other: &JobRecord,
) -> Result<Option<(Pid, String)>> {
    let is_of_others = |process: &Process| {
        let owner = process.owner();
        other.has_process(process) && owner != Some(Uid::ROOT) && owner != Some(job.user)
    };
    let processes = environment.host.read_processes()?;
    match processes.iter().find(|process| is_of_others(process)) {
        Some(process) => Ok(Some((process.pid, process.command_line()))),
        None => find_leftover(environment, |process| other.has_process(process)),
    }
}

/// The uid that means "no user" in system calls.
const NO_UID: u32 = u32::MAX;

/// Returns the uid of a user. The machine must know a name, but not a number.
fn find_user(word: &str) -> Result<Uid> {
    if word.is_empty() {
        return Err(usage_error("the name of the user is empty")
            .with_hint("give --user the name or the number of a user"));
    }
    // The standard library takes a sign.
    if let Ok(uid) = word.parse()
        && uid != NO_UID
        && !word.starts_with('+')
    {
        return Ok(Uid(uid));
    }
    match Account::from_name(word)? {
        Some(account) => Ok(account.uid),
        None => Err(
            usage_error(format_args!("user {word} does not exist on this machine"))
                .with_hint("give --user the name or the number of a user"),
        ),
    }
}

impl GroupArgs {
    /// Returns the control group of the job, which has nothing but the job in it.
    fn find_control_group(&self, context: &Context<'_>) -> Result<String> {
        let host = &context.environment.host;
        let group = match (&self.cgroup, self.pid) {
            (Some(path), _) => host.control_group_at(path).ok_or_else(|| {
                usage_error(format_args!("{path} is not the path of a control group"))
                    .with_hint(
                        "give --cgroup a path such as /pbs_jobs.service/jobid/7.server, without a slash at its end, or use --pid",
                    )
            })?,
            (None, None) => host.own_job_group().ok_or_else(|| {
                usage_error(
                    "--cgroup or --pid is required, because this command does not run in a control group that a batch \
                     system except Slurm has created for a job",
                )
                .with_hint("give the control group of the job with --cgroup, or a process of the job with --pid")
            })?,
            (None, Some(pid)) => find_group_of_process(host, Pid(pid))?,
        };
        check_control_group(context, &group)?;
        // Groups that the job creates below its own group later belong to it.
        let is_above_jobs = |process: &Process| process.is_in_job_below(&group);
        if !is_named_for_job(&group) && host.read_processes()?.iter().any(is_above_jobs) {
            return Err(shared_group_error(&group, "groups of jobs are below it"));
        }
        if host.lacks_control_group(&group) {
            note(&format!("the control group {group} does not exist yet"));
        }
        Ok(group)
    }
}

/// Returns the control group of the job to which a process belongs.
fn find_group_of_process(host: &Host, pid: Pid) -> Result<String> {
    let process = host.find_process(pid).ok_or_else(|| {
        command_error(format_args!("pid {pid} does not run")).with_hint(
            "give --pid a running process of the job, or the control group of the job with --cgroup",
        )
    })?;
    process.job_control_group().ok_or_else(|| {
        command_error(format_args!(
            "the control group of pid {pid} was not created by a batch system that `mig-mps job` supports"
        ))
        .with_hint(
            "give the control group of the job with --cgroup; for Flux, this is required if its jobs run in the control \
             groups of their users",
        )
    })
}

/// Refuses a control group that is not that of one job, or may do so: the end of the job would end the programs of
/// others.
fn check_control_group(context: &Context<'_>, group: &str) -> Result<()> {
    let host = &context.environment.host;
    let node = observe_records(context.environment)?;
    let has = |pid| {
        host.find_process(pid)
            .is_some_and(|process| process.is_in_control_group(group))
    };
    let mut daemons = node
        .served()
        .filter_map(|served| Some(served.record.daemon?.pid));
    let what = if has(Pid(1)) {
        "init is in it"
    } else if daemons.any(has) {
        "a daemon of mig-mps is in it"
    } else if is_named_for_job(group) {
        return Ok(());
    } else if let Some(reason) = reason_of_shared_group(group) {
        reason
    } else if has(Pid(std::process::id())) {
        "this command is in it"
    } else {
        return Ok(());
    };
    Err(shared_group_error(group, what))
}

fn shared_group_error(group: &str, what: &str) -> CommandError {
    let what = format!("the control group {group} is not that of one job: {what}");
    usage_error(what)
        .with_hint("give the control group that the batch system has created for the job")
}
