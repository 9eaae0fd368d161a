//! The pictures of README and manual: what the program prints on a terminal, as SVG.

use std::fs;
use std::path::Path;

use anstyle_svg::{Term, WIN10_CONSOLE};
use regex::{Captures, Regex};

use testkit::{App, Ran, Sim, is_shipped, needs_root, plain, repository, stop, terminal};

use super::lab::Lab;

/// The pids of a picture, in the order in which it shows them, and the times since these processes have started.
const PROCESSES: [(&str, &str); 4] = [
    ("18211", "1h48m"),
    ("20741", "1h3m"),
    ("20758", "52m9s"),
    ("21093", "6m31s"),
];

/// Half a node of H100s, with the profile at the top of the README as `lab.toml`.
fn node() -> Sim {
    let sim = Sim::with("h100-80gb-sxm", 4);
    let readme = fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```toml\n").unwrap();
    let (profile, _) = rest.split_once("```").unwrap();
    fs::write(sim.node.dir().join("lab.toml"), profile).unwrap();
    sim
}

/// The output of a command on a terminal of 100 columns in color, behind a prompt.
fn shown(sim: &Sim, lab: Option<&Lab>, command: &str) -> String {
    let program = sim.program();
    let mut terminal = terminal(format!(
        "cd {}; stty rows 60 cols 100; TERM=xterm-256color LANG=C.UTF-8 exec {program} {command}",
        sim.node.dir().display()
    ));
    terminal.env_clear().envs(sim.node.env());
    if let Some(lab) = lab {
        terminal = lab.inside(&terminal);
    }
    let text = plain(&Ran::of(&mut terminal).stdout.replace('\r', ""));
    pictured(command, &with_fixed_values(&text))
}

/// A text behind a prompt with the command that prints it.
fn pictured(command: &str, text: &str) -> String {
    format!("\u{1b}[1m$ mig-mps {command}\u{1b}[0m\n{}", text.trim_end())
}

/// The text with the same pids, UUIDs and times in each run. Different pids stay different.
fn with_fixed_values(text: &str) -> String {
    let changes = [
        (r"(GPU|MIG)-…", "$1-5f1c…"),
        (r"applied N ago by USER", "applied 2h5m ago by root"),
        // As wide as the pids of the picture.
        (r"CLIENT OF +PID", "CLIENT OF    PID"),
        (r"(?m)^(\d\.\d) +(\d+  )", "$1        $2"),
    ];
    let text = changes.iter().fold(text.to_owned(), |text, (from, to)| {
        Regex::new(from)
            .unwrap()
            .replace_all(&text, *to)
            .into_owned()
    });
    let mut seen: Vec<String> = Vec::new();
    let mut process = |pid: &str| {
        let place = seen.iter().position(|known| known == pid);
        PROCESSES[place.unwrap_or_else(|| {
            seen.push(pid.to_owned());
            seen.len() - 1
        })]
    };
    // The columns PID and RUNNING, which is seven characters wide, of a row; or a pid in a sentence.
    let pids = r"(?m)^(\d\.\d {8})(\d+)(  .*?  )[ \dhm]{6}s  |(\bpid|-CONT) (\d+)";
    let fixed = Regex::new(pids).unwrap();
    let fixed = fixed.replace_all(&text, |found: &Captures<'_>| {
        if let Some(before) = found.get(4) {
            return format!("{} {}", before.as_str(), process(&found[5]).0);
        }
        let (pid, running) = process(&found[2]);
        format!("{}{pid}{}{running:>7}  ", &found[1], &found[3])
    });
    fixed.into_owned()
}

/// Asserts that a picture of the repository is this text. `cargo renew` draws it again.
#[track_caller]
fn is_picture(name: &str, text: &str) {
    let path = format!("src/manual/pictures/{name}.svg");
    is_shipped(&path, &Term::new().palette(WIN10_CONSOLE).render_svg(text));
}

#[test]
fn the_shipped_picture_of_a_plan() {
    is_picture("plan", &shown(&node(), None, "plan lab.toml"));
}

#[test]
fn the_shipped_picture_of_devices() {
    needs_root!();
    let sim = node();
    let lab = Lab::of(&sim);
    let profile = sim.node.dir().join("lab.toml");
    sim.run(&["up", profile.to_str().unwrap()]).ended(0);
    let clients = [
        ("carol", "0.2", "python finetune.py", "13000"),
        ("alice", "0.4", "python train.py", "11000"),
        ("bob", "0.4", "python evaluate.py", "6000"),
        ("bob", "1.4", "python serve.py", "31000"),
    ];
    let clients = clients.map(|(user, device, command, mebibytes)| {
        let words = [
            "run", device, "--", "cuda-app", "hold", "--alloc", mebibytes,
        ];
        let mut client = App::start(lab.by(user, &sim.command(&words)));
        assert!(client.wait_up().ends_with("mps yes"));
        assert!(client.wait_up().contains("-> 0 "));
        sim.fake_proc(client.pid(), "cmdline", &command.replace(' ', "\0"));
        client
    });
    is_picture("status-map", &shown(&sim, Some(&lab), "status --map"));
    drop(clients);
}

#[test]
fn the_shipped_picture_of_a_diagnosis() {
    let sim = crate::cli::doctor::healthy();
    stop(&sim.device("0.0")["daemon_pid"]);
    is_picture("doctor", &shown(&sim, None, "doctor"));
}

/// A comparison takes a GPU: this one was recorded on an H200.
#[test]
fn the_shipped_picture_of_a_comparison() {
    let path = repository().join("fixtures/transcripts/h200-580-compare.txt");
    let transcript = fs::read_to_string(path).unwrap();
    let command = "compare -n 1,4,8 --rounds 2 -- python3 model.py";
    let (_, rest) = transcript
        .split_once(&format!("$ mig-mps {command}\n"))
        .unwrap();
    let (text, _) = rest.split_once("\nok ").unwrap();
    is_picture("compare", &pictured(command, text));
}

#[test]
fn processes_of_a_picture_are_as_distinct_as_those_of_the_program() {
    let printed =
        "0.2     52  bob       1s  a\n0.4  71950  amy     1m2s  b\npid 71950, kill -CONT 7";
    let shown = "0.2        18211  bob    1h48m  a\n0.4        20741  amy     1h3m  b\npid 20741, kill -CONT 20758";
    assert_eq!(with_fixed_values(printed), shown);
}

/// A picture that no page shows is not kept.
#[test]
fn every_picture_is_shown() {
    let root = repository();
    let read = |path: &Path| fs::read_to_string(path).unwrap();
    let manual = fs::read_dir(root.join("src/manual")).unwrap();
    let pages = manual
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file());
    let pages: String =
        pages.map(|path| read(&path)).collect::<String>() + &read(&root.join("README.md"));
    for picture in fs::read_dir(root.join("src/manual/pictures")).unwrap() {
        let name = picture.unwrap().file_name().into_string().unwrap();
        assert!(pages.contains(&format!("pictures/{name})")), "{name}");
    }
}
