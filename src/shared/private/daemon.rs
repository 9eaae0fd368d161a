//! A private daemon: the place and the mark of its directory, its start, and its end.

use std::fs::{self, File, Permissions, TryLockError};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::apply::{self, Allowed, ApplyContext, OnFailure};
use crate::commands::drain::DEFAULT_FORCE_SECONDS;
use crate::commands::give_back::check_not_under_test;
use crate::commands::{LOCK_LIMIT, lock_node};
use crate::config::{PRIVATE_DIRECTORY_LETTERS, PRIVATE_DIRECTORY_PREFIX};
use crate::error::{Result, command_error};
use crate::host::{
    Directory, Environment, FileError, MpsPrograms, Uid, caller, raise_memory, raise_open_files,
    use_service_limits,
};
use crate::mps::{ControlProgram, Daemon, MAX_PIPE_DIR, MpsProcesses};
use crate::node::{ANSWER_TIMEOUT, Detail, Node, observe, observe_records, observe_without_driver};
use crate::plan::{self, Destroy, DownRequest, Plan, Refusal};
use crate::render::{ProgressForm, start_progress};
use crate::state::{DeviceKey, RunDir};

/// The file with the boot in which a private directory was made. A run directory to which a user has given such a name
/// has none.
const BOOT_FILE: &str = "private";

/// The hint where the reason may be in logs.
const LOGS_HINT: &str = "run `mig-mps doctor` to find known causes, or set MIG_MPS_LOG_DIR to a directory in which \
 the logs remain";

/// A directory of one device's daemon, its records and its logs, which nobody else can enter.
pub(super) struct PrivateDirectory {
    directory: TempDir,
    environment: Environment,
    device: String,
    /// Programs and this process hold it: a directory without holders is what killed ones have left. systemd-tmpfiles
    /// leaves a locked directory alone, however old its files are.
    _lock: File,
}

