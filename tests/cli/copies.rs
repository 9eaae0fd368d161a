//! `run -n`: copies of a program on several devices.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::{SMALL, Sim, shell};

fn small() -> Sim {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    sim
}

/// The lines of all copies, in the order of the copies.
fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn copies_are_spread_and_have_their_shares() {
    let sim = Sim::with("h200", 1);
    sim.up("[[gpu]]\nselect = { all = true }\nmig = false\n", &[])
        .ended(0);
    for (share, sms) in [("even", 32), ("half", 66), ("none", 132)] {
        let words = [
            "run", "-n", "4", "--share", share, "--", "cuda-app", "run", "0.1",
        ];
        let ran = sim.run(&words).ended(0);
        let ups: Vec<&str> = lines(&ran.stdout)
            .into_iter()
            .filter(|line| line.contains(" up "))
            .collect();
        assert_eq!(ups.len(), 4, "{}", ran.stdout);
        for (number, up) in ups.iter().enumerate() {
            assert!(up.starts_with(&format!("[{number}] pid ")), "{up}");
            assert!(
                up.contains(&format!(" sm {sms} ")) && up.ends_with("mps yes"),
                "{up}"
            );
        }
        assert_eq!(ran.stderr, "4 of 4 copies succeeded\n");
    }
    let sim = small();
    let show = "echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let ran = sim.run(&["run", "-n", "3", "--share", "even", "--", "sh", "-c", show]);
    let names: Vec<String> = lines(&ran.ended(0).stdout)
        .iter()
        .map(|line| line.replace(sim.node.run_dir().to_str().unwrap(), "RUN"))
        .collect();
    // The device with the most free memory comes first.
    assert_eq!(
        names,
        [
            "[0] RUN/by-name/0.0/pipe 50",
            "[1] RUN/by-name/0.2/pipe 100",
            "[2] RUN/by-name/0.0/pipe 50"
        ]
    );
}

#[test]
fn the_copies_that_fail_are_named() {
    let sim = small();
    let script = "case $CUDA_MPS_PIPE_DIRECTORY in */0.2/*) echo bad >&2; exit 7;; esac";
    let ran = sim
        .run(&["run", "-n", "2", "--", "sh", "-c", script])
        .ended(7);
    assert_eq!(
        ran.stderr,
        "[1] bad\n[1] on 0.2: exit status: 7\n1 of 2 copies succeeded\n"
    );
    sim.run(&["run", "-n", "2", "--", "no-such-program"])
        .ended(127);
    sim.run(&["run", "-n", "0", "--", "true"]).ended(125);
    sim.run(&["run", "-n", "2", "--any", "--", "true"])
        .ended(125);
}

#[test]
fn signals_reach_every_copy() {
    let sim = small();
    let mut command = sim.command(&["run", "-n", "2", "--", "cuda-app", "run", "600"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = command.spawn().unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        let line = lines.next().unwrap().unwrap();
        assert!(line.ends_with("mps yes"), "{line}");
    }
    shell(format!("kill -TERM {}", run.id())).ended(0);
    let ended = run.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(143));
    let said = String::from_utf8(ended.stderr).unwrap();
    assert!(said.ends_with("0 of 2 copies succeeded\n"), "{said}");
    assert_eq!(sim.status()["clients"], serde_json::json!([]));
}
