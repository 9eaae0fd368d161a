//! Programs on joint devices: which GPUs they see, and who is where.

use serde_json::json;
use testkit::{App, Ran, Sim, assert_contains, in_state};

use super::{TRAINERS, client_on, clients, gpu, joint};

/// What a program that `run` starts has in `CUDA_VISIBLE_DEVICES`.
pub(super) fn visible(sim: &Sim, variables: &[(&str, &str)], options: &[&str]) -> String {
    let program = ["--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"];
    let args = [&["run", "trainers"], options, &program].concat();
    let mut command = sim.command(&args);
    command.envs(variables.iter().copied());
    let ran = Ran::of(&mut command).ended(0);
    ran.stdout.trim().to_owned()
}

#[test]
fn a_program_sees_all_gpus_in_the_order_of_their_indices() {
    let sim = joint("share = 4");
    let [first, second] = [gpu(&sim, 0), gpu(&sim, 1)];
    let both = format!("{first},{second}");
    assert_eq!(visible(&sim, &[], &[]), both);
    assert_eq!(visible(&sim, &[], &["--visible", "index"]), "0,1");
    assert_eq!(visible(&sim, &[], &["--no-check"]), both);
}

#[test]
fn a_program_of_a_job_sees_the_gpus_of_the_job() {
    let sim = joint("share = 4");
    let [first, second, third] = [gpu(&sim, 0), gpu(&sim, 1), gpu(&sim, 2)];
    let (begin, both) = (&second[..12], format!("{first},{second}"));
    let reversed = format!("{second},{first}");
    let cases = [
        ("CUDA_VISIBLE_DEVICES", "1", &second),
        ("CUDA_VISIBLE_DEVICES", "1,0", &both),
        ("CUDA_VISIBLE_DEVICES", " 0 ,2", &first),
        ("CUDA_VISIBLE_DEVICES", "1,-1,0", &second),
        ("CUDA_VISIBLE_DEVICES", begin, &second),
        ("CUDA_VISIBLE_DEVICES", &reversed, &both),
        ("SLURM_JOB_GPUS", "1,2", &second),
        ("SLURM_STEP_GPUS", "0", &first),
    ];
    for (variable, value, seen) in cases {
        assert_eq!(&visible(&sim, &[(variable, value)], &[]), seen, "{value}");
    }
    // A step has some of the job's GPUs.
    let step = [("SLURM_JOB_GPUS", "0,1"), ("SLURM_STEP_GPUS", "1")];
    assert_eq!(visible(&sim, &step, &[]), second);
    assert_eq!(visible(&sim, &step, &["--visible", "index"]), "1");
    let none = "which selects no GPU of device trainers";
    let unknown = "contains \"x\", but there is no such device";
    let others = [
        ("2", none),
        (&third, none),
        ("", none),
        ("-1,0", none),
        ("x", unknown),
    ];
    for (value, why) in others {
        let mut command = sim.command(&["run", "trainers", "--", "true"]);
        let ran = Ran::of(command.env("CUDA_VISIBLE_DEVICES", value)).ended(125);
        assert_contains(&ran.stderr, why);
    }
}

/// Slurm's numbers are those of the files in `/dev`, which need not be the indices.
#[test]
fn a_number_of_slurm_is_that_of_a_device_file() {
    let sim = Sim::with("h200", 3);
    let node = sim.node.node();
    let renumbered = node.update(|state| {
        for (gpu, minor) in state.gpus.iter_mut().zip([1, 2, 0]) {
            gpu.minor = minor;
        }
    });
    renumbered.unwrap();
    sim.node.reboot();
    sim.up(TRAINERS, &[]).ended(0);
    let [first, second] = [gpu(&sim, 0), gpu(&sim, 1)];
    let both = format!("{first},{second}");
    let cases = [
        ("1", &first),
        ("2", &second),
        ("0,2", &second),
        ("1,2", &both),
    ];
    for (value, seen) in cases {
        for variable in ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"] {
            assert_eq!(&visible(&sim, &[(variable, value)], &[]), seen, "{value}");
        }
    }
    assert_eq!(visible(&sim, &[("CUDA_VISIBLE_DEVICES", "1")], &[]), second);
    let mut command = sim.command(&["run", "trainers", "--", "true"]);
    let ran = Ran::of(command.env("SLURM_JOB_GPUS", "0")).ended(125);
    assert_contains(&ran.stderr, "which selects no GPU of device trainers");
}

