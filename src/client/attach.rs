//! The attach check: a process of a user initializes CUDA, and tells whether it is a client of the device.

use std::io;
use std::process::Command;
use std::time::Duration;

use thiserror::Error;

use super::ready::{Ready, user_for_check};
use super::{ClientOptions, Variables};
use crate::config::CUDA_LIBRARY;
use crate::cuda::{AttachResult, CudaError};
use crate::failure::Failure;
use crate::host::{
    ATTACH, Account, BecomeUser, Environment, HeldProgram, Host, RunError, Uid, caller,
    clean_command, run_with_name, shorten_command,
};
use crate::node::Served;
use crate::state::{DeviceRecord, ProcessId, RunDir};

/// The time that `cuInit` may take. It took 10 to 18 ms on an H200, and a server that has to start adds 0.3 s; where
/// many start at once, each waits for the others.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval at which a client that was left on a closed device looks whether it is still wanted.
const HOLD_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The name of the check in errors.
const CHECK: &str = "the attach check";

/// The variables of the caller that the check keeps: programs of the caller would find libcuda by them.
const KEPT_VARIABLES: [&str; 2] = ["PATH", "LD_LIBRARY_PATH"];

/// No process becomes an MPS client of a device.
#[derive(Debug, Error)]
pub enum NotAttached {
    #[error("CUDA reports programs as running outside MPS, although the daemon runs")]
    OutsideMps,
    #[error("cuInit failed with {0}")]
    Failed(CudaError),
    /// It hangs, or waits for another user's programs to exit.
    #[error("cuInit did not return within {} s", .0.as_secs())]
    Late(Duration),
    #[error("CUDA shows another device: {0}")]
    AnotherDevice(String),
    #[error("CUDA shows only {seen} of the {gpus} GPUs of the device")]
    OtherCount { seen: usize, gpus: usize },
    #[error("libcuda cannot be loaded ({0})")]
    NoLibrary(String),
    #[error(transparent)]
    Check(#[from] RunError),
    #[error("{CHECK} answered {0:?}")]
    Unexpected(String),
}

impl Failure for NotAttached {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Failed(CudaError::CONNECTION_FAILED) => {
                "run `mig-mps status` to see the device again; its daemon is stopping or has just stopped"
            }
            Self::Failed(CudaError::NO_DEVICE) => {
                "run `mig-mps status` to see whether the device still exists and is visible here"
            }
            Self::Late(_) => {
                "run `mig-mps status` to see whether the device is hung or serves another user"
            }
            Self::OtherCount { .. } => {
                "run `mig-mps status` to see whether a GPU of the device is lost"
            }
            Self::NoLibrary(_) => {
                "install the NVIDIA driver, or set MIG_MPS_CUDA_LIBRARY to the path of libcuda.so.1"
            }
            Self::Check(error) => return error.hint(),
            Self::Failed(_) | Self::OutsideMps | Self::AnotherDevice(_) | Self::Unexpected(_) => {
                return None;
            }
        };
        Some(hint.to_owned())
    }
}

/// Starts a process that initializes CUDA with these variables as this user, and ends it at its limit. It makes no
/// context and takes no client slot.
pub(super) fn attach_as(
    environment: &Environment,
    device: &Served,
    variables: &Variables,
    user: Uid,
) -> Result<Ready, NotAttached> {
    let command = attach_command(environment, variables, user);
    let output = run_with_name(CHECK.to_owned(), &command, "", ATTACH_TIMEOUT).map_err(
        |error| match error {
            RunError::Late { limit, .. } => NotAttached::Late(limit),
            error => error.into(),
        },
    )?;
    let answer = parse_attach_result(&output.stdout, &output.stderr)?;
    judge_attach_result(device, variables, user, answer)
}

/// A client of a device that computes nothing. While it is there, a daemon that admits no new clients does not end, and nobody
/// finds the device without one. It goes on after this process once the record of the device has it.
#[derive(Debug)]
pub struct HeldClient(HeldProgram);

