//! GPUs of a joint device that `down` has stopped: each is a device of its own again.

use testkit::{App, Ran, Sim, WHOLE, assert_contains, in_state};

use super::apart::unmanaged_daemon;
use super::{TRAINERS, gpu, joint};

/// Three H200s; the joint device of two of them is stopped.
fn stopped() -> Sim {
    let sim = joint("share = 2");
    sim.run(&["down", "trainers", "--yes"]).ended(0);
    let status = sim.status();
    assert_eq!(in_state(&status, "stopped"), ["trainers"]);
    assert_eq!(in_state(&status, "no daemon"), ["2"]);
    sim
}

#[test]
fn a_private_daemon_has_only_the_gpu_that_the_caller_names() {
    let sim = stopped();
    for named in ["1".to_owned(), gpu(&sim, 1)] {
        let mut command = sim.command(&[
            "run",
            "--private",
            "--",
            "cuda-app",
            "run",
            "0",
            "--on",
            "all",
        ]);
        command
            .env("CUDA_VISIBLE_DEVICES", named)
            .env("TMPDIR", sim.node.run_dir().parent().unwrap());
        let ran = Ran::of(&mut command).ended(0);
        assert_contains(&ran.stdout, "up devices 1 ");
        assert!(!ran.stderr.contains("trainers"), "{}", ran.stderr);
    }
}

#[test]
fn an_unmanaged_daemon_on_one_of_its_gpus_is_seen() {
    for index in [0, 1] {
        let sim = stopped();
        let pid = unmanaged_daemon(&sim, index);
        let alone = format!("[[gpu]]\nselect = {{ index = [{index}] }}\nmig = false\n");
        let ran = sim.up(&alone, &["--yes"]).ended(0);
        let beside = format!("(only an unmanaged daemon, pid {pid}, serves it)");
        assert_contains(&ran.stdout, &beside);
    }
}

/// A program on GPU 0 keeps nobody from switching the MIG mode of GPU 1.
#[test]
fn a_program_on_another_of_its_gpus_is_not_in_the_way() {
    let sim = stopped();
    let mut program = sim.node.program("cuda-app");
    program
        .arg("hold")
        .env("CUDA_VISIBLE_DEVICES", gpu(&sim, 0))
        .env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
    let mut outside = App::start(program);
    outside.wait_up();
    let parts = "[[gpu]]\nselect = { index = [1] }\ndevices = [ { profile = \"3g\" } ]\n";
    sim.up(parts, &["--yes"]).ended(0);
    let refused = sim.up(&parts.replace("[1]", "[0]"), &["--yes"]).ended(4);
    assert_contains(&refused.stderr, "outside MPS");
    outside.finish();
}

