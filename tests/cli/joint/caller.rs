//! The GPUs of a joint device that a program of the caller gets.

use std::fs;
use std::time::Duration;

use testkit::{Ran, Sim, TestNode, assert_contains, needs_root};

use super::programs::visible;
use super::{TRAINERS, gpu, joint};

const SHOW: &str = "echo $CUDA_VISIBLE_DEVICES";

/// Four H200s, of which the last two are a joint device.
fn pair() -> Sim {
    let profile = TRAINERS.replace("[0, 1]", "[2, 3]");
    Sim::served("h200", 4, &profile.replace("trainers", "pair"))
}

/// Runs `mig-mps` with variables, and returns its standard output.
#[track_caller]
fn run(sim: &Sim, variables: &[(&str, &str)], args: &[&str]) -> String {
    let mut command = sim.command(args);
    let ran = Ran::of(command.envs(variables.iter().copied())).ended(0);
    ran.stdout.trim().to_owned()
}

#[test]
fn numbers_of_a_client_are_ordinals_of_its_daemon() {
    let sim = pair();
    let program = sim.program();
    let inner = [program.as_str(), "run", "pair", "--", "sh", "-c", SHOW];
    let outer = ["run", "pair", "--visible", "index", "--"];
    let [third, fourth] = [gpu(&sim, 2), gpu(&sim, 3)];
    let nested = [outer.as_slice(), &inner].concat();
    assert_eq!(run(&sim, &[], &nested), format!("{third},{fourth}"));
    let visible = [("CUDA_VISIBLE_DEVICES", "3")];
    assert_eq!(run(&sim, &visible, &nested), fourth);
    let script = format!("CUDA_VISIBLE_DEVICES=1,2,0 {}", inner[..4].join(" "));
    let script = format!("{script} sh -c '{SHOW}'");
    let nested = [outer.as_slice(), &["sh", "-c", &script]].concat();
    assert_eq!(run(&sim, &[], &nested), fourth, "there is no ordinal 2");
}

#[test]
fn numbers_of_a_private_client_are_ordinals_of_its_daemon() {
    let sim = Sim::with("h200", 4);
    let program = sim.program();
    let private = ["run", "--private", "--joint"];
    let inner = [&[program.as_str()], &private[..], &["--", "sh", "-c", SHOW]].concat();
    let outer = [&private[..], &["--visible", "index", "--"], &inner].concat();
    let visible = [("CUDA_VISIBLE_DEVICES", "2,3")];
    let both = format!("{},{}", gpu(&sim, 2), gpu(&sim, 3));
    assert_eq!(run(&sim, &visible, &outer), both);
    assert_eq!(sim.happened("server ready"), 1);
}

/// The list of CUDA is the one that Slurm binds tasks by: its own variables list the GPUs of the whole step.
#[test]
fn the_list_of_cuda_comes_before_those_of_slurm() {
    let sim = joint("share = 4");
    let [first, second] = [gpu(&sim, 0), gpu(&sim, 1)];
    for (value, seen) in [("0", &first), ("1", &second), (&second, &second)] {
        let task = [
            ("SLURM_STEP_GPUS", "0,1"),
            ("SLURM_JOB_GPUS", "0,1,2"),
            ("CUDA_VISIBLE_DEVICES", value),
        ];
        assert_eq!(&visible(&sim, &task, &[]), seen, "{value}");
    }
    let sim = Sim::with("h200", 4);
    let variables = [("SLURM_STEP_GPUS", "0,1"), ("CUDA_VISIBLE_DEVICES", "2,3")];
    let both = format!("{},{}", gpu(&sim, 2), gpu(&sim, 3));
    let private = ["run", "--private", "--joint", "--", "sh", "-c", SHOW];
    assert_eq!(run(&sim, &variables, &private), both);
}

