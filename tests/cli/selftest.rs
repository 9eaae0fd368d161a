//! `selftest` on simulated nodes: what it finds, whose GPUs it leaves alone, and how it gives GPUs back.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use simnode::node::{ComputeMode, Deviation, State};
use testkit::{
    App, ONE_EACH, Ran, Sim, assert_contains, hearing, is_alive, kill, needs_root, shell,
    wait_until, whole,
};

/// MIG mode, and every instance with its compute instances, of each GPU.
pub(super) fn geometry(sim: &Sim) -> Vec<String> {
    let state = sim.node.node().state().unwrap();
    let of_gpu = |gpu: &simnode::node::Gpu| {
        let mut instances: Vec<String> = gpu
            .instances
            .iter()
            .map(|gi| {
                let parts = gi.compute.iter().map(|ci| (ci.profile, ci.placement));
                let mut parts: Vec<_> = parts.collect();
                // They may be made again in another order: each has its placement.
                parts.sort_by_key(|(profile, placement)| (placement.start, *profile));
                format!("{} at {:?}: {parts:?}", gi.profile, gi.placement)
            })
            .collect();
        instances.sort();
        format!("{:?} {:?} {instances:?}", gpu.mig, gpu.compute_mode)
    };
    state.gpus.iter().map(of_gpu).collect()
}

fn change(sim: &Sim, change: impl FnOnce(&mut State)) {
    sim.node.node().update(change).unwrap();
}

/// An A30 that mig-mps has partitioned, and beside it one that is served and used.
fn partitioned_beside_a_served_one() -> Sim {
    let sim = Sim::with("a30", 2);
    let profile = "
        cdi = true
        [[gpu]]
        select = { index = [0] }
        devices = [ { profile = \"2g\", compute = [\"1c\", \"1c\"], at = 2 }, { profile = \"1g\", at = 1 } ]
        [[gpu]]
        select = { index = [1] }
        devices = [ { profile = \"1g\", name = \"busy\" } ]
    ";
    sim.up(profile, &["--yes", "--reset"]).ended(0);
    sim.run(&["down", "--gpu", "0"]).ended(0);
    sim
}

fn selftest(sim: &Sim, args: &[&str]) -> Ran {
    sim.run(&[&["selftest", "--yes"], args].concat())
}

/// The directories and files of mig-mps on the node, with their content.
fn own_files(sim: &Sim) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for directory in [
        sim.node.run_dir(),
        &sim.machine("var/lib/mig-mps"),
        &sim.machine("var/run/cdi"),
    ] {
        for entry in fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            // It names its last holder.
            if entry.file_type().unwrap().is_file() && name != "lock" {
                files.push((name, fs::read(entry.path()).unwrap()));
            }
        }
    }
    files.sort();
    files
}

#[test]
fn a_whole_node_does_what_it_should_and_is_given_back() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let client = sim.client("busy");
    let (before, files) = (geometry(&sim), own_files(&sim));
    let has_file = |name: &str| files.iter().any(|(own, _)| own == name);
    assert!(has_file("mig-mps.json") && has_file("profiles.json") && has_file("node.json"));
    let report = sim.node.dir().join("report.txt");
    let report_path = report.to_str().unwrap();
    let ran = selftest(&sim, &["--gpu", "0", "--reset", "--report", report_path]).ended(0);
    assert!(!ran.stdout.contains("differs"), "{}", ran.stdout);
    for line in [
        "GPU 0: whole GPU: a client computes",
        "GPU 0: whole GPU: share = 4: 14 SMs and ",
        "GPU 0: 1g.6gb as in the catalog",
        "GPU 0: 1g.6gb at slice 3",
        "GPU 0: 2g.12gb at slices 0-1",
        "GPU 0: full: 4 × 1g.6gb",
        "GPU 0: 4g.24gb in 1c + 1c + 1c + 1c",
        "GPU 0: 2g.12gb: serve = one-at-a-time",
        "GPU 0: 2g.12gb: down leaves nothing",
        "GPU 0: given back as it was",
    ] {
        assert_contains(&ran.stdout, line);
    }
    assert_eq!(geometry(&sim), before);
    assert_eq!(own_files(&sim), files);
    let beside = sim.node.run_dir().with_file_name("run-selftest");
    assert!(!beside.exists(), "{} is left", beside.display());
    assert_eq!(sim.device("busy")["client_count"], 1);
    drop(client);
    let report = fs::read_to_string(report).unwrap();
    assert_contains(
        &report,
        "NVIDIA A30 (a30-24gb), before: MIG on, 1g.6gb at slice 1 (0), 2g.12gb at slices 2-3 (0 1)",
    );
    assert_contains(&report, "driver 580.159.04, CUDA 13.0");
    assert_contains(
        &report,
        "  2g.12gb: profile 5, 2 slices, 28 SMs, 11968 MiB, placements 0-1 2-3, copy 2, NVDEC 2, NVENC 0, NVJPG 0, OFA 0\n",
    );
    for uuid in ["GPU-", "MIG-"] {
        let hidden = report.matches(uuid).count();
        assert_eq!(
            report.matches(&format!("{uuid}(UUID)")).count(),
            hidden,
            "{report}"
        );
    }
    // What mig-mps made is still known as its own.
    sim.run(&["down", "--gpu", "0", "--destroy-mig", "--yes"])
        .ended(0);
    assert_contains(&geometry(&sim)[0], "[]");
}

/// A deviation, the arguments of the run that meets it, and what it then says.
type Wrong = (Deviation, &'static [&'static str], &'static [&'static str]);

