//! `run --require-mps`: a program that leaves MPS is ended.

use testkit::{Sim, assert_contains, shell};

fn guarded(sim: &Sim, words: &[&str]) -> testkit::Ran {
    sim.run(&[&["run", "0.2", "--require-mps", "--"], words].concat())
}

#[test]
fn a_program_that_stays_has_its_own_exit_status() {
    let sim = Sim::small();
    let ran = guarded(&sim, &["cuda-app", "run", "1"]).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_eq!(ran.stderr, "");
    guarded(&sim, &["sh", "-c", "exit 2"]).ended(2);
    guarded(&sim, &["sh", "-c", "kill -KILL $$"]).ended(137);
    guarded(&sim, &["no-such-program"]).ended(127);
}

/// Also where a child of a child does so whose parent has exited.
#[test]
fn a_program_that_leaves_is_ended() {
    let sim = Sim::small();
    let spoiled = "export CUDA_MPS_PIPE_DIRECTORY=/nowhere; cuda-app run 600";
    for script in [
        spoiled.to_owned(),
        format!("({spoiled} & exec true); exec sleep 600"),
    ] {
        let ran = guarded(&sim, &["sh", "-c", &script]).ended(125);
        // The shell may report the end of its child.
        let said = ran.stderr.trim_start_matches("Terminated\n");
        assert!(said.starts_with("error: pid "), "{said}");
        assert_contains(
            said,
            "(cuda-app run 600) used device 0.2 outside MPS, and the program was ended\nhint: check that the program does not change CUDA_MPS_PIPE_DIRECTORY",
        );
    }
}

/// CUDA has it compute on the first device of the node.
#[test]
fn a_program_that_leaves_for_another_device_is_ended() {
    let lost = "unset CUDA_MPS_PIPE_DIRECTORY CUDA_VISIBLE_DEVICES; cuda-app run 20";
    let small = Sim::small();
    let whole = Sim::served("h200", 2, "[[gpu]]\nselect = { all = true }\nmig = false\n");
    // One that no daemon serves.
    let alone = Sim::served(
        "h200",
        2,
        "[[gpu]]\nselect = { index = [1] }\nmig = false\n",
    );
    for (sim, own, used) in [
        (&small, "0.2", "0.0"),
        (&whole, "1", "0"),
        (&alone, "1", "0"),
    ] {
        let words = ["run", own, "--require-mps", "--", "sh", "-c", lost];
        let ran = sim.run(&words).ended(125);
        assert_contains(
            &ran.stderr,
            &format!(
                "(cuda-app run 20) used device {used} outside MPS, and the program was ended\nhint: check that the program \
                 does not change CUDA_MPS_PIPE_DIRECTORY"
            ),
        );
    }
}

/// It is a client, if of another daemon.
#[test]
fn a_client_of_another_device_is_left_alone() {
    let sim = Sim::small();
    let script = format!("{} run 0.0 -- cuda-app run 1", sim.program());
    let ran = guarded(&sim, &["sh", "-c", &script]).ended(0);
    assert_contains(&ran.stdout, "mps yes");
    assert_eq!(ran.stderr, "");
}

/// A program of somebody else is none of its business.
#[test]
fn other_programs_are_left_alone() {
    let sim = Sim::small();
    let other = sim.outside("0.2");
    guarded(&sim, &["cuda-app", "run", "1"]).ended(0);
    shell(format!("kill -0 {}", other.pid())).ended(0);
    other.finish();
}
