use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;
use simnode::harness::{App, TestNode, terminal};

use dialogue::Dialogue;

mod dialogue;
pub(crate) mod shipped;

/// A user who is not root: `nobody`.
pub(crate) const NOBODY: u32 = 65534;

/// A simulated node, with short words for what tests do on it.
pub(crate) struct Sim {
    pub(crate) node: TestNode,
}

/// What a program left behind.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    /// Without the lines of steps that are done.
    pub(crate) stderr: String,
    /// Those lines.
    pub(crate) progress: String,
}

impl Sim {
    /// A node with so many GPUs of a model.
    pub(crate) fn with(model: &str, count: usize) -> Self {
        Self {
            node: TestNode::builder().gpu(model, count).build(),
        }
    }

    /// `mig-mps` with arguments.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.node.mig_mps();
        command.args(args);
        command
    }

    /// Runs `mig-mps`.
    #[must_use]
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::of(&mut self.command(args))
    }

    /// Runs `mig-mps up` with a profile of that text.
    #[must_use]
    pub(crate) fn up(&self, profile: &str, args: &[&str]) -> Ran {
        let path = self.profile(profile);
        let mut all = vec!["up", path.to_str().unwrap()];
        all.extend(args);
        self.run(&all)
    }

    /// Writes a profile and returns its path.
    pub(crate) fn profile(&self, text: &str) -> PathBuf {
        let path = self.node.dir().join("profile.toml");
        fs::write(&path, text).unwrap();
        path
    }

    /// A control program for `MIG_MPS_CONTROL`: a shell script in which `$real` is the simulated one.
    pub(crate) fn control_script(&self, script: &str) -> PathBuf {
        self.program_script("nvidia-cuda-mps-control", script)
    }

    /// The same in the place of another of NVIDIA's programs.
    pub(crate) fn program_script(&self, name: &str, script: &str) -> PathBuf {
        let directory = self.node.dir().join("replaced");
        fs::create_dir_all(&directory).unwrap();
        let real = self.node.dir().join("bin").join(name);
        let path = directory.join(name);
        let text = format!("#!/bin/sh\nreal={}\n{script}\n", real.display());
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// Starts `mig-mps` and goes on; what it prints is not looked at.
    pub(crate) fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Runs a subcommand of `mig-mps` in a terminal of 80 columns.
    #[must_use]
    pub(crate) fn in_80_columns(&self, subcommand: &str) -> Ran {
        self.in_columns(subcommand, 80)
    }

    /// Runs a subcommand of `mig-mps` in a terminal of so many columns.
    #[must_use]
    pub(crate) fn in_columns(&self, subcommand: &str, columns: usize) -> Ran {
        self.in_terminal("", subcommand, columns)
    }

    /// The same, with more variables in its environment: `NAME=value NAME=value`.
    #[must_use]
    pub(crate) fn in_terminal(&self, variables: &str, subcommand: &str, columns: usize) -> Ran {
        self.shown(variables, subcommand, columns).ended(0)
    }

    /// The same, however it ends.
    #[must_use]
    pub(crate) fn shown(&self, variables: &str, subcommand: &str, columns: usize) -> Ran {
        let program = self.command(&[]).get_program().to_str().unwrap().to_owned();
        let in_terminal =
            format!("stty rows 24 cols {columns}; exec env {variables} {program} {subcommand}");
        Ran::of(terminal(&in_terminal).env_clear().envs(self.node.env()))
    }

    /// Runs a subcommand of `mig-mps` in a terminal, where its question is answered with these keys.
    #[must_use]
    pub(crate) fn answered(&self, subcommand: &str, keys: &str) -> Ran {
        let mut dialogue = self.dialogue(subcommand);
        dialogue.await_text("Go on?");
        dialogue.press(keys);
        dialogue.end()
    }

    /// Starts a subcommand of `mig-mps` in a terminal, to talk with it.
    pub(crate) fn dialogue(&self, subcommand: &str) -> Dialogue {
        let program = self.command(&[]).get_program().to_str().unwrap().to_owned();
        // Whoever runs the tests may ignore Ctrl-C.
        let hearing =
            format!("exec /usr/bin/env --default-signal=INT,TERM,HUP {program} {subcommand}");
        let mut terminal = terminal(&hearing);
        terminal.env_clear().envs(self.node.env());
        terminal.stdin(Stdio::piped()).stdout(Stdio::piped());
        Dialogue::with(terminal.spawn().unwrap())
    }

    /// `mig-mps` run by a plain user, with directories of that user's own.
    pub(crate) fn by_nobody(&self, args: &[&str]) -> Command {
        let runtime = self.node.run_dir().with_file_name("nobody");
        if !runtime.exists() {
            fs::create_dir(&runtime).unwrap();
            std::os::unix::fs::chown(&runtime, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        let mut command = self.command(args);
        command
            .uid(NOBODY)
            .gid(NOBODY)
            .env_remove("MIG_MPS_RUN_DIR")
            .env_remove("MIG_MPS_LOG_DIR")
            .env("XDG_RUNTIME_DIR", &runtime)
            .env("XDG_STATE_HOME", runtime.join("state"));
        command
    }

    /// `status --json`
    pub(crate) fn status(&self) -> Value {
        self.run(&["status", "--json"]).json()
    }

    /// `list --json`
    pub(crate) fn list(&self) -> Value {
        self.run(&["list", "--json"]).json()
    }

    /// Applies a profile that the node has already.
    pub(crate) fn up_does_nothing(&self, profile: &str) {
        let ran = self.up(profile, &[]).ended(0);
        assert!(ran.stderr.starts_with("Nothing to do"), "{}", ran.stderr);
    }

    /// The pipe directory of the device with that name, as its status has it.
    pub(crate) fn pipe(&self, name: &str) -> String {
        let device = self.device(name);
        device["pipe_directory"].as_str().unwrap().to_owned()
    }

    /// One device of `status --json`.
    pub(crate) fn device(&self, name: &str) -> Value {
        let status = self.status();
        let devices = status["devices"].as_array().unwrap();
        let found = devices.iter().find(|device| device["name"] == name);
        found
            .unwrap_or_else(|| panic!("no device {name} in {status:#}"))
            .clone()
    }

    /// A CUDA program that is up as a client of the device with that name.
    pub(crate) fn client(&self, name: &str) -> App {
        let mut app = self.app(name, &["hold"]);
        let up = app.wait_up();
        assert!(up.ends_with("mps yes"), "{up}");
        app
    }

    /// The pipe directory of the device with that name, by its link.
    pub(crate) fn pipe_link(&self, name: &str) -> PathBuf {
        self.node.run_dir().join("by-name").join(name).join("pipe")
    }

    /// A CUDA program that was told the pipe directory of the device with that name.
    pub(crate) fn app(&self, name: &str, args: &[&str]) -> App {
        self.node.cuda_app(&self.pipe_link(name), args)
    }

    /// A `1g` GPU instance that another tool made, without a compute instance, as
    /// `nvidia-smi mig -cgi` without `-C` leaves it; returns its id.
    pub(crate) fn foreign_instance(&self, gpu: usize, start: u32) -> u32 {
        let place = simnode::node::Placement { start, size: 1 };
        let update = self
            .node
            .node()
            .update(|state| state.create_gpu_instance(gpu, 19, Some(place)));
        update.unwrap().unwrap()
    }

    /// The state directory's entries, for seeing that nothing is left.
    pub(crate) fn run_dir(&self) -> Vec<String> {
        let entries = fs::read_dir(self.node.run_dir()).into_iter().flatten();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// How often something happened.
    pub(crate) fn happened(&self, what: &str) -> usize {
        self.node
            .events()
            .iter()
            .filter(|event| event.what == what)
            .count()
    }
}

impl Ran {
    #[must_use]
    pub(crate) fn of(command: &mut Command) -> Self {
        Self::from(command.output().unwrap())
    }

    pub(crate) fn from(output: Output) -> Self {
        let stderr = String::from_utf8(output.stderr).unwrap();
        let lines = stderr.split_inclusive('\n');
        let (progress, stderr) = lines.partition(|line| is_step(line));
        Self {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr,
            progress,
        }
    }

    /// Asserts that it ended with that status.
    #[track_caller]
    pub(crate) fn ended(self, status: i32) -> Self {
        assert_eq!(self.status, status, "{}{}", self.stdout, self.stderr);
        self
    }

    /// Its standard output as JSON.
    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let ran = self.ended(0);
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// Everything it wrote, with what differs from run to run and user to user made plain.
    pub(crate) fn tidy(&self) -> String {
        let all = tidy(&format!("{}{}", self.stdout, self.stderr));
        all.replace(&user(), "USER")
            .replace("one-at-a-time", "SERVE")
            .replace("  self  ", "  SERVE  ")
    }
}

/// True for a line of progress: a step that is done, with its time.
pub(crate) fn is_step(line: &str) -> bool {
    static STEP: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"^GPU \d+: .* \([0-9.]+ m?s\)\r?\n?$").unwrap());
    STEP.is_match(line)
}

/// Replaces UUIDs and directories alone: for text in which every column counts.
pub(crate) fn plain(text: &str) -> String {
    static RULES: LazyLock<[(Regex, &str); 3]> = LazyLock::new(|| {
        [
            (r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", "$1-…"),
            (r"[^ \n]*/profile\.toml", "profile.toml"),
            (r"(?m) in [0-9.]+ m?s$", " in N s"),
        ]
        .map(|(from, to)| (Regex::new(from).unwrap(), to))
    });
    RULES.iter().fold(text.to_owned(), |text, (from, to)| {
        from.replace_all(&text, *to).into_owned()
    })
}

/// True if a test can run that needs root.
pub(crate) fn is_root(test: &str) -> bool {
    simnode::harness::is_root(test)
}

/// Returns a command for root as who runs the tests has to type it: root needs no sudo.
pub(crate) fn as_typed(command: &str) -> String {
    let bare = command.strip_prefix("sudo ").unwrap();
    let is_root = rustix::process::geteuid().is_root();
    if is_root { bare } else { command }.to_owned()
}

/// Who runs the tests.
pub(crate) fn user() -> String {
    shell("id -un").ended(0).stdout.trim().to_owned()
}

/// Replaces UUIDs, process ids, ages and directories, and the widths that depend on them.
pub(crate) fn tidy(text: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        let of_nodes = simnode::harness::parent_of_nodes().to_string_lossy();
        let node = format!(r"({}|/tmp)/[^/ \n]+", regex::escape(&of_nodes));
        [
            (r"(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}", "$1-…"),
            (r"[^ \n]*/profile\.toml", "profile.toml"),
            (r"(?m) in [0-9.]+ m?s$", " in N s"),
            (node.as_str(), "/tmp/…"),
            (r"\bpid \d+", "pid N"),
            (r"\bprocess \d+", "process N"),
            (
                r"\b\d{3,7}  (?P<rest>\d+  )?(?P<age>\d+s)\b",
                "N  ${rest}Ns",
            ),
            (
                r"(?m)(?P<before>  )\d{2,7}(?P<after>  )",
                "${before}N${after}",
            ),
            (r"(?m)\b\d+s  ", "Ns  "),
            (r" {2,}", "  "),
        ]
        .map(|(from, to)| (Regex::new(from).unwrap(), to))
        .into()
    });
    let collapsed = Regex::new(" {3,}")
        .unwrap()
        .replace_all(text, "  ")
        .into_owned();
    RULES.iter().fold(collapsed, |text, (from, to)| {
        from.replace_all(&text, *to).into_owned()
    })
}