/// What is wrong with instances.
const WRONG_INSTANCES: [Wrong; 20] = [
    (
        Deviation::MigStaysOff,
        &["--reset", "--quick"],
        &[
            "MIG mode on, without instances: mig-mps up - --yes --reset: GPU 0 (GPU-",
            "GPU 0: instances: MIG mode is not on",
        ],
    ),
    (
        Deviation::ProfilesMissing,
        &["--reset", "--quick"],
        &[
            "MIG mode on, without instances: mig-mps up - --yes --reset: all steps succeeded, but the result could not be verified: GPU 0: the driver lists no profiles",
            "GPU 0: instances: MIG mode is not on",
        ],
    ),
    (
        Deviation::ProfileName,
        &["--reset", "--quick"],
        &["2g.12gb as in the catalog: name: the catalog has 2g.12gb, the driver 2g.13gb"],
    ),
    (
        Deviation::ProfileId,
        &["--reset", "--quick"],
        &[
            "2g.12gb as in the catalog: the driver does not offer profile 5",
            "2g.12gb: the catalog does not have this profile",
        ],
    ),
    (
        Deviation::ProfileSlices,
        &["--reset", "--quick"],
        &["2g.12gb as in the catalog: compute slices: the catalog has 2, the driver 3"],
    ),
    (
        Deviation::ProfileCopyEngines,
        &["--reset", "--quick"],
        &["engines: the catalog has copy 2, NVDEC 2, NVENC 0, NVJPG 0, OFA 0, the driver copy 3"],
    ),
    (
        Deviation::OtherPlacement,
        &["--reset", "--quick"],
        &[
            "1g.6gb at slice 0: mig-mps up - --yes --reset: the node was changed, but does not match the profile",
        ],
    ),
    (
        Deviation::OtherProfile,
        &["--reset", "--quick"],
        &[
            "2g.12gb at slices 0-1: mig-mps up - --yes --reset: the node was changed, but does not match the profile",
        ],
    ),
    (
        Deviation::OddUuids,
        &["--reset", "--quick"],
        &["1g.6gb at slice 0: a device is called {\"DEV-"],
    ),
    (
        Deviation::EqualUuids,
        &["--reset", "--quick"],
        &["full: 4 × 1g.6gb: two devices have one UUID"],
    ),
    (
        Deviation::Capabilities,
        &["--reset", "--quick"],
        &["1g.6gb at slice 0: the driver has no capability gpu0/mig/gi"],
    ),
    (
        Deviation::MorePartSms,
        &["--reset", "--quick"],
        &["4g.24gb in 1c + 1c + 1c + 1c: the devices have 64 SMs, and the instance 56"],
    ),
    (
        Deviation::ProfileMissing,
        &["--reset", "--quick"],
        &["2g.12gb as in the catalog: the driver does not offer profile 5"],
    ),
    (
        Deviation::CapabilityNodes,
        &["--reset", "--quick"],
        &["1g.6gb at slice 0: /dev/nvidia-caps/nvidia-cap"],
    ),
    (
        Deviation::ProfileSms,
        &["--reset", "--quick"],
        &[
            "2g.12gb as in the catalog: SMs: the catalog has 28, the driver 26",
            "1g.6gb at slice 0: mig-mps up - --yes --reset: the node was changed, but does not match the profile; remaining: ",
            "full: 4 × 1g.6gb: mig-mps up - --yes --reset: ",
        ],
    ),
    (
        Deviation::ProfileMemory,
        &["--reset", "--quick"],
        &["memory: the catalog has 11968 MiB, the driver 5984 MiB"],
    ),
    (
        Deviation::ProfileDecoders,
        &["--reset", "--quick"],
        &[
            "2g.12gb as in the catalog: engines: the catalog has copy 2, NVDEC 2, NVENC 0, NVJPG 0, OFA 0, the driver copy 2, NVDEC 3",
        ],
    ),
    (
        Deviation::ProfilePlacements,
        &["--reset", "--quick"],
        &[
            "1g.6gb as in the catalog: most instances: the catalog has 4, the driver 3; placements: the catalog has 0 1 2 3, the driver 0 1 2",
        ],
    ),
    (
        Deviation::DeviceSms,
        &["--reset", "--quick"],
        &[
            "1g.6gb at slice 0: mig-mps up - --yes --reset: the node was changed, but does not match the profile; remaining: GPU 0: destroy the compute instance at slice 0",
        ],
    ),
    (
        Deviation::PartSms,
        &["--reset", "--quick"],
        &["4g.24gb in 1c + 1c + 1c + 1c: a device of 1 slice has 12 SMs, and its profile 14"],
    ),
];

