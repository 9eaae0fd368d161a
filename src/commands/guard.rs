//! `run --require-mps`: mig-mps stays beside the program, and ends it if it computes outside MPS.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::copies::code;
use super::run::{command, not_started};
use crate::client::Variables;
use crate::error::{Result, failed};
use crate::failure::ExitStatus;
use crate::host::{Environment, Forwarding, Pid, ProcessHandle, adopt_descendants, reap};
use crate::node::Served;
use crate::nvml::{GpuHandle, Nvml, Usage};

/// The time between two reports of the driver.
const INTERVAL: Duration = Duration::from_millis(250);

/// The time that processes get to exit after SIGTERM, and then after SIGKILL.
const LIMIT: Duration = Duration::from_secs(5);

/// Runs the program, and returns its exit status by exiting with it.
pub(super) fn run(
    environment: &Environment,
    served: &Served,
    words: &[OsString],
    variables: &Variables,
) -> Result<ExitStatus> {
    let nvml = Nvml::open(environment.nvml_library.as_deref())?;
    adopt_descendants()?;
    let forwarding = Forwarding::start(&environment.host, !std::io::stdin().is_terminal())?;
    let mut command = command(words, variables);
    let program = forwarding
        .start_child(&mut command)
        .map_err(|error| not_started(&command, &error))?;
    let handle = ProcessHandle::open(Pid(program.id())).map_err(std::io::Error::from)?;
    let guard = Guard {
        environment,
        nvml,
        device: &served.record.uuid,
    };
    let mut suspects = BTreeSet::new();
    loop {
        handle.ends_within(INTERVAL);
        if let Some(status) = reap(Pid(program.id()))? {
            std::process::exit(code(status));
        }
        // NVML makes its two lists one after the other: a client that has just come is on one of the two.
        let seen = guard.outside_mps();
        if let Some(pid) = seen.intersection(&suspects).next() {
            let name = &served.record.name;
            let what = guard.describe(*pid);
            guard.end_all(program.id());
            return Err(failed(format_args!(
                "{what} used {name} outside MPS, and the program was ended"
            ))
            .hint("the program changes CUDA_MPS_PIPE_DIRECTORY, or starts others that do"));
        }
        suspects = seen;
    }
}

struct Guard<'a> {
    environment: &'a Environment,
    nvml: Nvml,
    /// The UUID of the device.
    device: &'a str,
}

impl Guard<'_> {
    /// Returns the processes below this one that compute on the device and are no MPS clients. None if the driver does not
    /// answer now: the program has done nothing wrong then.
    fn outside_mps(&self) -> BTreeSet<Pid> {
        let Ok(processes) = self.nvml.supervise_on(self.device, GpuHandle::processes) else {
            return BTreeSet::new();
        };
        let mut outside = pids(&processes.compute);
        for client in pids(&processes.clients) {
            outside.remove(&client);
        }
        if !outside.is_empty() {
            let table = self.environment.host.processes().unwrap_or_default();
            let own = table.descendants(Pid(std::process::id()));
            outside.retain(|pid| own.contains(pid));
        }
        outside
    }

    fn describe(&self, pid: Pid) -> String {
        let process = self.environment.host.process(pid);
        let command = process.map_or_else(|| "gone".to_owned(), |process| process.command());
        format!("pid {pid} ({command})")
    }

    /// Ends the program and all processes that come from it: SIGTERM, and SIGKILL for those that do not exit.
    fn end_all(&self, program: u32) {
        for signal in [Signal::TERM, Signal::KILL] {
            let until = Instant::now() + LIMIT;
            let mut signalled = BTreeSet::new();
            loop {
                let left = self.left(Pid(program));
                let Some(first) = left.first() else {
                    return;
                };
                // One of these may have started another one.
                for process in &left {
                    if signalled.insert(process.pid) {
                        let _ = process.signal(signal);
                    }
                }
                if Instant::now() >= until {
                    break;
                }
                first.ends_within(INTERVAL);
            }
        }
    }

    /// Returns the program and the processes that come from it, as far as they have not exited.
    fn left(&self, program: Pid) -> Vec<ProcessHandle> {
        let host = &self.environment.host;
        let table = host.processes().unwrap_or_default();
        // Nobody waits for the program meanwhile, so its pid is its own.
        let mut left = Vec::new();
        if let Ok(handle) = ProcessHandle::open(program)
            && !handle.has_ended()
        {
            left.push(handle);
        }
        for pid in table.descendants(Pid(std::process::id())) {
            if pid != program
                && let Some(process) = table.get(pid)
                && let Ok(Some(handle)) = host.open_process(pid, process.started)
                && !handle.has_ended()
            {
                left.push(handle);
            }
        }
        left
    }
}

fn pids(usages: &[Usage]) -> BTreeSet<Pid> {
    usages.iter().map(|usage| Pid(usage.pid)).collect()
}
