//! Advice is for its reader, can be carried out, and works.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use testkit::{
    App, NOBODY, ONE_EACH, Ran, SMALL, Sim, WHOLE, assert_contains, needs_root, repository, shell,
    without_gpu,
};

use crate::cli::devices::uuids::nvidia_smi;

/// The built-in profiles.
fn built_in(sim: &Sim) -> Vec<String> {
    let listed = sim.run(&["profiles"]).ended(0).stdout;
    let names = listed.lines().skip(1).filter(|line| !line.starts_with(' '));
    let words = names.map(|line| line.split(' ').next().unwrap().to_owned());
    words.collect()
}

#[test]
fn every_built_in_profile_suits_the_gpus_that_the_readme_names() {
    for model in ["a30", "rtx-pro-6000-96gb", "a100-80gb", "h200"] {
        let sim = Sim::with(model, 1);
        let all = built_in(&sim);
        assert!(all.len() >= 7, "{all:?}");
        for name in all {
            sim.run(&["check", &name]).ended(0);
            sim.run(&["up", &name, "--dry-run"]).ended(0);
        }
    }
    let sim = Sim::with("a30", 1);
    sim.run(&["up", "balanced"]).ended(0);
    let devices = sim.status()["devices"].as_array().unwrap().len();
    assert_eq!(devices, 3);
}

/// A node with a GPU that has no MIG.
fn without_mig(model: &str, count: usize) -> Sim {
    let sim = Sim::with(model, count);
    sim.node
        .fault("nvmlDeviceGetMigMode")
        .every()
        .fails(3)
        .unwrap();
    sim
}

#[test]
fn profiles_marks_what_fits_this_node() {
    let sim = Sim::with("a30", 2);
    let listed = sim.run(&["profiles"]).ended(0).stdout;
    let line = |name: &str| {
        let mut lines = listed.lines();
        let found = lines.find(|line| line.starts_with(&format!("{name} ")));
        found.unwrap_or_else(|| panic!("{listed}")).to_owned()
    };
    assert_contains(&listed, "FITS THIS NODE");
    assert_contains(&line("all-small"), "  8 devices ");
    assert_contains(&line("balanced"), "  6 devices ");
    let sim = without_mig("a30", 2);
    let ran = sim.run(&["profiles"]).ended(0);
    let mut lines = ran.stdout.lines();
    assert!(
        lines.any(|line| line.starts_with("balanced ") && line.contains("  no ")),
        "{ran:?}"
    );
    assert_contains(&ran.stdout, "whole-gpu             2 devices ");
    assert_contains(&ran.stderr, "mig-mps check NAME");
}

#[test]
fn a_built_in_profile_that_does_not_fit_is_answered_with_those_that_do() {
    let sim = without_mig("a30", 1);
    for command in ["up", "plan", "check"] {
        let ran = sim.run(&[command, "balanced"]);
        assert_ne!(ran.status, 0);
        let said = &ran.stderr;
        assert_contains(
            said,
            "error: the built-in profile balanced does not fit these GPUs: the driver ",
        );
        assert_contains(
            said,
            "hint: use a built-in profile that fits (whole-gpu), or run `mig-mps init`",
        );
        assert!(!said.contains("models"), "{said}");
        assert!(!said.contains("did you mean"), "{said}");
        assert!(!said.contains(" | "), "nobody edits it: {said}");
    }
    // One's own profile is edited.
    let ran = sim.up(ONE_EACH, &[]);
    assert!(!ran.stderr.contains("built-in"), "{ran:?}");
}

#[test]
fn explain_knows_errors_of_other_programs_and_guesses_no_numbers() {
    let sim = Sim::with("h200", 1);
    let explain = |word: &str| sim.run(&["explain", word]);
    for (word, part) in [
        ("101", "ordinal"),
        ("CUDA_ERROR_INVALID_DEVICE", "ordinal"),
        ("205", "user namespace"),
        ("214", "ECC"),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", "ECC"),
        ("19", "In use by another client"),
        ("nvml 3", "Not Supported"),
        ("NVML_ERROR_IN_USE", "In use"),
        ("Insufficient Permissions", "NVML"),
        ("Insufficient Resources", "NVML"),
        ("In use by another client", "NVML"),
        ("Not Supported (3)", "NVML"),
        ("16", "reset"),
        ("Duplicate GPU detected", "NCCL"),
    ] {
        assert_contains(&explain(word).ended(0).stdout, part);
    }
    // A number that CUDA and NVML have is explained as both.
    let both = explain("4").ended(0).stdout;
    assert_contains(&both, "NVML");
    for word in ["206", "818", "29", "99999"] {
        let said = explain(word).ended(2).stderr;
        assert!(!said.contains("did you mean"), "{said}");
        assert_contains(&said, &format!("no check or error has the name \"{word}\""));
    }
    assert_contains(
        &explain("daemon-ded").ended(2).stderr,
        "did you mean \"daemon-dead\"?",
    );
}