impl PrivateDirectory {
    /// Makes the directory and starts the daemon of a device, or of a joint one with these GPUs. First ends what killed processes have left.
    pub(super) fn with_daemon(caller: &Environment, gpus: &[String]) -> Result<Self> {
        raise_open_files()?;
        raise_memory();
        // The limits of a job hold for its daemon too.
        let _ = use_service_limits();
        for place in parent_directories() {
            end_leftovers_in(caller, &place);
        }
        let boot_id = caller.host.boot_id()?;
        let device = match gpus {
            [device] => device.clone(),
            several => DeviceKey::for_joint_device(several.to_vec()).joint_uuid(),
        };
        let directory = create_directory(&device)?;
        let lock = File::open(directory.path())?;
        lock.lock_shared()?;
        fs::write(directory.path().join(BOOT_FILE), boot_id)?;
        let environment = caller.with_directory(directory.path());
        let private = Self {
            directory,
            environment,
            device,
            _lock: lock,
        };
        match start_daemon(&private.environment, gpus) {
            Ok(()) => Ok(private),
            Err(mut error) => {
                // Its logs are removed with it.
                let own = private.directory.path().display().to_string();
                if error.hints.iter().any(|hint| hint.contains(&own)) {
                    error.hints = vec![LOGS_HINT.to_owned()];
                }
                private.stop_and_remove();
                Err(error)
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Ends the daemon and removes the directory. That stays if the kernel cannot end a process.
    pub(super) fn stop_and_remove(self) {
        let path = self.directory.path();
        let is_recorded = RunDir::at(path).has_record(&self.device);
        let is_stopped = stop_and_verify(&self.environment, path);
        if !is_recorded {
            end_processes(&self.environment, path, &self.device);
        }
        if !is_stopped {
            let _ = self.directory.keep();
        }
    }
}

/// Returns the directories in which a private one may be, the best one first.
pub fn parent_directories() -> Vec<PathBuf> {
    let named =
        ["XDG_RUNTIME_DIR", "TMPDIR"].map(|name| std::env::var_os(name).unwrap_or_default());
    let mut places: Vec<PathBuf> = named.into_iter().map(PathBuf::from).collect();
    places.push(PathBuf::from("/tmp"));
    // The answer to programs is text.
    places.retain(|place| place.is_absolute() && place.to_str().is_some());
    places.dedup();
    places
}

/// Makes a private directory that no other user can replace, and in which the path of the device's pipe directory is short
/// enough for a socket.
fn create_directory(device: &str) -> Result<TempDir> {
    let mut causes = Vec::new();
    for place in parent_directories() {
        let path = place.join(format!(
            "{PRIVATE_DIRECTORY_PREFIX}{}",
            "x".repeat(PRIVATE_DIRECTORY_LETTERS)
        ));
        let length = RunDir::at(&path).pipe_dir(device).as_os_str().len();
        if length > MAX_PIPE_DIR {
            causes.push(format!("{}: its path is too long", place.display()));
            continue;
        }
        let mut builder = tempfile::Builder::new();
        builder
            .prefix(PRIVATE_DIRECTORY_PREFIX)
            .rand_bytes(PRIVATE_DIRECTORY_LETTERS);
        builder.permissions(Permissions::from_mode(0o700));
        let made = builder.tempdir_in(&place);
        let made = made.map_err(FileError::from);
        match made.and_then(|made| Directory::open(made.path()).map(|_| made)) {
            Ok(directory) => return Ok(directory),
            Err(error) => causes.push(error.to_string()),
        }
    }
    let causes = causes.join("; ");
    let what = format!("cannot create a directory for a private daemon: {causes}");
    Err(command_error(what)
        .with_hint("set TMPDIR to a directory of this machine with a short path"))
}

/// Starts the daemon of a device, or of a joint one with these GPUs, with a server.
fn start_daemon(environment: &Environment, gpus: &[String]) -> Result<()> {
    let directories = environment.directories()?;
    let _lock = lock_node(environment, &directories, LOCK_LIMIT)?;
    let node = observe(environment, Detail::CLIENTS)?;
    let of_gpus: Vec<&str> = node
        .devices
        .iter()
        .filter(|device| gpus.contains(&device.uuid))
        .flat_map(|device| device.key.gpus())
        .map(String::as_str)
        .collect();
    check_not_under_test(environment, &of_gpus)?;
    let run_dir = RunDir::at(&directories.run);
    let plan = plan::private_daemon(&node, &run_dir, gpus)?;
    apply_plan(environment, &node, &plan, OnFailure::RollBack)?;
    // Daemons of other jobs and users may have started in the same moment. No lock is between them: they may have no directory
    // in common.
    let node = observe(environment, Detail::CLIENTS)?;
    plan::check_only_daemon(&node, &run_dir).map_err(Refusal::from)?;
    Ok(())
}

/// Stops the daemon in a private directory. Returns false if it may still run: its record may be one that cannot be read.
fn stop_and_verify(environment: &Environment, directory: &Path) -> bool {
    stop_daemon(environment).is_ok() && RunDir::at(directory).has_no_records()
}

/// Stops the daemon that has a record, whatever it does, and ends its clients.
fn stop_daemon(environment: &Environment) -> Result<()> {
    let directories = environment.directories()?;
    let mut node = observe_records(environment)?;
    let Some(name) = node
        .served()
        .map(|served| served.record.name.clone())
        .next()
    else {
        return Ok(());
    };
    node.devices.retain(|device| device.name == name);
    observe_without_driver(environment, &mut node, ANSWER_TIMEOUT);
    let all = DownRequest {
        devices: Vec::new(),
        gpus: Vec::new(),
        force: Some(DEFAULT_FORCE_SECONDS),
        destroy: Destroy::Nothing,
        disable_mig: false,
        purge: false,
    };
    let plan = plan::down(&node, &RunDir::at(&directories.run), &all)?;
    apply_plan(environment, &node, &plan, OnFailure::GoOn)
}

fn apply_plan(
    environment: &Environment,
    node: &Node,
    plan: &Plan,
    on_failure: OnFailure,
) -> Result<()> {
    // The daemon belongs to the program, and not to the machine.
    let programs = MpsPrograms {
        scopes: None,
        ..environment.mps_programs()?
    };
    let context = ApplyContext {
        environment,
        directories: &environment.directories()?,
        programs: &programs,
        node,
        allowed: Allowed::default(),
        is_resumable: false,
    };
    let silent = start_progress(plan, ProgressForm::None);
    apply::run(plan, &context, silent.as_ref(), on_failure)?;
    Ok(())
}

/// Ends the processes of a daemon that are left, whatever has become of its directory and its record.
pub(super) fn end_processes(environment: &Environment, directory: &Path, device: &str) {
    let pipe = RunDir::at(directory).pipe_dir(device);
    // No session is opened, so no program of NVIDIA is needed.
    let daemon = Daemon::new(
        MpsPrograms::default(),
        ControlProgram::for_driver(""),
        pipe,
        directory.join("log"),
    );
    let host = &environment.host;
    if let Ok(processes) = MpsProcesses::read(host) {
        let _ = daemon.end_unrecorded(host, &processes, caller(), false);
    }
}

/// Ends the daemons that killed processes of this user have left in private directories, and removes these.
fn end_leftovers_in(environment: &Environment, place: &Path) {
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let is_private = entry
            .file_name()
            .to_string_lossy()
            .starts_with(PRIVATE_DIRECTORY_PREFIX);
        if is_private {
            end_leftover(environment, &entry.path());
        }
    }
}

/// Ends the daemon in a private directory of this user, and removes the directory, unless a process holds it.
///
/// A directory of another boot stays: machines may share the file system, and the locks of another machine, where its daemon
/// may run, are not seen here.
pub(super) fn end_leftover(environment: &Environment, directory: &Path) {
    let is_own = directory
        .symlink_metadata()
        .is_ok_and(|meta| meta.is_dir() && Uid(meta.uid()) == caller());
    // One that was just made is not locked yet, and not marked.
    if !is_own || !is_of_this_boot(environment, directory) {
        return;
    }
    let Ok(lock) = File::open(directory) else {
        return;
    };
    match lock.try_lock() {
        Ok(()) if stop_and_verify(&environment.with_directory(directory), directory) => {
            let _ = fs::remove_dir_all(directory);
        }
        Ok(()) | Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
    }
}

fn is_of_this_boot(environment: &Environment, directory: &Path) -> bool {
    let mark = fs::read_to_string(directory.join(BOOT_FILE));
    let boot_id = environment.host.boot_id();
    mark.is_ok_and(|mark| boot_id.is_ok_and(|boot_id| boot_id == mark))
}
