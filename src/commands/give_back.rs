//! Gives GPUs back after a self-test: mode and instances as they were. A self-test that was killed leaves a record, and the
//! next change of the node gives its GPUs back first.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{LOCK_LIMIT, lock_node};
use crate::config::{LOG_DIR, RUN_DIR, STATE_DIR};
use crate::error::{CommandError, ErrorContext as _, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{Directories, Environment, FileError, Output, RunError, format_gpus, run};
use crate::node::{Detail, Node, Observer};
use crate::render::{note, warn};
use crate::state::{GpuUnderTest, NodeFile, RunDir, SelftestRecord};

/// The time limit for a command of a self-test. A reset of a GPU is the longest part, and a hanging driver call is abandoned
/// after a minute.
const COMMAND_LIMIT: Duration = Duration::from_secs(300);

/// The time that a program or a server of a killed self-test may take to exit. Until then it uses its device.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a command of mig-mps for a self-test, with the environment of the caller. Daemons, logs and history of the
/// self-test are in `directory`, so that those of the node are not touched. Variables of CUDA, such as a thread percentage, are
/// left out: the caller set them for other programs.
pub fn selftest_command(environment: &Environment, directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(&environment.helper);
    let is_for_cuda = |name: &OsStr| name.as_bytes().starts_with(b"CUDA_");
    command
        .args(words)
        .env_clear()
        .envs(env::vars_os().filter(|(name, _)| !is_for_cuda(name)))
        .env(RUN_DIR, directory.join("run"))
        .env(LOG_DIR, directory.join("log"))
        .env(STATE_DIR, directory.join("state"));
    command
}

/// Runs such a command to its end, with `input` on its standard input.
pub fn run_in_selftest(
    environment: &Environment,
    directory: &Path,
    words: &[&str],
    input: &str,
) -> Result<Output, RunError> {
    let command = selftest_command(environment, directory, words);
    run(&command, input, COMMAND_LIMIT)
}

/// Returns the error of a command that failed, in one line.
pub fn error_line(output: &Output) -> String {
    let mut error = output
        .stderr
        .lines()
        .map(str::trim)
        .skip_while(|line| !line.starts_with("error: "));
    let Some(first) = error.next() else {
        return match output.stderr.lines().last() {
            Some(last) if output.status.signal().is_none() => last.to_owned(),
            _ => format!("it failed ({})", output.status),
        };
    };
    let first = first.trim_start_matches("error: ");
    // The first of several reasons is enough.
    match error.next().filter(|line| !line.starts_with("hint: ")) {
        Some(second) => match second.strip_prefix("cause: ") {
            Some(cause) => format!("{first}: {cause}"),
            None => format!("{first} {second}"),
        },
        None => first.to_owned(),
    }
}

/// Makes the GPUs of a self-test as they were: ends its daemons, destroys its instances, and applies what was there before.
/// Returns the GPUs that are lost in `node`, which are to be restored later. `allowed` has further options of `up`.
pub fn restore_gpus(
    environment: &Environment,
    directories: &Directories,
    record: &SelftestRecord,
    node: &Node,
    allowed: &[&'static str],
) -> Result<Vec<GpuUnderTest>> {
    let directory = &record.directory;
    let (present, missing): (Vec<_>, Vec<_>) = record
        .gpus
        .iter()
        .partition(|gpu| node.gpu_with_uuid(&gpu.uuid).is_some());
    let lost = warn_of_missing(node, missing);
    let until = Instant::now() + EXIT_TIMEOUT;
    let step = |words: &[&str], input: &str| loop {
        let output = run_in_selftest(environment, directory, words, input)?;
        if output.status.success() {
            return Ok(());
        }
        let is_refused = output.status.code() == Some(ExitStatus::Refused as i32);
        if !is_refused || Instant::now() >= until {
            return Err(command_error(error_line(&output)));
        }
        sleep(Duration::from_millis(500));
    };
    end_commands(environment, directory)?;
    let mut options = Vec::new();
    options.extend(record.may_stop_holders.then_some("--stop-holders"));
    let down = ["down", "--force", "--destroy-mig", "--purge", "--yes"];
    let ended = step(&[&down, options.as_slice()].concat(), "");
    // The driver does not change a lost GPU.
    if present.len() == record.gpus.len() {
        ended?;
    }
    options.extend(record.may_reset.then_some("--reset"));
    options.extend(allowed);
    for gpu in present {
        step(
            &[&["up", "-", "--yes"], options.as_slice()].concat(),
            &gpu.before,
        )?;
    }
    let made = RunDir::at(&directory.join("run")).load_node()?;
    record_remade_instances(environment, directories, &made)?;
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(FileError::from(error).at(directory).into())
        }
        _ => Ok(lost),
    }
}

