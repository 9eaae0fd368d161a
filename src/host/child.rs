//! Runs a program with a time limit, which ends it, and with a limit to its output.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{Signal, WaitOptions, kill_process, kill_process_group, waitpid};
use thiserror::Error;

use super::files::read_proc_field;
use super::process::{raw_pid, wait_until_ready};
use super::spawn::{Child, spawn};
use super::{FileError, FileResult, Pid, ProcessHandle};
use crate::failure::Failure;

/// The result of a child program.
#[derive(Debug)]
pub struct Output {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A failed run of a child program.
#[derive(Debug, Error)]
pub enum RunError {
    /// The program could not be started.
    #[error("cannot start {program}: {error}")]
    Start { program: String, error: FileError },
    /// The program did not exit within its limit and was killed.
    #[error("{program} did not answer within {limit:?} and was ended")]
    Late { program: String, limit: Duration },
    /// The program wrote too much and was killed.
    #[error("{program} wrote more than {} KiB and was ended; its output began with {begun:?}", MAX_OUTPUT_BYTES >> 10)]
    TooMuch {
        program: String,
        /// The start of its output.
        begun: String,
    },
    /// The kernel does not end the process, which waits for hanging hardware or a hanging file system.
    #[error("{program} (pid {pid}) was sent SIGKILL but has not exited")]
    Unkillable { program: String, pid: Pid },
    /// The program has exited, and the process that traces it keeps the exit status.
    #[error("{program} (pid {pid}) exited, but {tracer} traces it and keeps its exit status")]
    Traced {
        program: String,
        pid: Pid,
        /// The tracing process, in words.
        tracer: String,
    },
    /// Waiting for the program failed.
    #[error("cannot wait for {program}: {error}")]
    Wait { program: String, error: FileError },
}

impl Failure for RunError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::TooMuch { program, .. } => {
                return Some(format!("check that {program} is the intended program"));
            }
            Self::Start { .. } | Self::Wait { .. } => "run it by hand to see why it does not start",
            Self::Late { .. } | Self::Unkillable { .. } => {
                "search the kernel log for Xid messages and hung tasks; the GPU may need a reset"
            }
            Self::Traced { .. } => "end the process that traces it, then run this command again",
        };
        Some(hint.to_owned())
    }
}

/// Returns a command whose environment is empty but for these variables of the caller.
pub fn clean_command(program: impl AsRef<OsStr>, kept: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.env_clear().envs(
        kept.iter()
            .filter_map(|name| Some((name, std::env::var_os(name)?))),
    );
    command
}

/// Runs a program to its end with `input` on its standard input. A program that exceeds `limit` or writes more than
/// 1 MiB is killed, with all processes in its group.
///
/// The program has a session of its own: Ctrl-C in the terminal must not kill, for example, a GPU reset half-way.
pub fn run(command: &Command, input: &str, limit: Duration) -> Result<Output, RunError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let begun = Instant::now();
    let ran = run_with_name(program, command, input, limit);
    trace_run(command, begun, &ran);
    ran
}

