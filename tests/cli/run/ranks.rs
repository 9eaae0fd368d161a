//! `run --by-rank`: each rank of a program has the device of its place on the node.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use testkit::{Ran, Sim, WHOLE, can_run, launched};

const SEVENTHS: &str =
    "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";

fn seven() -> Sim {
    Sim::served("a100-80gb", 1, SEVENTHS)
}

/// The number of clients of each device.
fn clients(sim: &Sim) -> BTreeMap<String, u64> {
    let status = sim.status();
    let devices = status["devices"].as_array().unwrap().iter();
    let counted = devices.map(|device| {
        let name = device["name"].as_str().unwrap().to_owned();
        (name, device["client_count"].as_u64().unwrap())
    });
    counted.collect()
}

#[test]
fn fourteen_ranks_of_open_mpi_are_two_on_each_of_seven_devices() {
    let has_mpi = Command::new("mpirun").arg("--version").output().is_ok();
    let test = "fourteen_ranks_of_open_mpi_are_two_on_each_of_seven_devices";
    if !can_run(test, has_mpi, "install openmpi-bin") {
        return;
    }
    let sim = seven();
    for map in [&[][..], &["--map", "block"]] {
        let program = ["--", "cuda-app", "run", "600"];
        let one = sim.command(&[&["run", "--by-rank"], map, &program].concat());
        let launcher = "mpirun --allow-run-as-root --oversubscribe -n 14";
        let mut mpirun = launched(launcher, &one);
        let mut mpirun = mpirun.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(mpirun.stdout.take().unwrap()).lines();
        for _ in 0..14 {
            let line = lines.next().unwrap().unwrap();
            assert!(
                line.contains(" 1g.10gb ") && line.ends_with("mps yes"),
                "{line}"
            );
        }
        let counted = clients(&sim);
        assert_eq!(counted.len(), 7);
        assert!(
            counted.values().all(|count| *count == 2),
            "{map:?} {counted:?}"
        );
        testkit::shell(format!("kill {}", mpirun.id())).ended(0);
        mpirun.wait().unwrap();
    }
}

/// Before the number of ranks. Several run at once, so each takes a free port.
pub(super) const TORCHRUN: &str = "torchrun --rdzv_backend c10d --rdzv_endpoint localhost:0 --no_python \
                                   --redirects 1 --tee 1 --nproc_per_node";

#[test]
fn torchrun_starts_a_rank_on_each_device() {
    let test = "torchrun_starts_a_rank_on_each_device";
    let has_torchrun = Command::new("torchrun").arg("--help").output().is_ok();
    if !can_run(test, has_torchrun, "install python3-torch") {
        return;
    }
    let sim = Sim::served("h200", 2, WHOLE);
    let shown = "echo rank $LOCAL_RANK in $CUDA_MPS_PIPE_DIRECTORY; exec cuda-app run 1";
    let one = sim.command(&["run", "--by-rank", "--", "sh", "-c", shown]);
    let launcher = format!("{TORCHRUN} 2");
    let ran = Ran::of(&mut launched(&launcher, &one)).ended(0);
    for rank in ["0", "1"] {
        let line = format!("rank {rank} in {}\n", sim.pipe_link(rank).display());
        assert!(ran.stdout.contains(&line), "{line}: {ran:?}");
    }
    assert_eq!(ran.stdout.matches("mps yes").count(), 2, "{ran:?}");
}

/// Runs a process of a rank that prints the pipe directory it is given.
fn device_of(sim: &Sim, variables: &[(&str, &str)], words: &[&str]) -> Ran {
    let shown = ["--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY"];
    let mut command = sim.command(&[&["run", "--by-rank"], words, &shown].concat());
    Ran::of(command.envs(variables.iter().copied()))
}

#[test]
fn ranks_have_devices_by_their_launcher() {
    let sim = seven();
    let name = |variables: &[(&str, &str)], words: &[&str]| {
        let ran = device_of(&sim, variables, words).ended(0);
        let pipe = ran.stdout.trim().strip_suffix("/pipe").unwrap().to_owned();
        pipe.rsplit('/').next().unwrap().to_owned()
    };
    assert_eq!(name(&[("SLURM_LOCALID", "3")], &[]), "0.3");
    assert_eq!(name(&[("MPI_LOCALRANKID", "8")], &[]), "0.1");
    // torchrun sets these alone; a Slurm step that starts one torchrun on each node is rank 0 there.
    let torchrun = [("LOCAL_RANK", "3"), ("LOCAL_WORLD_SIZE", "4")];
    assert_eq!(name(&torchrun, &[]), "0.3");
    assert_eq!(name(&torchrun, &["--map", "block", "0.[0-1]"]), "0.1");
    let in_slurm = [("SLURM_LOCALID", "0"), ("LOCAL_RANK", "5")];
    assert_eq!(name(&in_slurm, &[]), "0.5");
    let of_four = [("PMI_LOCAL_RANK", "2"), ("PMI_LOCAL_SIZE", "4")];
    assert_eq!(name(&of_four, &["--map", "block", "0.[0-1]"]), "0.1");
    assert_eq!(name(&of_four, &["0.[0-1]"]), "0.0");
    assert_eq!(name(&of_four, &["--profile", "1g"]), "0.2");
    let last = u64::MAX.to_string();
    let one_before = (u64::MAX - 1).to_string();
    let huge = [("PMI_LOCAL_RANK", &*one_before), ("PMI_LOCAL_SIZE", &last)];
    assert_eq!(name(&huge, &["--map", "block"]), "0.6");
}