/// Ends the commands of mig-mps that a killed self-test has left. One that changes a GPU ends after its present step.
fn end_commands(environment: &Environment, directory: &Path) -> Result<()> {
    let run_dir = directory.join("run");
    let name = environment.helper.file_name().unwrap_or_default();
    for process in environment.host.read_processes()?.iter() {
        if process.program_name().as_str() != name
            || process.owner() != Some(environment.caller)
            || process.environment_bytes(RUN_DIR).as_deref() != Some(run_dir.as_os_str())
        {
            continue;
        }
        let left = environment
            .host
            .open_process(process.pid, process.started)?;
        let Some(left) = left else {
            continue;
        };
        // It may have ended meanwhile.
        let _ = left.send_signal(Signal::TERM);
        if !left.wait_for_exit(COMMAND_LIMIT) {
            let (command, pid) = (process.command_line(), process.pid);
            return Err(command_error(format_args!(
                "{command} (pid {pid}), which the self-test started, did not exit"
            )));
        }
    }
    Ok(())
}

/// Warns of GPUs that the driver does not show. Returns those that are lost; what was replaced is not to be restored.
fn warn_of_missing(node: &Node, missing: Vec<&GpuUnderTest>) -> Vec<GpuUnderTest> {
    let mut lost = Vec::new();
    for gpu in missing {
        let index = gpu.index;
        match node.lost_gpus().find(|(other, _)| *other == index) {
            Some((_, why)) => {
                warn(&format!(
                    "{why}; it will be restored after the self-test when the driver shows it again"
                ));
                lost.push(gpu.clone());
            }
            None => warn(&format!(
                "GPU {index} ({}) of the self-test is no longer in this machine, and is not restored",
                gpu.uuid
            )),
        }
    }
    lost
}

/// Records the GPUs of a self-test that are still to be restored, or removes its record.
pub fn finish_restoring(
    environment: &Environment,
    record: &SelftestRecord,
    lost: Vec<GpuUnderTest>,
) -> Result<()> {
    let state_dir = environment.state_dir()?;
    if lost.is_empty() {
        return Ok(SelftestRecord::remove(&state_dir)?);
    }
    let left = SelftestRecord {
        gpus: lost,
        ..record.clone()
    };
    Ok(left.write(&state_dir)?)
}

/// Returns the record of a self-test that was interrupted, if this user can read it: that of the caller or of root.
pub fn find_interrupted_selftest(environment: &Environment) -> Option<SelftestRecord> {
    find_selftest(environment).filter(|record| record.writer.has_exited(&environment.host))
}

fn find_selftest(environment: &Environment) -> Option<SelftestRecord> {
    environment
        .state_dirs()
        .into_iter()
        .filter_map(|directory| SelftestRecord::load(&directory).ok()?)
        .find(|record| record.other_machine(&environment.host).is_none())
}

/// Refuses to use a GPU that a self-test uses, or that is to be restored after one.
pub fn check_not_under_test(environment: &Environment, gpus: &[&str]) -> Result<()> {
    let Some(record) = find_selftest(environment) else {
        return Ok(());
    };
    let is_wanted = |gpu: &&GpuUnderTest| gpus.contains(&gpu.uuid.as_str());
    let Some(gpu) = record.gpus.iter().find(is_wanted) else {
        return Ok(());
    };
    let refused = |what: String, hint: &str| {
        Err(CommandError::new(ExitStatus::Refused, what).with_hint(hint))
    };
    if record.writer.has_exited(&environment.host) {
        let what = format!(
            "a self-test was interrupted, and GPU {} is still to be restored",
            gpu.index
        );
        return refused(what, "run `sudo mig-mps heal` to restore the GPU");
    }
    refused(
        describe_running(&record),
        "wait for the self-test to exit, then run this command again",
    )
}