#[test]
fn a_program_attaches_to_the_gpus_that_it_sees() {
    let sim = joint("pinned-memory-limit = \"20G\"");
    for (variable, gpus) in [("0", 1), ("1", 1), ("0,1", 2)] {
        let args = [
            "run", "trainers", "--", "cuda-app", "run", "0", "--on", "all",
        ];
        let ran = Ran::of(sim.command(&args).env("CUDA_VISIBLE_DEVICES", variable)).ended(0);
        let up = format!(" up devices {gpus} ");
        assert_contains(&ran.stdout, &up);
        assert_contains(&ran.stdout, " mps yes");
    }
}

/// The number of a GPU is the program's own: the limit is on all that it sees.
#[test]
fn a_memory_limit_of_a_program_holds_on_each_gpu() {
    let sim = joint("pinned-memory-limit = \"20G\"");
    for ordinal in ["0", "1"] {
        let app = ["cuda-app", "run", "0", "--on", ordinal, "--alloc", "3000"];
        let ran = sim
            .run(&[&["run", "trainers", "--memory", "2G", "--"], &app[..]].concat())
            .ended(0);
        assert_contains(&ran.stdout, "alloc 3000 MiB -> 2 ");
    }
    // As a variable of the caller, too, whatever GPU it names.
    for limit in ["0=2G", "1=2G", "0=2G,1=8G"] {
        let app = ["cuda-app", "run", "0", "--on", "1", "--alloc", "3000"];
        let mut command = sim.command(&[&["run", "trainers", "--"], &app[..]].concat());
        let ran = Ran::of(command.env("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", limit)).ended(0);
        assert_contains(&ran.stdout, "alloc 3000 MiB -> 2 ");
    }
    let above = sim.run(&["run", "trainers", "--memory", "30G", "--", "true"]);
    assert_contains(&above.ended(125).stderr, "20G");
}

#[test]
fn status_tells_the_gpus_of_each_client() {
    let sim = joint("share = 4");
    let device = sim.device("trainers");
    let gpus = json!([
        { "index": 0, "uuid": gpu(&sim, 0) },
        { "index": 1, "uuid": gpu(&sim, 1) },
    ]);
    assert_eq!((&device["joint_gpus"], &device["gpu"]), (&gpus, &json!(0)));
    let one_gpu = sim.device("2")["memory_total_bytes"].as_u64().unwrap();
    assert_eq!(device["memory_total_bytes"], 2 * one_gpu);
    let apps = ["0", "1", "all"].map(|on| client_on(&sim, "trainers", on));
    let indices = |pid: u32| {
        let clients = clients(&sim);
        let client = clients.iter().find(|client| client["pid"] == pid).unwrap();
        let gpus = client["gpus"].as_array().unwrap();
        let used = gpus
            .iter()
            .map(|gpu| gpu["memory_used_bytes"].as_u64().unwrap());
        assert_eq!(client["memory_used_bytes"], used.sum::<u64>());
        gpus.iter()
            .map(|gpu| gpu["index"].as_u64().unwrap())
            .collect::<Vec<_>>()
    };
    let found = apps.each_ref().map(|app| indices(app.pid()));
    assert_eq!(found, [vec![0], vec![1], vec![0, 1]]);
    assert_eq!(
        sim.device("trainers")["client_count"],
        3,
        "each is one client"
    );
}