/// What is wrong with programs.
const WRONG_PROGRAMS: [Wrong; 20] = [
    (
        Deviation::ProfileSms,
        &["--no-mig", "--quick"],
        &["2g.12gb as in the catalog: SMs: the catalog has 28, the driver 26"],
    ),
    (
        Deviation::ProfileMissing,
        &["--no-mig", "--quick"],
        &["2g.12gb as in the catalog: the driver does not offer profile 5"],
    ),
    (
        Deviation::SecondOutsideMps,
        &["--no-mig"],
        &[
            "whole GPU: two clients at once: the program failed: device selftest: CUDA reports programs as running outside MPS",
            "whole GPU: the most clients: the program is no MPS client",
        ],
    ),
    (
        Deviation::UnlimitedClientSms,
        &["--no-mig", "--quick"],
        &[
            "whole GPU: a client computes: a client has 54 SMs at 100 %, and mig-mps expects 56 of 56",
        ],
    ),
    (
        Deviation::KilledClientEndsServer,
        &["--no-mig", "--quick"],
        &["whole GPU: a client is killed: the daemon lists 0 clients instead of 1"],
    ),
    (
        Deviation::KilledClientEndsOthers,
        &["--no-mig", "--quick"],
        &[
            "whole GPU: a client is killed: the program failed (exit status: 1): CUDA fails at the end: error 806 ",
        ],
    ),
    (
        Deviation::NoServerAfterKill,
        &["--no-mig", "--quick"],
        &[
            "whole GPU: the server is killed, and healed: the program failed: device selftest: cuInit failed with error 805 ",
        ],
    ),
    (
        Deviation::StrictMemoryLimit,
        &["--no-mig", "--quick"],
        &["whole GPU: share = 4: a quarter of the memory limit cannot be allocated: error 2 "],
    ),
    (
        Deviation::MemoryLimitOnlyShown,
        &["--no-mig", "--quick"],
        &["whole GPU: share = 2: the memory limit does not hold"],
    ),
    (
        Deviation::UserStays,
        &["--no-mig", "--quick"],
        &["whole GPU: serve = one-at-a-time: the program did not compute within 15 s"],
    ),
    (
        Deviation::ManyClients,
        &["--no-mig"],
        &["whole GPU: the most clients: the device takes 49, and mig-mps expects 48"],
    ),
    (
        Deviation::UsersApart,
        &["--no-mig", "--quick"],
        &["whole GPU: serve = all: the program did not compute within 15 s"],
    ),
    (
        Deviation::ClientSms,
        &["--no-mig", "--quick"],
        &[
            "whole GPU: share = 2: a client has 56 SMs at 53.5 %, and mig-mps expects 28 of 56",
            "whole GPU: set, on the running daemon: a client has 56 SMs at 50 %",
        ],
    ),
    (
        Deviation::MemoryLimit,
        &["--no-mig", "--quick"],
        &["whole GPU: share = 4: ", "MiB are free with a limit of "],
    ),
    (
        Deviation::UsersTogether,
        &["--no-mig", "--quick"],
        &["whole GPU: serve = one-at-a-time: a second user's program did not wait"],
    ),
    (
        Deviation::OutsideMps,
        &["--no-mig", "--quick"],
        &["whole GPU: daemon and server start: mig-mps verify: "],
    ),
    (
        Deviation::DeviceMemory,
        &["--no-mig", "--quick"],
        &[
            "whole GPU: a client computes: a client sees 11",
            " MiB, and the device has 24576 MiB",
        ],
    ),
    (
        Deviation::FewClients,
        &["--no-mig"],
        &["whole GPU: the most clients: the device takes 12, and mig-mps expects 48"],
    ),
    (
        Deviation::ClientStays,
        &["--no-mig", "--quick"],
        &["whole GPU: two clients at once: the daemon lists "],
    ),
    (
        Deviation::ServerDies,
        &["--no-mig", "--quick"],
        &["whole GPU: two clients at once: the server has ended with a client"],
    ),
];

/// What is wrong with programs on a GPU that is in MIG mode before.
const WRONG_ON_MIG_DEVICES: [Wrong; 12] = [
    (
        Deviation::MigStaysOn,
        &["--reset", "--quick"],
        &[
            "MIG mode off: mig-mps up - --yes --reset: GPU 0 (GPU-",
            "GPU 0: programs on the whole GPU: MIG mode is not off",
        ],
    ),
    (
        Deviation::UsersApart,
        &["--quick"],
        &["1g.6gb: serve = all: the program did not compute within 15 s"],
    ),
    (
        Deviation::ClientSms,
        &["--quick"],
        &["1g.6gb: share = 2: a client has 14 SMs at 5"],
    ),
    (
        Deviation::UnlimitedClientSms,
        &["--quick"],
        &["1g.6gb: a client computes: a client has 12 SMs at 100 %, and mig-mps expects 14 of 14"],
    ),
    (
        Deviation::MemoryLimit,
        &["--quick"],
        &["1g.6gb: share = 4: ", "MiB are free with a limit of "],
    ),
    (
        Deviation::MemoryLimitOnlyShown,
        &["--quick"],
        &["1g.6gb: share = 4: the memory limit does not hold"],
    ),
    (
        Deviation::UsersTogether,
        &["--quick"],
        &["1g.6gb: serve = one-at-a-time: a second user's program did not wait"],
    ),
    (
        Deviation::OutsideMps,
        &["--quick"],
        &["1g.6gb: daemon and server start: mig-mps verify: "],
    ),
    (
        Deviation::DeviceMemory,
        &["--quick"],
        &["1g.6gb: a client computes: a client sees 2"],
    ),
    (
        Deviation::ClientStays,
        &["--quick"],
        &["1g.6gb: two clients at once: the daemon lists "],
    ),
    (
        Deviation::ServerDies,
        &["--quick"],
        &["1g.6gb: two clients at once: the server has ended with a client"],
    ),
    (
        Deviation::KilledClientEndsOthers,
        &["--quick"],
        &[
            "1g.6gb: a client is killed: the program failed (exit status: 1): CUDA fails at the end: error 806 ",
        ],
    ),
];

