//! `run -n`: copies of a program on several devices.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use rustix::process::Signal;
use testkit::{Sim, assert_contains, is_alive, kill, shell, wait_until, write_program};

/// The lines of all copies, in the order of the copies.
fn lines(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn copies_are_spread_and_have_their_shares() {
    let sim = Sim::served("h200", 1, "[[gpu]]\nselect = { all = true }\nmig = false\n");
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
    let sim = Sim::small();
    let show = "echo $CUDA_MPS_PIPE_DIRECTORY $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    let ran = sim.run(&["run", "-n", "3", "--share", "even", "--", "sh", "-c", show]);
    let names: Vec<String> = lines(&ran.ended(0).stdout)
        .iter()
        .map(|line| line.replace(sim.node.run_dir().to_str().unwrap(), "RUN"))
        .collect();
    // The device with the most free memory comes first. 57.1 % of 28 SMs are 14, as 50 % are.
    assert_eq!(
        names,
        [
            "[0] RUN/by-name/0.0/pipe 57.1",
            "[1] RUN/by-name/0.2/pipe 100",
            "[2] RUN/by-name/0.0/pipe 57.1"
        ]
    );
}

/// Nobody has asked for more than that.
#[test]
fn the_share_of_a_copy_is_at_most_what_its_device_allows() {
    let sim = Sim::served(
        "h200",
        1,
        "[[gpu]]\nselect = { all = true }\nmig = false\n[mps]\nactive-thread-percentage = 50\n",
    );
    let show = "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE";
    // The largest percentages for 16 and 32 of 132 SMs.
    for (copies, share, percent) in [
        ("1", "half", "50"),
        ("1", "even", "50"),
        ("2", "half", "50"),
        ("2", "even", "50"),
        ("8", "half", "25.7"),
        ("8", "even", "13.6"),
    ] {
        let words = [
            "run", "-n", copies, "--share", share, "--", "sh", "-c", show,
        ];
        let ran = sim.run(&words).ended(0);
        let wanted = format!("[0] {percent}");
        assert_eq!(
            lines(&ran.stdout)[0],
            wanted,
            "{copies} {share}: {}",
            ran.stderr
        );
    }
}

#[test]
fn the_copies_that_fail_are_named() {
    let sim = Sim::small();
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
    let sim = Sim::small();
    let mut run = sim.talk(&["run", "-n", "2", "--", "cuda-app", "run", "600"]);
    for _ in 0..2 {
        run.await_text("mps yes\n");
    }
    run.signal(Signal::TERM);
    let said = run.end().ended(143).stdout;
    assert!(said.ends_with("0 of 2 copies succeeded\n"), "{said}");
    assert_eq!(sim.status()["clients"], serde_json::json!([]));
}

#[test]
fn progress_with_carriage_returns_is_shown_as_it_comes() {
    let sim = Sim::small();
    let script = "printf '10%%\\r20%%\\r\\n'; printf '30%%\\r'; exec sleep 600";
    let mut run = sim.talk(&["run", "-n", "1", "--", "sh", "-c", script]);
    assert_eq!(run.await_text("30%\n"), "[0] 10%\n[0] 20%\n[0] 30%\n");
    run.signal(Signal::TERM);
    let _ = run.end().ended(143);
}

/// Before, nothing was shown of it, and all of it was kept in memory.
#[test]
fn a_line_without_end_is_shown_in_pieces() {
    let sim = Sim::small();
    let script = "yes | tr -d '\\n' | head -c 70000; exec sleep 600";
    let mut run = sim.talk(&["run", "-n", "1", "--", "sh", "-c", script]);
    let piece = run.await_text("\n");
    assert_eq!(piece.len(), "[0] ".len() + (64 << 10) + 1);
    run.signal(Signal::TERM);
    let _ = run.end().ended(143);
}

/// As in a pipeline, a copy that nobody reads gets SIGPIPE.
#[test]
fn copies_do_not_go_on_when_nobody_reads_them() {
    let sim = Sim::small();
    for (script, end) in [("exec yes", "signal: 13 (SIGPIPE)"), ("exec yes >&2", "")] {
        let mut command = sim.command(&["run", "-n", "2", "--", "sh", "-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = command.spawn().unwrap();
        let mut byte = [0];
        if end.is_empty() {
            run.stderr.take().unwrap().read_exact(&mut byte).unwrap();
        } else {
            run.stdout.take().unwrap().read_exact(&mut byte).unwrap();
        }
        let ended = run.wait_with_output().unwrap();
        assert_eq!(ended.status.code(), Some(128 + 13), "{script}");
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_contains(&said, end);
    }
}

/// A copy that ignored SIGTERM was waited for without end. The first copy removes the program, so a later one is not
/// found.
#[test]
fn copies_are_ended_when_another_one_cannot_be_started() {
    let sim = Sim::small();
    let program = sim.node.dir().join("once");
    let text = "#!/bin/sh\nrm -f \"$0\"\ntrap '' TERM\nwhile :; do sleep 600; done\n";
    write_program(&program, text);
    let words = ["run", "-n", "300", "--", program.to_str().unwrap()];
    let ran = sim.run(&words).ended(127);
    assert_contains(&ran.stderr, "No such file or directory");
    let left = shell(format!("pgrep -f '{}/onc[e]'", sim.node.dir().display()));
    assert_eq!(left.stdout, "");
}

/// A process that a copy leaves running may keep its output open: a signal then ends mig-mps, which no copy needs any
/// more.
#[test]
fn ctrl_c_ends_a_wait_for_what_copies_have_left() {
    let sim = Sim::small();
    let script = "setsid sleep 600 & echo $!; kill -0 $!";
    let mut run = sim.talk(&["run", "-n", "1", "--", "sh", "-c", script]);
    let left = run.await_text("\n").replace("[0] ", "");
    let children = format!("/proc/{0}/task/{0}/children", run.pid());
    wait_until("the copy ends", || {
        fs::read_to_string(&children).unwrap().is_empty()
    });
    run.signal(Signal::INT);
    wait_until("it ends", || !is_alive(run.pid()));
    kill(left.trim());
    // By the signal itself.
    let _ = run.end().ended(-1);
}