#[test]
fn env_has_the_gpus_of_the_job() {
    let sim = joint("share = 2");
    let [first, second] = [gpu(&sim, 0), gpu(&sim, 1)];
    for variable in ["SLURM_STEP_GPUS", "CUDA_VISIBLE_DEVICES"] {
        let job = [(variable, "1,2")];
        let printed = run(&sim, &job, &["env", "trainers", "--shell", "sh"]);
        assert_contains(&printed, &format!("export CUDA_VISIBLE_DEVICES={second}\n"));
        for form in [
            "dotenv", "slurm", "json", "docker", "podman", "k8s", "compose",
        ] {
            let printed = run(&sim, &job, &["env", "trainers", "--format", form]);
            assert_contains(&printed, &second);
            assert!(!printed.contains(&first), "{form}: {printed}");
        }
    }
    let mut command = sim.command(&["env", "trainers"]);
    let ran = Ran::of(command.env("CUDA_VISIBLE_DEVICES", "2")).ended(2);
    assert_contains(&ran.stderr, "which selects no GPU of device trainers");
    // What serves all jobs of the node has all GPUs.
    let cdi = run(&sim, &[("CUDA_VISIBLE_DEVICES", "1")], &["cdi"]);
    assert_contains(&cdi, &format!("\"CUDA_VISIBLE_DEVICES={first},{second}\""));
}