#[test]
fn a_program_outside_mps_is_seen_on_each_of_its_gpus() {
    let sim = joint("share = 4");
    let client = client_on(&sim, "trainers", "all");
    for index in [0, 1] {
        let mut program = sim.node.program("cuda-app");
        program
            .args(["hold"])
            .env("CUDA_VISIBLE_DEVICES", gpu(&sim, index))
            .env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
        let mut outside = App::start(program);
        assert!(outside.wait_up().ends_with("mps no"));
        let status = sim.status();
        let problem = &status["problems"][0];
        assert_eq!(problem["id"], "outside-mps", "{status:#}");
        assert_contains(
            problem["what"].as_str().unwrap(),
            &format!("pid {} ", outside.pid()),
        );
        assert_eq!(
            status["problems"].as_array().unwrap().len(),
            1,
            "{status:#}"
        );
        outside.finish();
    }
    client.finish();
}

/// Measured on two H100s: the clients of the other GPU go on.
#[test]
fn a_fault_ends_the_clients_on_the_same_gpus() {
    let sim = joint("share = 8");
    let other = client_on(&sim, "trainers", "1");
    let same = client_on(&sim, "trainers", "0");
    let mut faulty = sim.app("trainers", &["hold", "--on", "0", "--fault"]);
    faulty.wait_up();
    sim.await_state("trainers", "fault");
    let status = sim.status();
    let what = status["problems"][0]["what"].as_str().unwrap();
    assert_contains(
        what,
        "a GPU fault: it accepts programs again when the affected clients have exited (the clients on that GPU, and on every GPU that one of them also uses)",
    );
    // Of whom it is known that the fault has not reached them, the user is told.
    let working = other.pid();
    assert_contains(what, &format!("; pid {working} is not affected"));
    let kill = |pid: u32, options: &[&str]| {
        let pid = pid.to_string();
        sim.run(&[&["kill", "trainers", &pid, "--dry-run"], options].concat())
    };
    let still = format!("pid {working} still works: the GPU fault has not reached it");
    let refused = kill(working, &[]).ended(4);
    assert_contains(&refused.stderr, &still);
    assert_contains(&kill(working, &["--signal"]).ended(0).stdout, &still);
    let affected = faulty.pid();
    let refused = kill(affected, &[]).ended(4);
    assert_contains(
        &refused.stderr,
        "the work of the affected clients has ended",
    );
    let shown = kill(affected, &["--signal"]).ended(0).stdout;
    assert!(!shown.contains("still works"), "{shown}");
    assert_contains(&same.finish().output, "err 700");
    drop(faulty);
    sim.await_state("trainers", "ready");
    let next = client_on(&sim, "trainers", "all").finish();
    assert!(next.status.success(), "{}", next.output);
    let other = other.finish();
    assert!(other.status.success(), "{}", other.output);
    // By a client with both GPUs, the fault reaches all.
    let both = client_on(&sim, "trainers", "all");
    let other = client_on(&sim, "trainers", "1");
    let mut faulty = sim.app("trainers", &["hold", "--on", "0", "--fault"]);
    faulty.wait_up();
    sim.await_state("trainers", "fault");
    assert_contains(&both.finish().output, "err 7");
    assert_contains(&other.finish().output, "err 719");
    drop(faulty);
}