impl HeldClient {
    /// Starts it as a user that disturbs nobody, in a scope like a daemon: a timer's service or a login session ends with all
    /// its processes.
    pub fn start(environment: &Environment, device: &Served) -> Result<Self, NotAttached> {
        let user = user_for_check(environment, device);
        let variables = Variables::for_device(environment, device, &ClientOptions::default());
        let mut command = attach_command(environment, &variables, user);
        let uuid = &device.record.uuid;
        command.arg("--hold").arg("--record");
        command.args([device.run_dir.path().as_os_str(), uuid.as_ref()]);
        if let Some(scopes) = environment.systemd_scopes() {
            let what = format!("idle MPS client of {uuid}");
            command = scopes.wrap_command(&format!("{uuid}-client"), &what, &command);
        }
        let (held, line) = HeldProgram::start(CHECK, &command, ATTACH_TIMEOUT)?;
        let answer = parse_attach_result(&line, "")?;
        judge_attach_result(device, &variables, user, answer).map(|_| Self(held))
    }

    /// Returns its identity.
    pub fn process_id(&self, host: &Host) -> Option<ProcessId> {
        let process = host.find_process(self.0.pid())?;
        Some(ProcessId::from_process(&process, host))
    }

    /// Lets it go on for as long as the record of its device has it.
    pub fn leave(self) {
        self.0.leave();
    }
}

/// Keeps this process while its parent holds it, and then while the record of a device has it as the client that keeps the
/// daemon, and the daemon runs.
pub fn hold_device(environment: &Environment, device: Option<(RunDir, String)>) -> io::Result<()> {
    let host = &environment.host;
    let _ = environment
        .interrupt
        .listen(host, |_| std::process::exit(0));
    io::copy(&mut io::stdin(), &mut io::sink())?;
    let Some((run_dir, uuid)) = device else {
        return Ok(());
    };
    let is_wanted = || {
        let record = run_dir.load_record(&uuid).ok().flatten();
        record.is_some_and(|record| {
            let closing = record.closing.as_ref();
            let held = closing.and_then(|closing| closing.find_held_client(host));
            let daemon = record.daemon;
            held.is_some_and(|held| held.pid.0 == std::process::id())
                && daemon.is_some_and(|id| id.find_process(host).is_some() || id.is_hidden(host))
        })
    };
    while is_wanted() {
        std::thread::sleep(HOLD_CHECK_INTERVAL);
    }
    Ok(())
}

/// Returns the command of the attach check.
fn attach_command(environment: &Environment, variables: &Variables, user: Uid) -> Command {
    let mut command = clean_command(&environment.helper, &KEPT_VARIABLES);
    command.arg(ATTACH).args(become_user_args(user).to_args());
    let library = environment.cuda_library.as_ref();
    command.envs(library.map(|library| (CUDA_LIBRARY, library)));
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    command
}

/// Judges whether the process became a client of this device, on the GPUs in these variables.
fn judge_attach_result(
    device: &Served,
    variables: &Variables,
    user: Uid,
    result: AttachResult,
) -> Result<Ready, NotAttached> {
    match result {
        AttachResult::NoLibrary(error) => {
            Err(NotAttached::NoLibrary(shorten_command(&error).into_owned()))
        }
        AttachResult::Failed(error) => Err(NotAttached::Failed(error)),
        AttachResult::Initialized {
            is_client: false, ..
        } => Err(NotAttached::OutsideMps),
        AttachResult::Initialized {
            uuids,
            sm_count,
            time,
            ..
        } => {
            let visible = variables.visible_gpus(&device.record);
            let mut others = uuids
                .iter()
                .filter(|uuid| !has_uuid(&device.record, &visible, **uuid));
            if let Some(other) = others.next() {
                return Err(NotAttached::AnotherDevice(format_uuid(*other)));
            }
            if uuids.len() != visible.len() {
                return Err(NotAttached::OtherCount {
                    seen: uuids.len(),
                    gpus: visible.len(),
                });
            }
            Ok(Ready {
                user,
                sm_count,
                time,
                server: device.servers.first().map(|server| server.pid),
            })
        }
    }
}

