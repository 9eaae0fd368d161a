//! `run --private`: daemons that run for one program, or for the ranks of one, and end with it.

mod faults;
mod jobs;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::{
    App, Dialogue, NOBODY, Ran, Sim, assert_contains, can_run, kill, launched, needs_root,
    terminal, wait_until, write_program,
};

use super::ranks::TORCHRUN;

/// The directory in which the node's private directories are.
fn place(sim: &Sim) -> &Path {
    sim.node.run_dir().parent().unwrap()
}

/// `mig-mps run --private` with these words behind it.
fn private(sim: &Sim, words: &[&str]) -> Command {
    let mut command = sim.command(&[&["run", "--private"], words].concat());
    command
        .env("TMPDIR", place(sim))
        .env_remove("MIG_MPS_LOG_DIR");
    command
}

/// The same with a program that is a client and holds on.
fn holding(sim: &Sim, words: &[&str]) -> App {
    let mut app = App::start(private(sim, &[words, &["--", "cuda-app", "hold"]].concat()));
    let up = app.wait_up();
    assert!(up.ends_with("mps yes"), "{up}");
    app
}

fn directories(place: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(place).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| {
            path.file_name()
                .unwrap()
                .to_string_lossy()
                .starts_with("mig-mps-")
        })
        .collect()
}

fn daemons(sim: &Sim) -> usize {
    sim.node.processes("nvidia-cuda-mps-control -d").len()
}

fn keepers(sim: &Sim) -> Vec<u32> {
    sim.node.processes(" keep --device ")
}

/// Everything that private daemons have left: their directories, and processes.
fn left(sim: &Sim) -> Vec<String> {
    let mut left: Vec<String> = directories(place(sim))
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    for program in ["nvidia-cuda-mps-", " keep --device "] {
        let pids = sim.node.processes(program);
        left.extend(pids.iter().map(|pid| format!("{program}{pid}")));
    }
    left
}

/// Sees that `run` has waited for the end of its daemons. The process that kept them may need a moment more.
#[track_caller]
fn nothing_is_left(sim: &Sim) {
    assert!(directories(place(sim)).is_empty());
    assert!(sim.node.processes("nvidia-cuda-mps-").is_empty());
    wait_until("the keeper ends", || keepers(sim).is_empty());
}

/// The time in which nothing is left, whatever has happened.
const LIMIT: Duration = Duration::from_secs(10);

#[track_caller]
fn nothing_is_left_soon(sim: &Sim) {
    let begun = Instant::now();
    wait_until("nothing is left", || left(sim).is_empty());
    let took = begun.elapsed();
    // A machine with much else to do may take longer, which the programs cannot help.
    assert!(took < 3 * LIMIT, "{took:?}");
}

#[test]
fn a_program_has_a_daemon_of_its_own_that_ends_with_it() {
    let sim = Sim::with("h200", 2);
    let app = holding(&sim, &["--threads", "25", "--memory", "2G"]);
    let directories = directories(place(&sim));
    let [directory] = directories.as_slice() else {
        panic!("{directories:?}");
    };
    assert_eq!(
        fs::metadata(directory).unwrap().permissions().mode() & 0o777,
        0o700
    );
    assert_eq!((daemons(&sim), keepers(&sim).len()), (1, 1));
    // Root sees what it is.
    let status = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&status, "PRIVATE DAEMON OF");
    assert_contains(&status, "1 private daemon, no problems.");
    assert!(!status.contains("UNMANAGED"), "{status}");
    let ended = app.finish();
    assert!(ended.status.success(), "{}", ended.output);
    assert_contains(&ended.output, " sm 32 free 1901MiB ");
    // At once: `run` waits for that.
    nothing_is_left(&sim);
}