/// Traces a program that has ended.
fn trace_run(command: &Command, begun: Instant, ran: &Result<Output, RunError>) {
    if !tracing::enabled!(target: "program", tracing::Level::DEBUG) {
        return;
    }
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect();
    let words = words.join(" ");
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    let ended = match ran {
        Ok(output) => output.status.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::debug!(target: "program", "{words}: {ended} ({took:.1} ms)");
}

/// The same with another name of the program in errors, for one that is started through the helper.
pub fn run_with_name(
    program: String,
    command: &Command,
    input: &str,
    limit: Duration,
) -> Result<Output, RunError> {
    let child = spawn_with_retry(command).map_err(|error| RunError::Start {
        program: program.clone(),
        error,
    })?;
    let pid = child.pid;
    let exchanged = exchange_data(child, input, limit);
    if !matches!(exchanged, Ok(Exchange::Ended { .. })) && !kill_group(pid) {
        // Its end is not waited for, because that could take forever.
        return Err(RunError::Unkillable { program, pid });
    }
    match (exchanged, take_exit_status(pid)) {
        (_, Ok(None)) => Err(RunError::Traced {
            program,
            pid,
            tracer: tracer_of(pid),
        }),
        (Ok(Exchange::Ended { stdout, stderr }), Ok(Some(status))) => Ok(Output {
            status,
            stdout,
            stderr,
        }),
        (Ok(Exchange::Late), _) => Err(RunError::Late { program, limit }),
        (Ok(Exchange::TooMuch { begun }), _) => Err(RunError::TooMuch { program, begun }),
        (Err(error), _) | (_, Err(error)) => Err(RunError::Wait { program, error }),
    }
}

/// Starts a program that goes on by itself, in a session of its own; nobody reads what it prints.
pub fn spawn_detached(command: &Command) -> FileResult<()> {
    spawn_with_retry(command).map(drop)
}

/// The time to retry a start that the system refuses: other child processes exit soon.
const SPAWN_RETRY_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn spawn_with_retry(command: &Command) -> FileResult<Child> {
    let start = Instant::now();
    loop {
        match spawn(command) {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock
                    && start.elapsed() < SPAWN_RETRY_TIMEOUT =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return Ok(other?),
        }
    }
}

/// The time that the kernel may take to end a process after SIGKILL.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Kills a child and its group. Returns false if the kernel does not end it in time.
pub(super) fn kill_group(pid: Pid) -> bool {
    // The child may have exited meanwhile. It was not waited for, so its pid, which is the id of its group, is not
    // reused.
    if let Some(raw) = raw_pid(pid) {
        let _ = kill_process_group(raw, Signal::KILL);
        let _ = kill_process(raw, Signal::KILL);
    }
    ProcessHandle::open(pid).map_or(true, |held| held.wait_for_exit(KILL_TIMEOUT))
}

/// The time that the exit status of a process may take to arrive after its exit.
const REAP_TIMEOUT: Duration = Duration::from_secs(1);

/// Takes the exit status of a child that has exited. Returns `None` on timeout: a tracing process gets the status first
/// and may keep it, and a user can trace a program that runs as that user.
pub(super) fn take_exit_status(pid: Pid) -> FileResult<Option<ExitStatus>> {
    let until = Instant::now() + REAP_TIMEOUT;
    loop {
        match waitpid(raw_pid(pid), WaitOptions::NOHANG)? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            ended => return Ok(ended.map(|(_, status)| ExitStatus::from_raw(status.as_raw()))),
        }
    }
}

/// Describes the process that traces another one.
fn tracer_of(pid: Pid) -> String {
    match read_proc_field(format!("/proc/{pid}/status"), "TracerPid:").as_deref() {
        Some(tracer) if tracer != "0" => format!("pid {tracer}"),
        _ => "another process".to_owned(),
    }
}

/// The time to go on reading after a program has exited: a daemon that it started may keep the pipe open forever.
const OUTPUT_LINGER_TIME: Duration = Duration::from_millis(200);

/// The most that a program may write to each of its outputs, in bytes. The program may be a user's.
pub(super) const MAX_OUTPUT_BYTES: usize = 1 << 20;

/// The most of an output that an error quotes, in characters.
const MAX_QUOTED_CHARS: usize = 200;

/// The result of exchanging input and output with a child.
pub(super) enum Exchange {
    /// The child has exited.
    Ended { stdout: String, stderr: String },
    /// The limit has passed.
    Late,
    /// The child has written more than [`MAX_OUTPUT_BYTES`].
    TooMuch { begun: String },
}

