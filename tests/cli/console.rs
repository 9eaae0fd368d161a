//! The console blocks of the README and the manual show what really happens.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::cli::readme::{documents, root};
use testkit::{Ran, SMALL, Sim, is_root, is_step, shell, tidy, whole};

/// What a block needs on the simulated node before its first command.
#[derive(Clone, Copy)]
enum Setup {
    /// A node with so many GPUs of a model.
    Node(&'static str, usize),
    /// The same with a profile applied.
    With(&'static str, usize, &'static str),
    /// A whole GPU whose device hangs.
    Hung,
    /// A whole GPU with a plain user's daemon.
    Nobodys,
    /// The block is not run, and why.
    NotRun(&'static str),
}

use Setup::{Hung, Nobodys, Node, NotRun, With};

const BALANCED: &str = include_str!("../../profiles/balanced.toml");
const HALVES: &str =
    "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n";

/// Each block by the first command in it.
const BLOCKS: &[(&str, &str, Setup)] = &[
    (
        "README.md",
        "cargo sim up profiles/balanced.toml",
        Node("a100-80gb", 8),
    ),
    ("README.md", "cargo test --workspace", NotRun("this is it")),
    (
        "README.md",
        "cargo install --locked --path . --root target/installed",
        NotRun("it would build everything again"),
    ),
    (
        "README.md",
        "sudo mig-mps list --profiles",
        Node("a100-80gb", 2),
    ),
    (
        "README.md",
        "mig-mps run 0.4 -- ./train",
        With("a100-80gb", 1, BALANCED),
    ),
    (
        "slurm.md",
        "mig-mps slurm gres --node n1",
        With("a100-80gb", 1, BALANCED),
    ),
    (
        "boot.md",
        "sudo mig-mps systemd profile.toml --install --enable",
        NotRun("tests/cli/systemd.rs"),
    ),
    (
        "boot.md",
        "mig-mps check balanced --gpu h100-80gb-sxm:8",
        Node("h200", 1),
    ),
    (
        "changing.md",
        "cargo sim plan quarters.toml",
        With("a100-80gb", 2, HALVES),
    ),
    (
        "checking.md",
        "mig-mps check balanced --gpu a100-80gb:7 --gpu h200",
        Node("h200", 1),
    ),
    (
        "clients.md",
        "mig-mps kill 0.2 16410 --signal",
        NotRun("a conversation about another user's program: tests/cli/kill.rs"),
    ),
    (
        "daemon-logs.md",
        "mig-mps logs 0.0 -n 8",
        NotRun("the times of one fault: tests/cli/logs.rs"),
    ),
    (
        "diagnosis.md",
        "mig-mps doctor 0",
        NotRun("it exits with 3: tests/cli/doctor"),
    ),
    (
        "diagnosis.md",
        "mig-mps doctor --explain 805",
        Node("h200", 1),
    ),
    (
        "hardware.md",
        "cargo test --test on_mig --no-run",
        NotRun("it needs a real GPU"),
    ),
    (
        "json.md",
        "mig-mps status nosuch --json",
        With("a100-80gb", 1, SMALL),
    ),
    (
        "monitoring.md",
        "sudo mig-mps metrics --output /var/lib/node_exporter/mig-mps.prom",
        NotRun("tests/cli/metrics.rs"),
    ),
    (
        "monitoring.md",
        "mig-mps metrics --rules > /etc/prometheus/rules.d/mig-mps.yml",
        NotRun("tests/cli/metrics.rs"),
    ),
    (
        "mig-parted.md",
        "mig-mps import config.yaml -c custom -o custom.toml",
        Node("a100-80gb", 1),
    ),
    (
        "mig-parted.md",
        "cargo sim export",
        With("a100-80gb", 8, BALANCED),
    ),
    (
        "profile.md",
        "mig-mps init first.toml --gpu a100-80gb:2 --whole 0 --jobs 3 --memory 15G --serve no --layout 1",
        Node("a100-80gb", 1),
    ),
    (
        "profile.md",
        "mig-mps up profile.toml",
        Node("a100-80gb", 1),
    ),
    (
        "running.md",
        "mig-mps run 0.4 -- ./train --epochs 3",
        With("a100-80gb", 1, BALANCED),
    ),
    (
        "running.md",
        "mig-mps run 0.4 --wait 5m -- ./train",
        NotRun("another user's program: tests/cli/run.rs"),
    ),
    (
        "running.md",
        "mig-mps run 0.4 --threads 25 --memory 4G --priority below-normal -- ./train",
        With("a100-80gb", 1, BALANCED),
    ),
    (
        "running.md",
        "mpirun -n 8 mig-mps run --by-rank -- ./train",
        NotRun("tests/cli/ranks.rs"),
    ),
    (
        "running.md",
        "mig-mps run --any --profile 1g --min-memory 8G -- ./train",
        With("a100-80gb", 1, BALANCED),
    ),
    (
        "running.md",
        "mig-mps run -n 4 --share even '0.*' -- ./train",
        NotRun("copies print at the same time: tests/cli/copies.rs"),
    ),
    (
        "running.md",
        "eval \"$(mig-mps env 0.4)\"",
        With("a100-80gb", 1, BALANCED),
    ),
    (
        "running.md",
        "sudo mig-mps cdi --output /etc/cdi/mig-mps.json",
        NotRun("tests/cli/containers.rs"),
    ),
    (
        "running.md",
        "docker run $(mig-mps env 0.4 --format docker) IMAGE ./train",
        NotRun("tests/cli/containers.rs"),
    ),
    (
        "running.md",
        "mig-mps compare -n 1,2,4,8 -- ./compare tiny 2",
        NotRun("figures of a real GPU: fixtures/gpu/compare.sh"),
    ),
    (
        "running.md",
        "sudo mig-mps verify",
        NotRun("times and pids: tests/cli/verify.rs"),
    ),
    ("security.md", "sudo mig-mps restart 0", Nobodys),
    (
        "states.md",
        "mig-mps status --map",
        With("a100-80gb", 1, BALANCED),
    ),
    (
        "states.md",
        "mig-mps status 0.0 0.1",
        NotRun("programs and daemons of one moment: tests/cli/status.rs"),
    ),
    ("troubleshooting.md", "mig-mps status 0", Hung),
];

/// The files that commands name.
const FILES: &[(&str, &str)] = &[
    (
        "quarters.toml",
        "[[gpu]]\nselect = { all = true }\n\
         devices = [ { profile = \"3g\" }, { profile = \"2g\" }, { profile = \"1g\", count = 2 } ]\n",
    ),
    (
        "profile.toml",
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profil = \"3g\" } ]\n",
    ),
    (
        "config.yaml",
        "version: v1\nmig-configs:\n  custom:\n    - devices: all\n      mig-enabled: true\n      \
         mig-devices: {\"1g.10gb\": 7}\n",
    ),
    ("train", "#!/bin/sh\nexec cuda-app run 0\n"),
];

/// A command of a block, and the lines below it.
struct Shown<'a> {
    command: &'a str,
    output: Vec<&'a str>,
}

fn blocks(text: &str) -> Vec<Vec<Shown<'_>>> {
    let blocks = text.split("```console\n").skip(1);
    let blocks = blocks.map(|block| block.split("```").next().unwrap());
    let shown = blocks.map(|block| {
        let mut all: Vec<Shown> = Vec::new();
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => all.push(Shown {
                    command: command.split("  #").next().unwrap().trim_end(),
                    output: Vec::new(),
                }),
                None => all.last_mut().unwrap().output.push(line),
            }
        }
        all
    });
    shown.collect()
}

