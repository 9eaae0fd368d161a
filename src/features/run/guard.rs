//! A program that mig-mps stays beside: to end the daemon with it, or to end it if it computes outside MPS.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::time::Duration;

use crate::client::Variables;
use crate::error::Result;
use crate::failure::ExitStatus;
use crate::host::{
    Environment, Forwarding, Host, Pid, ProcessHandle, adopt_descendants, end_process,
    end_with_caller, reap,
};
use crate::node::{Served, observe_records};
use crate::nvml::Nvml;
use crate::shared::program::{INTERVAL, code, command, descendants, end_all_of, not_started};
use crate::shared::{DeviceUse, LeftMps};

/// Ends this process with the exit status of a program.
pub(super) fn end_as(code: i32) -> Result<ExitStatus> {
    match code {
        0 => Ok(ExitStatus::Done),
        code => end_process(code),
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
    let mut command = command(words, variables);
    end_with_caller(&mut command);
    let mut program = forwarding
        .start_child(&mut command)
        .map_err(|error| not_started(&command, &error))?;
    let handle = ProcessHandle::open(Pid(program.id())).map_err(io::Error::from)?;
    while !handle.ends_within(LONG) {}
    forwarding.remove(program.id());
    Ok(code(program.wait()?))
}

/// An interval after which a program is waited for once more.
const LONG: Duration = Duration::from_secs(3600);

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
    let mut command = command(words, variables);
    if ends_with_caller == EndWithCaller::Yes {
        end_with_caller(&mut command);
    }
    let program = forwarding
        .start_child(&mut command)
        .map_err(|error| not_started(&command, &error))?;
    let handle = ProcessHandle::open(Pid(program.id())).map_err(io::Error::from)?;
    let host = &environment.host;
    let mut suspects = BTreeSet::new();
    loop {
        handle.ends_within(INTERVAL);
        if let Some(status) = reap(Pid(program.id()))? {
            return Ok(code(status));
        }
        // If the driver does not answer now, the program has done nothing wrong.
        let used = DeviceUse::read(nvml, &served.record.uuid).unwrap_or_default();
        let seen = used.own_outside_mps(host);
        if let Some(pid) = seen.intersection(&suspects).next() {
            let left = observe_records(environment)
                .map(|node| LeftMps::new(host, &node, served, *pid, "the program was ended"));
            end_guarded(host, Pid(program.id()));
            return Err(left?.into());
        }
        suspects = seen;
    }
}

/// Ends the program and all processes that come from it: SIGTERM, and SIGKILL for those that do not exit.
fn end_guarded(host: &Host, program: Pid) {
    // Nobody waits for the program meanwhile, so its pid is its own.
    end_all_of(|| {
        let mut running = descendants(host);
        running.retain(|process| process.pid != program);
        running.extend(ProcessHandle::open(program));
        running
    });
}