#[test]
fn the_exit_status_is_the_programs() {
    let sim = Sim::with("h200", 1);
    let run = |words: &[&str]| Ran::of(&mut private(&sim, &[&["--"], words].concat()));
    let _ = run(&["sh", "-c", "exit 3"]).ended(3);
    let _ = run(&["sh", "-c", "kill -TERM $$"]).ended(143);
    let _ = run(&["no-such-program"]).ended(127);
    let ran = run(&[
        "sh",
        "-c",
        "echo $CUDA_MPS_LOG_DIRECTORY $CUDA_VISIBLE_DEVICES",
    ])
    .ended(0);
    let words: Vec<&str> = ran.stdout.split_whitespace().collect();
    assert!(
        words[0].ends_with(&format!("/log/{}", words[1])),
        "{words:?}"
    );
    let mut guarded = private(&sim, &["--require-mps", "--", "env"]);
    guarded.args(["CUDA_MPS_PIPE_DIRECTORY=/nowhere", "cuda-app", "run", "600"]);
    assert_contains(&Ran::of(&mut guarded).ended(125).stderr, "outside MPS");
    nothing_is_left(&sim);
}

#[test]
fn the_devices_are_those_that_the_caller_may_see() {
    let sim = Sim::with("h200", 3);
    let uuids: Vec<String> = (0..3).map(|index| sim.uuid(&index.to_string())).collect();
    let seen = |variables: &[(&str, &str)], words: &[&str]| {
        let show = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
        let mut command = private(&sim, &[words, &show].concat());
        let ran = Ran::of(command.envs(variables.iter().copied())).ended(0);
        let lines: BTreeSet<usize> = ran
            .stdout
            .lines()
            .map(|line| {
                let uuid = line.rsplit(' ').next().unwrap();
                uuids.iter().position(|known| known == uuid).unwrap()
            })
            .collect();
        lines.into_iter().collect::<Vec<_>>()
    };
    assert_eq!(seen(&[], &[]), [0]);
    assert_eq!(seen(&[("CUDA_VISIBLE_DEVICES", "2,1")], &[]), [2]);
    assert_eq!(seen(&[("CUDA_VISIBLE_DEVICES", &uuids[1])], &[]), [1]);
    assert_eq!(
        seen(&[("CUDA_VISIBLE_DEVICES", "1,2")], &["-n", "4"]),
        [1, 2]
    );
    assert_eq!(seen(&[], &["-n", "2"]), [0, 1]);
    let rank = [("SLURM_LOCALID", "4"), ("CUDA_VISIBLE_DEVICES", "1,2")];
    assert_eq!(seen(&rank, &[]), [1]);
    let block = [("LOCAL_RANK", "2"), ("LOCAL_WORLD_SIZE", "3")];
    assert_eq!(seen(&block, &["--map", "block"]), [2]);
    assert_eq!(seen(&rank, &["--by-rank"]), [1]);
    assert_eq!(seen(&block, &["--by-rank", "--map", "block"]), [2]);
    nothing_is_left(&sim);
}

#[test]
fn copies_share_the_devices() {
    let sim = Sim::with("h200", 2);
    let mut command = private(
        &sim,
        &["-n", "6", "--share", "even", "--", "cuda-app", "run", "1"],
    );
    let ran = Ran::of(&mut command).ended(0);
    assert_eq!(ran.stdout.matches("mps yes").count(), 6, "{ran:?}");
    assert_eq!(ran.stdout.matches(" sm 44 ").count(), 6, "{ran:?}");
    assert_contains(&ran.stderr, "6 of 6 copies succeeded");
    assert_eq!(sim.happened("server ready"), 2);
    nothing_is_left(&sim);
}

#[test]
fn a_mig_device_has_one_too() {
    let sim = Sim::small();
    let uuid = sim.uuid("0.2");
    sim.run(&["down"]).ended(0);
    let mut command = private(&sim, &["--", "cuda-app", "run", "0"]);
    let ran = Ran::of(command.env("CUDA_VISIBLE_DEVICES", &uuid)).ended(0);
    assert!(
        ran.stdout.contains("MIG 1g.10gb") && ran.stdout.contains("mps yes"),
        "{ran:?}"
    );
    nothing_is_left(&sim);
}

