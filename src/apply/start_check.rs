//! Checks, before the first step of a plan, that the daemons of the plan can start. So no daemon is stopped that could not be
//! started again.

use std::path::Path;

use super::cause::Cause;
use super::error::{ApplyError, FailedStep};
use crate::host::{
    Access, Account, Directories, Directory, EntryKind, Environment, FileError, FileResult,
    MpsPrograms, Reader, Uid, begin_group_lookup, caller, check_lists, check_open_files,
    directory_access, group_id, user_name,
};
use crate::mps::{Daemon, LaunchRequest, LogFile};
use crate::node::{Device, Node};
use crate::plan::{Action, Plan, Start, StartedBy, serve_setting};
use crate::settings::{CpuChoice, Serve, Settings};
use crate::state::{DeviceKey, DeviceRecord, RunDir};

/// Stands for the UUID of a device that does not exist yet. All UUIDs of MIG devices have this length.
const EXAMPLE_UUID: &str = "MIG-00000000-0000-0000-0000-000000000000";

/// Checks every daemon that a plan starts, and adds the ids of their users and groups to the plan. Adds a remark to the plan for
/// each directory that is removed to make room.
///
/// # Errors
/// Names the daemons that cannot start. Nothing has been touched.
pub fn check_starts(
    plan: &mut Plan,
    environment: &Environment,
    directories: &Directories,
    node: &Node,
) -> Result<(), ApplyError> {
    let check = StartCheck {
        environment,
        directories,
        node,
        run_dir: RunDir::at(&directories.run),
        programs: environment.mps_programs().unwrap_or_default(),
    };
    begin_lookups(plan.starts().map(Start::serve_setting));
    for start in plan.starts() {
        if let Serve::User(name) = start.serve_setting()
            && let Ok(Some(account)) = Account::from_name(name)
        {
            account.begin_groups_lookup();
        }
    }
    let mut error = ApplyError::default();
    for gpu in &mut plan.gpus {
        for step in &mut gpu.steps {
            let Action::Start(start) = &mut step.action else {
                continue;
            };
            let key = start.whole_device_key(node, &gpu.uuid);
            match check.check_start(&key, start, &mut plan.remarks) {
                Ok(id) => start.served_id = id,
                Err(cause) => error.failures.push(FailedStep {
                    gpu: gpu.index,
                    device: Some(start.name.clone()),
                    ..FailedStep::new(format!("cannot start the daemon of {}", start.name), cause)
                }),
            }
        }
    }
    if error.failures.is_empty() {
        return Ok(());
    }
    Err(error)
}

struct StartCheck<'a> {
    environment: &'a Environment,
    directories: &'a Directories,
    node: &'a Node,
    run_dir: RunDir,
    programs: MpsPrograms,
}

impl StartCheck<'_> {
    /// Checks one start. Returns the id of the user or group that the daemon is for.
    fn check_start(
        &self,
        key: &DeviceKey,
        start: &Start,
        remarks: &mut Vec<String>,
    ) -> Result<Option<u32>, Cause> {
        let uuid = start.uuid.as_deref();
        let device = uuid.and_then(|uuid| self.node.device_with_uuid(uuid));
        let (settings, serve) = (&start.settings, start.serve_setting());
        let id = self.served_id(start, device)?;
        if matches!(serve, Serve::User(_)) {
            check_lists(&self.directories.run)
                .and_then(|()| check_lists(&self.directories.log))
                .map_err(Cause::NoLists)?;
        }
        if let Some(files) = settings.nofile {
            check_open_files(files)?;
        }
        for freed in self.run_dir.check_places(&start.name, uuid)? {
            remarks.push(format!(
                "{} contains only directories and is removed; container runtimes create them for a missing mount source",
                freed.display()
            ));
        }
        let uuid = uuid.unwrap_or(EXAMPLE_UUID);
        self.check_logs(uuid)?;
        let daemon = Daemon::new(
            self.programs.clone(),
            self.node.control_program(),
            self.run_dir.pipe_dir(uuid),
            self.directories.log.join(uuid),
        );
        let launch = launch_request(self.environment, settings, id, (key, uuid))?;
        Ok(daemon.check_launch(&launch).map(|()| id)?)
    }

    /// Checks the directory of a device's logs and the files that a daemon writes there.
    fn check_logs(&self, uuid: &str) -> FileResult<()> {
        // A log directory that cannot be opened is refused when the lock is taken.
        let Ok(logs) = Directory::open(&self.directories.log) else {
            return Ok(());
        };
        logs.is_to_be_freed(uuid, EntryKind::Directory)?;
        let Some(own) = logs.open_child(uuid)? else {
            return Ok(());
        };
        // Root moves a directory of another user away.
        if caller() == Uid::ROOT && own.check_owner_among(&[Uid::ROOT]).is_err() {
            return Ok(());
        }
        logs.check_child(uuid)?;
        for log in LogFile::ALL {
            own.is_to_be_freed(log.name(), EntryKind::File)?;
        }
        Ok(())
    }

    /// Returns the id of the user or group that a daemon serves. If the name service does not answer, that is the id in the
    /// records of this machine. `heal` refuses to serve another id than before, because only a person can decide that.
    fn served_id(&self, start: &Start, device: Option<&Device>) -> Result<Option<u32>, Cause> {
        let serve = start.serve_setting();
        let (what, name) = match serve {
            Serve::User(name) => ("user", name),
            Serve::Group(name) => ("group", name),
            Serve::OneAtATime | Serve::All | Serve::Own => return Ok(None),
        };
        let own = device.and_then(|device| device.served.as_ref());
        let own = own
            .filter(|served| served.run_dir == self.run_dir)
            .and_then(|served| recorded_id(&self.run_dir, &served.record, serve));
        match query_account_id(serve) {
            Ok(id) => match own.filter(|own| start.by == StartedBy::Heal && Some(*own) != id) {
                Some(was) => Err(Cause::OtherId {
                    what,
                    name: name.clone(),
                    is: id.unwrap_or_default(),
                    was,
                }),
                None => Ok(id),
            },
            Err(Cause::File(error)) => {
                let of_others = || {
                    let others = self.node.served();
                    others
                        .filter(|served| served.run_dir == self.run_dir)
                        .find_map(|served| recorded_id(&self.run_dir, &served.record, serve))
                };
                let recorded = own.or_else(of_others);
                recorded.map(Some).ok_or_else(|| {
                    let what = format!("cannot check whether the {what} \"{name}\" exists");
                    FileError::new(error.kind(), format!("{what}: {error}")).into()
                })
            }
            Err(cause) => Err(cause),
        }
    }
}

