use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::Pid;
use super::process_handle::raw_pid;

/// The signals that are passed on.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Passes the signals of this process on to its child programs.
#[derive(Debug)]
pub struct Forwarding {
    children: Arc<Mutex<BTreeSet<Pid>>>,
}

impl Forwarding {
    /// Starts to pass signals on. `with_keys` is false for children that get those of the terminal's keys themselves.
    pub fn start(with_keys: bool) -> io::Result<Self> {
        let children: Arc<Mutex<BTreeSet<Pid>>> = Arc::default();
        let mut signals = Signals::new(FORWARDED)?;
        let theirs = Arc::clone(&children);
        std::thread::Builder::new().spawn(move || {
            for number in &mut signals {
                if !with_keys && [SIGINT, SIGQUIT].contains(&number) {
                    continue;
                }
                if let Some(signal) = Signal::from_named_raw(number) {
                    send(&lock(&theirs), signal);
                }
            }
        })?;
        Ok(Self { children })
    }

    /// Adds a child, which must not have been waited for.
    pub fn add(&self, pid: u32) {
        lock(&self.children).insert(Pid(pid));
    }

    /// Removes a child that has exited.
    pub fn remove(&self, pid: u32) {
        lock(&self.children).remove(&Pid(pid));
    }

    /// Sends SIGTERM to all children.
    pub fn terminate(&self) {
        send(&lock(&self.children), Signal::TERM);
    }
}

fn lock(children: &Mutex<BTreeSet<Pid>>) -> MutexGuard<'_, BTreeSet<Pid>> {
    children.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send(children: &BTreeSet<Pid>, signal: Signal) {
    for pid in children.iter().filter_map(|pid| raw_pid(*pid)) {
        // It may just have exited; until it is waited for, nobody else has its pid.
        let _ = kill_process(pid, signal);
    }
}
