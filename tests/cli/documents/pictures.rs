//! The pictures of README and manual: what the program prints on a terminal, as SVG.

use std::fs;
use std::path::Path;

use anstyle_svg::{Term, WIN10_CONSOLE};
use regex::Regex;

use testkit::{Sim, is_shipped, needs_root, plain, repository, stop};

/// Half a node of H100s.
fn node() -> Sim {
    Sim::with("h100-80gb-sxm", 4)
}

/// The output of a command on a terminal of 100 columns in colour, behind a prompt. Process ids, UUIDs and times differ
/// from run to run, and are the same in each picture.
fn shown(sim: &Sim, command: &str) -> String {
    let shown = sim
        .shown("TERM=xterm-256color LANG=C.UTF-8", command, 100)
        .stdout;
    let text = plain(&shown.replace('\r', ""));
    let changes = [
        (r"(GPU|MIG)-…", "$1-5f1c…"),
        (r"\bpid \d+", "pid 4711"),
        (r"applied \w+ ago", "applied 2h5m ago"),
        (r"-CONT \d+", "-CONT 4711"),
        (r"CLIENT OF +PID", "CLIENT OF   PID"),
        (r"(?m)^(\d\.\d) +\d{3,7}  ", "$1        4711  "),
        (r" +\d+s  \S*/cuda-app", "       5s  cuda-app"),
    ];
    let text = changes.iter().fold(text, |text, (from, to)| {
        Regex::new(from)
            .unwrap()
            .replace_all(&text, *to)
            .into_owned()
    });
    format!("\u{1b}[1m$ mig-mps {command}\u{1b}[0m\n{}", text.trim_end())
}

/// Asserts that a picture of the repository is this text. `cargo renew` draws it again.
#[track_caller]
fn is_picture(name: &str, text: &str) {
    let path = format!("src/manual/pictures/{name}.svg");
    is_shipped(&path, &Term::new().palette(WIN10_CONSOLE).render_svg(text));
}

#[test]
fn the_shipped_picture_of_a_plan() {
    let sim = node();
    is_picture("plan", &shown(&sim, "plan balanced"));
}

#[test]
fn the_shipped_picture_of_devices() {
    needs_root!();
    let sim = node();
    sim.run(&["up", "balanced"]).ended(0);
    let clients = ["0.2", "0.4", "0.4", "1.4"].map(|name| sim.client(name));
    sim.kill_daemon("1.0");
    is_picture(
        "status-map",
        &shown(&sim, "status --map 0.0 0.1 0.2 0.4 1.0 1.1 1.2 1.4"),
    );
    drop(clients);
}

#[test]
fn the_shipped_picture_of_a_diagnosis() {
    let sim = crate::cli::doctor::healthy();
    stop(&sim.device("0.0")["daemon_pid"]);
    is_picture("doctor", &shown(&sim, "doctor"));
}

/// A comparison takes a GPU: this one was recorded on an H200.
#[test]
fn the_shipped_picture_of_a_comparison() {
    let path = repository().join("fixtures/transcripts/h200-580-compare.txt");
    let transcript = fs::read_to_string(path).unwrap();
    let (_, rest) = transcript.split_once("$ mig-mps compare").unwrap();
    let (text, _) = rest.split_once("\nok ").unwrap();
    is_picture(
        "compare",
        &format!("\u{1b}[1m$ mig-mps compare\u{1b}[0m{text}"),
    );
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
