//! The recipes for the users of a device: the mail, and the files that make a device the default after login.

use std::fs;
use std::process::Command;

use mig_mps::internals::manual::TOPICS;
use testkit::{Ran, Sim, can_run, needs_root, under, write_program};

use super::lab::Lab;

/// The device of the recipes, for the group of alice and carol.
const CLASS: &str = r#"
[[gpu]]
select = { index = [1] }
mig = false
name = "class"
mps = { serve = "group:students", share = 4 }
"#;

/// A node with the device, and the lab. After login, its shells read the files of the manual.
struct Node {
    sim: Sim,
    lab: Lab,
}

/// The block of code that follows a text in the recipes.
fn block_after(text: &str) -> &'static str {
    let recipes = TOPICS.iter().find(|topic| topic.name == "recipes").unwrap();
    let (_, rest) = recipes.text.split_once(text).unwrap();
    let (_, block) = rest.split_once("\n```").unwrap();
    let (_, block) = block.split_once('\n').unwrap();
    block.split("```").next().unwrap()
}

impl Node {
    fn new() -> Self {
        let sim = Sim::with("h200", 2);
        let lab = Lab::of(&sim);
        let profile = sim.profile(CLASS);
        let up = sim.command(&["up", profile.to_str().unwrap()]);
        let _ = Ran::of(&mut lab.inside(&up)).ended(0);
        lab.replace("profile", block_after("`/etc/profile.d/mig-mps.sh`"));
        for user in ["alice", "bob"] {
            lab.prepare(user, ".zprofile", ". /etc/profile\n");
            let fish = block_after("`/etc/fish/conf.d/mig-mps.fish`");
            lab.prepare(user, ".config/fish/conf.d/mig-mps.fish", fish);
        }
        Self { sim, lab }
    }

    /// A script in a shell of a user, for which `mig-mps` is this script.
    fn shell(&self, user: &str, shell: &[&str], mig_mps: &str, script: &str) -> Ran {
        let programs = self.sim.node.dir().join("programs");
        fs::create_dir_all(&programs).unwrap();
        write_program(programs.join("mig-mps"), format!("#!/bin/sh\n{mig_mps}\n"));
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).args(["-c", script]).env_clear();
        command.envs(self.sim.node.env());
        let path = self
            .sim
            .node
            .env()
            .into_iter()
            .find(|(name, _)| name == "PATH");
        let path = format!("{}:{}", programs.display(), path.unwrap().1.display());
        let home = self.lab.home(if user == "root" { "alice" } else { user });
        command.env("PATH", path).env("HOME", home);
        Ran::of(&mut self.lab.by(user, &under(&["timeout", "60"], &command)))
    }

    /// The same with the program.
    fn with_program(&self, user: &str, shell: &[&str], script: &str) -> Ran {
        let mig_mps = format!("exec {} \"$@\"", self.sim.program());
        self.shell(user, shell, &mig_mps, script)
    }

    /// Asserts that a shell sets no variable of CUDA and prints nothing.
    #[track_caller]
    fn sets_nothing(&self, user: &str, shell: &[&str], mig_mps: &str) {
        let ran = self.shell(user, shell, mig_mps, "env | grep ^CUDA_ || echo begun");
        let printed = (ran.status, ran.stdout.as_str(), ran.stderr.as_str());
        assert_eq!(printed, (0, "begun\n", ""), "{user} {shell:?} {mig_mps}");
    }
}

/// The shells that read the files after login, as far as they are installed.
fn shells(test: &str) -> impl Iterator<Item = &'static str> {
    ["bash", "dash", "zsh", "fish"]
        .into_iter()
        .filter(move |shell| {
            let is_here = Command::new(shell).args(["-c", "true"]).status().is_ok();
            can_run(
                &format!("{test} with {shell}"),
                is_here,
                &format!("install {shell}"),
            )
        })
}

#[test]
fn the_device_of_a_group_is_the_default_of_its_members_after_login() {
    needs_root!();
    let node = Node::new();
    let program = format!("exec {} \"$@\"", node.sim.program());
    for shell in shells("the_device_of_a_group_is_the_default") {
        let client = node
            .with_program("alice", &[shell, "-l"], "cuda-app run 0")
            .ended(0);
        assert!(client.stdout.contains("mps yes"), "{shell}: {client:?}");
        assert_eq!(client.stderr, "", "{shell}");
        // Not for others, for root, without login, in a job, and where a device was chosen.
        node.sets_nothing("bob", &[shell, "-l"], &program);
        node.sets_nothing("root", &[shell, "-l"], &program);
        node.sets_nothing("alice", &[shell], &program);
        node.sets_nothing("alice", &["env", "SLURM_JOB_ID=7", shell, "-l"], &program);
        let chosen = ["env", "CUDA_VISIBLE_DEVICES=", shell, "-l"];
        let ran = node
            .with_program("alice", &chosen, "env | grep ^CUDA_")
            .ended(0);
        assert_eq!(
            (ran.stdout, ran.stderr),
            ("CUDA_VISIBLE_DEVICES=\n".into(), String::new())
        );
    }
    // Scripts that end at the first failure, or at a variable that is not set.
    for shell in ["bash", "dash"] {
        if Command::new(shell).args(["-c", "true"]).status().is_ok() {
            node.sets_nothing("bob", &[shell, "-leu"], &program);
            node.sets_nothing("alice", &[shell, "-leu"], "exit 1");
        }
    }
}

#[test]
fn a_login_succeeds_whatever_mig_mps_does() {
    needs_root!();
    let node = Node::new();
    let program = format!("exec {} \"$@\"", node.sim.program());
    let stopped = node.sim.command(&["down", "class"]);
    let _ = Ran::of(&mut node.lab.inside(&stopped)).ended(0);
    for shell in shells("a_login_succeeds_whatever_mig_mps_does") {
        for mig_mps in [&program, "echo broken >&2; exit 127", "exec sleep 600"] {
            node.sets_nothing("alice", &[shell, "-l"], mig_mps);
        }
    }
}

/// The users of the device can do what the mail tells them.
#[test]
fn the_commands_of_the_mail_are_for_its_readers() {
    needs_root!();
    let node = Node::new();
    write_program(
        node.lab.home("alice").join("python"),
        "#!/bin/sh\nexec cuda-app run 0\n",
    );
    let mail = block_after("Send a mail such as the following to the users of a device.");
    let commands = mail
        .lines()
        .filter_map(|line| line.find("mig-mps ").map(|at| &line[at..]));
    let commands: Vec<&str> = commands.collect();
    assert_eq!(commands.len(), 3, "{mail}");
    for command in commands {
        let script = format!("PATH=$HOME:$PATH; {command}");
        let ran = node.with_program("alice", &["bash"], &script).ended(0);
        let shown = if command.contains("python") {
            "mps yes"
        } else {
            "LIMIT"
        };
        assert!(ran.stdout.contains(shown), "{command}: {ran:?}");
        assert_eq!(ran.stderr, "", "{command}");
    }
}