#[test]
fn an_instance_without_a_compute_instance_is_completed_first() {
    let sim = Sim::with("a100-80gb", 1);
    let none = "[[gpu]]\nselect = { all = true }\ndevices = []\n";
    sim.up(none, &["--yes"]).ended(0);
    nvidia_smi(&sim, "mig -i 0 -cgi 3g.40gb");
    let said = sim.run(&["doctor"]).stdout;
    assert_contains(&said, "has no compute instance [instance-without-device]");
    let complete = "nvidia-smi mig -i 0 -gi ";
    let (before, _) = said.split_once("-dgi").unwrap_or((&said, ""));
    assert_contains(before, complete);
    assert_contains(before, " -cci");
    assert_contains(&said, "virtual machine");
}

#[test]
fn a_workstation_gpu_in_display_mode_is_recognized() {
    let model = "rtx-pro-6000-96gb";
    let sim = Sim::with(model, 1);
    sim.node
        .fault("nvmlDeviceSetMigMode")
        .every()
        .fails(3)
        .unwrap();
    let small = "[[gpu]]\nselect = { all = true }\ndevices = [{ profile = \"1g\", count = 4 }]\n";
    let ran = sim.up(small, &["--yes"]).ended(1);
    assert_contains(&ran.stderr, "displaymodeselector --gpumode compute");
    let sim = without_mig(model, 1);
    let said = sim.run(&["doctor"]).stdout;
    assert_contains(&said, "displaymodeselector --gpumode compute");
    assert!(!said.contains("driver is too old"), "{said}");
    let ran = sim.up(small, &["--yes"]);
    assert_contains(&ran.stderr, "displaymodeselector --gpumode compute");
    // Other models have no display.
    let sim = without_mig("a100-80gb", 1);
    let said = sim.run(&["doctor"]).stdout;
    assert!(!said.contains("displaymodeselector"), "{said}");
    assert!(!said.contains("too old"), "{said}");
}

/// The command with which somebody else starts a daemon, and its pipe directory.
fn start_of_theirs(sim: &Sim) -> (Command, PathBuf) {
    let pipe = sim.node.dir().join("theirs");
    fs::create_dir_all(&pipe).unwrap();
    let mut start = sim.node.program("nvidia-cuda-mps-control");
    start
        .arg("-d")
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", &pipe)
        .env_remove("CUDA_VISIBLE_DEVICES");
    (start, pipe)
}

/// A daemon that somebody else has started with `-d`, in this control group.
fn daemon_in(sim: &Sim, group: &str) -> String {
    let (mut start, pipe) = start_of_theirs(sim);
    Ran::of(&mut start).ended(0);
    let pid = fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid")).unwrap();
    let number: u32 = pid.trim().parse().unwrap();
    sim.node.node().show_in_cgroup(number, group).unwrap();
    pid.trim().to_owned()
}

const ID: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
const UID: &str = "6dbbf17e-94e1-4b10-8555-9bfe510c25d5";

#[test]
fn a_supervised_daemon_is_ended_by_its_supervisor() {
    let docker = format!("/system.slice/docker-{ID}.scope");
    let pod = format!("/kubepods/besteffort/pod{UID}/{ID}");
    for (group, advice) in [
        (
            "/system.slice/nvidia-mps.service",
            "systemctl disable --now nvidia-mps.service",
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/mps.service",
            "disable --now mps.service",
        ),
        ("/slurm/uid_0/job_7/step_batch", "scancel 7"),
        ("/pbs_jobs.service/jobid/12.server", "12.server"),
        (
            "/lxc.payload.guest/system.slice/mps.service",
            "lxc.payload.guest",
        ),
        (&docker, "container 9ec39b91"),
        (&pod, "pod 6dbbf17e"),
    ] {
        let sim = Sim::with("a100-80gb", 1);
        daemon_in(&sim, group);
        let path = sim.profile(WHOLE).display().to_string();
        for words in [
            &["status"][..],
            &["doctor"],
            &["plan", &path],
            &["up", &path, "--yes"],
        ] {
            let ran = sim.run(words);
            let said = format!("{}{}", ran.stdout, ran.stderr);
            let plain = said.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(plain.contains(advice), "{group}: {words:?}: {said}");
            assert!(!plain.contains("echo quit"), "{group}: {words:?}: {said}");
        }
    }
}

