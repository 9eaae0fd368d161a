use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{Pid as RawPid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use thiserror::Error;

use super::spawn::isolate;

/// What a child program left behind.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: String,
    /// What it wrote to its standard error.
    pub stderr: String,
}

/// Why a child program has no output.
#[derive(Debug, Error)]
pub enum RunError {
    /// It could not be started.
    #[error("cannot start {program}: {error}")]
    Start {
        /// The program.
        program: String,
        /// What the system said.
        error: io::Error,
    },
    /// It did not end within its limit and was killed.
    #[error("{program} did not answer within {limit:?} and was ended")]
    Late {
        /// The program.
        program: String,
        /// The limit.
        limit: Duration,
    },
    /// It wrote without end and was killed.
    #[error("{program} wrote more than {} KiB and was ended; it began with {begun:?}", MOST_OUTPUT >> 10)]
    TooMuch {
        /// The program.
        program: String,
        /// The beginning of what it wrote.
        begun: String,
    },
    /// The kernel does not end it, as a process that waits for hardware or a file system that hangs.
    #[error(
        "{program} (pid {pid}) was sent SIGKILL and has not ended: the kernel cannot end it now"
    )]
    Unkillable {
        /// The program.
        program: String,
        /// Its process id.
        pid: u32,
    },
    /// It has ended, and the process that traces it keeps its exit status.
    #[error("{program} (pid {pid}) has ended, but {tracer} traces it and keeps its exit status")]
    Traced {
        /// The program.
        program: String,
        /// Its process id.
        pid: u32,
        /// Who traces it, as far as that can be seen.
        tracer: String,
    },
    /// Its end could not be waited for.
    #[error("cannot wait for {program}: {error}")]
    Wait {
        /// The program.
        program: String,
        /// What the system said.
        error: io::Error,
    },
}

impl RunError {
    /// The same about another program, which the one that was started has become.
    #[must_use]
    pub fn about(mut self, name: &Path) -> Self {
        match &mut self {
            Self::Start { program, .. }
            | Self::Late { program, .. }
            | Self::TooMuch { program, .. }
            | Self::Unkillable { program, .. }
            | Self::Traced { program, .. }
            | Self::Wait { program, .. } => *program = name.display().to_string(),
        }
        self
    }
}

/// How long output is still read after a program has ended: a daemon it left behind may hold the
/// other end open for ever.
const GRACE: Duration = Duration::from_millis(200);

/// How much a program may write to each of its outputs, in bytes: it may be a user's.
const MOST_OUTPUT: usize = 1 << 20;

/// How much of that an error quotes, in characters.
const MOST_QUOTED: usize = 200;

/// How long the kernel may take to end a process that was sent SIGKILL.
const KILL_LIMIT: Duration = Duration::from_secs(2);

/// Runs a program to its end with `input` on its standard input. A program that outlasts `limit` or writes more
/// than 1 MiB is ended, with every process it started and that stayed in its group.
///
/// The program has a session of its own: Ctrl-C in the terminal is for this program to handle and must not
/// kill, say, a GPU reset half-way.
pub fn run(command: &mut Command, input: &str, limit: Duration) -> Result<Output, RunError> {
    let program = command.get_program().to_string_lossy().into_owned();
    isolate(command);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = spawn(command).map_err(|error| RunError::Start {
        program: program.clone(),
        error,
    })?;
    let talk = converse(&mut child, input, limit);
    if !matches!(talk, Ok(Talk::Ended { .. })) && !kill(&mut child) {
        // Never waited for: that could take for ever.
        return Err(RunError::Unkillable {
            program,
            pid: child.id(),
        });
    }
    let status = match reap(&mut child) {
        Ok(None) => {
            return Err(RunError::Traced {
                program,
                pid: child.id(),
                tracer: tracer_of(child.id()),
            });
        }
        Ok(Some(status)) => Ok(status),
        Err(error) => Err(error),
    };
    match (talk, status) {
        (Ok(Talk::Ended { stdout, stderr }), Ok(status)) => Ok(Output {
            status,
            stdout,
            stderr,
        }),
        (Ok(Talk::Late), _) => Err(RunError::Late { program, limit }),
        (Ok(Talk::TooMuch { begun }), _) => Err(RunError::TooMuch { program, begun }),
        (Err(error), _) | (_, Err(error)) => Err(RunError::Wait { program, error }),
    }
}

