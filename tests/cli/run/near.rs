//! `run --map near`: each rank has a device near the CPUs to which it is bound.

use std::fs;
use std::process::Command;

use testkit::{Ran, Sim, WHOLE, assert_contains, can_run, launched};

const HALVES: &str =
    "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n";

/// Two CPUs of this machine to which a test binds ranks, as words for `taskset`.
fn two_cpus(test: &str) -> Option<[String; 2]> {
    let has_taskset = Command::new("taskset").arg("--version").output().is_ok();
    if !can_run(test, has_taskset, "install util-linux") {
        return None;
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let ranges = list.unwrap().trim().split(',');
    let mut cpus = ranges.flat_map(|range| {
        let (from, to) = range.split_once('-').unwrap_or((range, range));
        from.parse::<usize>().unwrap()..=to.parse().unwrap()
    });
    let two = [cpus.next(), cpus.next()].map(|cpu| cpu.map(|cpu| cpu.to_string()));
    if !can_run(test, two[1].is_some(), "two CPUs are needed") {
        return None;
    }
    Some(two.map(Option::unwrap))
}

/// Runs a process of a rank on these CPUs, which prints the device that it sees.
fn run_rank(sim: &Sim, cpus: &str, variables: &[(&str, &str)], words: &[&str]) -> Ran {
    let shown = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
    let mut one = sim.command(&[&["run", "--map", "near"], words, &shown].concat());
    one.env("TMPDIR", sim.node.run_dir().parent().unwrap())
        .envs(variables.iter().copied());
    Ran::of(&mut launched(&format!("taskset -c {cpus}"), &one)).ended(0)
}

/// The device of such a rank.
fn device_of(sim: &Sim, cpus: &str, variables: &[(&str, &str)], words: &[&str]) -> String {
    let ran = run_rank(sim, cpus, variables, words);
    assert_eq!(ran.stderr, "");
    ran.stdout.trim().to_owned()
}

#[test]
fn a_rank_has_the_gpu_near_its_cpus() {
    let Some([first, second]) = two_cpus("a_rank_has_the_gpu_near_its_cpus") else {
        return;
    };
    let sim = Sim::served("h200", 2, WHOLE);
    // The order of the ranks and of the CPUs does not matter.
    sim.node
        .node()
        .place_gpus(&[&second, &first], &[0, 1])
        .unwrap();
    let device =
        |cpus: &str, rank: &str| device_of(&sim, cpus, &[("SLURM_LOCALID", rank)], &["--by-rank"]);
    assert_eq!(device(&first, "0"), sim.uuid("1"));
    assert_eq!(device(&second, "1"), sim.uuid("0"));
}

#[test]
fn ranks_share_the_mig_devices_of_the_near_gpu() {
    let Some([first, second]) = two_cpus("ranks_share_the_mig_devices_of_the_near_gpu") else {
        return;
    };
    let sim = Sim::served("a100-80gb", 2, HALVES);
    sim.node
        .node()
        .place_gpus(&[&first, &second], &[0, 1])
        .unwrap();
    let device =
        |cpus: &str, rank: &str| device_of(&sim, cpus, &[("SLURM_LOCALID", rank)], &["--by-rank"]);
    // One CPU does not tell two ranks apart.
    assert_eq!(device(&second, "0"), sim.uuid("1.0"));
    assert_eq!(device(&second, "1"), sim.uuid("1.4"));
    let words = ["--by-rank", "?.4"];
    let chosen = device_of(&sim, &second, &[("SLURM_LOCALID", "0")], &words);
    assert_eq!(chosen, sim.uuid("1.4"));
}

#[test]
fn devices_of_one_domain_are_shared_by_the_position_of_the_cpus() {
    let test = "devices_of_one_domain_are_shared_by_the_position_of_the_cpus";
    let Some([first, second]) = two_cpus(test) else {
        return;
    };
    let sim = Sim::served("h200", 2, WHOLE);
    let both = format!("{first},{second}");
    // The kernel of a virtual machine does not tell where a GPU is.
    for places in [[0, 0], [-1, -1]] {
        sim.node.node().place_gpus(&[&both], &places).unwrap();
        let device = |cpus: &str| {
            let rank = [("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")];
            device_of(&sim, cpus, &rank, &["--by-rank"])
        };
        assert_eq!(device(&first), sim.uuid("0"));
        assert_eq!(device(&second), sim.uuid("1"));
    }
    // Two threads of one core are one.
    let cpu = sim.node.dir().join("root/sys/devices/system/cpu");
    for number in [&first, &second] {
        let topology = cpu.join(format!("cpu{number}/topology"));
        fs::create_dir_all(&topology).unwrap();
        fs::write(topology.join("thread_siblings_list"), &both).unwrap();
    }
    let ran = run_rank(&sim, &second, &[("SLURM_LOCALID", "0")], &["--by-rank"]);
    assert_eq!(ran.stdout.trim(), sim.uuid("0"));
}

#[test]
fn a_rank_that_is_not_bound_goes_by_its_local_rank() {
    let Some([first, second]) = two_cpus("a_rank_that_is_not_bound_goes_by_its_local_rank") else {
        return;
    };
    let sim = Sim::served("h200", 2, WHOLE);
    let both = format!("{first},{second}");
    for domains in [&[&*first, &*second][..], &[&*both]] {
        let places = [0, i32::from(domains.len() == 2)];
        sim.node.node().place_gpus(domains, &places).unwrap();
        let ran = run_rank(&sim, &both, &[("SLURM_LOCALID", "3")], &["--by-rank"]);
        assert_eq!(ran.stdout.trim(), sim.uuid("1"));
        assert_contains(
            &ran.stderr,
            "rank 3 is not bound to the CPUs near one device",
        );
    }
}

#[test]
fn only_the_visible_devices_count_for_private_daemons() {
    let test = "only_the_visible_devices_count_for_private_daemons";
    let Some([first, second]) = two_cpus(test) else {
        return;
    };
    let sim = Sim::with("h200", 4);
    sim.node
        .node()
        .place_gpus(&[&first, &second], &[0, 0, 1, 1])
        .unwrap();
    let device = |cpus: &str, visible: &str| {
        let variables = [("SLURM_LOCALID", "0"), ("CUDA_VISIBLE_DEVICES", visible)];
        device_of(&sim, cpus, &variables, &["--private"])
    };
    assert_eq!(device(&second, "0,1,3"), sim.uuid("3"));
    assert_eq!(device(&first, "3,1"), sim.uuid("1"));
    assert_eq!(device(&first, "2"), sim.uuid("2"));
}

#[test]
fn ranks_that_share_mig_devices_of_near_gpus_are_warned() {
    let sim = Sim::served("a100-80gb", 2, HALVES);
    let notes = |ranks: &str| {
        let mut command = sim.command(&["run", "--by-rank", "--map", "near", "--", "true"]);
        command
            .env("LOCAL_RANK", "0")
            .env("LOCAL_WORLD_SIZE", ranks)
            .env("NCCL_DEBUG", "WARN");
        Ran::of(&mut command).ended(0).stderr
    };
    let warning = "several ranks use MIG devices of one GPU.";
    assert!(!notes("2").contains(warning));
    assert_contains(&notes("3"), warning);
}
