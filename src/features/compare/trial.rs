//! One measurement: copies of a program, all at once.

use std::ffi::OsString;
use std::io::{self, PipeReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus as ProgramStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group, waitpgid,
};

use crate::client::Variables;
use crate::error::{CommandError, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{FileError, FileResult, Interrupt, ProcessHandle, shorten_command};
use crate::profile::FIGURE_RANGE;
use crate::shared::program::{client_command, start_error};

/// The time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// The time that a copy, or what it has left behind, gets to exit after SIGTERM.
const TERMINATION_GRACE: Duration = Duration::from_secs(2);

/// The time after which it is checked again whether something is left of a copy.
const GROUP_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The most time for one measurement.
const MAX_TRIAL_TIME: Duration = Duration::from_secs(3600);

/// The longest line that is read whole, in bytes.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The time to go on reading after a copy has exited: what it has started may keep its output open forever.
const OUTPUT_LINGER_TIME: Duration = Duration::from_millis(200);

/// A measurement to make.
pub(super) struct Trial<'a> {
    pub(super) words: &'a [OsString],
    pub(super) variables: &'a Variables,
    pub(super) copies: usize,
    /// The time for which short programs are started again, and after which one that has printed its rate is ended.
    pub(super) time: Duration,
    /// Rates that the program prints do not count.
    pub(super) by_runs: bool,
}

/// The throughput of a copy, or of all.
#[derive(Clone)]
pub(super) struct Throughput {
    pub(super) value: f64,
    /// The line with the program's rate; `None` if its runs are counted.
    pub(super) line: Option<String>,
    /// The largest latency that was printed.
    pub(super) latency_ms: Option<f64>,
}

/// A copy of the program.
#[derive(Default)]
struct TrialCopy {
    /// The process, until it was waited for.
    child: Mutex<Option<Child>>,
    has_rate: AtomicBool,
    has_failed: AtomicBool,
    /// The largest latency that it has printed.
    latency_ms: Mutex<Option<f64>>,
    /// The time at which it got SIGTERM.
    ended: Mutex<Option<Instant>>,
}

/// A run of the program that has come to its end.
struct TrialRun {
    /// The last line with text.
    line: String,
    status: ProgramStatus,
}

impl Trial<'_> {
    /// Makes the measurement. Calls `sample` from time to time, and ends the copies when it fails.
    pub(super) fn run(
        &self,
        interrupt: &Interrupt,
        mut sample: impl FnMut() -> Result<()>,
    ) -> Result<Throughput> {
        let copies: Vec<TrialCopy> = (0..self.copies).map(|_| TrialCopy::default()).collect();
        let begun = Instant::now();
        let mut sampled = Ok(());
        let ran: Result<Vec<Option<Throughput>>> = std::thread::scope(|scope| {
            let threads: io::Result<Vec<_>> = copies
                .iter()
                .map(|copy| Builder::new().spawn_scoped(scope, move || self.run_copy(copy, begun)))
                .collect();
            if threads.is_err() {
                copies.iter().for_each(TrialCopy::end);
            }
            let threads = threads?;
            while !threads.iter().all(ScopedJoinHandle::is_finished) {
                if sampled.is_ok() {
                    sampled = sample();
                }
                let has_failed = copies
                    .iter()
                    .any(|copy| copy.has_failed.load(Ordering::Relaxed));
                let is_over = interrupt.is_interrupted()
                    || has_failed
                    || sampled.is_err()
                    || begun.elapsed() > MAX_TRIAL_TIME;
                for copy in &copies {
                    if is_over || self.is_measured(copy, begun) {
                        copy.end();
                    }
                }
                std::thread::sleep(SAMPLE_INTERVAL);
            }
            threads.into_iter().map(join_thread).collect()
        });
        if interrupt.is_interrupted() {
            return Err(CommandError::new(ExitStatus::Interrupted, "interrupted"));
        }
        sampled?;
        // Of several failures the first one has ended the others.
        let ran: Option<Vec<Throughput>> = ran?.into_iter().collect();
        sum_throughputs(ran.ok_or_else(|| {
            let hours = MAX_TRIAL_TIME.as_secs() / 3600;
            command_error(format_args!("the program did not exit within {hours} h")).with_hint(
                "use a program that exits, or prints its throughput (`mig-mps compare --help`)",
            )
        })?)
    }

    /// True if the time is over and a copy has printed its rate.
    fn is_measured(&self, copy: &TrialCopy, begun: Instant) -> bool {
        let is_late = !self.by_runs && begun.elapsed() >= self.time;
        is_late && copy.has_rate.load(Ordering::Relaxed)
    }

    /// Runs a copy until it is measured. Returns `None` if it was ended before.
    fn run_copy(&self, copy: &TrialCopy, begun: Instant) -> Result<Option<Throughput>> {
        let measured = self.measure_copy(copy, begun);
        let has_failed = measured.is_err();
        copy.has_failed.store(has_failed, Ordering::Relaxed);
        measured
    }

    fn measure_copy(&self, copy: &TrialCopy, begun: Instant) -> Result<Option<Throughput>> {
        let mut runs = 0.0;
        loop {
            let Some(run) = self.run_once(copy)? else {
                return Ok(None);
            };
            let is_ended = copy.is_ended();
            if !is_ended && !run.status.success() {
                return Err(program_failed(self.words, &run));
            }
            if !self.by_runs
                && let Some(value) = rate_in(&run.line)
            {
                return Ok(Some(copy.throughput(value, Some(run.line))));
            }
            if is_ended {
                return Ok(None);
            }
            runs += 1.0;
            let elapsed = begun.elapsed();
            if elapsed >= self.time {
                let value = runs / elapsed.as_secs_f64();
                return Ok(Some(copy.throughput(value, None)));
            }
        }
    }

    /// Runs a copy once. Returns `None` if no other run is to begin.
    fn run_once(&self, copy: &TrialCopy) -> Result<Option<TrialRun>> {
        let (reader, writer) = io::pipe()?;
        let mut command = client_command(self.words, self.variables);
        command.stdin(Stdio::null());
        command.stdout(writer.try_clone()?).stderr(writer);
        let (held, group) = {
            let mut child = lock_ignoring_poison(&copy.child);
            if copy.is_ended() {
                return Ok(None);
            }
            // Signals reach what the program starts, too.
            let started = command
                .process_group(0)
                .spawn()
                .map_err(|error| start_error(&command, error))?;
            let group = Pid::from_child(&started);
            let held = ProcessHandle::open(crate::host::Pid(started.id()));
            *child = Some(started);
            (held.map_err(FileError::from)?, group)
        };
        // With its ends of the pipe, so that reading ends with the program.
        drop(command);
        let run = copy.follow_output(reader, &held);
        end_group(group);
        Ok(Some(run?))
    }
}