/// CUDA numbers the fastest GPU first, unless it is told otherwise.
#[test]
fn numbers_mean_nothing_where_gpus_differ() {
    let node = TestNode::builder().gpu("h100", 1).gpu("h200", 2).build();
    let sim = Sim { node };
    let profile = TRAINERS.replace("[0, 1]", "[1, 2]");
    sim.up(&profile, &[]).ended(0);
    let mut command = sim.command(&["run", "trainers", "--", "true"]);
    let ran = Ran::of(command.env("CUDA_VISIBLE_DEVICES", "1")).ended(125);
    assert_contains(&ran.stderr, "CUDA numbers the fastest first");
    let in_order = [
        ("CUDA_VISIBLE_DEVICES", "1"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    ];
    let second = gpu(&sim, 1);
    assert_eq!(visible(&sim, &in_order, &[]), second);
    let by_uuid = [("CUDA_VISIBLE_DEVICES", second.as_str())];
    assert_eq!(visible(&sim, &by_uuid, &[]), second);
}

#[test]
fn a_list_ends_where_cuda_ends_it() {
    let sim = joint("share = 4");
    let [first, second] = [gpu(&sim, 0), gpu(&sim, 1)];
    let run = |list: &str| {
        let mut command = sim.command(&["run", "trainers", "--", "true"]);
        Ran::of(command.env("CUDA_VISIBLE_DEVICES", list))
    };
    for (list, end) in [
        ("1,-1,0".to_owned(), "-1"),
        (format!("1,{first}"), first.as_str()),
        (format!("{second},0"), "0"),
        (format!("1,x,{first}"), "x"),
    ] {
        let variables = [("CUDA_VISIBLE_DEVICES", list.as_str())];
        assert_eq!(visible(&sim, &variables, &[]), second, "{list}");
        let why = format!("because the list in CUDA_VISIBLE_DEVICES ends at \"{end}\"\n");
        assert_contains(&run(&list).ended(0).stderr, &why);
    }
    // A program on fewer GPUs than its caller meant would only be slower.
    for (list, word) in [
        ("1,7,0".to_owned(), "7"),
        (format!("{second},GPU-,{first}"), "GPU-"),
        ("GPU-".to_owned(), "GPU-"),
    ] {
        let what = format!("CUDA_VISIBLE_DEVICES contains \"{word}\", but there is no such device");
        assert_contains(&run(&list).ended(125).stderr, &what);
    }
}

#[test]
fn slurm_cannot_assign_a_gpu_of_a_joint_device() {
    needs_root!();
    let sim = joint("share = 2");
    let dir = sim.node.dir();
    fs::write(
        dir.join("gres.conf"),
        "NodeName=n1 Name=gpu File=/dev/nvidia1\n",
    )
    .unwrap();
    fs::write(dir.join("slurm.conf"), "NodeName=n1 Gres=gpu:1\n").unwrap();
    let what = "GPU 1 is part of the joint device trainers, which Slurm cannot assign";
    for visible in ["0", &gpu(&sim, 1)] {
        for word in ["prolog", "task-prolog"] {
            let mut command = sim.command(&["slurm", word]);
            command
                .env("SLURM_CONF", dir.join("slurm.conf"))
                .env("SLURMD_NODENAME", "n1")
                .env("SLURM_JOB_ID", "7")
                .env("SLURM_JOB_UID", "0")
                .env("SLURM_JOB_GPUS", "0");
            let ran = Ran::of(command.env("CUDA_VISIBLE_DEVICES", visible)).ended(1);
            assert_contains(&ran.stderr, what);
        }
    }
}

#[test]
fn a_program_that_gets_some_of_the_gpus_is_told() {
    let sim = joint("share = 2");
    let note = |variables: &[(&str, &str)]| {
        let mut command = sim.command(&["run", "trainers", "--", "true"]);
        Ran::of(command.envs(variables.iter().copied()))
            .ended(0)
            .stderr
    };
    let visible = ("CUDA_VISIBLE_DEVICES", "1");
    let line = "note: the program uses 1 of the 2 GPUs of device trainers, because CUDA_VISIBLE_DEVICES does not list the other GPUs\n";
    assert_eq!(note(&[visible]), line);
    assert_eq!(note(&[]), "");
    assert_eq!(note(&[("CUDA_VISIBLE_DEVICES", "0,1,2")]), "");
    let rank = [visible, ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")];
    assert_eq!(note(&rank), "", "each rank has its GPU");
}

#[test]
fn the_gpus_of_the_caller_are_read_once_for_all_copies() {
    let sim = joint("share = 8");
    let opened = || sim.happened("fault");
    let opens_of = |args: &[&str]| {
        let before = opened();
        let mut command = sim.command(&[args, &["trainers", "--", "true"]].concat());
        Ran::of(command.env("CUDA_VISIBLE_DEVICES", "1")).ended(0);
        opened() - before
    };
    let moment = Duration::from_millis(1);
    sim.node.fault("nvmlInit_v2").every().slow(moment).unwrap();
    assert_eq!(opens_of(&["run", "-n", "6"]), opens_of(&["run", "-n", "1"]));
}

/// MIG devices have no numbers, so CUDA would count other devices than the caller. Slurm's numbers are those of files.
#[test]
fn numbers_of_cuda_mean_nothing_where_a_gpu_is_in_mig_mode() {
    let mig = "[[gpu]]\nselect = { index = [2] }\ndevices = [ { profile = \"1g\" } ]\n";
    let sim = Sim::served("h200", 3, &format!("{TRAINERS}{mig}"));
    for (variable, value) in [("CUDA_VISIBLE_DEVICES", "1"), ("SLURM_JOB_GPUS", "2")] {
        for args in [
            ["run", "trainers", "--", "true"].as_slice(),
            &["run", "--any", "trainers", "--", "true"],
            &["env", "trainers"],
        ] {
            let ran = Ran::of(sim.command(args).env(variable, value));
            assert!([2, 125].contains(&ran.status), "{args:?}: {ran:?}");
            let number = format!(
                "{variable} contains the number {value}, which selects no device while a GPU is in MIG mode"
            );
            assert_contains(&ran.stderr, &number);
            assert_contains(&ran.stderr, "set CUDA_VISIBLE_DEVICES to UUIDs");
        }
    }
    let [first, second] = [gpu(&sim, 0), gpu(&sim, 1)];
    let both = format!("{first},{second}");
    for (variable, value, seen) in [
        ("CUDA_VISIBLE_DEVICES", second.as_str(), &second),
        ("SLURM_JOB_GPUS", "0,1", &both),
        ("SLURM_STEP_GPUS", "1", &second),
    ] {
        assert_eq!(
            &visible(&sim, &[(variable, value)], &[]),
            seen,
            "{variable}"
        );
    }
}
