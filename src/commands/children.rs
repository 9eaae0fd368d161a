//! Programs that run as children of mig-mps: copies on several devices, whose output is passed on line by line, and one that is
//! ended if it computes outside MPS.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus as ProgramStatus, Stdio};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, Signal, kill_process_group};

use crate::client::{DeviceUse, LeftMps, Variables};
use crate::error::{CommandError, Result, failed, usage};
use crate::failure::ExitStatus;
use crate::host::{
    Environment, Forwarding, Host, MORE_PROCESSES, Pid, ProcessHandle, adopt_descendants,
    end_process, end_with_caller, open_files, printable, quoted, reap, reap_all,
};
use crate::node::{Served, observe_records};
use crate::nvml::Nvml;
use crate::render::note;
use crate::settings::{DeviceSize, Oversubscription, Percentage};

/// The SMs of a device that each of n copies gets (MPS guide, "Volta MPS Execution Resource Provisioning").
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum CopyShare {
    /// As with share = n: copies that keep the device busy do not disturb each other
    Even,
    /// As with share = n and oversubscribe = 2: a copy may use what another one leaves
    Half,
    /// All SMs
    None,
}

impl CopyShare {
    /// Returns the active thread percentage of one of these copies on a device; `None` for all SMs.
    pub(super) fn of(self, copies: usize, device: DeviceSize) -> Option<Percentage> {
        let oversubscribe = match self {
            Self::Even => Oversubscription::NONE,
            Self::Half => Oversubscription::TWICE,
            Self::None => return None,
        };
        let copies = u32::try_from(copies).unwrap_or(u32::MAX);
        Some(device.threads(copies, oversubscribe))
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
    let mut placed = Vec::new();
    for _ in 0..copies {
        let device = (0..load.len())
            .min_by_key(|device| load[*device])
            .unwrap_or_default();
        load[device] += 1;
        placed.push(device);
    }
    placed
}

/// The time that processes get to exit after SIGTERM, and then after SIGKILL.
const LIMIT: Duration = Duration::from_secs(5);

/// The descriptors of a copy: two outputs and the process.
const FILES_EACH: u64 = 3;

/// The descriptors of everything else.
const OTHER_FILES: u64 = 40;

/// Refuses more copies on a device than its daemon ever takes.
pub(super) fn refuse_beyond_limit(served: &Served, copies: usize) -> Result<()> {
    let is_whole = served.record.key.instance.is_none();
    match served.hardware_limit.filter(|_| is_whole) {
        Some(limit) if copies > limit as usize => {
            let name = &served.record.name;
            let error = usage(format_args!(
                "{name} takes {limit} clients, and not {copies}"
            ));
            Err(error.hint("start fewer copies, or on more devices"))
        }
        _ => Ok(()),
    }
}

/// Refuses copies for which this process may not open enough files.
pub(super) fn refuse_too_many(copies: usize) -> Result<()> {
    let needed = copies as u64 * FILES_EACH + OTHER_FILES;
    match open_files() {
        (Some(allowed), _) if needed > allowed => Err(failed(format_args!(
            "{copies} copies need {needed} open files, and this process may have {allowed}"
        ))
        .hint(format!("ulimit -n {needed} allows as many"))),
        _ => Ok(()),
    }
}

/// A copy that was started.
struct RunningCopy {
    child: Child,
    handle: ProcessHandle,
    /// Its exit status, once it has exited.
    status: Option<ProgramStatus>,
}

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

/// Runs all copies, with their output line by line behind their numbers, and waits for them. Signals are forwarded.
/// Returns the exit status of the first one that failed.
pub(super) fn run_copies(
    environment: &Environment,
    words: &[OsString],
    copies: &[Copy],
    ends_with_caller: EndWithCaller,
) -> Result<i32> {
    let forwarding = Forwarding::start(&environment.host, true)?;
    let mut running = Vec::new();
    let mut outputs = Vec::new();
    for (number, copy) in copies.iter().enumerate() {
        match start(words, copy, &forwarding, ends_with_caller) {
            Ok(mut started) => {
                if let Some(pipe) = started.child.stdout.take() {
                    outputs.push(CopyOutput::new(number, io::stdout(), pipe));
                }
                if let Some(pipe) = started.child.stderr.take() {
                    outputs.push(CopyOutput::new(number, io::stderr(), pipe));
                }
                running.push(started);
            }
            Err(error) => {
                // A copy that writes is not to wait for a reader.
                drop(outputs);
                end_all(&mut running, &forwarding);
                return Err(error);
            }
        }
    }
    attend(&mut running, &mut outputs, &forwarding)?;
    let statuses: Vec<ProgramStatus> = running.iter().filter_map(|copy| copy.status).collect();
    let count = copies.len();
    let mut succeeded = count;
    for (number, status) in statuses.iter().enumerate() {
        if !status.success() {
            let device = &copies[number].device;
            note(&format!("[{number}] on {device}: {status}"));
            succeeded -= 1;
        }
    }
    note(&format!("{succeeded} of {count} copies succeeded"));
    match statuses.into_iter().find(|status| !status.success()) {
        None => Ok(0),
        Some(failed) => Ok(code(failed)),
    }
}

fn start(
    words: &[OsString],
    copy: &Copy,
    forwarding: &Forwarding,
    ends_with_caller: EndWithCaller,
) -> Result<RunningCopy> {
    let mut command = command(words, &copy.variables);
    if ends_with_caller == EndWithCaller::Yes {
        end_with_caller(&mut command);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // In a process group of its own, a copy gets each signal once.
    let child = forwarding
        .start_child(command.process_group(0))
        .map_err(|error| not_started(&command, &error))?;
    let handle = ProcessHandle::open(Pid(child.id())).map_err(io::Error::from)?;
    Ok(RunningCopy {
        child,
        handle,
        status: None,
    })
}

/// Passes on all output until every copy has exited, and all their outputs are closed.
fn attend(
    running: &mut [RunningCopy],
    outputs: &mut [CopyOutput],
    forwarding: &Forwarding,
) -> Result<()> {
    loop {
        let open = outputs.iter().filter_map(CopyOutput::poll_fd);
        let begun = running.iter().filter(|copy| copy.status.is_none());
        let mut watched: Vec<PollFd<'_>> = open
            .chain(begun.map(|copy| copy.handle.poll_fd()))
            .collect();
        if watched.is_empty() {
            return Ok(());
        }
        match poll(&mut watched, None) {
            Err(Errno::INTR) => continue,
            polled => polled.map_err(io::Error::from)?,
        };
        let events: Vec<PollFlags> = watched.iter().map(PollFd::revents).collect();
        let mut is_ready = events.iter().map(|events| !events.is_empty());
        for output in outputs.iter_mut().filter(|output| output.pipe.is_some()) {
            if is_ready.next() == Some(true) {
                output.pass_on();
            }
        }
        for copy in running.iter_mut().filter(|copy| copy.status.is_none()) {
            if is_ready.next() == Some(true) {
                copy.wait(forwarding)?;
            }
        }
    }
}

impl RunningCopy {
    /// Waits for the copy, which has exited.
    fn wait(&mut self, forwarding: &Forwarding) -> io::Result<()> {
        forwarding.remove(self.child.id());
        self.status = Some(self.child.wait()?);
        Ok(())
    }
}

/// Ends all copies, within a limit.
fn end_all(running: &mut [RunningCopy], forwarding: &Forwarding) {
    forwarding.terminate();
    let until = Instant::now() + LIMIT;
    for copy in running.iter() {
        if !copy.handle.ends_by(until) {
            // With what it has started.
            let _ = kill_process_group(RawPid::from_child(&copy.child), Signal::KILL);
        }
    }
    let until = Instant::now() + LIMIT;
    for copy in running {
        if copy.handle.ends_by(until) {
            let _ = copy.wait(forwarding);
        }
    }
}

/// Returns the exit status of a program as shells have it.
fn code(status: ProgramStatus) -> i32 {
    let by_signal = status.signal().map(|signal| 128 + signal);
    status.code().or(by_signal).unwrap_or(1)
}

/// The most of a line that is kept until its end comes, in bytes. A longer one is shown in pieces.
const LINE: usize = 64 << 10;

/// An output of a copy.
struct CopyOutput {
    /// The number of the copy.
    number: usize,
    /// The output of this program to which it is passed on.
    target: Box<dyn Write>,
    /// `None` once it is closed.
    pipe: Option<File>,
    lines: CopyLines,
}

impl CopyOutput {
    fn new(number: usize, target: impl Write + 'static, pipe: impl Into<OwnedFd>) -> Self {
        Self {
            number,
            target: Box::new(target),
            pipe: Some(File::from(pipe.into())),
            lines: CopyLines::default(),
        }
    }

    /// Returns what to poll for output; `None` once it is closed.
    fn poll_fd(&self) -> Option<PollFd<'_>> {
        let pipe = self.pipe.as_ref()?;
        Some(PollFd::new(pipe, PollFlags::IN))
    }

    /// Passes on what has come. Closes the pipe at its end, and where nobody reads what is passed on: the copy then gets
    /// SIGPIPE, as in a pipeline.
    fn pass_on(&mut self) {
        let mut buffer = [0; 16 << 10];
        let Some(pipe) = &mut self.pipe else { return };
        let lines = match pipe.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return,
            Ok(0) | Err(_) => {
                self.pipe = None;
                self.lines.end()
            }
            Ok(read) => self.lines.add(&buffer[..read]),
        };
        let mut text = String::new();
        for line in lines {
            let _ = writeln!(text, "[{}] {}", self.number, printable(&line));
        }
        let written = self.target.write_all(text.as_bytes());
        if written.and_then(|()| self.target.flush()).is_err() {
            self.pipe = None;
        }
    }
}