/// Ends what a copy that has exited has left in its process group. It would use the device in the next run.
fn end_group(group: Pid) {
    let mut until = Instant::now() + TERMINATION_GRACE;
    let mut signals = [Signal::TERM, Signal::KILL].into_iter();
    let mut signal = signals.next();
    loop {
        // This process has become the parent of what the copy has started.
        while let Ok(Some(_)) = waitpgid(group, WaitOptions::NOHANG) {}
        let is_there = match signal.take() {
            Some(signal) => kill_process_group(group, signal),
            None => test_kill_process_group(group),
        };
        if is_there.is_err() {
            return;
        }
        std::thread::sleep(GROUP_POLL_INTERVAL);
        if Instant::now() >= until {
            signal = signals.next();
            if signal.is_none() {
                return;
            }
            until += TERMINATION_GRACE;
        }
    }
}

/// Returns the result of a thread that runs a copy.
fn join_thread(
    thread: ScopedJoinHandle<'_, Result<Option<Throughput>>>,
) -> Result<Option<Throughput>> {
    match thread.join() {
        Ok(measured) => measured,
        Err(_) => Err(command_error("a thread of mig-mps crashed")
            .with_hint("report this defect of mig-mps to the project")),
    }
}

/// The output of a copy.
#[derive(Default)]
struct OutputLines {
    /// The line that is not at its end yet.
    begun: Vec<u8>,
    /// The last line with text.
    last: String,
}

impl TrialCopy {
    fn throughput(&self, value: f64, line: Option<String>) -> Throughput {
        Throughput {
            value,
            line,
            latency_ms: *lock_ignoring_poison(&self.latency_ms),
        }
    }