/// Writes the input and reads both outputs until the child has exited.
pub(super) fn exchange_data(child: Child, input: &str, limit: Duration) -> FileResult<Exchange> {
    let mut input = Input {
        pipe: Some(child.stdin),
        unwritten: input.as_bytes(),
    };
    let held = ProcessHandle::open(child.pid)?;
    let mut out = Stream::new(child.stdout);
    let mut err = Stream::new(child.stderr);
    let mut deadline = Instant::now() + limit;
    let mut alive = true;
    loop {
        input.write_pending()?;
        let pipe = input.pipe.iter();
        let streams = out.file.iter().chain(&err.file);
        let mut watched: Vec<PollFd<'_>> = pipe
            .map(|pipe| PollFd::new(pipe, PollFlags::OUT))
            .chain(streams.map(|file| PollFd::new(file, PollFlags::IN)))
            .chain(alive.then(|| held.poll_fd()))
            .collect();
        if watched.is_empty() {
            break;
        }
        wait_until_ready(&mut watched, deadline)?;
        let just_ended = alive
            && watched
                .last()
                .is_some_and(|held| held.revents().contains(PollFlags::IN));
        for stream in [&mut out, &mut err] {
            stream.read_available()?;
            if stream.bytes.len() > MAX_OUTPUT_BYTES {
                let text = String::from_utf8_lossy(&stream.bytes[..4 * MAX_QUOTED_CHARS]);
                let begun = text.chars().take(MAX_QUOTED_CHARS).collect();
                return Ok(Exchange::TooMuch { begun });
            }
        }
        if just_ended {
            alive = false;
            input.pipe = None;
            deadline = Instant::now() + OUTPUT_LINGER_TIME;
        } else if Instant::now() >= deadline {
            // Also where output still comes.
            if alive {
                return Ok(Exchange::Late);
            }
            break;
        }
    }
    Ok(Exchange::Ended {
        stdout: out.into_text(),
        stderr: err.into_text(),
    })
}

/// The input that is not written yet. The child may be stopped, and a pipe holds only 64 KiB.
struct Input<'a> {
    pipe: Option<OwnedFd>,
    unwritten: &'a [u8],
}

impl Input<'_> {
    /// Writes as much as the pipe takes, and closes it at the end.
    fn write_pending(&mut self) -> FileResult<()> {
        while let Some(pipe) = &self.pipe {
            match rustix::io::write(pipe, self.unwritten) {
                Ok(written) => self.unwritten = &self.unwritten[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // A program that does not read its input may still have output.
                Err(Errno::PIPE) => self.unwritten = &[],
                Err(error) => return Err(error.into()),
            }
            if self.unwritten.is_empty() {
                self.pipe = None;
            }
        }
        Ok(())
    }
}

/// An output of the child, read without blocking.
struct Stream {
    file: Option<OwnedFd>,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(pipe: OwnedFd) -> Self {
        Self {
            file: Some(pipe),
            bytes: Vec::new(),
        }
    }