/// Returns the id that the daemon of a record serves, if it is for these users.
pub fn recorded_id(run_dir: &RunDir, record: &DeviceRecord, serve: &Serve) -> Option<u32> {
    if serve_setting(&record.settings) != serve {
        return None;
    }
    if let Some(user) = record.runs_as_its_user() {
        return Some(user.0);
    }
    // Records of earlier versions have none, and the pipe directory lets that user or group in.
    record.served_id.or_else(
        || match (serve, directory_access(&run_dir.pipe_dir(&record.uuid))?) {
            (Serve::User(_), Access::User(user)) => Some(user.0),
            (Serve::Group(_), Access::Group(group)) => Some(group),
            _ => None,
        },
    )
}

/// Begins the lookups of all users and groups that are served, side by side.
pub fn begin_lookups<'a>(serves: impl Iterator<Item = &'a Serve>) {
    for serve in serves {
        match serve {
            Serve::User(name) => Account::begin_lookup(name),
            Serve::Group(name) => begin_group_lookup(name),
            Serve::OneAtATime | Serve::All | Serve::Own => {}
        }
    }
}

/// Asks the name service for the id of the user or group that a daemon is for; `None` if it is for no single one.
pub(super) fn query_account_id(serve: &Serve) -> Result<Option<u32>, Cause> {
    let (what, name, id) = match serve {
        Serve::User(name) => {
            let account = Account::from_name(name)?;
            ("user", name, account.map(|account| account.uid.0))
        }
        Serve::Group(name) => ("group", name, group_id(name)?),
        Serve::OneAtATime | Serve::All | Serve::Own => return Ok(None),
    };
    let name = name.clone();
    id.map(Some).ok_or(Cause::NoAccount { what, name })
}

/// Returns the request to launch the daemon of the device with this key and UUID.
pub(super) fn launch_request(
    environment: &Environment,
    settings: &Settings,
    served_id: Option<u32>,
    (key, device): (&DeviceKey, &str),
) -> Result<LaunchRequest, Cause> {
    let serve = serve_setting(settings);
    let access = access_of(serve, served_id).unwrap_or(Access::Owner);
    let reader = match (serve, served_id) {
        (Serve::Group(name), Some(group)) => {
            let who = format!("the group {name}");
            Some((who, Reader::any_member(group)))
        }
        (Serve::User(name), Some(user)) => {
            // Without an answer, the groups of the user are unknown, and so is whether the user is kept out.
            let account = Account::from_name(name).ok().flatten();
            let groups = account.and_then(|account| account.look_up_groups().ok());
            groups.map(|groups| (name.clone(), Reader::new(Uid(user), groups)))
        }
        (Serve::OneAtATime, _) => first_reader(environment),
        (Serve::All | Serve::Own | Serve::Group(_) | Serve::User(_), _) => None,
    };
    let cpus = match &settings.cpus {
        None => None,
        Some(CpuChoice::These(cpus)) => Some(cpus.clone()),
        Some(CpuChoice::Near) => {
            let cpus = environment.host.cpus_near(key.gpus()).map_err(|error| {
                let what = format!("cannot determine the CPUs near the GPU: {error}");
                FileError::new(error.kind(), what)
            });
            Some(cpus?)
        }
    };
    Ok(LaunchRequest {
        device: device.to_owned(),
        visible: key.cuda_devices(device),
        multiuser: serve.is_shared(),
        access,
        reader,
        cpus,
        nofile: settings.nofile,
    })
}

/// Returns the users who may enter a pipe directory; `None` if the id of the single user or group is not known.
pub(super) fn access_of(serve: &Serve, served_id: Option<u32>) -> Option<Access> {
    match serve {
        Serve::Group(_) => served_id.map(Access::Group),
        Serve::User(_) => served_id.map(|user| Access::User(Uid(user))),
        Serve::OneAtATime | Serve::All => Some(Access::Everybody),
        Serve::Own => Some(Access::Owner),
    }
}

/// The first user of an eager server: a server that cannot reach its daemon exits silently. It has that
/// user's uid, but root's group and no others (measured).
fn first_reader(environment: &Environment) -> Option<(String, Reader)> {
    let user = environment.server_user();
    (user != Uid::ROOT).then(|| (user_name(user), Reader::new(user, vec![0])))
}

/// True if the start of a daemon for these users does not depend on the name service: their id is recorded.
pub fn has_recorded_id(run_dir: &Path, serve: &Serve) -> bool {
    let run_dir = RunDir::at(run_dir);
    run_dir
        .load_records()
        .map(|(records, _)| records)
        .unwrap_or_default()
        .into_iter()
        .any(|record| recorded_id(&run_dir, &record, serve).is_some())
}