/// Bytes, cut into lines. A carriage return ends a line too: progress is shown as it comes.
#[derive(Default)]
struct CopyLines {
    begun: Vec<u8>,
    /// The last line ended with a carriage return, and a newline after it ends no other.
    has_returned: bool,
}

impl CopyLines {
    /// Adds bytes; returns the lines that they end.
    fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            let has_returned = std::mem::take(&mut self.has_returned);
            match byte {
                b'\n' if has_returned => {}
                b'\n' => lines.extend([self.take()]),
                b'\r' => {
                    self.has_returned = !self.begun.is_empty();
                    lines.extend(self.end());
                }
                byte => self.begun.push(byte),
            }
            if self.begun.len() >= LINE {
                lines.extend([self.take_piece()]);
            }
        }
        lines
    }

    /// Returns the last line, if it has no end.
    fn end(&mut self) -> Vec<String> {
        if self.begun.is_empty() {
            return Vec::new();
        }
        vec![self.take()]
    }

    fn take(&mut self) -> String {
        let line = String::from_utf8_lossy(&self.begun).into_owned();
        self.begun.clear();
        line
    }

    /// The same without a character at the end that is not complete.
    fn take_piece(&mut self) -> String {
        let whole = match std::str::from_utf8(&self.begun) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.begun.len(),
        };
        let rest = self.begun.split_off(whole);
        let piece = self.take();
        self.begun = rest;
        piece
    }
}