/// Returns the record of a self-test on this machine that may have been killed.
fn load_selftest_record(environment: &Environment) -> Result<Option<SelftestRecord>> {
    let Ok(state_dir) = environment.state_dir() else {
        return Ok(None);
    };
    let read = SelftestRecord::load(&state_dir);
    let read = read.context("cannot tell which GPUs a self-test has changed");
    let hint = "check the GPUs with `mig-mps list`, then remove the file";
    let record = read.map_err(|error| error.with_hint(hint))?;
    Ok(record.filter(|record| record.other_machine(&environment.host).is_none()))
}

fn describe_gpus(record: &SelftestRecord) -> String {
    let indices: Vec<u32> = record.gpus.iter().map(|gpu| gpu.index).collect();
    format_gpus(&indices)
}

/// Gives back the GPUs of a self-test that was killed; reports it where nothing is to be changed. A self-test that runs holds
/// the lock. Returns true if GPUs were to be given back.
pub fn restore_interrupted(
    environment: &Environment,
    directories: &Directories,
    is_dry_run: bool,
) -> Result<bool> {
    if is_dry_run {
        report_selftest(environment);
        return Ok(false);
    }
    if load_selftest_record(environment)?.is_none() {
        return Ok(false);
    }
    let _lock = lock_node(environment, directories, LOCK_LIMIT)?;
    restore_interrupted_under_lock(environment, directories)?;
    Ok(true)
}

/// Gives back such GPUs under the lock of the node. A self-test with another run directory holds another lock, and is refused
/// here while it runs.
pub fn restore_interrupted_under_lock(
    environment: &Environment,
    directories: &Directories,
) -> Result<()> {
    let Some(record) = load_selftest_record(environment)? else {
        return Ok(());
    };
    if !record.writer.has_exited(&environment.host) {
        let error = CommandError::new(ExitStatus::Refused, describe_running(&record));
        return Err(error.with_hint("wait for the self-test to exit, then run this command again"));
    }
    let gpus = describe_gpus(&record);
    note(&format!("a self-test was interrupted; restoring {gpus}"));
    // A GPU cannot be reset while this process has it open.
    let mut observer = Observer::new(environment);
    let node = observer.observe(Detail::GEOMETRY)?;
    let lost = observer
        .with_nvml_closed(|| restore_gpus(environment, directories, &record, &node, &[]))?
        .map_err(|error| restore_error(environment, &record, error))?;
    finish_restoring(environment, &record, lost)
}

/// Records instances that were made again after a reboot as made by mig-mps: the node's own file is lost then.
fn record_remade_instances(
    environment: &Environment,
    directories: &Directories,
    made: &NodeFile,
) -> Result<()> {
    let run_dir = RunDir::at(&directories.run);
    let boot_id = environment.host.boot_id()?;
    if made.boot_id == boot_id && run_dir.load_node()?.boot_id != boot_id {
        run_dir.write_node(made)?;
    }
    Ok(())
}

/// Returns the error if GPUs of a self-test cannot be given back.
pub fn restore_error(
    environment: &Environment,
    record: &SelftestRecord,
    error: CommandError,
) -> CommandError {
    let gpus = describe_gpus(record);
    let doing = format!("cannot restore {gpus} after the self-test");
    let mut error = Err::<(), _>(error).context(doing).unwrap_err();
    error.hints.clear();
    let file = environment.state_dir().map_or_else(
        |_| "the record".to_owned(),
        |directory| SelftestRecord::path(&directory).display().to_string(),
    );
    error.with_hint(format!(
        "run any command that changes the node to try again; to keep the GPU as it is now, remove {file}"
    ))
}

/// Reports a self-test that runs or was killed.
pub fn report_selftest(environment: &Environment) {
    let Ok(Some(record)) = load_selftest_record(environment) else {
        return;
    };
    let gpus = describe_gpus(&record);
    if record.writer.has_exited(&environment.host) {
        note(&format!(
            "a self-test was interrupted; the next command that changes this node will restore {gpus}"
        ));
    } else {
        note(&format!("{}.", describe_running(&record)));
    }
}

/// Describes a self-test that runs.
fn describe_running(record: &SelftestRecord) -> String {
    let (pid, gpus) = (record.writer.pid, describe_gpus(record));
    format!("mig-mps selftest (pid {pid}) is testing {gpus}")
}