/// A small launcher: it gives each rank what torchrun gives it.
fn launch(sim: &Sim, rank: usize, ranks: usize, words: &[&str]) -> Command {
    let mut command = private(sim, words);
    let (rank, ranks) = (rank.to_string(), ranks.to_string());
    command
        .env("LOCAL_RANK", &rank)
        .env("RANK", &rank)
        .env("LOCAL_WORLD_SIZE", &ranks)
        .env("WORLD_SIZE", &ranks)
        .env("MASTER_ADDR", "localhost");
    command
}

#[test]
fn ranks_share_daemons_until_the_last_one_has_left() {
    let sim = Sim::with("h200", 2);
    let start = |rank| App::start(launch(&sim, rank, 4, &["--", "cuda-app", "hold"]));
    let mut ranks: Vec<App> = (0..4).map(start).collect();
    for rank in &mut ranks {
        let up = rank.wait_up();
        assert!(up.ends_with("mps yes"), "{up}");
    }
    assert_eq!((daemons(&sim), sim.happened("server ready")), (2, 2));
    // Rank 0 has started the keeper of its device, and rank 2 goes on without it.
    let last = ranks.pop().unwrap();
    let second = ranks.pop().unwrap();
    for rank in ranks {
        assert!(rank.finish().status.success());
    }
    assert_eq!(daemons(&sim), 2);
    for rank in [second, last] {
        let ended = rank.finish();
        assert!(
            ended.status.success() && ended.output.contains("done"),
            "{ended:?}"
        );
    }
    nothing_is_left(&sim);
}

#[test]
fn nccl_is_warned_of_more_ranks_than_devices() {
    let sim = Sim::with("h200", 1);
    let run = |rank, variable: Option<&str>| {
        let mut command = launch(&sim, rank, 2, &["--", "true"]);
        command.envs(variable.map(|name| (name, "1")));
        Ran::of(&mut command).ended(0).stderr
    };
    let warning = "2 ranks share 1 device, but NCCL accepts one rank on each";
    assert_contains(&run(0, Some("TORCH_NCCL_ASYNC_ERROR_HANDLING")), warning);
    assert_eq!(run(1, Some("NCCL_DEBUG")), "");
    assert_eq!(run(0, None), "");
}

