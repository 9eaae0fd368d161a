//! A simulated node on which lines are typed into a shell.

use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::errors::book::Topic;
use testkit::{NOBODY, Ran, Sim};

/// Every GPU is one device.
pub(crate) const WHOLE: &str = "[[gpu]]\nselect = { all = true }\nmig = false\n";

/// Has the line typed by a plain user.
pub(crate) fn as_nobody(command: &mut Command) {
    command.uid(NOBODY).gid(NOBODY);
}

/// A simulated node, and a directory of the user's in which the profile is.
pub(crate) struct Stage {
    pub(crate) sim: Sim,
}

impl Stage {
    pub(crate) fn with(model: &str, gpus: usize) -> Self {
        let sim = Sim::with(model, gpus);
        let mig_mps = sim.node.mig_mps().get_program().to_owned();
        let own = sim.node.dir().join("typed");
        fs::create_dir(&own).unwrap();
        std::os::unix::fs::symlink(mig_mps, own.join("mig-mps")).unwrap();
        Self { sim }
    }

    /// A node of one A100.
    pub(crate) fn a100() -> Self {
        Self::with("a100-80gb", 1)
    }

    /// A node with a profile applied.
    pub(crate) fn with_profile(model: &str, gpus: usize, profile: &str) -> Self {
        let stage = Self::with(model, gpus);
        stage.profile(profile);
        let _ = stage.run("mig-mps up profile.toml --yes").ended(0);
        stage
    }

    /// A file beside the profile.
    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.sim.node.dir().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// Writes `profile.toml`.
    pub(crate) fn profile(&self, text: &str) {
        self.file("profile.toml", text);
    }

    /// A shell with a line, on the node.
    pub(crate) fn shell(&self, line: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command
            .arg("-c")
            .arg(line)
            .env_clear()
            .envs(self.sim.node.env());
        command
            .env("PATH", self.path())
            .current_dir(self.sim.node.dir());
        command
    }

    /// Runs a line that `prepare` prepares, and adds what it says.
    #[track_caller]
    pub(crate) fn show_raw(
        &self,
        topic: &mut Topic,
        title: &str,
        line: &str,
        prepare: impl FnOnce(&mut Command),
    ) {
        let mut command = self.shell(line);
        prepare(&mut command);
        topic.add(title, line, &Ran::of(&mut command));
    }

    /// Runs a line with variables, and adds what it says.
    #[track_caller]
    pub(crate) fn show_with(
        &self,
        topic: &mut Topic,
        title: &str,
        line: &str,
        variables: &[(&str, &PathBuf)],
    ) {
        self.show_raw(topic, title, line, |command| {
            command.envs(variables.iter().map(|(name, value)| (name, value)));
        });
    }

    /// `PATH` with the programs of the node but for some.
    pub(crate) fn path_without(&self, missing: &[&str]) -> OsString {
        let some = self
            .sim
            .node
            .dir()
            .join(format!("without-{}", missing.concat()));
        fs::create_dir(&some).unwrap();
        for folder in ["bin", "typed"] {
            for entry in fs::read_dir(self.sim.node.dir().join(folder)).unwrap() {
                let entry = entry.unwrap();
                if !missing.iter().any(|name| entry.file_name() == **name) {
                    let target = fs::canonicalize(entry.path()).unwrap();
                    std::os::unix::fs::symlink(target, some.join(entry.file_name())).unwrap();
                }
            }
        }
        let mut path = some.into_os_string();
        path.push(":/usr/bin:/bin");
        path
    }

    pub(crate) fn path(&self) -> OsString {
        let mut path = self.sim.node.dir().join("typed").into_os_string();
        let env = self.sim.node.env();
        let (_, rest) = env.iter().find(|(name, _)| name == "PATH").unwrap();
        path.push(":");
        path.push(rest);
        path
    }

    /// Runs a line, and shows nothing.
    #[must_use]
    pub(crate) fn run(&self, line: &str) -> Ran {
        Ran::of(&mut self.shell(line))
    }

    /// Runs a line, and adds what it says.
    #[track_caller]
    pub(crate) fn show(&self, topic: &mut Topic, title: &str, line: &str) {
        topic.add(title, line, &self.run(line));
    }

    /// The same with a profile.
    #[track_caller]
    pub(crate) fn up(&self, topic: &mut Topic, title: &str, profile: &str) {
        self.profile(profile);
        self.show(topic, title, "mig-mps up profile.toml");
    }
}