    fn read_available(&mut self) -> FileResult<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        // No more at once: a program may write as fast as this is read.
        let mut buffer = [0_u8; 16 << 10];
        match rustix::io::read(file, &mut buffer) {
            Ok(0) => self.file = None,
            Ok(read) => self.bytes.extend_from_slice(&buffer[..read]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn into_text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::process::{Command, Stdio};

    use super::*;
    use crate::host::Pid;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn input_goes_in_and_both_outputs_come_out() {
        let output = run(&shell("cat; echo no >&2; exit 3"), "yes\n", LONG).unwrap();
        assert_eq!(
            (output.stdout.as_str(), output.stderr.as_str()),
            ("yes\n", "no\n")
        );
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let start = Instant::now();
        let late = run(&shell("exec sleep 60"), "", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(late, RunError::Late { .. }), "{late}");
        assert!(start.elapsed() < LONG);
    }

    #[test]
    fn a_program_that_reads_no_input_is_ended_at_its_limit() {
        let more_than_a_pipe = "x".repeat(MAX_OUTPUT_BYTES);
        let stopped = shell("kill -STOP $$");
        let late = run(&stopped, &more_than_a_pipe, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(late, RunError::Late { .. }), "{late}");
        let read = run(&shell("sleep 0.1; wc -c"), &more_than_a_pipe, LONG).unwrap();
        assert_eq!(read.stdout.trim(), MAX_OUTPUT_BYTES.to_string());
    }

    /// True if a process exists and is no zombie.
    fn is_alive(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            !stat
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" Z"))
        })
    }

    #[test]
    fn the_processes_of_a_late_program_are_ended_with_it() {
        let directory = std::env::temp_dir().join(format!("mig-mps-group-{}", std::process::id()));
        let grandchild = directory.with_extension("pid");
        let script = format!("sleep 60 & echo $! >{}; wait", grandchild.display());
        run(&shell(&script), "", Duration::from_millis(500)).unwrap_err();
        let pid = std::fs::read_to_string(&grandchild).unwrap();
        std::fs::remove_file(&grandchild).unwrap();
        // The kernel needs a moment to carry out the SIGKILL.
        let start = Instant::now();
        while is_alive(pid.trim()) && start.elapsed() < LONG {
            std::thread::yield_now();
        }
        assert!(!is_alive(pid.trim()), "pid {pid} outlived its caller");
    }

    /// Pid, session and terminal; open descriptors; ignored signals; umask; directory.
    #[test]
    fn a_child_gets_nothing_of_its_parents() {
        let secret = File::open("/proc/self/status").unwrap();
        rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
        // A pipe or a substitution would give the shell descriptors of its own.
        let seen = "cut -d' ' -f1,6,7 /proc/$$/stat; \
                    for fd in /proc/$$/fd/*; do [ -L $fd ] && all=\"$all ${fd##*/}\"; done; echo $all; \
                    grep -E 'SigIgn|SigBlk' /proc/$$/status | cut -f2 | xargs; umask; pwd";
        let blocked = nix::sys::signal::SigSet::from(nix::sys::signal::Signal::SIGUSR1);
        blocked.thread_block().unwrap();
        let output = run(&shell(seen), "", LONG).unwrap();
        let lines: Vec<&str> = output.stdout.lines().collect();
        let stat: Vec<&str> = lines[0].split(' ').collect();
        assert_eq!(
            (stat[0], stat[2]),
            (stat[1], "0"),
            "a session without a terminal"
        );
        assert_eq!(
            lines[1..],
            ["0 1 2", "0000000000000000 0000000000000000", "0022", "/"]
        );
        drop(secret);
    }

    #[test]
    fn a_program_that_writes_without_end_is_ended_and_quoted() {
        let start = Instant::now();
        let error = run(&shell("yes abc"), "", LONG).unwrap_err();
        assert!(start.elapsed() < LONG);
        let said = error.to_string();
        assert!(
            said.starts_with(
                "/bin/sh wrote more than 1024 KiB and was ended; its output began with \"abc\\nabc"
            ),
            "{said}"
        );
        let just_enough = format!("head -c {MAX_OUTPUT_BYTES} /dev/zero");
        assert_eq!(
            run(&shell(&just_enough), "", LONG).unwrap().stdout.len(),
            MAX_OUTPUT_BYTES
        );
    }

    #[test]
    fn a_daemon_that_keeps_the_output_open_does_not_hold_us() {
        let start = Instant::now();
        let output = run(&shell("sleep 60 & echo $!"), "", LONG).unwrap();
        assert!(start.elapsed() < LONG);
        let left = output.stdout.trim().to_owned();
        run(&shell(&format!("kill {left}")), "", LONG).unwrap();
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = run(&Command::new("/no/such/program"), "", LONG).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot start /no/such/program: "),
            "{error}"
        );
    }

    /// Output without end is bounded by the time limit, also where there is always more to read.
    #[test]
    fn a_time_limit_holds_while_output_flows() {
        let mut asleep = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let flows = || File::open("/dev/zero").unwrap().into();
        let child = Child {
            pid: Pid(asleep.id()),
            stdin: asleep.stdin.take().unwrap().into(),
            stdout: flows(),
            stderr: flows(),
        };
        let exchanged = exchange_data(child, "", Duration::ZERO).unwrap();
        assert!(matches!(exchanged, Exchange::Late));
        asleep.kill().unwrap();
        asleep.wait().unwrap();
    }
}