/// A command that ended the unit would end what else is in it.
#[test]
fn a_unit_with_other_programs_is_named_and_not_stopped() {
    for group in [
        "/system.slice/cron.service",
        "/system.slice/mig-mps.service",
    ] {
        let sim = Sim::with("a100-80gb", 1);
        let daemon = daemon_in(&sim, group);
        let other = sim.process("other");
        sim.node.node().show_in_cgroup(other.0.id(), group).unwrap();
        let path = sim.profile(WHOLE).display().to_string();
        for words in [&["status"][..], &["plan", &path]] {
            let ran = sim.run(words);
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert_contains(&said, &daemon);
            assert_contains(&said, group.rsplit('/').next().unwrap());
            assert!(!said.contains("systemctl"), "{said}");
        }
    }
    // A daemon of mig-mps is another program, too.
    let sim = Sim::served("a100-80gb", 1, WHOLE);
    let group = "/system.slice/both.service";
    daemon_in(&sim, group);
    let ours = sim.device("0")["daemon_pid"].as_u64().unwrap();
    let ours = u32::try_from(ours).unwrap();
    sim.node.node().show_in_cgroup(ours, group).unwrap();
    let said = sim.run(&["status"]).stdout;
    assert_contains(&said, "both.service");
    assert!(!said.contains("systemctl"), "{said}");
    // A login is no supervisor.
    let sim = Sim::with("a100-80gb", 1);
    daemon_in(&sim, "/user.slice/user-0.slice/session-3.scope");
    assert_contains(&sim.run(&["status"]).stdout, "echo quit | ");
}

/// A service that starts its daemon through a shell, which waits for it, runs nothing else.
#[test]
fn the_shell_of_a_unit_is_no_other_program() {
    let sim = Sim::with("a100-80gb", 1);
    let (mut start, pipe) = start_of_theirs(&sim);
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "\"$0\" -f; exit 1"])
        .arg(start.get_program());
    shell.env_clear().envs(
        start
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    start = shell;
    let shell = testkit::Running(start.spawn().unwrap());
    let file = pipe.join("nvidia-cuda-mps-control.pid");
    testkit::wait_until("the daemon runs", || file.exists());
    let daemon: u32 = fs::read_to_string(file).unwrap().trim().parse().unwrap();
    for pid in [shell.0.id(), daemon] {
        let group = "/system.slice/mps.service";
        sim.node.node().show_in_cgroup(pid, group).unwrap();
    }
    let said = sim.run(&["status"]).stdout;
    assert_contains(&said, "systemctl disable --now mps.service");
    assert!(!said.contains("other programs"), "{said}");
}

/// Its path means another directory there, or another daemon's here.
#[test]
fn nobody_is_sent_to_a_socket_of_another_mount_namespace() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 1, WHOLE);
    let (start, _) = start_of_theirs(&sim);
    Ran::of(&mut testkit::under(&["unshare", "--mount"], &start)).ended(0);
    let said = sim.run(&["status"]).stdout;
    assert_contains(&said, "mount namespace");
    assert!(!said.contains("echo quit"), "{said}");
}

#[test]
fn a_reader_gets_no_advice_that_another_user_has_to_carry_out() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    daemon_in(&sim, "/user.slice/user-0.slice/session-3.scope");
    let said = Ran::of(&mut sim.by_nobody(&["status"])).stdout;
    assert!(!said.contains("echo quit"), "{said}");
}

/// The device that `run` chooses, and what it says.
fn chosen(sim: &Sim, words: &[&str]) -> (String, String) {
    let show = [
        "--",
        "sh",
        "-c",
        "basename $(dirname $CUDA_MPS_PIPE_DIRECTORY)",
    ];
    let ran = sim
        .run(&[&["run", "--any"], words, &show].concat())
        .ended(0);
    (ran.stdout.trim().to_owned(), ran.stderr)
}

