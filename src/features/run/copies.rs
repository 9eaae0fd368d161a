//! Copies of a program on several devices, whose output is passed on line by line.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus as ProgramStatus, Stdio};
use std::time::Instant;

use clap::ValueEnum;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, Signal, kill_process_group};

use super::guard::EndWithCaller;
use crate::client::Variables;
use crate::error::{Result, command_error, usage_error};
use crate::host::{
    Environment, FileError, FileResult, Forwarding, Pid, ProcessHandle, kill_with_parent,
    open_file_limits, to_printable,
};
use crate::node::Served;
use crate::render::report;
use crate::settings::{DeviceSize, Oversubscription, Percentage};
use crate::shared::program::{EXIT_TIMEOUT, client_command, exit_code, start_error};

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
    pub(super) fn thread_percentage(self, copies: usize, device: DeviceSize) -> Option<Percentage> {
        let oversubscribe = match self {
            Self::Even => Oversubscription::NONE,
            Self::Half => Oversubscription::TWICE,
            Self::None => return None,
        };
        let copies = u32::try_from(copies).unwrap_or(u32::MAX);
        Some(device.percentage_of_each(copies, oversubscribe))
    }
}

/// A copy of the program.
pub(super) struct ProgramCopy {
    /// Its device's name.
    pub(super) device: String,
    pub(super) variables: Variables,
}