/// Why a device that was stopped cannot start is said, and no command that says the same.
#[test]
fn a_stopped_device_that_lacks_a_gpu_is_not_forgotten() {
    let status = |sim: &Sim| {
        let status = sim.status();
        let remarks = status["remarks"].as_array().unwrap().clone();
        let its = |remark: &&serde_json::Value| remark["id"] == "device-stopped";
        remarks.iter().find(its).unwrap()["what"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let lost = |sim: &Sim| sim.node.node().lose_gpu(1).unwrap();
    let in_mig_mode = |sim: &Sim| {
        let mut smi = sim.node.program("nvidia-smi");
        Ran::of(smi.args(["-i", "1", "-mig", "1"])).ended(0);
    };
    for why in ["GPU 1 is lost", "GPU 1 is in MIG mode"] {
        let sim = stopped();
        match why {
            "GPU 1 is lost" => lost(&sim),
            _ => in_mig_mode(&sim),
        }
        let why = format!(", and cannot start: {why}");
        assert_contains(&status(&sim), &why);
        for words in [&["start", "trainers"][..], &["status", "trainers"]] {
            let ran = sim.run(words).ended(2);
            assert_contains(&ran.stderr, &format!("trainers is stopped{why}"));
            assert!(!ran.stderr.contains("mig-mps start"), "{}", ran.stderr);
        }
        for words in [&["run", "trainers", "--", "true"][..], &["env", "trainers"]] {
            let ran = sim.run(words);
            assert!(!ran.stderr.contains("mig-mps start"), "{}", ran.stderr);
            let says = ["GPU 1 is lost", "to disable MIG mode"];
            assert!(
                says.iter().any(|one| ran.stderr.contains(one)),
                "{}",
                ran.stderr
            );
        }
    }
}

/// The applied profile has it, and its record is gone without its daemon.
#[test]
fn a_joint_device_of_the_profile_that_has_no_daemon_starts() {
    let sim = joint("share = 2");
    let record = sim.node.run_dir().join(sim.uuid("trainers"));
    sim.kill_daemon("trainers");
    std::fs::remove_dir_all(record).unwrap();
    let ran = sim.run(&["run", "trainers", "--", "true"]).ended(125);
    assert_contains(
        &ran.stderr,
        "run `mig-mps start trainers` to start a daemon",
    );
    sim.run(&["start", "trainers"]).ended(0);
    sim.run(&["run", "trainers", "--", "true"]).ended(0);
}

/// The GPUs of a stopped device are not devices next to it.
#[test]
fn a_stopped_joint_device_is_selected_as_a_whole() {
    let start: [&[&str]; 5] = [
        &["start", "*"],
        &["start", "trainers"],
        &["start", "--gpu", "0"],
        &["restart", "--gpu", "1", "--yes"],
        &["restart", "trainers", "--yes"],
    ];
    for words in start {
        let sim = Sim::served("h200", 2, TRAINERS);
        sim.run(&["down", "*", "--yes"]).ended(0);
        let shown = sim.run(&["status", "*"]).ended(0).stdout;
        let row = |text: &str| text.lines().filter(|line| line.contains("140.4")).count();
        assert_eq!(
            (shown.matches("280.8").count(), row(&shown)),
            (1, 0),
            "{shown}"
        );
        assert_contains(&shown, "1 device on 2 GPUs");
        for gpu in ["0", "1"] {
            let of_gpu = sim.run(&["status", "--gpu", gpu]).ended(0).stdout;
            assert_eq!((of_gpu.matches("280.8").count(), row(&of_gpu)), (1, 0));
        }
        sim.run(words).ended(0);
        assert_eq!(in_state(&sim.status(), "ready"), ["trainers"], "{words:?}");
    }
}

#[test]
fn a_gpu_of_a_stopped_joint_device_leads_to_that_device() {
    let sim = Sim::served("h200", 2, TRAINERS);
    sim.run(&["down", "trainers", "--yes"]).ended(0);
    let part = "GPU 1 is part of the stopped device trainers\nhint: run `mig-mps start trainers` to start it again\n";
    for words in [
        &["start", "1"][..],
        &["restart", "1", "--yes"],
        &["verify", "1"],
        &["verify", "--gpu", "1"],
        &["run", "1", "--", "true"],
        &["env", "1"],
        &["set", "1", "share=2", "--yes"],
        &["start", "gpu1"],
        &["restart", "gpu1", "--yes"],
        &["set", "gpu1", "share=2", "--yes"],
        &["start", &gpu(&sim, 1)],
    ] {
        let ran = sim.run(words);
        assert_contains(&ran.stderr, part);
        assert_eq!(sim.status()["devices"][0]["state"], "stopped", "{words:?}");
    }
    // After a reboot, the applied profile has it.
    sim.node.reboot();
    for words in [&["start", "1"][..], &["restart", "1", "--yes"]] {
        assert_contains(&sim.run(words).stderr, part);
    }
    sim.run(&["start", "--gpu", "1"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["trainers"]);
}

/// No note leads to a command that is refused.
#[test]
fn a_device_that_lacks_a_gpu_is_stopped_without_a_way_back() {
    for (profile, name, gpu) in [(TRAINERS, "trainers", 1), (WHOLE, "0", 0)] {
        let sim = Sim::served("h200", 2, profile);
        sim.node.node().lose_gpu(gpu).unwrap();
        let ran = sim.run(&["down", name, "--force", "--yes"]).ended(0);
        assert!(!ran.stderr.contains("mig-mps start"), "{}", ran.stderr);
        sim.run(&["start", name]).ended(2);
    }
}

/// Nothing is left to stop, whether it can start again or not.
#[test]
fn down_of_a_stopped_device_has_nothing_to_do() {
    let nothing = "Nothing to do: mig-mps serves none of these devices.\n";
    for (profile, name, words) in [
        (TRAINERS, "trainers", &["trainers", "0", "1", "gpu1"][..]),
        (WHOLE, "0", &["0"]),
    ] {
        let sim = Sim::served("h200", 3, profile);
        sim.run(&["down", name, "--yes"]).ended(0);
        for is_lost in [false, true] {
            if is_lost {
                sim.node.node().lose_gpu(0).unwrap();
            }
            for word in words {
                let ran = sim.run(&["down", word, "--yes"]).ended(0);
                assert_eq!(ran.stderr, nothing, "{word}: {ran:?}");
            }
        }
        let logs = sim.node.log_dir();
        let of_device = |log: &std::fs::DirEntry| {
            let log = log.file_name().into_string().unwrap();
            log.starts_with("JOINT") || name == "0" && log == gpu(&sim, 0)
        };
        let count = || {
            let logs = std::fs::read_dir(logs).unwrap();
            logs.filter(|log| of_device(log.as_ref().unwrap())).count()
        };
        assert_eq!(count(), 1);
        let ran = sim.run(&["down", name, "--purge", "--yes"]).ended(0);
        assert_eq!(ran.stderr, "Logs removed.\n");
        assert_eq!(count(), 0);
    }
}