#[test]
fn any_counts_what_the_caller_would_get_and_says_what_it_chose() {
    let profile = "[[gpu]]\nselect = { all = true }\n\
                   devices = [ { name = \"class\", profile = \"4g\", mps = { share = 40 } }, { name = \"half\", profile = \"2g\" } ]\n";
    let sim = Sim::served("a100-80gb", 1, profile);
    let (name, said) = chosen(&sim, &[]);
    assert_eq!(name, "half");
    assert_contains(&said, "using device half (28 SMs, ");
    assert_eq!(chosen(&sim, &["--min-memory", "5G"]).0, "half");
    assert_eq!(chosen(&sim, &["-q"]).1, "");
    let (name, said) = chosen(&sim, &["--profile", "4g"]);
    assert_eq!(name, "class");
    assert_contains(&said, "using device class (2 SMs, 1.0 GiB)");
    // No device gives as much.
    let ran = sim.run(&[
        "run",
        "--any",
        "--profile",
        "4g",
        "--min-memory",
        "5G",
        "--",
        "true",
    ]);
    let said = ran.ended(125).stderr;
    assert_contains(&said, "class has ");
    assert_contains(&said, "pinned-memory-limit");
    assert_contains(&said, "hint: use a smaller --min-memory");
}

#[test]
fn any_takes_a_device_of_the_callers_own_first() {
    needs_root!();
    let profile = "[[gpu]]\nselect = { all = true }\n\
                   devices = [ { name = \"all\", profile = \"4g\" }, { name = \"own\", profile = \"2g\", mps = { serve = \"user:nobody\" } } ]\n";
    let sim = Sim::served("a100-80gb", 1, profile);
    let show = [
        "run",
        "--any",
        "--",
        "sh",
        "-c",
        "basename $(dirname $CUDA_MPS_PIPE_DIRECTORY)",
    ];
    let run = || {
        let mut command = sim.by_nobody(&show);
        command.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
        Ran::of(&mut command).ended(0).stdout.trim().to_owned()
    };
    assert_eq!(run(), "own");
    let app: App = sim.app_of_nobody("own", &["hold"]);
    assert_eq!(run(), "own", "{NOBODY} has it alone");
    drop(app);
}

const DCGM: &str = "nvidia-dcgm.service";

#[test]
fn stopped_services_are_named_before_meanwhile_and_afterwards() {
    let sim = Sim::served("a100-80gb", 1, WHOLE);
    sim.node.service(DCGM);
    let path = sim.profile(SMALL).display().to_string();
    let dry = sim
        .run(&["up", &path, "--stop-holders", "--dry-run"])
        .ended(0)
        .stdout;
    let plain = dry.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_contains(&plain, "stops nvidia-dcgm.service during");
    assert!(!plain.contains("--stop-holders"), "{dry}");
    assert!(!plain.contains("is held open"), "{dry}");
    let asked = sim
        .answered(&format!("up {path} --stop-holders"), "n\n")
        .ended(4);
    assert_contains(
        &asked.stdout.replace('\r', ""),
        "stop nvidia-dcgm.service for a moment",
    );
    assert_eq!(sim.happened("systemctl stop"), 0);
    let ran = sim.up(SMALL, &["--yes", "--stop-holders"]).ended(0);
    assert_contains(&ran.stderr, "stopped nvidia-dcgm.service");
    assert_contains(&ran.stderr, "nvidia-dcgm.service was started again");
}