#[test]
fn what_containers_get_has_all_its_gpus() {
    let sim = joint("share = 2");
    let [first, second] = [gpu(&sim, 0), gpu(&sim, 1)];
    let both = format!("{first},{second}");
    let forms = [
        ("docker", format!("--gpus \"device={both}\"")),
        (
            "podman",
            format!("--device nvidia.com/gpu={first} --device nvidia.com/gpu={second}"),
        ),
        (
            "k8s",
            format!("name: NVIDIA_VISIBLE_DEVICES\n      value: \"{both}\""),
        ),
        (
            "compose",
            format!("device_ids: [\"{first}\", \"{second}\"]"),
        ),
        ("slurm", format!("export CUDA_VISIBLE_DEVICES={both}")),
        ("dotenv", format!("\nCUDA_VISIBLE_DEVICES={both}\n")),
    ];
    for (form, part) in forms {
        let ran = sim.run(&["env", "trainers", "--format", form]).ended(0);
        assert_contains(&ran.stdout, &part);
    }
    let json = sim.run(&["env", "trainers", "--format", "json"]).json();
    assert_eq!(json["set"]["CUDA_VISIBLE_DEVICES"], both, "{json:#}");
    let ran = sim.run(&["env", "trainers", "--visible", "index"]).ended(0);
    assert_contains(&ran.stdout, "export CUDA_VISIBLE_DEVICES=0,1\n");
    let cdi = sim.run(&["cdi"]).ended(0);
    assert_contains(&cdi.stdout, &format!("\"CUDA_VISIBLE_DEVICES={both}\""));
}

#[test]
fn words_and_series_name_it() {
    let sim = joint("share = 2");
    let ran = sim.run(&["__complete", "mig-mps", "run", ""]).ended(0);
    assert_contains(&ran.stdout, "trainers\t");
    let line = ran
        .stdout
        .lines()
        .find(|line| line.starts_with("trainers\t"));
    assert_contains(line.unwrap(), "joint");
    let series = sim.run(&["metrics"]).ended(0).stdout;
    let uuid = sim.uuid("trainers");
    assert!(uuid.starts_with("JOINT-"));
    let info = format!(
        "mig_mps_device_info{{device=\"trainers\",uuid=\"{uuid}\",gpu=\"0-1\",profile=\"joint GPUs\",serve=\"all\"}} 1"
    );
    assert_contains(&series, &info);
    for words in [["logs", "trainers"].as_slice(), &["logs", "--gpu", "1"]] {
        let logs = sim.run(words).ended(0).stdout;
        assert_contains(&logs, "Creating server context on device 1");
    }
    for word in ["trainers", "JOINT", &uuid, "train*"] {
        let found = sim.run(&["status", word, "--json"]).json();
        assert_eq!(in_state(&found, "ready"), ["trainers"], "{word}");
    }
    sim.run(&["verify", "trainers"]).ended(0);
    let doctor = sim.run(&["doctor"]).ended(0);
    assert!(!doctor.stdout.contains("fail"), "{}", doctor.stdout);
    // What is exported is what was applied.
    let exported = sim.run(&["export"]).ended(0).stdout;
    assert_contains(&exported, "joint = true");
    sim.up_does_nothing(&exported);
    sim.up_does_nothing(&TRAINERS.replace("\"all\" }", "\"all\", share = 2 }"));
}

#[test]
fn a_program_outside_mps_on_two_devices_is_one_program() {
    let both = format!("{TRAINERS}{}", TRAINERS.replace("[0, 1]", "[2, 3]"));
    let both = both.replacen("trainers", "first", 1);
    let single = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    for (profile, problems) in [(both.as_str(), 2), (single, 4)] {
        let sim = Sim::served("h200", 4, profile);
        let mut program = sim.node.program("cuda-app");
        program.args(["hold", "--on", "all"]);
        program.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
        let mut outside = App::start(program);
        outside.wait_up();
        let shown = sim.run(&["status"]).stdout;
        assert_contains(&shown, "1 program computes outside MPS");
        assert_eq!(shown.matches("cuda-app hold").count(), problems, "{shown}");
        let by_user = sim.run(&["status", "--by-user"]).stdout;
        assert_contains(&by_user, "root        0            1 ");
        let mut other = sim.node.program("cuda-app");
        other.args(["hold", "--on", "3"]);
        other.env("CUDA_MPS_PIPE_DIRECTORY", "/nowhere");
        let mut second = App::start(other);
        second.wait_up();
        let shown = sim.run(&["status"]).stdout;
        assert_contains(&shown, "\n2 programs compute outside MPS");
        second.finish();
        outside.finish();
    }
}