/// How long a process that the system refuses to start is tried again: other children of ours end soon.
const CROWDED: Duration = Duration::from_millis(500);

fn spawn(command: &mut Command) -> io::Result<Child> {
    let begun = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::WouldBlock && begun.elapsed() < CROWDED =>
            {
                std::thread::sleep(Duration::from_millis(10));
            }
            other => return other,
        }
    }
}

/// Ends a child and its group; false if the kernel does not end it in time.
fn kill(child: &mut Child) -> bool {
    // It may have ended by itself meanwhile. It has not been waited for, so its pid, which is its group's id,
    // is nobody else's.
    let _ = id_of(child).map(|group| kill_process_group(group, Signal::KILL));
    let _ = child.kill();
    let Ok(pidfd) = id_of(child).and_then(|id| Ok(pidfd_open(id, PidfdFlags::empty())?)) else {
        return true;
    };
    let mut watched = [PollFd::new(&pidfd, PollFlags::IN)];
    let timeout = Timespec::try_from(KILL_LIMIT).ok();
    poll(&mut watched, timeout.as_ref()).is_ok_and(|ended| ended > 0)
}

/// How long the exit status of a process that has ended may take to come.
const REAP_LIMIT: Duration = Duration::from_secs(1);

/// Takes the exit status of a child that has ended; `None` if it does not come. A process that traces the child has it
/// first and may keep it: a program that runs as a user can be traced by that user.
fn reap(child: &mut Child) -> io::Result<Option<ExitStatus>> {
    let until = Instant::now() + REAP_LIMIT;
    loop {
        match child.try_wait()? {
            None if Instant::now() < until => std::thread::sleep(Duration::from_millis(5)),
            status => return Ok(status),
        }
    }
}

/// The process that traces another one, in words.
fn tracer_of(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let tracer = status
        .lines()
        .find_map(|line| line.strip_prefix("TracerPid:"));
    match tracer.map(str::trim) {
        Some(tracer) if tracer != "0" => format!("pid {tracer}"),
        _ => "another process".to_owned(),
    }
}

/// What came of talking to a child.
enum Talk {
    /// It has ended.
    Ended { stdout: String, stderr: String },
    /// Time is up.
    Late,
    /// It writes without end.
    TooMuch { begun: String },
}

/// A program of the machine in a clean environment: what it says is read, so it speaks no other
/// language, and nothing of the caller's steers it.
pub(super) fn plain_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").current_dir("/");
    for kept in ["PATH", "LD_LIBRARY_PATH", "HOME"] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command
}