/// Returns the arguments by which the check becomes this user; none for the caller.
fn become_user_args(user: Uid) -> BecomeUser {
    if user == caller() {
        return BecomeUser::default();
    }
    let account = Account::from_uid(user).ok().flatten();
    // A user without an account has no group of its own.
    let gid = account.as_ref().map_or(user.0, |account| account.gid);
    let groups = account.and_then(|account| account.look_up_groups().ok());
    BecomeUser {
        uid: Some(user.0),
        gid: Some(gid),
        groups: groups.unwrap_or_else(|| vec![gid]),
        as_caller: false,
    }
}

fn parse_attach_result(stdout: &str, stderr: &str) -> Result<AttachResult, NotAttached> {
    let answer = stdout.trim();
    serde_json::from_str(answer).map_err(|_| {
        let said = [answer, stderr.trim()].join(" ");
        NotAttached::Unexpected(shorten_command(said.trim()).into_owned())
    })
}

/// True if a UUID without its prefix is that of one of the device's GPUs at these positions, or that of a MIG device's GPU: older
/// drivers have no other.
fn has_uuid(record: &DeviceRecord, visible: &[usize], uuid: [u8; 16]) -> bool {
    let digits = uuid_digits(uuid);
    let uuids = record.driver_uuids();
    let of_gpu = (!record.key.is_joint()).then_some(&record.key.gpu);
    visible
        .iter()
        .filter_map(|position| uuids.get(*position))
        .chain(of_gpu)
        .any(|known| {
            let (_, known) = known.split_once('-').unwrap_or_default();
            known.replace('-', "").eq_ignore_ascii_case(&digits)
        })
}

fn uuid_digits(uuid: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(uuid))
}

fn format_uuid(uuid: [u8; 16]) -> String {
    let digits = uuid_digits(uuid);
    [0..8, 8..12, 12..16, 16..20, 20..32]
        .map(|range| &digits[range])
        .join("-")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::state::{DeviceKey, RunDir};

    const FIRST: &str = "GPU-01473985-500c-6c91-7ee8-6366f2aeeb60";
    const SECOND: &str = "GPU-f8f62383-117c-c85a-637b-68b1df18a17f";

    /// Judges a process on a joint device that is to see these GPUs, and to which CUDA shows those.
    fn judge(visible: &str, shown: &[&str]) -> Result<Ready, NotAttached> {
        let key = DeviceKey::for_joint_device(vec![FIRST.to_owned(), SECOND.to_owned()]);
        let record = DeviceRecord {
            uuid: key.joint_uuid(),
            key,
            ..DeviceRecord::default()
        };
        let device = Served::new(record, &RunDir::at(Path::new("/run/mig-mps")));
        let variables = Variables {
            set: vec![("CUDA_VISIBLE_DEVICES".to_owned(), visible.into())],
            unset: Vec::new(),
        };
        let digits = |uuid: &&str| uuid.replace("GPU", "").replace('-', "");
        let uuid = |uuid| {
            u128::from_str_radix(&digits(uuid), 16)
                .unwrap()
                .to_be_bytes()
        };
        let result = AttachResult::Initialized {
            is_client: true,
            uuids: shown.iter().map(uuid).collect(),
            sm_count: 132,
            time: Duration::ZERO,
        };
        judge_attach_result(&device, &variables, Uid::ROOT, result)
    }

    #[test]
    fn the_gpus_of_a_joint_device_are_those_that_the_program_is_to_see() {
        let both = format!("{FIRST},{SECOND}");
        assert!(judge(&both, &[FIRST, SECOND]).is_ok());
        assert!(judge("0,1", &[FIRST, SECOND]).is_ok());
        assert!(judge("1", &[SECOND]).is_ok());
        let few = judge(&both, &[SECOND]);
        assert!(matches!(
            few,
            Err(NotAttached::OtherCount { seen: 1, gpus: 2 })
        ));
        for (visible, shown) in [("1", FIRST), (SECOND, FIRST), ("0", SECOND)] {
            let another = judge(visible, &[shown]);
            assert!(
                matches!(another, Err(NotAttached::AnotherDevice(_))),
                "{another:?}"
            );
        }
    }
}