/// A service that leaks handles keeps instances from being destroyed, too.
#[test]
fn services_that_hold_instances_are_stopped_too() {
    let sim = Sim::small();
    sim.node.service(DCGM);
    let fault = sim.node.fault("nvmlComputeInstanceDestroy");
    fault.every().fails(19).unwrap();
    let down = ["down", "0.0", "--destroy-mig", "--yes"];
    let said = sim.run(&down).ended(4).stderr;
    assert_contains(&said, "hint: use --stop-holders to stop these services");
    assert_contains(&said, DCGM);
    assert!(!said.contains("let them end"), "{said}");
    // The daemon of the other device has the GPU open, and is in nobody's way.
    assert!(!said.contains("nvidia-cuda-mps-control"), "{said}");
    assert_eq!(sim.happened("systemctl stop"), 0);
    let with_option = ["down", "0.0", "--destroy-mig", "--stop-holders"];
    let dry = sim.run(&[&with_option[..], &["--dry-run"]].concat());
    let plain = dry.ended(0).stdout;
    let plain = plain.split_whitespace().collect::<Vec<_>>().join(" ");
    let stops = "If the driver refuses to destroy instances of GPU 0, this stops nvidia-dcgm.service for the change, and starts it again.";
    assert_contains(&plain, stops);
    assert!(!plain.contains("--stop-holders"), "{plain}");
    let asked = sim.answered(&with_option.join(" "), "n\n").ended(4);
    let asked = asked.stdout.split_whitespace().collect::<Vec<_>>();
    let asked = asked.join(" ");
    assert_contains(&asked, stops);
    assert_contains(
        &asked,
        "and stop nvidia-dcgm.service for a moment if it is in the way",
    );
    let said = sim
        .run(&[&down[..], &["--stop-holders"]].concat())
        .ended(4)
        .stderr;
    assert_contains(&said, "GPU 0: stopped nvidia-dcgm.service");
    assert!(!said.contains("hint: --stop-holders"), "{said}");
    assert_contains(&said, "\nnvidia-dcgm.service was started again\n");
    assert_contains(&said, "no visible process keeps it open");
    assert_contains(&said, "hint: stop the programs that have the GPU open");
    assert!(!said.contains("let them end"), "{said}");
    let (stops, starts) = (
        sim.happened("systemctl stop"),
        sim.happened("systemctl start"),
    );
    assert_eq!((stops, starts), (1, 1));
    sim.node.node().clear_faults().unwrap();
    sim.run(&[&down[..], &["--stop-holders"]].concat()).ended(0);
    assert_eq!(sim.happened("systemctl stop"), 1, "nobody was in the way");
}

const CDI: &str = "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: MIG-00000000-0000-0000-0000-000000000000\n";

#[test]
fn a_stale_file_of_nvidias_toolkit_is_found_and_renewed() {
    let sim = Sim::with("a100-80gb", 1);
    sim.prepare("etc/cdi/nvidia.yaml", CDI);
    let renew = "nvidia-ctk cdi generate --device-name-strategy=uuid --output=/etc/cdi/nvidia.yaml";
    let ran = sim.up(SMALL, &["--yes"]).ended(0);
    let last = ran.stderr.lines().last().unwrap();
    assert_contains(last, renew);
    assert_contains(last, "/etc/cdi/nvidia.yaml lacks 2 devices");
    let podman = sim.run(&["env", "0.0", "--format", "podman"]).ended(0);
    assert_contains(&podman.stderr, renew);
    assert_contains(
        &podman.stderr,
        "lacks 1 device of this node, so containers cannot get it as",
    );
    assert!(!sim.run(&["env", "0.0"]).stderr.contains("nvidia-ctk"));
    let doctor = sim.run(&["doctor"]).stdout;
    assert_contains(&doctor, "/etc/cdi/nvidia.yaml lacks 2 devices [cdi-stale]");
    assert_contains(&doctor, &format!("$ {renew}"));
    // A service that writes the file is restarted.
    let unit = "etc/systemd/system/multi-user.target.wants/nvidia-cdi-refresh.service";
    sim.prepare(unit, "");
    assert_contains(
        &sim.run(&["doctor"]).stdout,
        "$ systemctl restart nvidia-cdi-refresh.service",
    );
    let (one, other) = (sim.uuid("0.0"), sim.uuid("0.2"));
    sim.prepare(
        "etc/cdi/nvidia.yaml",
        &format!("{CDI}- name: {one}\n- name: {other}\n"),
    );
    assert!(!sim.run(&["doctor"]).stdout.contains("cdi-stale"));
    // A file that has numbers, too, keeps them.
    sim.prepare("etc/cdi/nvidia.yaml", &format!("{CDI}- name: \"0:0\"\n"));
    let podman = sim.run(&["env", "0.0", "--format", "podman"]).ended(0);
    assert!(
        !podman.stderr.contains("--device-name-strategy"),
        "{podman:?}"
    );
    // Numbers alone tell nothing.
    sim.prepare(
        "etc/cdi/nvidia.yaml",
        "kind: nvidia.com/gpu\ndevices:\n- name: \"0:0\"\n",
    );
    assert!(!sim.run(&["doctor"]).stdout.contains("cdi-stale"));
}

