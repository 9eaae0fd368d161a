//! The progress of a change: lines that change on a terminal, a line or an object for each event elsewhere.

use insta::assert_snapshot;
use regex::Regex;

use testkit::{Dialogue, SMALL, Sim, assert_contains, by_anybody, terminal, tidy};

/// The lines without times, in the order of the alphabet: steps run side by side.
fn sorted(progress: &str) -> String {
    let time = Regex::new(r"\([0-9.]+ m?s\)").unwrap();
    let mut lines: Vec<String> = progress
        .lines()
        .map(|line| time.replace(line, "(N ms)").into_owned())
        .collect();
    lines.sort();
    lines.join("\n")
}

#[test]
fn without_a_terminal_each_step_is_a_line() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.up(SMALL, &[]).ended(0);
    assert_snapshot!(sorted(&ran.progress), @"
    GPU 0: create 1g.10gb at slice 2 (N ms)
    GPU 0: create 2g.20gb at slices 0-1 (N ms)
    GPU 0: create the full compute instance in slice 2 (N ms)
    GPU 0: create the full compute instance in slices 0-1 (N ms)
    GPU 0: enable MIG mode (N ms)
    GPU 0: start the daemon of 0.0 (N ms)
    GPU 0: start the daemon of 0.2 (N ms)
    ");
    assert_eq!(
        sim.run(&["down", "0.2"]).ended(0).progress.lines().count(),
        1
    );
    let silent = sim.up(SMALL, &["--progress", "none"]).ended(0);
    assert_eq!(silent.progress, "");
    // Programs read one document.
    let json = sim.run(&["down", "--json"]).ended(0);
    assert_eq!((json.progress.as_str(), json.stderr.as_str()), ("", ""));
    // The error says what failed; the steps before it are lines all the same.
    sim.node.fault("daemon start").nth(2).fails(1).unwrap();
    let failed = sim.up(SMALL, &[]).ended(1);
    assert!(
        !failed.progress.contains("start the daemon of 0.0 and"),
        "{}",
        failed.progress
    );
    assert_contains(&failed.stderr, "GPU 0: undoing the changes\n");
}

#[test]
fn what_a_step_waits_for_is_named_once() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let ran = sim
        .run(&["down", "0.2", "--force", "--drain", "2", "--yes"])
        .ended(0);
    let waits: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.contains("waiting for"))
        .collect();
    assert_eq!(waits.len(), 1, "{}", ran.stderr);
    assert_snapshot!(by_anybody(&tidy(waits[0])), @"GPU 0: stop the daemon of 0.2: waiting for 0.2: pid N (USER, /tmp/…/node/bin/cuda-app hold), for at most 2 s");
    drop(client);
    let sim = Sim::with("h100-80gb-sxm", 1);
    let holder = sim.node.holder(&[0]);
    let ran = sim.up(SMALL, &[]).ended(4);
    let waits: Vec<&str> = ran
        .stderr
        .lines()
        .filter(|line| line.contains("waiting for"))
        .collect();
    assert_eq!(waits.len(), 1, "{}", ran.stderr);
    assert_snapshot!(by_anybody(&tidy(waits[0])), @"GPU 0: enable MIG mode: waiting for pid N (USER, /tmp/…/node/bin/simnode hold /tmp/…/node --gpu 0, session-1.scope)");
    drop(holder);
}

#[test]
fn on_a_terminal_each_gpu_has_a_line_that_goes_away() {
    let sim = Sim::with("a100-80gb", 2);
    let starts = sim.node.fault("daemon start").every().waits().unwrap();
    let path = sim.profile(SMALL);
    let up = format!("up {} --yes", path.display());
    let size = "stty rows 24 cols 80; exec env TERM=xterm";
    let mut terminal = terminal(format!("{size} {} {up}", sim.program()));
    terminal.env_clear().envs(sim.node.env());
    let mut terminal = Dialogue::start(terminal);
    terminal.await_texts(&["start the daemon of 0.", "start the daemon of 1."]);
    drop(starts);
    let shown = terminal.end().ended(0).stdout;
    for line in ["GPU 0  ", "GPU 1  "] {
        let line = Regex::new(&format!(
            r"{line} *\d/\d  start the daemon of \d\.\d( and \d more)?  \d\.\d s"
        ))
        .unwrap();
        assert!(line.is_match(&shown), "{shown:?}");
    }
    let (_, last) = shown.rsplit_once("\u{1b}[2K").unwrap();
    assert!(!last.contains("/5"), "{last:?}");
    assert_contains(last, "4 devices on 2 GPUs ready in ");
    // One that can only add lines gets the plain form.
    sim.run(&["down", "0.0"]).ended(0);
    let shown = sim.in_terminal("TERM=dumb", &up, 80).stdout;
    assert!(
        shown.contains("GPU 0: start the daemon of 0.0 ("),
        "{shown:?}"
    );
    assert!(!shown.contains('\u{1b}'), "{shown:?}");
}