fn assert_found(wrong: &[Wrong], is_in_mig_mode: bool) {
    let mut missed = Vec::new();
    for (deviation, args, said) in wrong {
        let sim = Sim::with("a30", 1);
        change(&sim, |state| {
            state.policy.deviations = vec![*deviation];
            state.gpus[0].mig.current = is_in_mig_mode;
            state.gpus[0].mig.pending = is_in_mig_mode;
        });
        let before = geometry(&sim);
        let ran = selftest(&sim, args);
        let mut wanted = said.iter().copied().chain(["GPU 0: given back as it was"]);
        if ran.status != 1 || !wanted.all(|wanted| ran.stdout.contains(wanted)) {
            missed.push(format!("{deviation:?}:\n{}{}", ran.stdout, ran.stderr));
        }
        if geometry(&sim) != before {
            missed.push(format!(
                "{deviation:?}: {:?} was {before:?}",
                geometry(&sim)
            ));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn a_node_whose_instances_deviate_is_found_and_given_back() {
    needs_root!();
    assert_found(&WRONG_INSTANCES, false);
}

#[test]
fn a_node_whose_programs_deviate_is_found_and_given_back() {
    needs_root!();
    assert_found(&WRONG_PROGRAMS, false);
}

#[test]
fn a_node_whose_mig_devices_deviate_is_found_and_given_back() {
    needs_root!();
    assert_found(&WRONG_ON_MIG_DEVICES, true);
}

/// A fault of the driver, of CUDA or of MPS, and what the run says then.
#[test]
fn what_fails_is_found_and_the_gpu_given_back() {
    needs_root!();
    for (on, code, args, said) in [
        (
            "kernel",
            1,
            ["--no-mig", "--quick"],
            "whole GPU: a client computes: the kernel computed wrong numbers",
        ),
        (
            "server start",
            1,
            ["--no-mig", "--quick"],
            "whole GPU: daemon and server start: mig-mps up - --yes: ",
        ),
        (
            "nvmlDeviceCreateGpuInstanceWithPlacement",
            15,
            ["--reset", "--quick"],
            "2g.12gb at slices 0-1: mig-mps up - --yes --reset: ",
        ),
    ] {
        let sim = Sim::with("a30", 1);
        sim.node.fault(on).every().fails(code).unwrap();
        let before = geometry(&sim);
        let ran = selftest(&sim, &args).ended(1);
        assert_contains(&ran.stdout, said);
        assert_eq!(geometry(&sim), before, "{on}");
    }
}

/// MIG mode that cannot be switched on, and a daemon that does not start again.
#[test]
fn what_fails_later_is_found_and_the_rest_is_named() {
    needs_root!();
    for (on, nth, args, said) in [
        (
            "nvmlDeviceSetMigMode",
            1,
            ["--reset", "--quick"],
            [
                "MIG mode on, without instances: mig-mps up - --yes --reset: ",
                "not tested           GPU 0: instances: MIG mode is not on",
            ],
        ),
        (
            "daemon start",
            1,
            ["--no-mig", "--quick"],
            [
                "not tested           GPU 0: whole GPU: programs: the device is not ready",
                "not tested           GPU 0: whole GPU: down: no daemon is running",
            ],
        ),
        (
            "daemon start",
            2,
            ["--no-mig", "--quick"],
            ["whole GPU: restart: mig-mps restart selftest --yes: ", "ok"],
        ),
    ] {
        let sim = Sim::with("a30", 1);
        sim.node.fault(on).nth(nth).fails(1).unwrap();
        let before = geometry(&sim);
        let ran = selftest(&sim, &args).ended(1);
        for line in said {
            assert_contains(&ran.stdout, line);
        }
        assert!(
            !ran.stdout.contains("no device has a daemon"),
            "{}",
            ran.stdout
        );
        assert_eq!(geometry(&sim), before, "{on}");
    }
}

/// A driver that changes the compute mode with the MIG mode does not give the GPU back as it was.
#[test]
fn another_compute_mode_is_found() {
    needs_root!();
    let sim = Sim::with("a30", 1);
    change(&sim, |state| {
        state.policy.deviations = vec![Deviation::MigOffIsExclusive];
    });
    let ran = selftest(&sim, &["--quick", "--reset"]).ended(1);
    assert_contains(
        &ran.stdout,
        "given back as it was: before: MIG off; now: MIG off, compute mode 3",
    );
}

/// A GPU that the catalog does not have is tested without it.
#[test]
fn a_product_that_is_not_in_the_catalog_is_named() {
    needs_root!();
    let sim = Sim::with("h100-64gb-sxm", 1);
    let ran = selftest(&sim, &["--quick"]).ended(0);
    assert_contains(
        &ran.stdout,
        "GPU 0: the catalog: the catalog does not have NVIDIA Graphics Device",
    );
}

/// The report can be written to standard output. A path that cannot be written is found before the test.
#[test]
fn a_report_is_written_to_standard_output() {
    let sim = Sim::with("a30", 1);
    let options = ["--no-mig", "--quick", "--report"];
    let ran = selftest(&sim, &[&options[..], &["missing/report.txt"]].concat()).ended(1);
    assert_contains(&ran.stderr, "cannot write missing/report.txt");
    assert!(!ran.stdout.contains("whole GPU: "), "{}", ran.stdout);
    let ran = selftest(&sim, &[&options[..], &["-"]].concat()).ended(0);
    assert_contains(&ran.stdout, "\nmig-mps 0.");
    assert_contains(&ran.stdout, "NVIDIA A30 (a30-24gb), before: MIG off\n");
}

/// Where the driver needs a reset that nobody has allowed, the rest is tested.
#[test]
fn what_cannot_be_tested_is_named() {
    let sim = Sim::with("a30", 1);
    let ran = sim.run(&["selftest", "--dry-run"]);
    let reset =
        "not tested: instances (its MIG mode can change only with a reset, which --reset allows)";
    if testkit::is_root("selftest") {
        assert_contains(&ran.ended(0).stdout, reset);
    }
    let ran = sim.run(&["selftest", "--dry-run", "--no-mig"]).ended(0);
    assert_contains(&ran.stdout, "not tested: instances (--no-mig)");
    assert_contains(&ran.stdout, "This takes about 1 min.");
    assert_eq!(sim.happened("daemon start"), 0);
}

#[test]
fn gpus_that_somebody_uses_are_left_alone() {
    needs_root!();
    let refused = |sim: &Sim, args: &[&str], said: &str, hint: &str| {
        let (before, events) = (geometry(sim), sim.happened("nvmlDeviceSetMigMode"));
        let ran = selftest(sim, args).ended(4);
        assert_contains(&ran.stderr, said);
        assert_contains(&ran.stderr, hint);
        assert_eq!(
            (geometry(sim), sim.happened("nvmlDeviceSetMigMode")),
            (before, events)
        );
    };
    let sim = Sim::with("h200", 2);
    let uuid = sim.list()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
    let mut app = sim.node.program("cuda-app");
    app.args(["hold"]).env("CUDA_VISIBLE_DEVICES", &uuid);
    app.env("CUDA_MPS_PIPE_DIRECTORY", sim.node.dir().join("none"));
    let mut app = app
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the program computes", || sim.happened("client start") == 1);
    let hint = "hint: use --gpu 1 to select the idle GPUs";
    refused(&sim, &[], &format!("GPU 0: pid {} (root, ", app.id()), hint);
    drop(app.stdin.take());
    app.wait().unwrap();

    sim.up(&whole(""), &["--yes"]).ended(0);
    refused(
        &sim,
        &["--gpu", "1"],
        "GPU 1: mig-mps serves 1",
        "hint: stop the devices first with `mig-mps down --gpu 1`",
    );
    sim.run(&["down"]).ended(0);

    change(&sim, |state| {
        state.gpus[0].compute_mode = ComputeMode::ExclusiveProcess;
    });
    refused(
        &sim,
        &["--gpu", "0"],
        "its compute mode is 3, not DEFAULT",
        "hint: run `nvidia-smi -i 0 -c DEFAULT`",
    );

    sim.up(ONE_EACH, &["--yes"]).ended(0);
    sim.run(&["down"]).ended(0);
    sim.foreign_instance(1, 6);
    refused(
        &sim,
        &["--gpu", "1"],
        "is not known to be created by mig-mps",
        "`nvidia-smi mig -dci`, then `-dgi`",
    );
    let usage = sim.run(&["selftest", "--gpu", "1", "--no-mig"]).ended(2);
    assert_contains(&usage.stderr, "--no-mig leaves nothing to test on it");

    let sim = Sim::with("h200", 1);
    let slurmd = sim.process("slurmd");
    refused(
        &sim,
        &[],
        "slurmd runs and could start programs",
        "State=DRAIN",
    );
    sim.run(&["selftest", "--dry-run", "--drained"]).ended(0);
    drop(slurmd);
    for name in [
        "kubelet",
        "k3s-server",
        "k3s-agent",
        "k3s",
        "kubelite",
        "rke2",
    ] {
        let kubelet = sim.process(name);
        refused(
            &sim,
            &[],
            "a kubelet runs and could start programs",
            "kubectl drain ",
        );
        drop(kubelet);
    }
    sim.run(&["selftest"]).ended(4);
}

/// Beside slurmd, a node must be drained, and its last job must have ended.
#[test]
fn a_node_that_slurm_uses_is_left_alone() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let _slurmd = sim.process("slurmd");
    let answer = sim.node.dir().join("answer");
    let script = format!("[ \"$*\" = \"show node n1\" ] && cat {}", answer.display());
    let scontrol = sim.program_script("scontrol", &script);
    let directory = scontrol.parent().unwrap().display().to_string();
    let path = format!("{directory}:{}", std::env::var("PATH").unwrap());
    let ended = |state: &str, allocated: u32| {
        let text = format!(
            "NodeName=n1 Arch=x86_64 CoresPerSocket=8\n   CPUAlloc={allocated} CPUEfctv=16 CPUTot=16\n   State={state} \
             ThreadsPerCore=1 TmpDisk=0\n   Reason=selftest [root@2026-07-01T10:00:00]\n"
        );
        fs::write(&answer, text).unwrap();
        let mut command = sim.command(&["selftest", "--dry-run"]);
        command.env("PATH", &path).env("SLURMD_NODENAME", "n1");
        Ran::of(&mut command)
    };
    for (state, allocated) in [
        ("IDLE", 0),
        ("MIXED", 4),
        ("MIXED+DRAIN", 4),
        ("ALLOCATED+DRAIN", 16),
        ("MIXED+DRAIN", 0),
        ("IDLE+COMPLETING+DRAIN", 0),
        ("DRAINING", 0),
        ("IDLE+DRAIN", 4),
    ] {
        let said = ended(state, allocated).ended(4).stderr;
        assert_contains(&said, "scontrol update NodeName=n1 State=DRAIN");
    }
    for state in ["IDLE+DRAIN", "DRAINED", "DOWN", "DOWN+DRAIN+NOT_RESPONDING"] {
        ended(state, 0).ended(0);
    }
}

/// A program that another user starts during a self-test is shown to the administrator, and is not in the report.
#[test]
fn a_report_has_no_programs_of_users() {
    needs_root!();
    let sim = Sim::with("a30", 1);
    let uuid = sim.list()["gpus"][0]["uuid"].as_str().unwrap().to_owned();
    let path = sim.node.dir().join("report.txt");
    // The self-test has called it before: this is the first command of the self-test.
    let held = sim.node.fault("nvmlInit_v2").nth(2).waits().unwrap();
    let options = ["--reset", "--quick", "--report", path.to_str().unwrap()];
    let mut command = sim.command(&[&["selftest", "--yes"], options.as_slice()].concat());
    let running = command.stdout(Stdio::piped()).spawn().unwrap();
    wait_until("the driver is called", || sim.happened("fault") > 0);
    let mut app = sim.node.program("cuda-app");
    app.arg("hold")
        .uid(8)
        .gid(8)
        .arg0("/home/mail/thesis) of (mail");
    app.env("CUDA_VISIBLE_DEVICES", &uuid);
    app.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
    let mut app = App::start(app);
    app.wait_up();
    drop(held);
    let output = running.wait_with_output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_contains(
        &shown,
        &format!("pid {} (mail, /home/mail/thesis) of (mail", app.pid()),
    );
    let report = fs::read_to_string(path).unwrap();
    assert_contains(&report, &format!("pid {}", app.pid()));
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let mut words = report.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
    assert!(words.all(|word| word != host.trim()), "{report}");
    for word in ["mail", "thesis", &uuid] {
        assert!(!report.contains(word), "{word}:\n{report}");
    }
}

/// Starts a self-test in a process group of its own.
fn started(sim: &Sim) -> Child {
    let command = sim.command(&["selftest", "--yes", "--quick", "--reset", "--gpu", "0"]);
    let mut command = hearing(&command);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// The number of moments at which a self-test is killed; more by hand, with `SELFTEST_KILLS`.
fn moments() -> u32 {
    let set = std::env::var("SELFTEST_KILLS").ok();
    set.and_then(|text| text.parse().ok()).unwrap_or(4)
}

/// Killed at any moment, with and without a reboot, a self-test leaves what the next change needs to give the GPU back.
#[test]
fn a_killed_self_test_is_undone_by_the_next_change() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    let begun = Instant::now();
    assert!(started(&sim).wait().unwrap().success());
    let whole_run = begun.elapsed();
    for moment in 0..moments() {
        let mut child = started(&sim);
        thread::sleep(whole_run * (moment * 2 + 1) / (moments() * 2));
        kill(child.id());
        child.wait().unwrap();
        if moment % 4 == 3 {
            sim.node.reboot();
            let beside = sim.node.run_dir().with_file_name("run-selftest");
            if beside.exists() {
                fs::remove_dir_all(beside).unwrap();
            }
            // Instances do not outlast a boot, and the file of what mig-mps has made is gone. Only giving back makes those of
            // GPU 0.
            let is_left = sim.machine("var/lib/mig-mps/selftest.json").exists();
            sim.run(&["down"]).ended(0);
            assert!(
                !is_left || geometry(&sim)[0] == before[0],
                "{:?}",
                geometry(&sim)
            );
            sim.run(&["up", "--yes", "--reset"]).ended(0);
            sim.run(&["down", "--gpu", "0"]).ended(0);
        } else {
            let ran = sim.run(&["down", "--gpu", "0", "--dry-run"]);
            let is_left = ran.stderr.contains("a self-test was interrupted");
            let ran = sim.run(&["restart", "busy", "--yes"]).ended(0);
            let said = "a self-test was interrupted; restoring GPU 0";
            assert_eq!(ran.stderr.contains(said), is_left, "{}", ran.stderr);
        }
        assert_eq!(geometry(&sim), before, "after moment {moment}");
        assert!(!sim.machine("var/lib/mig-mps/selftest.json").exists());
        assert_eq!(sim.device("busy")["state"], "ready");
    }
}

/// A command that a killed self-test leaves, which plans or makes a change, is ended before the GPU is given back.
#[test]
fn a_command_of_a_killed_self_test_is_ended_first() {
    needs_root!();
    // The call that the command waits in when the self-test is killed, and whether it goes on then.
    for (call, nth, goes_on) in [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", 2, true),
        ("nvmlInit_v2", 2, false),
        ("nvmlInit_v2", 3, true),
    ] {
        let sim = partitioned_beside_a_served_one();
        let before = geometry(&sim);
        let held = sim.node.fault(call).nth(nth).waits().unwrap();
        let mut killed = started(&sim);
        wait_until("the driver is called", || sim.happened("fault") > 0);
        let left = shell(format!("pgrep --parent {}", killed.id())).ended(0);
        let left: u32 = left.stdout.trim().parse().unwrap();
        kill(killed.id());
        killed.wait().unwrap();
        let restart = sim.spawn(&["restart", "busy", "--yes"]);
        let held = Some(held).filter(|_| !goes_on);
        assert!(restart.wait_with_output().unwrap().status.success());
        assert!(!is_alive(left), "{call}, {nth}");
        drop(held);
        assert_eq!(geometry(&sim), before, "{call}, {nth}");
    }
}

/// Kills a self-test of GPU 0 after it has destroyed the instances there.
fn killed_selftest(sim: &Sim) {
    let mut killed = sim.talk(&["selftest", "--yes", "--quick", "--reset", "--gpu", "0"]);
    killed.await_text("MIG mode on, without instances");
    killed.signal(Signal::KILL);
    killed.end();
}

/// A GPU that a self-test has left is not for programs, and `doctor` names the self-test. `heal` restores the GPU with and
/// without work of its own.
#[test]
fn a_gpu_that_an_interrupted_self_test_has_left_is_not_used() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    for heal in [["heal"].as_slice(), &["heal", "--json"]] {
        killed_selftest(&sim);
        let doctor = sim.run(&["doctor", "--all"]);
        assert_contains(&doctor.stdout, "; a self-test was interrupted");
        sim.run(heal).ended(0);
        assert_eq!(geometry(&sim), before, "{heal:?}");
    }
}

/// A GPU that is lost is restored later, and one that was replaced is not. The rest of the node goes on.
#[test]
fn a_lost_gpu_does_not_keep_others_from_being_changed() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    let record = sim.machine("var/lib/mig-mps/selftest.json");
    for is_replaced in [false, true] {
        killed_selftest(&sim);
        sim.node.node().lose_gpu(0).unwrap();
        sim.kill_daemon("busy");
        let ran = sim.run(&["heal"]).ended(0);
        assert_contains(&ran.stderr, "it will be restored after the self-test");
        assert_eq!(sim.device("busy")["state"], "ready");
        assert!(record.exists());
        if is_replaced {
            change(&sim, |state| {
                state.gpus[0].lost = false;
                state.gpus[0].uuid = "GPU-11111111-2222-5333-8444-555555555555".to_owned();
            });
            let ran = sim.run(&["restart", "busy", "--yes"]).ended(0);
            assert_contains(&ran.stderr, "is no longer in this machine");
        } else {
            change(&sim, |state| state.gpus[0].lost = false);
            sim.run(&["restart", "busy", "--yes"]).ended(0);
            assert_eq!(geometry(&sim), before);
        }
        assert!(!record.exists());
    }
}

