//! A simulated node on which a scenario is run.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{
    App, Dialogue, NOBODY, Ran, Sim, TestNode, is_alive, shell, stop, terminal, without_pidfd,
    write_program,
};

use super::tidy::Tidy;

/// The longest time that something is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// The end of a question.
pub(crate) const QUESTION: &str = "[y/N]: ";

/// Types the answer to a question, and returns the whole conversation.
type Answer = Box<dyn FnOnce(&str) -> Ran>;

/// A simulated node, and what a scenario has started on it.
pub(crate) struct Testbed {
    started: BTreeMap<String, App>,
    asked: Option<Answer>,
    tidy: Tidy,
    pub(crate) sim: Sim,
}

/// Words of errors that say that something is changed.
const CHANGES: [&str; 8] = [
    "not undone: ",
    "the profile was applied in part",
    "no part of the profile could be applied",
    "nothing was undone",
    "`mig-mps heal` then",
    "devices and instances of mig-mps remain",
    "cannot start nvidia-dcgm.service again",
    "failed or did not run after the last change of the devices",
];

/// Everything that a command that fails leaves as it was: the GPUs, and what is in the run directory, with the daemons
/// that live.
type Kept = BTreeMap<String, String>;

impl Testbed {
    /// A node with these GPUs: `a100-80gb:2 h200`.
    pub(crate) fn with(gpus: &str) -> Self {
        let mut builder = TestNode::builder();
        for request in gpus.split_whitespace() {
            let (model, count) = request.split_once(':').unwrap_or((request, "1"));
            builder = builder.gpu(model, count.parse().expect("a number of GPUs"));
        }
        let sim = Sim {
            node: builder.build(),
        };
        Self {
            started: BTreeMap::new(),
            asked: None,
            tidy: Tidy::of(dir(&sim)),
            sim,
        }
    }

    /// Writes `profile.toml`: a profile by its name, and the lines below.
    pub(crate) fn profile(&self, name: &str, text: &str) {
        let devices = match name {
            "small" => "devices = [ { profile = \"2g\" }, { profile = \"1g\" } ]",
            "whole" => "mig = false",
            "" => return self.file("profile.toml", text),
            _ => panic!("no profile is called {name}"),
        };
        let text = format!("[[gpu]]\nselect = {{ all = true }}\n{devices}\n{text}");
        self.file("profile.toml", &text);
    }

    /// Writes a file. A script can be run.
    pub(crate) fn file(&self, name: &str, text: &str) {
        let path = dir(&self.sim).join(name);
        let text = self.tidy.with_values(text);
        if text.starts_with("#!") {
            write_program(&path, text);
        } else {
            fs::write(&path, text).expect("a file in a directory of the scenario");
        }
    }

    /// Makes the node behave in another way where real ones differ: `systemd false`, `control 550`.
    pub(crate) fn policy(&self, key: &str, value: &str) {
        let values = [serde_json::from_str(value).ok(), Some(Value::from(value))];
        let update = self.sim.node.node().update(|state| {
            let with = |value| {
                let mut policy = json!(state.policy);
                *policy.get_mut(key)? = value;
                serde_json::from_value(policy).ok()
            };
            let policy = values.into_iter().flatten().find_map(with);
            state.policy = policy.unwrap_or_else(|| panic!("no policy {key} {value}"));
        });
        update.expect("a node's state");
    }

    /// Runs a line that prepares something, and must succeed.
    pub(crate) fn prepare(&mut self, line: &str) {
        let _ = Ran::of(&mut self.shell(line)).ended(0);
    }

    /// Starts a program that goes on, and waits for its first line.
    pub(crate) fn start(&mut self, name: &str, line: &str) {
        let mut app = App::start(self.shell(&format!("exec {line}")));
        assert_ne!(app.wait_up(), "", "{line} has ended");
        self.tidy.name(name, app.pid());
        self.started.insert(name.to_owned(), app);
    }

    /// Ends a program that was started, by the end of its input.
    pub(crate) fn end(&mut self, name: &str) {
        let app = self.started.remove(name);
        app.unwrap_or_else(|| panic!("{name} was not started"))
            .finish();
    }

    /// Kills or stops a process by its name: `[first]`, `[daemon 0.2]`.
    pub(crate) fn signal(&mut self, signal: &str, name: &str) {
        let pid = Value::from(self.with_values(name).parse::<u32>().expect("a process"));
        if signal == "stop" {
            return stop(&pid);
        }
        shell(format!("kill -KILL {pid}")).ended(0);
        eventually(|| !is_alive(&pid));
    }

    /// Waits until a device is in a state.
    pub(crate) fn wait(&self, device: &str, state: &str) {
        eventually(|| self.sim.device(device)["state"] == state);
    }

    /// Runs a line.
    pub(crate) fn run(&mut self, way: &str, line: &str) -> Ran {
        let mut command = self.shell(line);
        match way {
            "" => {}
            "nobody" => {
                command.uid(NOBODY).gid(NOBODY);
            }
            "old-kernel" => without_pidfd(&mut command),
            _ => panic!("there is no way to run a line called {way}"),
        }
        self.watched(|| Ran::of(&mut command))
    }

