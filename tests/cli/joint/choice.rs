//! The choice of a joint device: by its name only, and with the memory of each of its GPUs.

use testkit::{Ran, Sim, assert_contains, in_state};

use super::{TRAINERS, gpu, joint};

#[test]
fn a_joint_device_that_is_not_named_is_pointed_out() {
    let sim = joint("share = 4");
    let choices: [&[&str]; 3] = [&["--any"], &["-n", "2"], &["--any", "--min-memory", "10G"]];
    for choice in choices {
        let ran = sim.run(&[&["run"], choice, &["--", "true"]].concat());
        let ran = ran.ended(125);
        let named = "no device on a single GPU matches; select the joint device trainers by name";
        assert_contains(&ran.stderr, named);
        assert_contains(&ran.stderr, "mig-mps run --any trainers -- PROGRAM");
    }
    let ran = sim.run(&["run", "--any", "--profile", "3g", "--", "true"]);
    assert_contains(&ran.ended(125).stderr, "no device with a daemon matches");
    let ran = sim.run(&["compare", "--", "true"]).ended(2);
    let measures = "device trainers is a joint device, but compare measures on one GPU";
    assert_contains(&ran.stderr, measures);
}

#[test]
fn the_memory_of_a_joint_device_counts_for_each_gpu() {
    let sim = Sim::served("h200", 3, TRAINERS);
    let run = |memory: &str| {
        let choice = ["run", "--any", "--min-memory", memory, "trainers"];
        let program = ["--", "cuda-app", "run", "0"];
        sim.run(&[&choice[..], &program].concat())
    };
    let few = run("150G").ended(125);
    assert_contains(&few.stderr, " MiB for a program, less than 150G");
    let ran = run("130G").ended(0);
    let using = "using device trainers (132 SMs and 140.3 GiB on each GPU)";
    assert_contains(&ran.stderr, using);
    // The memory of one GPU is in use.
    let mut app = sim.app("trainers", &["hold", "--on", "1", "--alloc", "20000"]);
    while !app.wait_up().contains(" alloc ") {}
    assert_contains(&run("130G").ended(125).stderr, "less than 130G");
    let choice = [
        "run",
        "--any",
        "--min-memory",
        "130G",
        "trainers",
        "--",
        "true",
    ];
    let mut on_other = sim.command(&choice);
    Ran::of(on_other.env("CUDA_VISIBLE_DEVICES", "0")).ended(0);
    app.finish();
}

#[test]
fn the_uuid_of_one_gpu_is_not_the_name_of_a_joint_device() {
    let sim = joint("share = 4");
    let uuid = gpu(&sim, 1);
    for word in [&uuid, &uuid[..12]] {
        for choice in [[].as_slice(), &["--any"], &["-n", "2"]] {
            let ran = sim.run(&[&["run"], choice, &[word, "--", "true"]].concat());
            let ran = ran.ended(125);
            assert_contains(&ran.stderr, &part_of_trainers(word));
        }
    }
    let joint = sim.uuid("trainers");
    sim.run(&["run", &joint[..10], "--", "true"]).ended(0);
}

#[test]
fn a_refused_private_run_prints_no_note_about_devices() {
    let sim = joint("share = 4");
    for options in [["--private"].as_slice(), &["--private", "--joint"]] {
        let mut run = sim.command(&[&["run"], options, &["--", "true"]].concat());
        let ran = Ran::of(run.env("CUDA_VISIBLE_DEVICES", "0,1,2")).ended(125);
        assert_contains(
            &ran.stderr,
            "device trainers is already served by a daemon of",
        );
        assert!(!ran.stderr.contains("the program uses"), "{}", ran.stderr);
    }
}

/// A private daemon is what `--joint` is about.
#[test]
fn joint_is_refused_without_a_private_daemon() {
    let sim = Sim::with("h200", 3);
    for words in [&["1"][..], &["--any"], &["--by-rank"], &["-n", "2"], &[]] {
        let ran = sim.run(&[&["run", "--joint"], words, &["--", "true"]].concat());
        assert_contains(&ran.ended(125).stderr, "--joint");
    }
}

#[test]
fn ranks_are_told_to_name_a_joint_device() {
    let sim = joint("share = 4");
    let by_rank = |words: &[&str]| {
        let args = [&["run", "--by-rank"], words, &["--", "true"]].concat();
        let mut command = sim.command(&args);
        let rank = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "2")];
        Ran::of(command.envs(rank))
    };
    let refused = by_rank(&[]).ended(125).stderr;
    let named = "no device on a single GPU matches; select the joint device trainers by name";
    assert_contains(&refused, named);
    assert_contains(&refused, "mig-mps run --by-rank trainers -- PROGRAM");
    by_rank(&["trainers"]).ended(0);
    let refused = by_rank(&[&gpu(&sim, 1)]).ended(125).stderr;
    assert_contains(&refused, &part_of_trainers(&gpu(&sim, 1)));
}

/// The error of a command for a mark of GPU 1.
fn part_of_trainers(word: &str) -> String {
    format!(
        "error: no device has the name \"{word}\": GPU 1 is part of the joint device trainers\n\
         hint: use the name trainers instead\n"
    )
}

#[test]
fn a_mark_of_one_of_its_gpus_leads_to_it() {
    let sim = joint("share = 4");
    let daemon = sim.device("trainers")["daemon_pid"].clone();
    let uuid = gpu(&sim, 1);
    let pci = sim.node.node().state().unwrap().gpus[1].pci.to_string();
    let marks = ["1", &uuid, &uuid[..12], "gpu1", "GPU 1", "nvidia1", &pci];
    let refuse = |word: &str, commands: &[&[&str]]| {
        for words in commands {
            let ran = sim.run(&[&words[..1], &[word], &words[1..]].concat());
            assert!([2, 125].contains(&ran.status), "{words:?}: {ran:?}");
            assert_contains(&ran.stderr, &part_of_trainers(word));
        }
    };
    for word in marks {
        let (set, kill) = (["set", "share=2"], ["kill", "1"]);
        refuse(word, &[&["down"], &["restart"], &["start"], &set, &kill]);
        refuse(word, &[&["heal"], &["status"]]);
    }
    // These do not ask the driver.
    for word in &marks[..5] {
        refuse(word, &[&["verify"], &["env"], &["run", "--", "true"]]);
    }
    let logs = sim.run(&["logs", "1"]).ended(2);
    assert_contains(&logs.stderr, &part_of_trainers("1"));
    assert_eq!(sim.device("trainers")["daemon_pid"], daemon);
    // The option is about all devices of the GPU.
    sim.run(&["down", "--gpu", &uuid]).ended(0);
    assert_eq!(in_state(&sim.status(), "stopped"), ["trainers"]);
}

#[test]
fn a_device_of_which_no_gpu_is_listed_is_passed_over() {
    let whole = "[[gpu]]\nselect = { index = [2] }\nmig = false\n";
    let sim = Sim::served("h200", 3, &format!("{TRAINERS}{whole}"));
    let other = sim.device("2")["uuid"].as_str().unwrap().to_owned();
    for choice in [&["--any", "*"][..], &["-n", "1", "*"]] {
        let mut run = sim.command(&[&["run"], choice, &["--", "cuda-app", "run", "0"]].concat());
        run.env("CUDA_VISIBLE_DEVICES", &other);
        let ran = Ran::of(&mut run).ended(0);
        assert_contains(&ran.stdout, "mps yes");
    }
}
