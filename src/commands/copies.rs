//! Copies of a program on several devices.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus as ProgramStatus, Stdio};
use std::thread::Scope;

use clap::ValueEnum;

use super::user_program::{command, not_started};
use crate::client::Variables;
use crate::error::{ExitStatus, Result};
use crate::host::{Forwarding, printable};
use crate::render::{note, print};
use crate::settings::Percentage;

/// The share of a device's SMs that each of n copies gets (MPS guide, "Volta MPS Execution Resource Provisioning").
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Share {
    /// 100 % / n: copies that keep the device busy do not disturb each other
    Even,
    /// 200 % / n: a copy may use what another one leaves
    Half,
    /// All SMs
    None,
}

impl Share {
    /// Returns the share of one of these copies; `None` for all SMs.
    pub(super) fn of(self, copies: usize) -> Option<Percentage> {
        let whole = match self {
            Self::Even => 100.0,
            Self::Half => 200.0,
            Self::None => return None,
        };
        #[allow(clippy::cast_precision_loss, reason = "there are few copies")]
        let share: f64 = whole / copies as f64;
        // CUDA takes one decimal.
        Percentage::new((share.min(100.0) * 10.0).floor() / 10.0)
    }
}

/// A copy of the program.
pub(super) struct Copy {
    /// Its device's name.
    pub(super) device: String,
    pub(super) variables: Variables,
}

/// Places copies on devices that have these numbers of clients: each on the device with the fewest. Returns the position
/// of each copy's device.
pub(super) fn spread(clients: &[usize], copies: usize) -> Vec<usize> {
    let mut load = clients.to_vec();
    let place = |_| {
        let device = (0..load.len()).min_by_key(|device| load[*device]);
        let device = device.unwrap_or_default();
        load[device] += 1;
        device
    };
    (0..copies).map(place).collect()
}

/// Runs all copies, with their output line by line behind their numbers, and waits for them. Signals are forwarded.
pub(super) fn run(words: &[OsString], copies: &[Copy]) -> Result<ExitStatus> {
    let forwarding = Forwarding::start(true)?;
    let mut children: Vec<Child> = Vec::new();
    for copy in copies {
        let mut command = command(words, &copy.variables);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // In a process group of its own, a copy gets each signal once.
        let started = command.process_group(0).spawn();
        match started {
            Ok(child) => {
                forwarding.add(child.id());
                children.push(child);
            }
            Err(error) => {
                forwarding.terminate();
                for child in &mut children {
                    let _ = child.wait();
                }
                return Err(not_started(&command, &error));
            }
        }
    }
    let statuses = std::thread::scope(|scope| {
        for (number, child) in children.iter_mut().enumerate() {
            show(scope, number, child.stdout.take(), |line| drop(print(line)));
            show(scope, number, child.stderr.take(), |line| {
                note(line.trim_end());
            });
        }
        let wait = |child: &mut Child| {
            let status = child.wait();
            forwarding.remove(child.id());
            status
        };
        children
            .iter_mut()
            .map(wait)
            .collect::<std::io::Result<Vec<_>>>()
    })?;
    summarise(copies, &statuses)
}

/// Passes a stream on, line by line.
fn show<'s>(
    scope: &'s Scope<'s, '_>,
    number: usize,
    stream: Option<impl Read + Send + 's>,
    print: fn(&str),
) {
    let Some(stream) = stream else { return };
    scope.spawn(move || {
        let mut lines = BufReader::new(stream);
        let mut line = Vec::new();
        while lines
            .read_until(b'\n', &mut line)
            .is_ok_and(|read| read > 0)
        {
            let text = String::from_utf8_lossy(&line);
            print(&format!(
                "[{number}] {}\n",
                printable(text.trim_end_matches('\n'))
            ));
            line.clear();
        }
    });
}

/// Reports the copies that failed. Returns an error with the exit status of the first one.
fn summarise(copies: &[Copy], statuses: &[ProgramStatus]) -> Result<ExitStatus> {
    let failed: Vec<(usize, &ProgramStatus)> = statuses
        .iter()
        .enumerate()
        .filter(|(_, status)| !status.success())
        .collect();
    for (number, status) in &failed {
        note(&format!(
            "[{number}] on {}: {status}",
            copies[*number].device
        ));
    }
    let (count, failures) = (copies.len(), failed.len());
    note(&format!("{} of {count} copies succeeded", count - failures));
    match failed.first() {
        None => Ok(ExitStatus::Done),
        Some((_, status)) => std::process::exit(code(**status)),
    }
}

/// Returns the exit status of a program as shells have it.
pub(super) fn code(status: ProgramStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    status.code().or(by_signal).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_where_the_fewest_clients_are() {
        assert_eq!(spread(&[0, 0, 0], 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(spread(&[3, 0, 1], 4), [1, 1, 2, 1]);
        assert_eq!(spread(&[5], 2), [0, 0]);
    }

    #[test]
    fn shares_are_those_of_nvidias_guide() {
        let shares = |share: Share| [1, 2, 3, 8].map(|n| share.of(n).map(Percentage::value));
        assert_eq!(shares(Share::Even), [100.0, 50.0, 33.3, 12.5].map(Some));
        assert_eq!(shares(Share::Half), [100.0, 100.0, 66.6, 25.0].map(Some));
        assert_eq!(shares(Share::None), [None; 4]);
    }
}