#[test]
fn every_console_block_is_run_or_says_why_not() {
    if !is_root("every_console_block_is_run_or_says_why_not") {
        return;
    }
    let mut met = BTreeSet::new();
    for (path, text) in documents() {
        let file = path.file_name().unwrap().to_str().unwrap();
        for block in blocks(&text) {
            let first = block[0].command;
            let entry = BLOCKS
                .iter()
                .find(|entry| (entry.0, entry.1) == (file, first));
            let (.., setup) = entry.unwrap_or_else(|| panic!("{file}: {first} is not listed"));
            assert!(met.insert((file.to_owned(), first.to_owned())), "{first}");
            match setup {
                NotRun(why) => assert!(!why.is_empty()),
                Nobodys if !is_root(first) => {}
                setup => run(&setup.node(), file, &block),
            }
        }
    }
    assert_eq!(met.len(), BLOCKS.len(), "listed and not there: {met:#?}");
}

impl Setup {
    fn node(self) -> Sim {
        let (model, count) = match self {
            Node(model, count) | With(model, count, _) => (model, count),
            Hung | Nobodys | NotRun(_) => ("h200", 1),
        };
        let sim = Sim::with(model, count);
        match self {
            With(.., profile) => {
                sim.up(profile, &[]).ended(0);
            }
            Hung => {
                sim.up(&whole(""), &[]).ended(0);
                sim.hang("0");
            }
            Nobodys => {
                let profile = sim.profile(&whole(""));
                let up = ["up", profile.to_str().unwrap()];
                Ran::of(&mut sim.by_nobody(&up)).ended(0);
            }
            Node(..) | NotRun(_) => {}
        }
        sim
    }
}