/// Places copies on devices that have these numbers of clients: each on the device with the fewest. Returns the position
/// of each copy's device.
pub(super) fn place_copies(clients: &[usize], copies: usize) -> Vec<usize> {
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

/// The descriptors of a copy: two outputs and the process.
const FILES_EACH: u64 = 3;

/// The descriptors of everything else.
const OTHER_FILES: u64 = 40;

/// Refuses more copies on so many GPUs of a device than its daemon ever takes.
pub(super) fn check_client_limit(served: &Served, copies: usize, gpus: usize) -> Result<()> {
    let is_whole = served.record.key.instance.is_none();
    let of_gpus = |limit| served.part_of_one_gpu(limit) as usize * gpus;
    match served.hardware_limit.map(of_gpus) {
        Some(limit) if is_whole && copies > limit => {
            let name = &served.record.name;
            let error = usage_error(format_args!(
                "device {name} accepts {limit} clients, not {copies}"
            ));
            Err(error.with_hint("start fewer copies, or on more devices"))
        }
        _ => Ok(()),
    }
}

/// Refuses copies for which this process may not open enough files.
pub(super) fn check_open_files(copies: usize) -> Result<()> {
    let needed = copies as u64 * FILES_EACH + OTHER_FILES;
    match open_file_limits() {
        (Some(allowed), _) if needed > allowed => Err(command_error(format_args!(
            "{copies} copies need {needed} open files, but this process may have {allowed}"
        ))
        .with_hint(format!("run `ulimit -n {needed}` to allow as many"))),
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

/// Runs all copies, with their output line by line behind their numbers, and waits for them. Signals are forwarded.
/// Returns the exit status of the first one that failed.
pub(super) fn run_copies(
    environment: &Environment,
    words: &[OsString],
    copies: &[ProgramCopy],
    ends_with_caller: EndWithCaller,
) -> Result<i32> {
    let forwarding = Forwarding::start(&environment.host, true)?;
    let mut running = Vec::new();
    let mut outputs = Vec::new();
    for (number, copy) in copies.iter().enumerate() {
        match start_copy(words, copy, &forwarding, ends_with_caller) {
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
    forward_until_exit(&mut running, &mut outputs, &forwarding)?;
    let statuses: Vec<ProgramStatus> = running.iter().filter_map(|copy| copy.status).collect();
    let count = copies.len();
    let mut succeeded = count;
    for (number, status) in statuses.iter().enumerate() {
        if !status.success() {
            let device = &copies[number].device;
            report(&format!("[{number}] on {device}: {status}"));
            succeeded -= 1;
        }
    }
    report(&format!("{succeeded} of {count} copies succeeded"));
    match statuses.into_iter().find(|status| !status.success()) {
        None => Ok(0),
        Some(failed) => Ok(exit_code(failed)),
    }
}

fn start_copy(
    words: &[OsString],
    copy: &ProgramCopy,
    forwarding: &Forwarding,
    ends_with_caller: EndWithCaller,
) -> Result<RunningCopy> {
    let mut command = client_command(words, &copy.variables);
    if ends_with_caller == EndWithCaller::Yes {
        kill_with_parent(&mut command);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // In a process group of its own, a copy gets each signal once.
    let child = forwarding
        .start_child(command.process_group(0))
        .map_err(|error| start_error(&command, error))?;
    let handle = ProcessHandle::open(Pid(child.id())).map_err(FileError::from)?;
    Ok(RunningCopy {
        child,
        handle,
        status: None,
    })
}

/// Passes on all output until every copy has exited, and all their outputs are closed.
fn forward_until_exit(
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
            polled => polled.map_err(FileError::from)?,
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
    fn wait(&mut self, forwarding: &Forwarding) -> FileResult<()> {
        forwarding.remove_child(self.child.id());
        self.status = Some(self.child.wait()?);
        Ok(())
    }
}

/// Ends all copies, within a limit.
fn end_all(running: &mut [RunningCopy], forwarding: &Forwarding) {
    forwarding.terminate_children();
    let until = Instant::now() + EXIT_TIMEOUT;
    for copy in running.iter() {
        if !copy.handle.wait_for_exit_until(until) {
            // With what it has started.
            let _ = kill_process_group(RawPid::from_child(&copy.child), Signal::KILL);
        }
    }
    let until = Instant::now() + EXIT_TIMEOUT;
    for copy in running {
        if copy.handle.wait_for_exit_until(until) {
            let _ = copy.wait(forwarding);
        }
    }
}

/// The most of a line that is kept until its end comes, in bytes. A longer one is shown in pieces.
const MAX_LINE_BYTES: usize = 64 << 10;

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
                self.lines.take_rest()
            }
            Ok(read) => self.lines.push_bytes(&buffer[..read]),
        };
        let mut text = String::new();
        for line in lines {
            let _ = writeln!(text, "[{}] {}", self.number, to_printable(&line));
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
    fn push_bytes(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut lines = Vec::new();
        for &byte in bytes {
            let has_returned = std::mem::take(&mut self.has_returned);
            match byte {
                b'\n' if has_returned => {}
                b'\n' => lines.extend([self.take_line()]),
                b'\r' => {
                    self.has_returned = !self.begun.is_empty();
                    lines.extend(self.take_rest());
                }
                byte => self.begun.push(byte),
            }
            if self.begun.len() >= MAX_LINE_BYTES {
                lines.extend([self.take_piece()]);
            }
        }
        lines
    }

    /// Returns the last line, if it has no end.
    fn take_rest(&mut self) -> Vec<String> {
        if self.begun.is_empty() {
            return Vec::new();
        }
        vec![self.take_line()]
    }

    fn take_line(&mut self) -> String {
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
        let piece = self.take_line();
        self.begun = rest;
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_where_the_fewest_clients_are() {
        assert_eq!(place_copies(&[0, 0, 0], 7), [0, 1, 2, 0, 1, 2, 0]);
        assert_eq!(place_copies(&[3, 0, 1], 4), [1, 1, 2, 1]);
        assert_eq!(place_copies(&[5], 2), [0, 0]);
    }

    #[test]
    fn shares_are_those_of_nvidias_guide() {
        let shares = |share: CopyShare| {
            let of = |copies| share.thread_percentage(copies, DeviceSize::default());
            [1, 2, 3, 8].map(|copies| of(copies).map(Percentage::as_f64))
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
        assert_eq!(lines.push_bytes(b"a\n\nb\r"), ["a", "", "b"]);
        assert_eq!(lines.push_bytes(b"\n10%\r20%\r\r\n"), ["10%", "20%", ""]);
        assert_eq!(lines.push_bytes(b"rest"), [""; 0]);
        assert_eq!(lines.take_rest(), ["rest"]);
        assert_eq!(lines.take_rest(), [""; 0]);
    }

    #[test]
    fn a_line_without_end_comes_in_pieces_of_whole_characters() {
        let mut lines = CopyLines::default();
        let text = format!("a{}", "ä".repeat(MAX_LINE_BYTES));
        let mut pieces = lines.push_bytes(text.as_bytes());
        assert_eq!(pieces.len(), 2);
        assert!(lines.begun.len() < MAX_LINE_BYTES);
        pieces.extend(lines.take_rest());
        assert_eq!(pieces.concat(), text);
    }
}