/// The names of the devices in `status --json` that are in a state.
pub(crate) fn in_state(status: &Value, state: &str) -> Vec<String> {
    let devices = status["devices"].as_array().unwrap().iter();
    devices
        .filter(|device| device["state"] == state)
        .map(|device| device["name"].as_str().unwrap().to_owned())
        .collect()
}

/// Copies a program. By another process: a file that this one has open for writing cannot be executed (`ETXTBSY`), and a
/// test beside may start a program meanwhile.
pub(crate) fn copy_program(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>) {
    Ran::of(Command::new("cp").arg(from).arg(to)).ended(0);
}

/// Stops a process, and returns when it is: the signal's sender need not wait for that.
pub(crate) fn stop(pid: &Value) {
    shell(format!("kill -STOP {pid}")).ended(0);
    let is_stopped = || {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit(')').next().unwrap().starts_with(" T")
    };
    while !is_stopped() {
        std::thread::yield_now();
    }
}

/// Whether a process is there and not a zombie.
pub(crate) fn is_alive(pid: &Value) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

/// The profile most tests use: two devices on each GPU, far from filling it.
pub(crate) const SMALL: &str = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "2g" }, { profile = "1g" } ]
"#;

/// One device on each GPU.
pub(crate) const ONE_EACH: &str = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" } ]
"#;

/// Runs `mig-mps` where there is nothing: no node, no environment; `text` is its standard input.
#[must_use]
pub(crate) fn without_gpu(args: &[&str], text: &str) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mig-mps"));
    command.args(args).env_clear();
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that does not read it may be gone already.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    Ran::from(child.wait_with_output().unwrap())
}

/// The same command, hearing the signals that whoever runs the tests may ignore: a shell's background
/// job ignores Ctrl-C, and so would every program below it.
pub(crate) fn hearing(command: &Command) -> Command {
    let mut heard = Command::new("/usr/bin/env");
    heard
        .arg("--default-signal=INT,TERM,HUP")
        .arg(command.get_program())
        .args(command.get_args())
        .env_clear();
    for (name, value) in command.get_envs() {
        heard.envs(value.map(|value| (name, value)));
    }
    heard
}

/// Runs a program other than `mig-mps`.
#[must_use]
pub(crate) fn shell(script: impl AsRef<OsStr>) -> Ran {
    Ran::of(Command::new("/bin/sh").arg("-c").arg(script))
}