/// Runs the commands of a block, one after the other, and compares what they say.
fn run(sim: &Sim, file: &str, block: &[Shown]) {
    let dir = sim.node.dir().join("console");
    fs::create_dir(&dir).unwrap();
    symlink(root().join("profiles"), dir.join("profiles")).unwrap();
    for (name, text) in FILES {
        fs::write(dir.join(name), text).unwrap();
    }
    shell(format!("chmod +x {}/train", dir.display())).ended(0);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    for Shown { command, output } in block {
        let is_ours = command.contains("mig-mps") || command.starts_with("cargo sim ");
        if !is_ours {
            continue;
        }
        let words = command.trim_start_matches("sudo ");
        let words = words.replacen("cargo sim ", "mig-mps ", 1);
        let words = match words.strip_prefix("mig-mps ") {
            Some(arguments) => format!("{program} {arguments}"),
            None => words.replace("/run/mig-mps", sim.node.run_dir().to_str().unwrap()),
        };
        let script = if file == "README.md" && !output.is_empty() {
            on_a_terminal(&words)
        } else {
            format!("{words} 2>&1")
        };
        let mut sh = Command::new("/bin/sh");
        sh.args(["-c", &script]).current_dir(&dir);
        let ran = Ran::of(sh.env_clear().envs(sim.node.env()));
        let fails = output.iter().any(|line| line.starts_with("error: "));
        assert_eq!(ran.status != 0, fails, "{file}: {command}\n{}", ran.stdout);
        if !output.is_empty() {
            let wanted = output.join("\n").replace("alice", "nobody");
            let found = compared(&ran.stdout);
            is_shown(&found, &compared(&wanted), &format!("{file}: {command}"));
        }
        if command.ends_with("./train") {
            assert!(ran.stdout.contains("mps yes"), "{file}: {}", ran.stdout);
        }
    }
}

/// The command on a terminal of 80 columns, without colours and progress.
fn on_a_terminal(command: &str) -> String {
    format!(
        "simnode terminal -- 'stty rows 24 cols 80; NO_COLOR=1 {command} 2>said'; \
         status=$?; cat said; exit $status"
    )
}

/// The lines without process ids, ages, UUIDs and directories, which differ from run to run.
fn compared(text: &str) -> Vec<String> {
    let runtime = regex::Regex::new(r"XDG_RUNTIME_DIR=\S+").unwrap();
    let text = runtime.replace(text, "XDG_RUNTIME_DIR=…").into_owned();
    let last_pid = regex::Regex::new(r"  \d{2,7}$").unwrap();
    let lines = text.lines();
    let lines = lines.filter(|line| !line.starts_with("cargo sim: ") && !is_step(line));
    lines
        .map(|line| last_pid.replace(tidy(line).trim_end(), "  N").into_owned())
        .collect()
}

/// Compares line by line. `…` stands for any number of lines, and `[5 more lines]` for as many.
fn is_shown(found: &[String], wanted: &[String], what: &str) {
    let all = found.join("\n");
    let mut found = found.iter();
    let mut wanted = wanted.iter().peekable();
    while let Some(line) = wanted.next() {
        if line == "…" {
            let next = wanted.peek().unwrap();
            let skipped = found.clone().take_while(|found| found != next).count();
            found.by_ref().take(skipped).for_each(drop);
        } else if let Some(more) = line.strip_suffix(" more lines]") {
            let more: usize = more.trim_start_matches('[').parse().unwrap();
            assert_eq!(found.by_ref().count(), more, "{what}\n{all}");
        } else {
            assert_eq!(found.next(), Some(line), "{what}\n{all}");
        }
    }
    assert_eq!(found.next(), None, "{what}\n{all}");
}