/// All a program said, on one line, for an error.
pub(super) fn in_its_words(output: &Output) -> String {
    let said = format!("{}\n{}", output.stdout, output.stderr);
    let lines: Vec<_> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

/// Writes the input and reads both outputs until the child has ended.
fn converse(child: &mut Child, input: &str, limit: Duration) -> io::Result<Talk> {
    let mut input = Input::new(child.stdin.take().map(OwnedFd::from), input)?;
    let ended = pidfd_open(id_of(child)?, PidfdFlags::empty())?;
    let mut out = Stream::new(child.stdout.take().map(OwnedFd::from))?;
    let mut err = Stream::new(child.stderr.take().map(OwnedFd::from))?;
    let mut deadline = Instant::now() + limit;
    let mut alive = true;
    loop {
        input.write()?;
        let mut watched: Vec<PollFd<'_>> = Vec::with_capacity(4);
        watched.extend(
            input
                .pipe
                .as_ref()
                .map(|pipe| PollFd::new(pipe, PollFlags::OUT)),
        );
        let streams = [out.file.as_ref(), err.file.as_ref()];
        watched.extend(
            streams
                .into_iter()
                .flatten()
                .map(|file| PollFd::new(file, PollFlags::IN)),
        );
        if alive {
            watched.push(PollFd::new(&ended, PollFlags::IN));
        }
        if watched.is_empty() {
            break;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut watched, Some(&timeout)) {
            Ok(0) if alive => return Ok(Talk::Late),
            Ok(0) => break,
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let just_ended = alive
            && watched
                .last()
                .is_some_and(|ended| ended.revents().contains(PollFlags::IN));
        for stream in [&mut out, &mut err] {
            stream.read()?;
            if stream.bytes.len() > MOST_OUTPUT {
                let text = String::from_utf8_lossy(&stream.bytes[..4 * MOST_QUOTED]);
                let begun = text.chars().take(MOST_QUOTED).collect();
                return Ok(Talk::TooMuch { begun });
            }
        }
        if just_ended {
            alive = false;
            input.pipe = None;
            deadline = Instant::now() + GRACE;
        }
    }
    Ok(Talk::Ended {
        stdout: out.text(),
        stderr: err.text(),
    })
}

fn id_of(child: &Child) -> io::Result<RawPid> {
    let pid = i32::try_from(child.id()).ok().and_then(RawPid::from_raw);
    pid.ok_or_else(|| io::Error::other("a child without a pid"))
}

/// What the child is still to read. It may be stopped, and a pipe holds 64 KiB.
struct Input<'a> {
    pipe: Option<OwnedFd>,
    left: &'a [u8],
}

impl<'a> Input<'a> {
    fn new(pipe: Option<OwnedFd>, text: &'a str) -> io::Result<Self> {
        if let Some(pipe) = &pipe {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        Ok(Self {
            pipe,
            left: text.as_bytes(),
        })
    }

    /// Writes what the pipe takes, and closes it after the last of it.
    fn write(&mut self) -> io::Result<()> {
        while let Some(pipe) = &self.pipe {
            match rustix::io::write(pipe, self.left) {
                Ok(written) => self.left = &self.left[written..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                // A program that does not read its input may still have something to say.
                Err(Errno::PIPE) => self.left = &[],
                Err(error) => return Err(error.into()),
            }
            if self.left.is_empty() {
                self.pipe = None;
            }
        }
        Ok(())
    }
}

/// One output of the child, read without blocking until its end.
struct Stream {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Stream {
    fn new(fd: Option<OwnedFd>) -> io::Result<Self> {
        if let Some(fd) = &fd {
            fcntl_setfl(fd.as_fd(), fcntl_getfl(fd.as_fd())? | OFlags::NONBLOCK)?;
        }
        Ok(Self {
            file: fd.map(File::from),
            bytes: Vec::new(),
        })
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        // One byte more than it may be: that tells too much from just enough.
        let room = (MOST_OUTPUT + 1).saturating_sub(self.bytes.len());
        match file.take(room as u64).read_to_end(&mut self.bytes) {
            Ok(_) if self.bytes.len() > MOST_OUTPUT => {}
            Ok(_) => self.file = None,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn text(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn input_goes_in_and_both_outputs_come_out() {
        let output = run(&mut shell("cat; echo no >&2; exit 3"), "yes\n", LONG).unwrap();
        assert_eq!(
            (output.stdout.as_str(), output.stderr.as_str()),
            ("yes\n", "no\n")
        );
        assert_eq!(output.status.code(), Some(3));
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let begun = Instant::now();
        let late = run(&mut shell("exec sleep 60"), "", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(late, RunError::Late { .. }), "{late}");
        assert!(begun.elapsed() < LONG);
    }

    #[test]
    fn a_program_that_reads_no_input_is_ended_at_its_limit() {
        let more_than_a_pipe = "x".repeat(MOST_OUTPUT);
        let mut stopped = shell("kill -STOP $$");
        let late = run(&mut stopped, &more_than_a_pipe, Duration::from_millis(50)).unwrap_err();
        assert!(matches!(late, RunError::Late { .. }), "{late}");
        let read = run(&mut shell("sleep 0.1; wc -c"), &more_than_a_pipe, LONG).unwrap();
        assert_eq!(read.stdout.trim(), MOST_OUTPUT.to_string());
    }

    /// Whether a process is there and no zombie.
    fn is_alive(pid: &str) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
            !stat
                .rsplit(')')
                .next()
                .is_some_and(|rest| rest.starts_with(" Z"))
        })
    }

    #[test]
    fn what_a_late_program_started_is_ended_with_it() {
        let directory = std::env::temp_dir().join(format!("mig-mps-group-{}", std::process::id()));
        let grandchild = directory.with_extension("pid");
        let script = format!("sleep 60 & echo $! >{}; wait", grandchild.display());
        run(&mut shell(&script), "", Duration::from_millis(500)).unwrap_err();
        let pid = std::fs::read_to_string(&grandchild).unwrap();
        std::fs::remove_file(&grandchild).unwrap();
        // SIGKILL has been sent; the kernel needs a moment to carry it out.
        let begun = Instant::now();
        while is_alive(pid.trim()) && begun.elapsed() < LONG {
            std::thread::yield_now();
        }
        assert!(!is_alive(pid.trim()), "pid {pid} outlived its caller");
    }

    /// Pid, session and terminal; open descriptors; ignored signals; umask; directory.
    #[test]
    fn a_child_gets_nothing_of_its_parents() {
        let secret = File::open("/proc/self/status").unwrap();
        rustix::io::fcntl_setfd(&secret, rustix::io::FdFlags::empty()).unwrap();
        let seen = "cut -d' ' -f1,6,7 /proc/$$/stat; ls /proc/$$/fd | xargs; \
                    grep SigIgn /proc/$$/status | cut -f2; umask; pwd";
        let output = run(&mut shell(seen), "", LONG).unwrap();
        let lines: Vec<&str> = output.stdout.lines().collect();
        let stat: Vec<&str> = lines[0].split(' ').collect();
        assert_eq!(
            (stat[0], stat[2]),
            (stat[1], "0"),
            "a session without a terminal"
        );
        assert_eq!(lines[1..], ["0 1 2", "0000000000000000", "0022", "/"]);
        drop(secret);
    }

    #[test]
    fn a_program_that_writes_without_end_is_ended_and_quoted() {
        let begun = Instant::now();
        let error = run(&mut shell("yes abc"), "", LONG).unwrap_err();
        assert!(begun.elapsed() < LONG);
        let said = error.to_string();
        assert!(
            said.starts_with(
                "/bin/sh wrote more than 1024 KiB and was ended; it began with \"abc\\nabc"
            ),
            "{said}"
        );
        let just_enough = format!("head -c {MOST_OUTPUT} /dev/zero");
        assert_eq!(
            run(&mut shell(&just_enough), "", LONG)
                .unwrap()
                .stdout
                .len(),
            MOST_OUTPUT
        );
    }

    #[test]
    fn a_daemon_that_keeps_the_output_open_does_not_hold_us() {
        let begun = Instant::now();
        let output = run(&mut shell("sleep 60 & echo $!"), "", LONG).unwrap();
        assert!(begun.elapsed() < LONG);
        let left = output.stdout.trim().to_owned();
        run(&mut shell(&format!("kill {left}")), "", LONG).unwrap();
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let error = run(&mut Command::new("/no/such/program"), "", LONG).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("cannot start /no/such/program: "),
            "{error}"
        );
    }
}