    /// Runs a line in a terminal of 80 columns, and answers its question.
    pub(crate) fn run_in_terminal(&mut self, line: &str, answer: Option<&str>) -> Ran {
        let line = format!("stty rows 24 cols 80; {}", self.in_scenario(line));
        let command = self.placed(terminal(line));
        self.watched(|| {
            let mut dialogue = Dialogue::start(command);
            if let Some(answer) = answer {
                dialogue.await_text(QUESTION);
                dialogue.press(&format!("{answer}\r"));
            }
            dialogue.end()
        })
    }

    /// Runs a program, and sees that it does not change what it must not.
    fn watched(&self, run: impl FnOnce() -> Ran) -> Ran {
        let (before, touched) = (self.kept(), self.touched());
        let ran = run();
        let said = format!("{}{}", ran.stdout, ran.stderr);
        if ran.status != 0 && !CHANGES.iter().any(|words| said.contains(words)) {
            let mut changed = self.kept();
            changed.retain(|what, is| before.get(what) != Some(is));
            assert!(
                changed.is_empty(),
                "it failed, and has changed {changed:#?}"
            );
            assert_eq!(
                self.kept().len(),
                before.len(),
                "it failed, and has removed something"
            );
        }
        if matches!(ran.status, 2 | 5) {
            let now = self.touched();
            assert_eq!(now, touched, "it was refused, and has touched something");
        }
        ran
    }

    /// Runs a subcommand in a terminal, up to its question.
    pub(crate) fn ask(&mut self, line: &str) {
        let line = self.in_scenario(line);
        let mut dialogue = Dialogue::start(self.placed(terminal(line)));
        dialogue.await_text(QUESTION);
        self.asked = Some(Box::new(move |keys| {
            dialogue.press(keys);
            dialogue.end()
        }));
    }

    /// Answers the question. Returns the whole conversation.
    pub(crate) fn press(&mut self, keys: &str) -> Ran {
        let answer = self.asked.take().expect("a question before the answer");
        answer(&format!("{keys}\r"))
    }

    /// The lines that a program wrote, without what differs from run to run.
    pub(crate) fn said(&self, ran: &Ran) -> Vec<String> {
        let text = format!("{}{}", ran.stdout, ran.stderr);
        self.tidy.lines(&console::strip_ansi_codes(&text))
    }

    /// A shell with a line, in the directory of the scenario, whose programs come first.
    fn shell(&mut self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.in_scenario(line)]);
        self.placed(command)
    }

    /// A line as a shell runs it in the directory of the scenario.
    fn in_scenario(&mut self, line: &str) -> String {
        format!("PATH=$PWD:$PATH; {}", self.with_values(line))
    }

    /// Places a command on the node, in the directory of the scenario.
    fn placed(&self, mut command: Command) -> Command {
        command.current_dir(dir(&self.sim));
        command.env_clear().envs(self.sim.node.env());
        command
    }

    /// Puts the values in the place of what stands in brackets.
    fn with_values(&mut self, line: &str) -> String {
        for (key, of) in [("daemon", "/daemon_pid"), ("server", "/servers/0/pid")] {
            if let Some((_, rest)) = line.split_once(&format!("[{key} ")) {
                let (device, _) = rest.split_once(']').expect("a bracket that is closed");
                let pid = self.sim.device(device).pointer(of).and_then(Value::as_u64);
                let pid = pid.unwrap_or_else(|| panic!("{device} has no {key}"));
                self.tidy
                    .name(&format!("{key} {device}"), u32::try_from(pid).unwrap());
            }
        }
        self.tidy.with_values(line)
    }

    /// True if there is a run directory, and the number of times that somebody has asked for a change.
    fn touched(&self) -> (bool, usize) {
        let changes = ["Set", "Create", "Destroy", "start"];
        let mut events = self.sim.node.events();
        events.retain(|event| changes.iter().any(|change| event.what.contains(change)));
        (self.sim.node.run_dir().exists(), events.len())
    }

    fn kept(&self) -> Kept {
        let node = &self.sim.node;
        let gpus = json!(node.node().state().expect("a node's state").gpus);
        let mut kept = Kept::from([("gpus".to_owned(), format!("{gpus:#}"))]);
        read_all(node.run_dir(), &mut kept);
        kept
    }
}

/// The directory of the scenario, in which the node is, too.
fn dir(sim: &Sim) -> &Path {
    sim.node
        .dir()
        .parent()
        .expect("a node in a directory of its own")
}

fn eventually(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < PATIENCE,
            "it did not come within {PATIENCE:?}"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Everything in a directory, but for the lock and the space that is reserved for a change. In a pipe directory that is
/// its daemon, if it lives.
fn read_all(dir: &Path, kept: &mut Kept) {
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.expect("a directory of the node").path();
        let read = |path: &Path| fs::read_to_string(path).unwrap_or_default();
        let text = match path.file_name().and_then(OsStr::to_str) {
            Some("lock" | "reserve") => continue,
            Some("pipe") => {
                let pid = read(&path.join("nvidia-cuda-mps-control.pid"));
                let lives = pid.parse().is_ok_and(|pid: u32| is_alive(pid));
                if lives { pid } else { String::new() }
            }
            _ if path.is_dir() && !path.is_symlink() => {
                read_all(&path, kept);
                String::new()
            }
            _ => read(&path),
        };
        kept.insert(path.display().to_string(), text);
    }
}
