//! `mig-mps kill`

use clap::{Args, ValueEnum};
use rustix::process::Signal as Number;

use super::locked;
use crate::apply::{self, Ended};
use crate::error::{ExitStatus, Result};
use crate::host::Environment;
use crate::host::{Pid, raise_memory};
use crate::node::{Detail, Node, observe};
use crate::plan::{self, Kill, Victim};
use crate::render::{Consent, Ui};
use crate::state::RunDir;

#[derive(Args, Debug)]
pub struct KillArgs {
    /// Device: its name, its UUID, or a unique prefix of one
    device: String,
    /// Process ids of clients, as `status` shows them
    #[arg(value_name = "PID", required = true, value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
    /// Then send each process a signal [default: TERM], and wait until it exits
    ///
    /// Without it a process is sent none: its CUDA calls fail with error 810, and what it makes of that is its
    /// own business.
    #[arg(
        long,
        value_name = "SIGNAL",
        num_args = 0..=1,
        default_missing_value = "TERM",
        require_equals = true,
        ignore_case = true
    )]
    signal: Option<Signal>,
    /// Do not ask before
    #[arg(long, short)]
    yes: bool,
}

/// A signal that ends processes.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[value(rename_all = "UPPER")]
enum Signal {
    /// A process may clean up, or take no notice
    #[value(alias = "SIGTERM")]
    Term,
    /// It ends at once
    #[value(alias = "SIGKILL")]
    Kill,
}

impl Signal {
    fn named(self) -> (Number, &'static str) {
        match self {
            Self::Term => (Number::TERM, "SIGTERM"),
            Self::Kill => (Number::KILL, "SIGKILL"),
        }
    }
}

/// Ends the work of clients on a device.
pub fn run(args: &KillArgs, environment: &Environment, ui: &Ui) -> Result<ExitStatus> {
    raise_memory()?;
    let programs = environment.mps_programs()?;
    let pids: Vec<Pid> = args.pids.iter().copied().map(Pid).collect();
    let node = observe(environment, Detail::Clients)?;
    let shown = planned(&node, args, &pids, environment)?;
    let signal = args.signal.map(Signal::named);
    if signal.is_some() {
        shown.permits_signals()?;
    } else {
        shown.permits_none()?;
    }
    ui.kill(&shown, signal.map(|(_, name)| name))?;
    let consent = if args.yes {
        Consent::Given
    } else {
        Consent::Ask
    };
    ui.agree(&question(&shown, signal.map(|(_, name)| name)), consent)?;
    // A user whose own server another user's daemon has started may end its clients, and cannot take that daemon's
    // lock. Nothing that the lock guards is changed.
    let directories = environment.directories().ok();
    let directories = directories.filter(|directories| {
        shown.run_dir == RunDir::at(&directories.run)
            && shown.run_dir.owner() == Some(environment.caller)
    });
    let _lock = directories
        .map(|directories| locked(environment, &directories))
        .transpose()?;
    let node = observe(environment, Detail::Clients)?;
    let left = shown.left(&node);
    let gone = shown.victims.iter();
    for victim in gone.filter(|victim| !left.contains(&victim.pid)) {
        said(ui, victim, Ended::Before, signal);
    }
    if left.is_empty() {
        return Ok(ExitStatus::Done);
    }
    let kill = planned(&node, args, &left, environment)?;
    if signal.is_some() {
        kill.permits_signals()?;
    } else {
        kill.permits_none()?;
    }
    apply::kill(&kill, environment, &programs, signal, &|victim, ended| {
        said(ui, victim, ended, signal);
    })?;
    Ok(ExitStatus::Done)
}

fn planned(node: &Node, args: &KillArgs, pids: &[Pid], environment: &Environment) -> Result<Kill> {
    let name = &node.resolve(std::slice::from_ref(&args.device))?[0];
    let mut served = node.served.iter();
    let served = served.find(|served| served.record.name == *name);
    let owner = served.and_then(|served| served.run_dir.owner());
    let directories = environment.directories().ok();
    let directories = RunDir::at(
        &directories
            .map(|directories| directories.run)
            .unwrap_or_default(),
    );
    let who = (environment.caller, owner);
    Ok(plan::kill(node, &directories, name, pids, who)?)
}

fn question(kill: &Kill, signal: Option<&str>) -> String {
    let (clients, their) = match kill.victims.len() {
        1 => ("1 client".to_owned(), "its process"),
        number => (format!("{number} clients"), "their processes"),
    };
    let work = format!("end the work of {clients} on {}", kill.name);
    match signal {
        Some(signal) => format!("{work} and send {their} {signal}"),
        None => work,
    }
}

fn said(ui: &Ui, victim: &Victim, ended: Ended, signal: Option<(Number, &'static str)>) {
    let what = match ended {
        Ended::Work => "its work is ended: its CUDA calls fail with error 810 from now on, and its process was \
                        sent no signal"
            .to_owned(),
        Ended::WorkAndProcess => {
            "its work is ended, and its process has ended of itself".to_owned()
        }
        Ended::AfterSignal => match signal {
            Some((_, name)) => {
                format!("its work is ended, and so is its process, which was sent {name}")
            }
            None => "its work is ended, and so is its process".to_owned(),
        },
        Ended::Unnoticed => "its work is ended; whether its process notices was not waited for, and it was sent no signal".to_owned(),
        Ended::Unsent => "its work is ended; its process was sent no signal, and still runs".to_owned(),
        Ended::Unended => match signal {
            Some((_, name)) => format!("its work is ended; its process was sent {name}, and still ran when this was interrupted"),
            None => "its work is ended; its process still ran when this was interrupted".to_owned(),
        },
        Ended::Before => "it is no client any more: nothing was done to it".to_owned(),
    };
    // Who it is stands above.
    ui.note(&format!(
        "{}: pid {}: {what}",
        victim.client.device, victim.pid
    ));
}
