//! A program of the self-test: a client that computes, says what it saw, and holds the device until it is let go.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use super::finding::Verdict;
use super::tester::{CheckResult, Tester};
use crate::client::{ClientOptions, Variables};
use crate::commands::give_back::selftest_command;
use crate::cuda::{ComputeResult, Computed, CudaError};
use crate::host::{BecomeUser, COMPUTE, FileError, Pid};
use crate::node::Served;

/// The time in which a program must have computed. A server may have to start for it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The time in which a program must have ended when it is let go.
const END_TIMEOUT: Duration = Duration::from_secs(30);

/// A client that runs. It ends when this is dropped.
pub(super) struct TestProgram {
    child: Child,
    input: Option<ChildStdin>,
    /// The line that it prints.
    line: Receiver<String>,
    errors: Option<ChildStderr>,
}

impl Drop for TestProgram {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl TestProgram {
    /// Starts a program on a device, as this user or as the caller, which then allocates memory, in bytes.
    pub(super) fn start(
        tester: &Tester<'_>,
        device: &str,
        user: &BecomeUser,
        allocations: &[u64],
    ) -> CheckResult<Self> {
        let helper = tester.environment.helper.display().to_string();
        let mut words = vec!["run".to_owned(), device.to_owned(), "--".to_owned(), helper];
        words.push(COMPUTE.to_owned());
        words.extend(user.to_args());
        for bytes in allocations {
            words.extend(["--allocate".to_owned(), bytes.to_string()]);
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Self::spawn(selftest_command(
            tester.environment,
            tester.directory,
            &words,
        ))
    }

    /// Starts a program with the variables that `mig-mps env` prints. `mig-mps run` starts no more clients than mig-mps expects.
    pub(super) fn start_with_variables(tester: &Tester<'_>, served: &Served) -> CheckResult<Self> {
        let environment = tester.environment;
        let variables = Variables::for_device(environment, served, &ClientOptions::default());
        let mut command = selftest_command(environment, tester.directory, &[COMPUTE]);
        command.args(BecomeUser::default().to_args());
        command.envs(variables.set);
        for name in &variables.unset {
            command.env_remove(name);
        }
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> CheckResult<Self> {
        // Ctrl-C is for the self-test alone, which finishes the present step with its programs.
        let spawned = command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn();
        let mut child = spawned.map_err(|error| {
            let error = FileError::from(error);
            Verdict::Differs(format!("mig-mps run: {error}"))
        })?;
        let (sender, line) = channel();
        if let Some(output) = child.stdout.take() {
            thread::spawn(move || {
                let mut line = String::new();
                let _ = BufReader::new(output).read_line(&mut line);
                // Nobody may wait for it any more.
                let _ = sender.send(line);
            });
        }
        Ok(Self {
            input: child.stdin.take(),
            errors: child.stderr.take(),
            child,
            line,
        })
    }

    pub(super) fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Returns what the program saw, once it has computed.
    pub(super) fn wait_for_result(&mut self) -> CheckResult<Computed> {
        self.wait_for_result_within(ANSWER_TIMEOUT)
    }

    /// Returns what the program saw, if it computes within this time.
    pub(super) fn wait_for_result_within(&mut self, limit: Duration) -> CheckResult<Computed> {
        self.wait_for_cuda(limit)?
            .map_err(|error| Verdict::Differs(format!("CUDA fails in the program: {error}")))
    }

    /// Returns what the program saw, or the error of CUDA, once it has either.
    pub(super) fn wait_for_admission(&mut self) -> CheckResult<Result<Computed, CudaError>> {
        self.wait_for_cuda(ANSWER_TIMEOUT)
    }

    fn wait_for_cuda(&mut self, limit: Duration) -> CheckResult<Result<Computed, CudaError>> {
        let line = match self.line.recv_timeout(limit) {
            Ok(line) if !line.is_empty() => line,
            Err(RecvTimeoutError::Timeout) => {
                let seconds = limit.as_secs();
                let why = format!("the program did not compute within {seconds} s");
                return Err(Verdict::Differs(why));
            }
            _ => {
                return Err(Verdict::Differs(format!(
                    "the program failed: {}",
                    self.error_message()
                )));
            }
        };
        match serde_json::from_str(&line) {
            Ok(ComputeResult::Computed(computed)) => Ok(Ok(computed)),
            Ok(ComputeResult::Failed(error)) => Ok(Err(error)),
            Ok(ComputeResult::NoLibrary(why)) => Err(Verdict::NotTested(why)),
            Err(error) => Err(Verdict::Differs(format!(
                "the program printed {line:?}: {error}"
            ))),
        }
    }

    /// True if the program waits for this time without computing.
    pub(super) fn keeps_waiting(&self, time: Duration) -> bool {
        matches!(self.line.recv_timeout(time), Err(RecvTimeoutError::Timeout))
    }

    /// Lets the program go, and waits until it has ended.
    pub(super) fn end(mut self) -> CheckResult {
        self.input.take();
        let until = Instant::now() + END_TIMEOUT;
        while Instant::now() < until {
            match self.child.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => {
                    let why = format!("the program failed ({status}): {}", self.error_message());
                    return Err(Verdict::Differs(why));
                }
                _ => thread::sleep(Duration::from_millis(10)),
            }
        }
        let seconds = END_TIMEOUT.as_secs();
        Err(Verdict::Differs(format!(
            "the program did not exit within {seconds} s"
        )))
    }

    /// Kills the program.
    pub(super) fn kill(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the last line of its messages, once it has ended.
    fn error_message(&mut self) -> String {
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(mut errors) = self.errors.take() {
            let _ = errors.read_to_string(&mut text);
        }
        let mut lines = text.lines().rev();
        let last = lines.find(|line| !line.starts_with("hint: "));
        let last = last.unwrap_or("it printed nothing");
        last.trim_start_matches("error: ").to_owned()
    }
}