    /// Reads the output until the program has exited, and a moment longer.
    fn follow_output(&self, output: PipeReader, held: &ProcessHandle) -> FileResult<TrialRun> {
        let mut output = Some(output);
        let mut lines = OutputLines::default();
        let mut exited: Option<(ProgramStatus, Instant)> = None;
        loop {
            let now = Instant::now();
            if let Some((status, until)) = exited
                && (output.is_none() || now >= until)
            {
                if !self.is_ended() {
                    self.finish_line(&mut lines);
                }
                let line = lines.last;
                return Ok(TrialRun { line, status });
            }
            let left = exited
                .map(|(_, until)| Timespec::try_from(until - now))
                .transpose()
                .map_err(io::Error::other)?;
            let watched = output.iter().map(|pipe| PollFd::new(pipe, PollFlags::IN));
            let process = exited.is_none().then(|| held.poll_fd());
            let mut watched: Vec<PollFd<'_>> = watched.chain(process).collect();
            match poll(&mut watched, left.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            let has_output = output.is_some() && !watched[0].revents().is_empty();
            if has_output && !self.read_output(&mut output, &mut lines)? {
                output = None;
            }
            if exited.is_none() {
                exited = self
                    .reap_child()?
                    .map(|status| (status, Instant::now() + OUTPUT_LINGER_TIME));
            }
        }
    }

    /// Reads what there is. Returns false at the end.
    fn read_output(
        &self,
        output: &mut Option<PipeReader>,
        lines: &mut OutputLines,
    ) -> FileResult<bool> {
        let mut buffer = [0; 16 << 10];
        let read = match output {
            Some(output) => output.read(&mut buffer)?,
            None => 0,
        };
        for part in buffer[..read].split_inclusive(|byte| *byte == b'\n') {
            lines.begun.extend_from_slice(part);
            if part.ends_with(b"\n") || lines.begun.len() >= MAX_LINE_BYTES {
                self.finish_line(lines);
            }
        }
        Ok(read > 0)
    }

    /// Takes the line that was begun for a whole one.
    fn finish_line(&self, lines: &mut OutputLines) {
        let line = std::mem::take(&mut lines.begun);
        let text = String::from_utf8_lossy(&line);
        if let Some(latency) = latency_in(&text) {
            let mut largest = lock_ignoring_poison(&self.latency_ms);
            *largest = Some(largest.map_or(latency, |largest| largest.max(latency)));
        } else if !text.trim().is_empty() {
            text.trim().clone_into(&mut lines.last);
            let has_rate = rate_in(&lines.last).is_some();
            self.has_rate.store(has_rate, Ordering::Relaxed);
        }
    }

    /// Returns the status of the program if it has exited.
    fn reap_child(&self) -> FileResult<Option<ProgramStatus>> {
        let mut child = lock_ignoring_poison(&self.child);
        let status = match child.as_mut() {
            Some(running) => running.try_wait()?,
            None => None,
        };
        if status.is_some() {
            *child = None;
        }
        Ok(status)
    }

    fn is_ended(&self) -> bool {
        lock_ignoring_poison(&self.ended).is_some()
    }

    /// Tells the program to exit, and ends it if it does not.
    fn end(&self) {
        let (is_first, since) = {
            let mut ended = lock_ignoring_poison(&self.ended);
            (ended.is_none(), *ended.get_or_insert_with(Instant::now))
        };
        let signal = if since.elapsed() >= TERMINATION_GRACE {
            Signal::KILL
        } else if is_first {
            Signal::TERM
        } else {
            return;
        };
        // Under the lock nobody waits for it, so its pid is its own.
        if let Some(child) = lock_ignoring_poison(&self.child).as_ref() {
            let _ = kill_process_group(Pid::from_child(child), signal);
        }
    }
}

fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the number at the end of a line, if it can be a rate.
fn rate_in(line: &str) -> Option<f64> {
    let rate: f64 = line.split_whitespace().next_back()?.parse().ok()?;
    FIGURE_RANGE.contains(&rate).then_some(rate)
}

/// Returns the latency in milliseconds of a line that says it.
fn latency_in(line: &str) -> Option<f64> {
    let latency = line.trim().strip_prefix("latency_ms")?;
    latency
        .starts_with(char::is_whitespace)
        .then(|| rate_in(latency))?
}

/// Returns the error for a program that does not succeed.
fn program_failed(words: &[OsString], run: &TrialRun) -> CommandError {
    let program = words
        .first()
        .map(|word| word.display())
        .map_or_else(String::new, |program| program.to_string());
    let last = match run.line.as_str() {
        "" => String::new(),
        line => format!(": {}", shorten_command(line)),
    };
    command_error(format_args!("{program} failed ({}){last}", run.status))
        .with_hint("try the program without the comparison first: `mig-mps run DEVICE -- PROGRAM`")
}

/// Adds the throughputs of all copies.
fn sum_throughputs(copies: Vec<Throughput>) -> Result<Throughput> {
    let value = copies.iter().map(|copy| copy.value).sum();
    let with_rates = copies.iter().filter(|copy| copy.line.is_some()).count();
    if with_rates > 0 && with_rates < copies.len() {
        return Err(mixed_output_error(
            "some copies end their output with a number, but others do not",
        ));
    }
    let latency_ms = copies
        .iter()
        .filter_map(|copy| copy.latency_ms)
        .reduce(f64::max);
    let line = copies.into_iter().find_map(|copy| copy.line);
    Ok(Throughput {
        value,
        line,
        latency_ms,
    })
}

/// Returns the error for a program that does not always print a rate.
pub(super) fn mixed_output_error(what: &'static str) -> CommandError {
    command_error(what).with_hint("use --by-runs to measure how often the program runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_numbers_at_the_end_of_a_line() {
        assert_eq!(
            rate_in("small mps=1 iters 43164 per_s 10790.9"),
            Some(10790.9)
        );
        assert_eq!(rate_in("1e3"), Some(1000.0));
        assert_eq!(latency_in("latency_ms 12.5\n"), Some(12.5));
        for none in [
            "latency_ms",
            "latency_ms fast",
            "latency_ms12",
            "p99 latency_ms 3",
        ] {
            assert_eq!(latency_in(none), None, "{none}");
        }
        for none in ["done", "", "870 it/s", "loss nan", "0", "-3", "inf"] {
            assert_eq!(rate_in(none), None, "{none}");
        }
    }
}