/// Measured for whole GPUs: ranks on two GPUs are not warned.
#[test]
fn nccl_is_warned_of_mig_devices_of_one_gpu() {
    let sim = Sim::served(
        "a100-80gb",
        2,
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n",
    );
    let run = |words: &[&str], rank: &str, ranks: &str, more: &[(&str, &str)]| {
        let mut command = sim.command(&[&["run"], words, &["--", "true"]].concat());
        command
            .env("LOCAL_RANK", rank)
            .env("LOCAL_WORLD_SIZE", ranks)
            .envs(more.iter().copied());
        Ran::of(&mut command).ended(0).stderr
    };
    let warning = "several ranks use MIG devices of one GPU.";
    let nccl = [("NCCL_DEBUG", "WARN")];
    assert_contains(&run(&["--by-rank"], "0", "2", &nccl), warning);
    assert_eq!(run(&["--by-rank"], "1", "2", &nccl), "");
    assert_eq!(run(&["--by-rank"], "0", "2", &[]), "");
    assert_eq!(run(&["--by-rank"], "0", "1", &nccl), "");
    assert_eq!(run(&["--by-rank", "?.0"], "0", "2", &nccl), "");
    let enabled = [("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    assert_eq!(run(&["--by-rank"], "0", "2", &enabled), "");
    sim.run(&["down"]).ended(0);
    let two = format!("{},{}", sim.uuid("0.0"), sim.uuid("0.4"));
    let visible = [nccl[0], ("CUDA_VISIBLE_DEVICES", two.as_str())];
    assert_contains(&run(&["--private"], "0", "2", &visible), warning);
}

/// An MPS client has one device.
#[test]
fn a_program_that_gets_one_of_several_devices_is_noted() {
    let sim = Sim::with("h200", 4);
    let ranks = |ranks| {
        let mut command = launch(&sim, 0, ranks, &["--", "true"]);
        Ran::of(&mut command).ended(0).stderr
    };
    assert_contains(&ranks(1), "the program uses only device 0 of 4 devices;");
    assert_contains(&ranks(2), "the 2 ranks use one device each, of 4");
    assert_eq!(ranks(4), "");
    nothing_is_left(&sim);
    sim.up("[[gpu]]\nselect = { all = true }\nmig = false\n", &[])
        .ended(0);
    let run = |words: &[&str], variables: &[(&str, &str)]| {
        let mut command = sim.command(&[&["run"], words, &["--", "true"]].concat());
        Ran::of(command.envs(variables.iter().copied()))
            .ended(0)
            .stderr
    };
    let visible = ("CUDA_VISIBLE_DEVICES", "0,1,2,3");
    let note = "the program uses only device 2 of the 4 devices in CUDA_VISIBLE_DEVICES;";
    assert_contains(&run(&["2"], &[visible]), note);
    let single = [visible, ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")];
    let note = "the program uses only device 0 of the 4 devices in CUDA_VISIBLE_DEVICES;";
    assert_contains(&run(&["--by-rank"], &single), note);
    let four = [visible, ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "4")];
    assert_eq!(run(&["--by-rank"], &four), "");
    assert_eq!(run(&["2"], &[("CUDA_VISIBLE_DEVICES", "2")]), "");
}

#[test]
fn eight_ranks_of_open_mpi_share_two_daemons() {
    let test = "eight_ranks_of_open_mpi_share_two_daemons";
    let has_mpi = Command::new("mpirun").arg("--version").output().is_ok();
    if !can_run(test, has_mpi, "install openmpi-bin") {
        return;
    }
    let sim = Sim::with("h200", 2);
    let words = ["--", "cuda-app", "run", "1"];
    let one = private(&sim, &words);
    let launcher = "mpirun --allow-run-as-root --oversubscribe -n 8";
    let ran = Ran::of(&mut launched(launcher, &one)).ended(0);
    assert_eq!(ran.stdout.matches("mps yes").count(), 8, "{ran:?}");
    assert_eq!(sim.happened("server ready"), 2, "{ran:?}");
    nothing_is_left(&sim);
}

/// torchrun sets a variable of NCCL's for its ranks.
#[test]
fn four_ranks_of_torchrun_share_two_daemons_and_are_warned() {
    let test = "four_ranks_of_torchrun_share_two_daemons_and_are_warned";
    let has_torchrun = Command::new("torchrun").arg("--help").output().is_ok();
    if !can_run(test, has_torchrun, "install python3-torch") {
        return;
    }
    let sim = Sim::with("h200", 2);
    let one = private(&sim, &["--", "cuda-app", "run", "1"]);
    let launcher = format!("{TORCHRUN} 4");
    let ran = Ran::of(&mut launched(&launcher, &one)).ended(0);
    assert_eq!(ran.stdout.matches("mps yes").count(), 4, "{ran:?}");
    assert_eq!(sim.happened("server ready"), 2, "{ran:?}");
    let warning = "4 ranks share 2 devices, but NCCL accepts one rank on each";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "{ran:?}");
    nothing_is_left(&sim);
}

/// A rank that fails, and a job that is cancelled: mpirun ends the others.
#[test]
fn what_mpirun_ends_leaves_nothing() {
    let has_mpi = Command::new("mpirun").arg("--version").output().is_ok();
    if !can_run(
        "what_mpirun_ends_leaves_nothing",
        has_mpi,
        "install openmpi-bin",
    ) {
        return;
    }
    let sim = Sim::with("h200", 2);
    let script = "[ $OMPI_COMM_WORLD_RANK != 1 ] || exit 7; exec cuda-app run 600";
    let one = private(&sim, &["--", "sh", "-c", script]);
    let launcher = "mpirun --allow-run-as-root --oversubscribe -n 4";
    let _ = Ran::of(&mut launched(launcher, &one)).ended(7);
    nothing_is_left_soon(&sim);
}

#[test]
fn signals_reach_the_program() {
    let sim = Sim::with("h200", 1);
    let script = "trap 'echo heard; exit 5' TERM; echo up; while :; do sleep 0.05; done";
    for words in [&[][..], &["-n", "1"]] {
        let mut command = private(&sim, &[words, &["--", "sh", "-c", script]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = App::start(command);
        assert_contains(&child.wait_up(), "up");
        testkit::shell(format!("kill -TERM {}", child.pid())).ended(0);
        let ended = child.finish();
        assert_eq!(ended.status.code(), Some(5));
        assert_contains(&ended.output, "heard");
        nothing_is_left(&sim);
    }
}

/// The program ends as well, and so do copies.
#[test]
fn nothing_is_left_where_mig_mps_is_killed() {
    let sim = Sim::with("h200", 1);
    for words in [&[][..], &["-n", "3"], &["--require-mps"]] {
        let program = [words, &["--", "cuda-app", "run", "600"]].concat();
        let mut app = App::start(private(&sim, &program));
        assert!(app.wait_up().ends_with("mps yes"));
        let programs = || {
            let mut found = sim.node.processes("cuda-app run 600");
            found.retain(|pid| *pid != app.pid());
            found
        };
        assert!(!programs().is_empty());
        kill(app.pid());
        wait_until("the programs end", || programs().is_empty());
        nothing_is_left_soon(&sim);
    }
}

/// At any moment of the start.
#[test]
fn nothing_is_left_where_mig_mps_is_killed_early() {
    let sim = Sim::with("h200", 1);
    for milliseconds in [5, 20, 50, 100, 200, 400] {
        let mut child: Child = private(&sim, &["--", "cuda-app", "run", "600"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(milliseconds));
        child.kill().unwrap();
        child.wait().unwrap();
        nothing_is_left_soon(&sim);
        let programs = || sim.node.processes("cuda-app run");
        wait_until("the program ends", || programs().is_empty());
    }
}

#[test]
fn a_program_does_without_a_killed_keeper_and_the_last_one_ends_the_daemon() {
    let sim = Sim::with("h200", 1);
    let first = holding(&sim, &[]);
    let second = holding(&sim, &[]);
    let keepers = keepers(&sim);
    assert_eq!(keepers.len(), 1);
    // It outlasts what ends a session.
    for signal in ["TERM", "INT", "HUP"] {
        testkit::shell(format!("kill -{signal} {}", keepers[0])).ended(0);
    }
    assert_eq!(daemons(&sim), 1);
    kill(keepers[0]);
    assert!(first.finish().status.success());
    assert_eq!(daemons(&sim), 1);
    assert!(second.finish().status.success());
    nothing_is_left_soon(&sim);
}

#[test]
fn what_all_killed_ones_have_left_is_ended_by_the_next() {
    let sim = Sim::with("h200", 2);
    let app = holding(&sim, &[]);
    for keeper in keepers(&sim) {
        kill(keeper);
    }
    kill(app.pid());
    assert_eq!(daemons(&sim), 1);
    let stale = directories(place(&sim));
    // Another device's program does not disturb those that run.
    let other = {
        let mut command = private(&sim, &["--", "cuda-app", "hold"]);
        command.env("CUDA_VISIBLE_DEVICES", "1");
        let mut other = App::start(command);
        other.wait_up();
        other
    };
    assert_eq!(daemons(&sim), 1);
    assert!(!stale[0].exists());
    let mine = holding(&sim, &[]);
    assert_eq!(daemons(&sim), 2);
    for app in [other, mine] {
        assert!(app.finish().status.success());
    }
    nothing_is_left(&sim);
}

/// A user may give a run directory such a name.
#[test]
fn daemons_of_a_run_directory_are_left_alone() {
    let sim = Sim::with("h200", 2);
    let own = place(&sim).join("mig-mps-own");
    let mut up = sim.command(&["up", "whole-gpu", "--yes"]);
    let _ = Ran::of(up.env("MIG_MPS_RUN_DIR", &own)).ended(0);
    assert_eq!(daemons(&sim), 2);
    let mut command = private(&sim, &["--", "true"]);
    let refused = Ran::of(&mut command).ended(125).stderr;
    assert_contains(&refused, "device 0 already has an MPS daemon: pid ");
    assert_eq!(daemons(&sim), 2);
    assert_eq!(directories(place(&sim)), [own]);
}

#[test]
fn a_daemon_whose_record_cannot_be_read_keeps_its_directory() {
    let sim = Sim::with("h200", 2);
    let app = holding(&sim, &[]);
    let stale = directories(place(&sim)).remove(0);
    fs::write(stale.join(sim.uuid("0")).join("device.json"), "{").unwrap();
    for keeper in keepers(&sim) {
        kill(keeper);
    }
    kill(app.pid());
    let mut other = private(&sim, &["--", "true"]);
    let _ = Ran::of(other.env("CUDA_VISIBLE_DEVICES", "1")).ended(0);
    assert_eq!(daemons(&sim), 1);
    assert_eq!(directories(place(&sim)), [stale]);
}

/// There they could replace it.
#[test]
fn a_place_that_others_can_change_is_passed_over() {
    let sim = Sim::with("h200", 1);
    let open = place(&sim).join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let show = ["--", "sh", "-c", "echo $CUDA_MPS_PIPE_DIRECTORY"];
    let mut command = private(&sim, &show);
    let ran = Ran::of(command.env("XDG_RUNTIME_DIR", &open)).ended(0);
    let next = place(&sim).join("mig-mps-");
    assert!(ran.stdout.starts_with(next.to_str().unwrap()), "{ran:?}");
    assert!(directories(&open).is_empty());
    nothing_is_left(&sim);
}

#[test]
fn a_daemon_that_dies_or_hangs_leaves_nothing_either() {
    let sim = Sim::with("h200", 1);
    let app = holding(&sim, &[]);
    kill(sim.node.processes("nvidia-cuda-mps-control -d")[0]);
    app.finish();
    nothing_is_left_soon(&sim);

    let app = holding(&sim, &[]);
    let pipe = directories(place(&sim))[0].join("by-name/0/pipe");
    let mut starved = sim.node.program("cuda-app");
    starved
        .args(["run", "0"])
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe);
    let _ = Ran::of(&mut testkit::under(
        &["prlimit", "--nofile=24:24"],
        &starved,
    ));
    sim.await_event("device wedged", 1);
    app.finish();
    nothing_is_left_soon(&sim);
}

/// A program that goes on without its parent has no MPS then.
#[test]
fn a_client_that_outlives_the_program_loses_its_daemon() {
    let sim = Sim::with("h200", 1);
    let script = "cuda-app run 600 > $0 & while ! grep -qs up $0; do sleep 0.02; done";
    let said = sim.node.dir().join("said");
    let said = said.to_str().unwrap();
    let _ = Ran::of(&mut private(&sim, &["--", "sh", "-c", script, said])).ended(0);
    nothing_is_left_soon(&sim);
    wait_until("it notices", || {
        fs::read_to_string(said).unwrap().contains(" err 8")
    });
}

#[test]
fn a_plain_user_needs_no_root() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let own = place(&sim).join("n");
    fs::create_dir(&own).unwrap();
    std::os::unix::fs::chown(&own, Some(NOBODY), Some(NOBODY)).unwrap();
    let mut command = sim.by_nobody(&["run", "--private", "--", "cuda-app", "hold"]);
    command.env("XDG_RUNTIME_DIR", &own);
    let mut app = App::start(command);
    let up = app.wait_up();
    assert!(up.ends_with("mps yes"), "{up}");
    assert_contains(&up, &format!("uid {NOBODY} "));
    let directory = &directories(&own)[0];
    assert_eq!(fs::metadata(directory).unwrap().uid(), NOBODY);
    // Root has a daemon of its own then: nobody's is not root's.
    assert!(app.finish().status.success());
    assert!(directories(&own).is_empty());
    nothing_is_left(&sim);
}

/// A launcher behind mig-mps does not have the variables that chose the device.
#[test]
fn a_launcher_gets_the_device_that_was_chosen() {
    let sim = Sim::with("h200", 2);
    for program in ["sudo", "apptainer", "ch-run"] {
        write_program(sim.node.dir().join("bin").join(program), "#!/bin/sh\n");
    }
    let says = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let mut command = private(&sim, &[&["--"], &words[..]].concat());
        command.env("CUDA_VISIBLE_DEVICES", "1");
        Ran::of(&mut command).ended(0).stderr
    };
    let said = says("sudo x");
    assert_contains(&said, "; write `sudo env ");
    assert_contains(
        &said,
        " CUDA_VISIBLE_DEVICES=1 mig-mps run --private -- …`\n",
    );
    let omit = "omit the options that change CUDA_MPS_PIPE_DIRECTORY\n";
    for line in [
        "apptainer exec --env CUDA_MPS_PIPE_DIRECTORY=/x image x",
        "ch-run --unset-env=* image -- x",
        "ch-run --set-env=CUDA_MPS_PIPE_DIRECTORY=/x image -- x",
    ] {
        assert_contains(&says(line), omit);
    }
}

/// The name of its directory differs each time, so the one above is to be bound.
#[test]
fn a_container_needs_the_directory_above() {
    let sim = Sim::with("h200", 1);
    for (engine, words) in [
        ("enroot", ["enroot", "start", "image"]),
        ("docker", ["docker", "run", "image"]),
    ] {
        write_program(sim.node.dir().join("bin").join(engine), "#!/bin/sh\n");
        let said = Ran::of(&mut private(&sim, &[&["--"], &words[..]].concat())).ended(0);
        let place = place(&sim).display().to_string();
        assert_contains(
            &said.stderr,
            &format!(
                "a container of {engine} does not have {place} and CUDA_MPS_PIPE_DIRECTORY, and without them the programs run outside MPS;"
            ),
        );
        let options =
            format!("{place}:{place} --env CUDA_MPS_PIPE_DIRECTORY --env CUDA_VISIBLE_DEVICES");
        assert_contains(&said.stderr, &options);
    }
}

#[test]
fn compose_needs_the_directory_above_and_no_device() {
    let sim = Sim::with("h200", 1);
    write_program(sim.node.dir().join("bin/docker"), "#!/bin/sh\n");
    let mut command = private(&sim, &["--", "docker", "compose", "up"]);
    command.current_dir(sim.node.dir());
    let said = Ran::of(&mut command).ended(0).stderr;
    let place = place(&sim).display().to_string();
    let expected = format!(
        "warning: a container of docker does not have {place} and CUDA_MPS_PIPE_DIRECTORY, and without them the programs run \
         outside MPS; add to the service: volumes: [\"{place}:{place}\"], environment: [CUDA_MPS_PIPE_DIRECTORY, \
         CUDA_VISIBLE_DEVICES]\n"
    );
    assert_contains(&said, &expected);
}

/// The name of the socket at which root's programs on the first device meet.
fn socket(sim: &Sim) -> String {
    let namespace = fs::metadata("/proc/self/ns/pid").unwrap().ino();
    format!("mig-mps 0 {namespace} - {}", sim.uuid("0"))
}

/// Another user can take the name of the socket, and gets nothing by it.
#[test]
fn a_stranger_on_the_socket_is_named() {
    needs_root!();
    if !testkit::has_python("a_stranger_on_the_socket_is_named") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let name = socket(&sim);
    let script = "import os, socket, sys, time\nos.setgid(65534); os.setuid(65534)\n\
        s = socket.socket(socket.AF_UNIX); s.bind('\\0' + sys.argv[1]); s.listen()\n\
        print('up', flush=True); time.sleep(600)";
    let mut python = Command::new("python3");
    python.args(["-c", script, &name]);
    let mut stranger = App::start(python);
    assert_eq!(stranger.wait_up(), "up");
    let refused = Ran::of(&mut private(&sim, &["--", "true"]))
        .ended(125)
        .stderr;
    let said = format!("error: pid {} of nobody has the socket", stranger.pid());
    assert!(refused.starts_with(&said), "{refused}");
    kill(stranger.pid());
    nothing_is_left(&sim);
}

/// Somebody who only connects is no program of this user.
#[test]
fn a_stranger_who_joins_does_not_keep_a_daemon() {
    needs_root!();
    if !testkit::has_python("a_stranger_who_joins_does_not_keep_a_daemon") {
        return;
    }
    let sim = Sim::with("h200", 1);
    let app = holding(&sim, &[]);
    let name = socket(&sim);
    let script = "import os, socket, sys, time\nos.setgid(65534); os.setuid(65534)\n\
        s = socket.socket(socket.AF_UNIX); s.connect('\\0' + sys.argv[1])\n\
        print(len(s.recv(100)), flush=True); time.sleep(600)";
    let mut python = Command::new("python3");
    python.args(["-c", script, &name]);
    let mut stranger = App::start(python);
    // It is sent nothing, and its connection is closed.
    assert_eq!(stranger.wait_up(), "0");
    assert!(app.finish().status.success());
    nothing_is_left(&sim);
    kill(stranger.pid());
}

/// Ctrl-C in a terminal goes to the program and to mig-mps, and the keeper is in another session.
#[test]
fn ctrl_c_ends_the_program_and_then_the_daemon() {
    let sim = Sim::with("h200", 1);
    let (place, program) = (place(&sim).display(), sim.program());
    let hearing = "stty noflsh; exec /usr/bin/env --default-signal=INT,TERM,HUP -u MIG_MPS_LOG_DIR";
    let run = format!("{hearing} TMPDIR={place} {program} run --private -- cuda-app run 600");
    let mut terminal = terminal(run);
    terminal.env_clear().envs(sim.node.env());
    let mut talk = Dialogue::start(terminal);
    talk.await_text("mps yes");
    talk.press("\u{3}");
    let _ = talk.end().ended(130);
    nothing_is_left(&sim);
}

#[test]
fn a_device_that_is_served_leads_to_a_free_one() {
    needs_root!();
    let one = "[[gpu]]\nselect = { index = [0] }\nmig = false\nname = \"small-1\"\n";
    let sim = Sim::served("h200", 2, one);
    let free = sim.uuid("1");
    let refused = Ran::of(&mut private(&sim, &["--", "true"]))
        .ended(125)
        .stderr;
    let hint = format!(
        "hint: run `CUDA_VISIBLE_DEVICES={free} mig-mps run --private -- PROGRAM` to use device 1, which is free; or \
         run `mig-mps run small-1` to use the daemon of device small-1\n"
    );
    assert_contains(&refused, &hint);
    // The job has no other device.
    let mut command = private(&sim, &["--", "true"]);
    let refused = Ran::of(command.env("CUDA_VISIBLE_DEVICES", "0"))
        .ended(125)
        .stderr;
    assert!(!refused.contains(&free), "{refused}");
    let refused = Ran::of(&mut private(&sim, &["small-1", "--", "true"]))
        .ended(125)
        .stderr;
    assert_contains(&refused, "CUDA_VISIBLE_DEVICES");
}