/// A GPU is given back when a program on it has ended, if that is soon.
#[test]
fn a_program_that_ends_soon_is_waited_for() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    let mut killed = sim.talk(&["selftest", "--yes", "--quick", "--reset", "--gpu", "0"]);
    killed.await_text("1g.6gb: daemon and server start");
    killed.signal(Signal::KILL);
    killed.end();
    let device = sim.list()["gpus"][0]["devices"][0]["uuid"].clone();
    let mut program = sim.node.program("cuda-app");
    program
        .args(["run", "2"])
        .env("CUDA_VISIBLE_DEVICES", device.as_str().unwrap())
        .env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
    let started = sim.happened("client start");
    let mut program = program.spawn().unwrap();
    wait_until("it computes", || sim.happened("client start") > started);
    sim.run(&["restart", "busy", "--yes"]).ended(0);
    assert_eq!(geometry(&sim), before);
    assert!(program.wait().unwrap().success());
}

/// Ctrl-C, the end of a session and a shutdown end a self-test after the present step, and the GPU is given back.
#[test]
fn an_interrupted_self_test_gives_the_gpu_back() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    for signal in ["INT", "HUP", "TERM"] {
        let mut child = started(&sim);
        wait_until("the record is written", || {
            sim.machine("var/lib/mig-mps/selftest.json").exists()
        });
        thread::sleep(Duration::from_millis(300));
        shell(format!("kill -{signal} {}", child.id())).ended(0);
        assert_eq!(child.wait().unwrap().code(), Some(130), "{signal}");
        assert_eq!(geometry(&sim), before, "{signal}");
        assert!(!sim.machine("var/lib/mig-mps/selftest.json").exists());
    }
}

