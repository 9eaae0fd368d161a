//! A program that mig-mps stays beside: to end the daemon with it, or to end it if it computes outside MPS.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::time::Duration;

use crate::client::Variables;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::{
    Environment, FileError, Forwarding, Host, Pid, ProcessHandle, adopt_descendants,
    exit_immediately, kill_with_parent, reap_child,
};
use crate::node::{Detail, Served, observe, observe_records};
use crate::nvml::Nvml;
use crate::shared::program::{
    POLL_INTERVAL, client_command, end_processes, exit_code, open_descendants, start_error,
};
use crate::shared::{LeftMps, WatchedDevice, find_descendants_outside_mps};

/// Ends this process with the exit status of a program.
pub(super) fn exit_with_code(code: i32) -> Result<ExitStatus> {
    match code {
        0 => Ok(ExitStatus::Done),
        code => exit_immediately(code),
    }
}

/// The programs that the kernel kills when this process ends, however it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndWithCaller {
    No,
    Yes,
}

/// Runs a program and waits for it. Signals are forwarded. Returns its exit status.
pub(super) fn run_beside(
    environment: &Environment,
    words: &[OsString],
    variables: &Variables,
) -> Result<i32> {
    let forwarding = Forwarding::start(&environment.host, !io::stdin().is_terminal())?;
    let mut command = client_command(words, variables);
    kill_with_parent(&mut command);
    let mut program = forwarding
        .start_child(&mut command)
        .map_err(|error| start_error(&command, error))?;
    let handle = ProcessHandle::open(Pid(program.id())).map_err(FileError::from)?;
    while !handle.wait_for_exit(WAIT_INTERVAL) {}
    forwarding.remove_child(program.id());
    Ok(exit_code(program.wait()?))
}

/// An interval after which a program is waited for once more.
const WAIT_INTERVAL: Duration = Duration::from_secs(3600);

/// Runs a program for `--require-mps`: stays beside it, and ends it if it computes outside MPS. Returns its exit status.
pub(super) fn run_guarded(
    environment: &Environment,
    served: &Served,
    words: &[OsString],
    variables: &Variables,
    ends_with_caller: EndWithCaller,
) -> Result<i32> {
    let nvml = Nvml::open(environment.nvml_library.as_deref())?;
    adopt_descendants()?;
    let forwarding = Forwarding::start(&environment.host, !io::stdin().is_terminal())?;
    let mut command = client_command(words, variables);
    if ends_with_caller == EndWithCaller::Yes {
        kill_with_parent(&mut command);
    }
    let program = forwarding
        .start_child(&mut command)
        .map_err(|error| start_error(&command, error))?;
    let handle = ProcessHandle::open(Pid(program.id())).map_err(FileError::from)?;
    let host = &environment.host;
    let others = other_devices(environment, served);
    let mut suspects = BTreeMap::new();
    loop {
        handle.wait_for_exit(POLL_INTERVAL);
        if let Some(status) = reap_child(Pid(program.id()))? {
            return Ok(exit_code(status));
        }
        let seen = find_descendants_outside_mps(host, nvml, &served.record, &others);
        if let Some((&pid, used)) = seen.iter().find(|(pid, _)| suspects.contains_key(*pid)) {
            let ended = "the program was ended";
            let left = observe_records(environment)
                .map(|node| LeftMps::new(host, &node, served, (pid, used), ended));
            end_guarded(host, Pid(program.id()));
            return Err(left?.into());
        }
        suspects = seen;
    }
}

/// Returns the devices of the node that the program is not to use. Without them, only its own device is watched.
fn other_devices(environment: &Environment, served: &Served) -> Vec<WatchedDevice> {
    let Ok(node) = observe(environment, Detail::GEOMETRY) else {
        return Vec::new();
    };
    let own = served.record.driver_uuids();
    let others = node.existing_devices().map(|device| {
        let mut uuids = device.driver_uuids().to_vec();
        uuids.retain(|uuid| !own.contains(uuid));
        (device.name.clone(), uuids)
    });
    others.filter(|(_, uuids)| !uuids.is_empty()).collect()
}

/// Ends the program and all processes that come from it: SIGTERM, and SIGKILL for those that do not exit.
fn end_guarded(host: &Host, program: Pid) {
    // Nobody waits for the program meanwhile, so its pid is its own.
    end_processes(|| {
        let mut running = open_descendants(host);
        running.retain(|process| process.pid != program);
        running.extend(ProcessHandle::open(program));
        running
    });
}