#[test]
fn a_newcomer_during_a_drain_learns_the_truth() {
    let sim = Sim::served("h200", 1, WHOLE);
    let client = sim.client("0");
    let down = sim.talk(&["down", "--drain", "20", "--force"]);
    // Until the daemon closes, it admits programs.
    testkit::wait_until("the device closes", || {
        sim.run(&["run", "0", "--", "true"]).status != 0
    });
    for words in [
        &["run", "0", "--", "true"][..],
        &["run", "--any", "--", "true"],
    ] {
        let said = sim.run(words).ended(125).stderr;
        assert_contains(
            &said,
            "device 0 accepts no new programs now: the node is being changed, by ",
        );
        assert_contains(&said, "down --drain 20 --force");
        assert!(!said.contains("restart"), "{said}");
        assert_contains(&said, "hint: wait for the device with --wait 5m");
    }
    client.finish();
    down.end().ended(0);
}

#[test]
fn removed_logs_are_a_finding() {
    let sim = Sim::small();
    assert!(!sim.run(&["doctor"]).stdout.contains("logs-gone"));
    fs::remove_dir_all(sim.node.log_dir().join(sim.uuid("0.0"))).unwrap();
    let said = sim.run(&["doctor"]).stdout;
    assert_contains(
        &said,
        "was removed, so the messages of the daemon are lost [logs-gone]",
    );
    assert_contains(&said, "$ mig-mps restart 0.0");
    sim.run(&["restart", "0.0", "--yes"]).ended(0);
    assert!(!sim.run(&["doctor"]).stdout.contains("logs-gone"));
    // Without the files alone, `logs` does not wait for lines that never come.
    let logs = sim.node.log_dir().join(sim.uuid("0.2"));
    fs::remove_file(logs.join("control.log")).unwrap();
    fs::remove_file(logs.join("server.log")).unwrap();
    let said = sim.run(&["logs", "0.2"]).ended(0).stderr;
    assert_contains(
        &said,
        "has no control.log; run `mig-mps doctor` to check whether",
    );
}

#[test]
fn words_of_other_programs_do_not_mislead() {
    let said = |words: &[&str]| without_gpu(words, "").stderr;
    for (words, hint) in [
        (
            &["mig", "-lgip"][..],
            "did you mean `mig-mps list --offers`?",
        ),
        (&["mig", "-lgi"], "did you mean `mig-mps list`?"),
        (
            &["mig", "-i", "0", "-cgi", "9"],
            "`mig-mps up PROFILE` to switch",
        ),
        (
            &["mig", "-dgi"],
            "did you mean `mig-mps down --destroy-mig`?",
        ),
        (&["-L"], "did you mean `mig-mps list`?"),
        (&["-i", "0", "-mig", "1"], "`mig-mps up PROFILE` to switch"),
        (&["list", "-i", "0"], "use --gpu N for the GPU with index N"),
        (&["status", "-w"], "use --watch to refresh the display"),
        (&["doctor", "--fix"], "mig-mps heal"),
        (
            &["run", "class", "python", "x.py"],
            "mig-mps run DEVICE -- PROGRAM",
        ),
        (&["env", "class", "python"], "mig-mps run DEVICE -- PROGRAM"),
        (&["run", "--gpus", "all", "x"], "docker run $(mig-mps env"),
    ] {
        assert_contains(&said(words), hint);
    }
    let sim = Sim::with("h200", 1);
    let file = sim.profile(WHOLE);
    let typed = file.with_file_name("profil.tml");
    let said = sim.run(&["up", typed.to_str().unwrap()]).ended(2).stderr;
    assert_contains(&said, &format!("did you mean {}?", file.display()));
}

/// The plan was not shown.
#[test]
fn nobody_is_sent_to_output_that_was_silenced() {
    let texts = ["src/render", "src/commands", "src/plan", "src/apply"];
    let out = shell(format!(
        "cd '{}' && grep -rnE '\"[^\"]*(plan|shown|listed) above' {}",
        repository().display(),
        texts.join(" ")
    ));
    assert_eq!(out.stdout, "");
    out.ended(1);
}