/// Machines may share the state directory. The record of a self-test is for the machine that has its GPUs.
#[test]
fn the_self_test_of_another_machine_is_not_undone_here() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    let mut child = started(&sim);
    let path = sim.machine("var/lib/mig-mps/selftest.json");
    wait_until("the record is written", || path.exists());
    kill(child.id());
    child.wait().unwrap();
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let own = record["machine"]["name"].take();
    record["machine"]["name"] = "other".into();
    fs::write(&path, record.to_string()).unwrap();
    let said = sim.run(&["restart", "busy", "--yes"]).ended(0).stderr;
    assert!(!said.contains("self-test"), "{said}");
    let said = selftest(&sim, &["--gpu", "0", "--reset"]).ended(1).stderr;
    assert_contains(&said, "selftest.json belongs to the machine other");
    record["machine"]["name"] = own;
    fs::write(&path, record.to_string()).unwrap();
    sim.run(&["restart", "busy", "--yes"]).ended(0);
    assert_eq!(geometry(&sim), before);
}

/// While a self-test runs, another change waits for it, and names it.
#[test]
fn another_change_waits_for_the_self_test() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let held = sim
        .node
        .fault("nvmlDeviceSetMigMode")
        .nth(1)
        .waits()
        .unwrap();
    let mut child = started(&sim);
    wait_until("the driver is called", || sim.happened("fault") > 0);
    let ran = sim
        .run(&["set", "busy", "active-thread-percentage=50"])
        .ended(4);
    assert_contains(&ran.stderr, "mig-mps selftest");
    let pid = child.id();
    let ran = sim.run(&["status"]).ended(0);
    assert_contains(
        &ran.stderr,
        &format!("mig-mps selftest (pid {pid}) is testing GPU 0."),
    );
    drop(held);
    assert!(child.wait().unwrap().success());
}

