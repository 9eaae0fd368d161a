//! The device of a comparison, with its daemon: one that serves the device, or a private one.

use super::CompareArgs;
use crate::client::visible_devices;
use crate::commands::env::find_served;
use crate::commands::warn_of_changeable_programs;
use crate::error::{CommandError, Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{self, Environment};
use crate::node::{Client, Device, Node, Served, observe_records};
use crate::nvml::EXCLUSIVE_PROCESS;
use crate::render::note;
use crate::shared::private::PrivateDevice;
use crate::shared::{WantedDevices, free_devices};

/// The daemon of the device.
pub(super) enum ServedDevice {
    /// A daemon of the node, and the records.
    OfNode(Box<Served>, Box<Node>),
    /// One that runs until the value is dropped.
    Private(Box<PrivateDevice>),
}

impl ServedDevice {
    /// Chooses an idle device, and starts a private daemon if one is wanted, or no device of a plain user has a daemon.
    pub(super) fn choose(
        args: &CompareArgs,
        node: &Node,
        environment: &Environment,
    ) -> Result<Self> {
        let word = args.device.as_ref().or(args.by_option.as_ref());
        let has_daemon = node
            .devices
            .iter()
            .any(|device| device.live_daemon().is_some());
        let is_private = args.private || word.is_none() && !has_daemon && !environment.is_root();
        if is_private {
            return start_private_daemon(node, environment);
        }
        let served = match word {
            Some(word) => find_served(node, word).map_err(|error| {
                if has_daemon {
                    return error;
                }
                let hints = no_daemon_error().hints;
                CommandError { hints, ..error }
            })?,
            None if !has_daemon => return Err(no_daemon_error()),
            None => idle_device(node, environment)?,
        };
        if served.record.key.is_joint() {
            return Err(joint_device_error(&served.record.name));
        }
        check_not_in_use(node, node.device_with_key(&served.record.key), Some(served))?;
        let records = observe_records(environment)?;
        Ok(Self::OfNode(Box::new(served.clone()), Box::new(records)))
    }

    pub(super) fn served(&self) -> &Served {
        match self {
            Self::OfNode(served, _) => served,
            Self::Private(private) => &private.served,
        }
    }

    /// Returns the records of the daemons that clients may find.
    pub(super) fn records(&self) -> &Node {
        match self {
            Self::OfNode(_, records) => records,
            Self::Private(private) => &private.node,
        }
    }

    /// Returns the environment in which the daemon is found.
    pub(super) fn environment<'a>(&'a self, callers: &'a Environment) -> &'a Environment {
        match self {
            Self::OfNode(..) => callers,
            Self::Private(private) => &private.environment,
        }
    }
}

/// Starts a private daemon for the first idle device that the caller may use.
fn start_private_daemon(node: &Node, environment: &Environment) -> Result<ServedDevice> {
    warn_of_changeable_programs(environment);
    let visible = visible_devices(node, host::environment_variable)?;
    let mut first_error = None;
    for device in visible {
        match check_not_in_use(node, Some(device), device.live_daemon()) {
            Err(error) => first_error = first_error.or(Some(error)),
            Ok(()) if device.live_daemon().is_some() => {}
            Ok(()) => {
                note(&format!(
                    "a private daemon serves device {} for this comparison",
                    device.name
                ));
                return join_private_daemon(environment, device);
            }
        }
    }
    Err(first_error.unwrap_or_else(|| {
        CommandError::new(
            ExitStatus::Refused,
            "each device that you may use already has a daemon",
        )
        .with_hint("omit --private: `mig-mps compare DEVICE -- PROGRAM`")
    }))
}

fn join_private_daemon(environment: &Environment, device: &Device) -> Result<ServedDevice> {
    let mut joined = PrivateDevice::join_all(environment, &[device], None)?;
    Ok(ServedDevice::Private(Box::new(joined.remove(0))))
}

/// The error where the node has no daemon, for root, who may want one for all users.
fn no_daemon_error() -> CommandError {
    CommandError::new(ExitStatus::Refused, "no device has a daemon").with_hint(
        "run `mig-mps compare --private -- PROGRAM` to start a daemon for the comparison, or `mig-mps up PROFILE` to \
         start daemons for users",
    )
}

/// Returns a device that nobody uses, or else the best one.
fn idle_device<'n>(node: &'n Node, environment: &Environment) -> Result<&'n Served> {
    let free =
        free_devices(node, &WantedDevices::default(), environment).map_err(|none| {
            match none.unnamed_joint.first() {
                Some(joint) if none.reasons.is_empty() => joint_device_error(joint),
                _ => none.into(),
            }
        })?;
    let is_idle = |served: &Served| {
        let device = node.device_with_key(&served.record.key);
        user_pids(node, device, Some(served)).is_empty()
    };
    Ok(free
        .iter()
        .copied()
        .find(|served| is_idle(served))
        .unwrap_or(free[0]))
}

fn joint_device_error(name: &str) -> CommandError {
    usage_error(format_args!(
        "device {name} is a joint device, but compare measures on one GPU"
    ))
    .with_hint("use a device on one GPU")
}

/// Returns the pids of the programs that use a device, as clients or outside MPS, and of the daemons that others have started
/// for their clients on it.
fn user_pids(node: &Node, device: Option<&Device>, served: Option<&Served>) -> Vec<String> {
    let clients = served
        .into_iter()
        .flat_map(|served| served.clients.as_slice().iter().chain(&served.waiting));
    let outside = device.into_iter().flat_map(|device| &device.outside_mps);
    let others = node.unmanaged.iter().filter(|daemon| {
        device.is_some_and(|device| daemon.devices.contains(&device.name))
            && !daemon.servers.is_empty()
    });
    clients
        .map(Client::shown_pid)
        .chain(outside.map(|outside| outside.pid.to_string()))
        .chain(others.map(|daemon| daemon.pid.to_string()))
        .collect()
}

/// Refuses a device on which the program would not be alone, or could not run outside MPS.
fn check_not_in_use(node: &Node, device: Option<&Device>, served: Option<&Served>) -> Result<()> {
    let name = served
        .map(|served| &served.record.name)
        .or(device.map(|device| &device.name))
        .map_or("", String::as_str);
    let pids = user_pids(node, device, served);
    if !pids.is_empty() {
        let what = format!("device {name} is in use: pid {}", pids.join(", "));
        let error = CommandError::new(ExitStatus::Refused, what);
        return Err(error.with_hint(
            "wait until the other programs have exited; a comparison needs the whole device",
        ));
    }
    let mode = device
        .filter(|device| device.is_whole())
        .and_then(|device| node.gpu_with_uuid(&device.key.gpu)?.compute_mode);
    if mode == Some(EXCLUSIVE_PROCESS) {
        return Err(command_error(format_args!(
            "the GPU of device {name} is in exclusive-process mode: no program can use it outside MPS"
        ))
        .with_hint("apply a profile without compute-mode first"));
    }
    Ok(())
}
