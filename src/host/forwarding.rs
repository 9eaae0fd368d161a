use std::collections::BTreeSet;
use std::io;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;

use super::process_handle::raw_pid;
use super::spawn::ignore_again;
use super::{Host, Pid};

/// The signals that are passed on.
const FORWARDED: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Passes the signals of this process on to its child programs.
#[derive(Debug)]
pub struct Forwarding {
    children: Arc<Mutex<BTreeSet<Pid>>>,
}

impl Forwarding {
    /// Starts to pass signals on. `with_keys` is false for children that get those of the terminal's keys themselves.
    /// Ignored signals stay ignored, such as SIGHUP under `nohup`. Without children, a signal ends this process.
    pub fn start(host: &Host, with_keys: bool) -> io::Result<Self> {
        let children: Arc<Mutex<BTreeSet<Pid>>> = Arc::default();
        let heeded = FORWARDED.iter().filter(|signal| !host.ignores(**signal));
        let mut signals = Signals::new(heeded)?;
        let theirs = Arc::clone(&children);
        std::thread::Builder::new().spawn(move || {
            for number in &mut signals {
                if !with_keys && [SIGINT, SIGQUIT].contains(&number) {
                    continue;
                }
                let children = lock(&theirs);
                if children.is_empty() {
                    // It ends this process, which waits for nobody but other holders of a pipe.
                    let _ = emulate_default_handler(number);
                }
                if let Some(signal) = Signal::from_named_raw(number) {
                    send(&children, signal);
                }
            }
        })?;
        Ok(Self { children })
    }

    /// Starts a child, with the signals ignored that the caller ignores.
    pub fn start_child(&self, command: &mut Command) -> io::Result<Child> {
        ignore_again(command);
        // Under the lock: a signal that arrives meanwhile reaches the child.
        let mut children = lock(&self.children);
        let child = command.spawn()?;
        children.insert(Pid(child.id()));
        Ok(child)
    }

    /// Removes a child that has exited, before it is waited for: then another process may get its pid.
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