/// The time between two reports of the driver.
const INTERVAL: Duration = Duration::from_millis(250);

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

/// Ends everything that comes from this process, in the same way, and takes its exit statuses.
pub fn end_descendants(host: &Host) {
    end_all_of(|| descendants(host));
    let _ = reap_all();
}

fn end_all_of(running: impl Fn() -> Vec<ProcessHandle>) {
    for signal in [Signal::TERM, Signal::KILL] {
        let until = Instant::now() + LIMIT;
        let mut signalled = BTreeSet::new();
        loop {
            let mut left = running();
            left.retain(|process| !process.has_ended());
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

/// Returns the processes that come from this one.
fn descendants(host: &Host) -> Vec<ProcessHandle> {
    let table = host.processes().unwrap_or_default();
    let pids = table.descendants(Pid(std::process::id())).into_iter();
    let started = pids.filter_map(|pid| table.get(pid));
    started
        .filter_map(|process| host.open_process(process.pid, process.started).ok()?)
        .collect()
}

/// Returns the program with the environment of a device's clients.
pub fn command(words: &[OsString], variables: &Variables) -> Command {
    let (program, arguments) = words.split_first().unzip();
    let mut command = Command::new(program.map_or(OsStr::new(""), OsString::as_os_str));
    command.args(arguments.unwrap_or_default());
    command.envs(variables.set.iter().map(|(name, value)| (name, value)));
    for name in &variables.unset {
        command.env_remove(name);
    }
    command
}

/// Returns the error for a program that does not start, as shells have it.
pub fn not_started(command: &Command, error: &io::Error) -> CommandError {
    if error.kind() == ErrorKind::WouldBlock {
        let program = quoted(&command.get_program().to_string_lossy());
        let what = format!("cannot run {program}: {error}");
        return CommandError::new(ExitStatus::NotRun, what).hint(MORE_PROCESSES);
    }
    let kind = match error.kind() {
        ErrorKind::NotFound => ExitStatus::NotFound,
        _ => ExitStatus::NotExecutable,
    };
    let program = command.get_program();
    let shown = quoted(&program.to_string_lossy());
    let path = Path::new(program);
    let hint = match kind {
        ExitStatus::NotFound if path.components().count() > 1 => {
            "check the path, and the interpreter in the first line of a script".to_owned()
        }
        ExitStatus::NotFound => "it is not in PATH: install it, or give its path".to_owned(),
        _ if path.is_dir() => "it is a directory: name a program in it".to_owned(),
        _ => format!("chmod +x {shown}, if it is a program"),
    };
    CommandError::new(kind, format!("cannot run {shown}: {error}")).hint(hint)
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
        let shares = |share: CopyShare| {
            let of = |copies| share.of(copies, DeviceSize::default());
            [1, 2, 3, 8].map(|copies| of(copies).map(Percentage::value))
        };
        assert_eq!(shares(CopyShare::Even), [100.0, 50.0, 33.3, 12.5].map(Some));
        assert_eq!(
            shares(CopyShare::Half),
            [100.0, 100.0, 66.6, 25.0].map(Some)
        );
        assert_eq!(shares(CopyShare::None), [None; 4]);
    }

    #[test]
    fn newlines_and_carriage_returns_end_lines() {
        let mut lines = CopyLines::default();
        assert_eq!(lines.add(b"a\n\nb\r"), ["a", "", "b"]);
        assert_eq!(lines.add(b"\n10%\r20%\r\r\n"), ["10%", "20%", ""]);
        assert_eq!(lines.add(b"rest"), [""; 0]);
        assert_eq!(lines.end(), ["rest"]);
        assert_eq!(lines.end(), [""; 0]);
    }

    #[test]
    fn a_line_without_end_comes_in_pieces_of_whole_characters() {
        let mut lines = CopyLines::default();
        let text = format!("a{}", "ä".repeat(LINE));
        let mut pieces = lines.add(text.as_bytes());
        assert_eq!(pieces.len(), 2);
        assert!(lines.begun.len() < LINE);
        pieces.extend(lines.end());
        assert_eq!(pieces.concat(), text);
    }
}