/// What the caller's shell asks of CUDA is for other programs.
#[test]
fn variables_of_the_callers_shell_are_not_for_the_programs() {
    let sim = Sim::with("a30", 1);
    let mut command = sim.command(&["selftest", "--yes", "--quick", "--no-mig"]);
    command
        .env("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "20")
        .env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G")
        .env("CUDA_VISIBLE_DEVICES", "3");
    let ran = Ran::of(&mut command).ended(0);
    assert!(!ran.stdout.contains("differs"), "{}", ran.stdout);
}

/// Ctrl-C in a terminal is sent to all programs there, and those of the self-test finish the present step.
#[test]
fn ctrl_c_in_a_terminal_lets_the_present_step_end() {
    needs_root!();
    let sim = Sim::with("a30", 1);
    let mut dialogue = sim.dialogue("selftest --yes --quick --no-mig");
    dialogue.await_text("set, on the running daemon");
    let clients = sim.happened("client start");
    wait_until("the first user's program computes", || {
        sim.happened("client start") > clients
    });
    dialogue.press("\x03");
    let ran = dialogue.end().ended(130);
    assert_contains(&ran.stdout, "serve = one-at-a-time");
    assert!(!ran.stdout.contains("differs"), "{}", ran.stdout);
}

/// Directories of mig-mps that are not the node's have a lock of their own.
#[test]
fn a_self_test_that_runs_is_not_undone_with_other_directories() {
    needs_root!();
    let sim = Sim::with("a30", 1);
    let mut dialogue = sim.talk(&["selftest", "--yes", "--quick", "--no-mig"]);
    dialogue.await_text("daemon and server start");
    let mut other = sim.command(&["down"]);
    other.env(
        "MIG_MPS_RUN_DIR",
        sim.node.run_dir().with_file_name("other"),
    );
    let ran = Ran::of(&mut other).ended(4);
    assert_contains(&ran.stderr, &format!("pid {}", dialogue.pid()));
    assert_contains(
        &ran.stderr,
        "hint: wait for the self-test to exit, then run this command again",
    );
    let ran = dialogue.end().ended(0);
    assert!(!ran.stdout.contains("differs"), "{}", ran.stdout);
}

/// A self-test is killed while another change, which has seen the node before, waits for an answer.
#[test]
fn what_was_killed_meanwhile_is_undone_before_what_was_agreed_to() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    let client = sim.client("busy");
    for (subcommand, question) in [
        ("restart busy --force", "Go on?"),
        ("selftest --gpu 0 --quick --reset", "Test GPU 0 now?"),
    ] {
        let mut dialogue = sim.dialogue(subcommand);
        dialogue.await_text(question);
        let mut killed = sim.talk(&["selftest", "--yes", "--quick", "--gpu", "0"]);
        killed.await_text("MIG mode on, without instances");
        killed.signal(Signal::KILL);
        killed.end();
        dialogue.press("y\n");
        let ran = dialogue.end().ended(0);
        assert_contains(&ran.stdout, "a self-test was interrupted; restoring GPU 0");
        assert_eq!(geometry(&sim), before, "{subcommand}");
        assert!(!sim.machine("var/lib/mig-mps/selftest.json").exists());
    }
    drop(client);
}

