//! Signals that the caller ignores stay ignored in the programs that `run` starts or becomes.

use testkit::{Ran, Sim, under};

/// `run` with these arguments, started by somebody who ignores these signals and no others.
fn ignoring(sim: &Sim, signals: &str, args: &[&str]) -> Ran {
    let ignored = format!("--ignore-signal={signals}");
    let words = ["/usr/bin/env", "--default-signal", &ignored];
    Ran::of(&mut under(&words, &sim.command(args)))
}

/// The end of the line of `/proc/PID/status` that a program has which ignores these signals, without realtime signals.
fn mask(signals: &[u32]) -> String {
    let mask: u32 = signals.iter().map(|signal| 1 << (signal - 1)).sum();
    format!("{mask:07x}\n")
}

const HUP: u32 = 1;
const USR1: u32 = 10;
const PIPE: u32 = 13;
const CHLD: u32 = 17;

#[test]
fn what_the_caller_ignores_stays_ignored_and_nothing_else() {
    let sim = Sim::small();
    let shown = ["grep", "SigIgn", "/proc/self/status"];
    for how in [
        &["run", "0.2", "--"][..],
        &["run", "0.2", "--no-check", "--"],
        &["run", "0.2", "--require-mps", "--"],
        &["run", "-n", "1", "--"],
    ] {
        let words = [how, &shown].concat();
        for (names, numbers) in [
            ("HUP,PIPE,USR1,CHLD", &[HUP, USR1, PIPE, CHLD][..]),
            ("HUP", &[HUP]),
            ("PIPE", &[PIPE]),
            ("CHLD", &[CHLD]),
        ] {
            let ran = ignoring(&sim, names, &words).ended(0);
            let is_so = ran.stdout.ends_with(&mask(numbers));
            assert!(is_so, "{how:?} {names}: {ran:?}");
        }
    }
}

/// `nohup mig-mps run --require-mps` and `-n`: neither mig-mps nor the program dies of SIGHUP.
#[test]
fn nohup_holds_for_what_stays_beside_a_program() {
    let sim = Sim::small();
    let script = "kill -HUP $PPID; kill -HUP $$; exit 7";
    for how in [&["run", "0.2", "--require-mps"][..], &["run", "-n", "1"]] {
        let words = [how, &["--", "sh", "-c", script]].concat();
        ignoring(&sim, "HUP", &words).ended(7);
    }
}