/// After a reboot, the instances are made again, and are those of mig-mps as before.
#[test]
fn instances_given_back_after_a_reboot_are_known_as_made_by_mig_mps() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim).remove(0);
    let mut killed = sim.talk(&["selftest", "--yes", "--quick", "--reset", "--gpu", "0"]);
    killed.await_text("MIG mode on, without instances");
    killed.signal(Signal::KILL);
    killed.end();
    sim.node.reboot();
    for directory in ["run", "run-selftest"] {
        // The reboot may have removed it.
        let _ = fs::remove_dir_all(sim.node.run_dir().with_file_name(directory));
    }
    sim.run(&["down"]).ended(0);
    assert_eq!(geometry(&sim)[0], before);
    sim.run(&["down", "--gpu", "0", "--destroy-mig", "--yes"])
        .ended(0);
    assert_contains(&geometry(&sim)[0], "[]");
}

/// The directory beside the run directory may be of somebody else.
#[test]
fn a_directory_of_others_is_not_used() {
    let sim = Sim::with("a30", 1);
    let beside = sim.node.run_dir().with_file_name("run-selftest");
    fs::create_dir_all(&beside).unwrap();
    fs::write(beside.join("notes"), "of somebody").unwrap();
    let ran = selftest(&sim, &["--no-mig", "--quick"]).ended(1);
    assert_contains(&ran.stderr, "run-selftest exists");
    assert!(beside.join("notes").exists());
}

/// What was found is told even if the GPU cannot be given back, and a command that was killed is not called its last step.
#[test]
fn what_was_found_is_reported_where_the_gpu_is_not_given_back() {
    needs_root!();
    let sim = Sim::with("a30", 1);
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    sim.node.fault(create).nth(2).kills().unwrap();
    let off = "nvmlDeviceSetMigMode";
    sim.node.fault(off).nth(2).fails(19).unwrap();
    let path = sim.node.dir().join("report.txt");
    let options = ["--quick", "--reset", "--report", path.to_str().unwrap()];
    let ran = selftest(&sim, &options).ended(1);
    assert_contains(&ran.stdout, ": it failed (signal: 9 (SIGKILL)");
    assert_contains(&ran.stderr, "cannot restore GPU 0 after the self-test");
    let report = fs::read_to_string(path).unwrap();
    assert_contains(
        &report,
        "given back: cannot restore GPU 0 after the self-test",
    );
}

/// A GPU whose instances cannot be destroyed is not tested.
#[test]
fn instances_that_stay_end_the_test_of_the_gpu() {
    needs_root!();
    let sim = partitioned_beside_a_served_one();
    let before = geometry(&sim);
    let destroy = sim.node.fault("nvmlGpuInstanceDestroy").nth(1);
    destroy.fails(999).unwrap();
    let ran = selftest(&sim, &["--gpu", "0", "--quick", "--reset"]).ended(1);
    assert_contains(
        &ran.stdout,
        "GPU 0: instances destroyed: mig-mps up - --yes",
    );
    assert_contains(&ran.stdout, "GPU 0: the rest: the GPU still has instances");
    assert_contains(&ran.stdout, "GPU 0: given back as it was");
    assert_eq!(geometry(&sim), before);
}

/// On a narrow terminal lines break between words, and what follows is indented.
#[test]
fn it_fits_a_narrow_terminal() {
    let sim = Sim::with("h200", 1);
    let ran = sim
        .in_80_columns("selftest --no-mig --quick --yes")
        .ended(0);
    let shown = testkit::plain(&ran.stdout).replace('\r', "");
    let long: Vec<&str> = shown
        .lines()
        .filter(|line| line.chars().count() > 80)
        .collect();
    assert_eq!(long, [""; 0]);
    assert_contains(&shown, "a\n                     client has 8 of 132 SMs");
}
