//! The words of a command line that mean devices.

use testkit::{Sim, assert_contains};

const NAMED: &str = r#"
[[gpu]]
select = { all = true }
devices = [
  { name = "trainer-{gpu}", profile = "2g" },
  { name = "small-{gpu}-{n}", profile = "1g", count = 2 },
]
"#;

fn shown(sim: &Sim, words: &[&str]) -> Vec<String> {
    let mut args = vec!["status", "--json"];
    args.extend(words);
    let status = sim.run(&args).json();
    let devices = status["devices"].as_array().unwrap().iter();
    devices
        .map(|device| device["name"].as_str().unwrap().to_owned())
        .collect()
}

fn listed(sim: &Sim, words: &[&str]) -> Vec<String> {
    let list = sim.run(&[&["list", "--json"], words].concat()).json();
    let gpus = list["gpus"].as_array().unwrap().iter();
    gpus.flat_map(|gpu| gpu["devices"].as_array().unwrap())
        .map(|device| device["name"].as_str().unwrap().to_owned())
        .collect()
}

/// A script passes an unset variable. Every name begins with an empty word, so it would mean the only device.
#[test]
fn an_empty_word_means_no_device() {
    let sim = Sim::served("h200", 1, &testkit::whole(""));
    let said = "error: the name of a device is empty\n\
                hint: run `mig-mps status` to see the devices\n";
    for command in [
        "status WORD",
        "list WORD",
        "run WORD -- true",
        "env WORD",
        "set WORD priority=normal",
        "restart WORD",
        "start WORD",
        "heal WORD",
        "kill WORD 1",
        "down WORD",
        "verify WORD",
        "logs WORD",
        "doctor WORD",
        "compare WORD -- true",
    ] {
        for word in ["", " "] {
            let words = command.split(' ');
            let words: Vec<&str> = words
                .map(|part| if part == "WORD" { word } else { part })
                .collect();
            let status = if command.starts_with("run") { 125 } else { 2 };
            let ran = sim.run(&words).ended(status);
            assert_eq!(ran.stderr, said, "{command} {word:?}");
        }
    }
}

#[test]
fn prefixes_and_globs_mean_devices() {
    let sim = Sim::served("a100-80gb", 2, NAMED);
    assert_eq!(shown(&sim, &["trainer-1"]), ["trainer-1"]);
    assert_eq!(
        shown(&sim, &["small-1-*", "trainer-0"]),
        ["trainer-0", "small-1-0", "small-1-1"]
    );
    assert_eq!(
        shown(&sim, &["*-1*"]),
        ["small-0-1", "small-1-0", "small-1-1", "trainer-1"]
    );
    for (word, said) in [
        (
            "trainer",
            "error: \"trainer\" is ambiguous: trainer-0 or trainer-1\nhint: choose one device; commands that accept several also accept 'trainer*'\n",
        ),
        (
            "MIG-",
            "error: \"MIG-\" is ambiguous: small-0-0, small-0-1, trainer-0, small-1-0, small-1-1 or trainer-1\nhint: choose one device; commands that accept several also accept 'MIG-*'\n",
        ),
        (
            "big*",
            "error: no device has the name \"big*\"\nhint: choose one of the devices: small-0-0, small-0-1, trainer-0, small-1-0, small-1-1, trainer-1\n",
        ),
    ] {
        assert_eq!(sim.run(&["status", word]).ended(2).stderr, said, "{word}");
    }
    sim.run(&["set", "small-0-*", "active-thread-percentage=40"])
        .ended(0);
    let set = |name: &str| sim.device(name)["active_thread_percentage"].clone();
    assert_eq!(
        (set("small-0-0"), set("small-0-1")),
        (40.0.into(), 40.0.into())
    );
    assert_eq!(set("small-1-0"), 100.0);
    assert_eq!(
        shown(&sim, &["--gpu", "1"]),
        ["small-1-0", "small-1-1", "trainer-1"]
    );
    let ran = sim.run(&["down", "--gpu", "5"]).ended(2);
    assert_eq!(
        ran.stderr,
        "error: there is no GPU 5\nhint: choose one of the GPUs 0-1\n"
    );
    sim.run(&["restart"]).ended(2);
    let ran = sim.run(&["restart", "--gpu", "0", "--yes"]).ended(0);
    assert_contains(&ran.stdout, "small-0-0, small-0-1, trainer-0");
    sim.run(&["set", "--gpu", "1", "active-thread-percentage=30"])
        .ended(0);
    assert_eq!(
        (set("small-1-0"), set("trainer-1"), set("trainer-0")),
        (30.0.into(), 30.0.into(), 100.0.into())
    );
    sim.run(&["set", "--gpu", "1", "trainer-1"]).ended(2);
    assert_eq!(
        listed(&sim, &["--gpu", "1"]),
        ["small-1-0", "small-1-1", "trainer-1"]
    );
    assert_eq!(listed(&sim, &["trainer-*"]), ["trainer-0", "trainer-1"]);
    sim.run(&["list", "--gpu", "5"]).ended(2);
    sim.run(&["down", "small-*"]).ended(0);
    assert_eq!(
        testkit::in_state(&sim.status(), "ready"),
        ["trainer-0", "trainer-1"]
    );
}

/// Of several devices, the one is meant that has these clients.
#[test]
fn a_client_is_ended_wherever_it_is() {
    let sim = Sim::served("a100-80gb", 2, NAMED);
    let clients = ["small-0-1", "small-1-0", "trainer-1"].map(|name| sim.client(name));
    let pids = clients.each_ref().map(|client| client.pid().to_string());
    let victims = |args: &[&str]| {
        let plan = sim.run(&[args, &["--json", "--yes"]].concat()).json();
        plan["plan"]["kill"]["device"].as_str().unwrap().to_owned()
    };
    assert_eq!(victims(&["kill", "small-*", &pids[0]]), "small-0-1");
    assert_eq!(victims(&["kill", "--gpu", "1", &pids[1]]), "small-1-0");
    let ran = sim.run(&["kill", "--gpu", "0", &pids[2]]).ended(2);
    let said = format!(
        "error: none of small-0-0, small-0-1, trainer-0 has client {}\n",
        pids[2]
    );
    assert!(ran.stderr.starts_with(&said), "{}", ran.stderr);
    sim.run(&["kill", "--gpu", "1", "abc"]).ended(2);
    let ran = sim.run(&["kill", "--gpu", "1"]).ended(2);
    let form = "mig-mps kill [OPTIONS] --gpu <N> <PID>...\n";
    assert!(ran.stderr.contains(form), "{}", ran.stderr);
    drop(clients);
}

#[test]
fn logs_of_several_devices_come_one_after_the_other() {
    let sim = Sim::served("a100-80gb", 2, NAMED);
    let heads = |args: &[&str]| -> Vec<String> {
        let ran = sim.run(&[&["logs"], args].concat()).ended(0);
        let heads = ran.stdout.lines().filter(|line| line.starts_with("==> "));
        heads.map(str::to_owned).collect()
    };
    assert_eq!(
        heads(&["trainer-*"]),
        ["==> trainer-0 <==", "==> trainer-1 <=="]
    );
    assert_eq!(heads(&["--gpu", "1"]).len(), 3);
    let ran = sim.run(&["logs", "--gpu", "1"]).ended(0);
    assert_eq!(ran.stderr.matches("(--all shows them)").count(), 1);
    assert!(
        ran.stderr
            .ends_with(" lines of control sessions are hidden (--all shows them)\n")
    );
    assert_eq!(heads(&["trainer-0"]), [""; 0]);
    let ran = sim.run(&["logs", "trainer-*", "--follow"]).ended(2);
    assert_eq!(
        ran.stderr,
        "error: --follow accepts one device, not trainer-0, trainer-1\nhint: use --follow with one device in each terminal\n"
    );
    let ran = sim.run(&["logs", "--gpu", "5"]).ended(2);
    assert_eq!(
        ran.stderr,
        "error: there is no GPU 5\nhint: choose one of the GPUs 0-1\n"
    );
    sim.run(&["logs"]).ended(2);
}

#[test]
fn devices_are_shown_in_the_order_of_list() {
    let sim = Sim::with("a100-80gb", 2);
    let some = "[[gpu]]\nselect = { index = [1] }\ndevices = [ { profile = \"1g\" } ]\n\n\
                [[gpu]]\nselect = { index = [0] }\ndevices = [ { profile = \"2g\" }, { profile = \"1g\", mps = false } ]\n";
    sim.up(some, &["--yes"]).ended(0);
    let listed = listed(&sim, &[]);
    assert_eq!(listed, ["0.0", "0.2", "1.0"]);
    assert_eq!(shown(&sim, &[]), listed);
}

#[test]
fn down_of_one_device_names_no_other_instances() {
    let sim = Sim::small();
    sim.foreign_instance(0, 6);
    let ran = sim.run(&["down", "0.0", "--destroy-mig", "--yes"]).ended(0);
    assert!(!ran.stderr.contains("stay"), "{}", ran.stderr);
    let ran = sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_contains(&ran.stderr, "GPU 0 1g.10gb at slice 6");
}

#[test]
fn models_fit_80_columns_with_all_their_names() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.in_terminal("NO_COLOR=1", "check --models", 80);
    for line in ran.stdout.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for name in ["h200-141gb-sxm, h200 ", "NVIDIA A100-SXM4-80GB, "] {
        assert!(ran.stdout.contains(name), "{name}: {}", ran.stdout);
    }
}

/// A device that stays keeps its name, but for these: the numbers follow the slices.
#[test]
fn default_names_of_compute_instances_are_numbered_again_when_others_are_added() {
    let sim = Sim::with("a100-80gb", 1);
    let split = |compute: &str| {
        format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = \"3g\", compute = [{compute}] }} ]\n"
        )
    };
    sim.up(&split("\"1c\", \"1c\""), &[]).ended(0);
    let before = ["0.0.c0", "0.0.c1"].map(|name| sim.uuid(name));
    sim.up(&split("\"1c\", \"1c\", \"1c\""), &["--yes"])
        .ended(0);
    assert_eq!(["0.0.c0", "0.0.c2"].map(|name| sim.uuid(name)), before);
    assert!(!before.contains(&sim.uuid("0.0.c1")));
}

/// The words for GPUs and devices that NVML, CUDA, nvidia-smi, CDI, Kubernetes and Slurm print.
#[test]
fn words_of_other_programs_mean_devices_where_they_mean_one() {
    let sim = Sim::with("a100-80gb", 2);
    let profile = "[[gpu]]\nselect = { index = [0] }\nmig = false\n\n[[gpu]]\nselect = { index = [1] }\n\
                   devices = [ { name = \"big\", profile = \"3g\" }, { profile = \"1g\", count = 2 } ]\n";
    sim.up(profile, &["--yes"]).ended(0);
    let list = sim.run(&["list", "--json"]).json();
    let gpu = |index: usize, key: &str| list["gpus"][index][key].as_str().unwrap().to_owned();
    let device = |name: &str, key: &str| {
        let devices = list["gpus"][1]["devices"].as_array().unwrap().iter();
        let mut named = devices.filter(|device| device["name"] == name);
        named.next().unwrap()[key].clone()
    };
    let (first, second, pci) = (gpu(0, "uuid"), gpu(1, "uuid"), gpu(0, "pci"));
    let big = sim.uuid("big");
    let (instance, compute) = (
        device("big", "gpu_instance_id"),
        device("big", "compute_instance_id"),
    );
    for word in [
        "GPU 0",
        "gpu0",
        "GPU:0",
        "nvidia.com/gpu=0",
        &format!("nvidia.com/gpu={first}"),
        &first.to_lowercase(),
        &first["GPU-".len()..],
        &format!("{first}::2"),
        "device=0",
        &pci,
        &pci.to_uppercase(),
        &format!("0000{pci}"),
        pci.strip_prefix("0000:").unwrap(),
        "0000:07:00.0",
    ] {
        assert_eq!(shown(&sim, &[word]), ["0"], "{word}");
    }
    for word in [
        &format!("1/{instance}/{compute}"),
        &format!("MIG-{second}/{instance}/{compute}"),
        &format!("{second}/{instance}/{compute}"),
        &format!("nvidia.com/gpu={big}"),
        &format!("mig-mps/device={big}"),
        &big.to_uppercase(),
        "MIG 3g.40gb",
        "mig-3g.40gb",
        "nvidia.com/mig-3g.40gb",
        "gpu:3g.40gb:1",
        "3g",
    ] {
        assert_eq!(shown(&sim, &[word]), ["big"], "{word}");
    }
    let said = |word: &str| sim.run(&["status", word]).ended(2).stderr;
    for word in ["GPU 1", &second, "1:0"] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(said(word).replace(&format!("{word:?}"), "\"WORD\""), @r#"
            error: "WORD" is ambiguous: 1.0, 1.1 or big
            hint: choose one device, or all of GPU 1 with --gpu 1 in commands that accept several
            "#);
        }
    }
    assert_eq!(
        said("1g.10gb"),
        "error: \"1g.10gb\" is ambiguous: 1.0 or 1.1\nhint: choose one device\n"
    );
    assert_eq!(
        said("GPU 7"),
        "error: there is no GPU 7\nhint: choose one of the GPUs 0-1\n"
    );
    for word in ["1", &second, "GPU 1", "nvidia.com/gpu=1"] {
        assert_eq!(
            shown(&sim, &["--gpu", word]),
            ["1.0", "1.1", "big"],
            "{word}"
        );
    }
    let ran = sim.run(&["status", "--gpu", "first"]).ended(2);
    assert_eq!(
        ran.stderr,
        "error: no GPU has the name \"first\"\nhint: choose one of the GPUs 0-1\n"
    );
    // A client of an older CUDA has this word in its environment.
    let old = format!("CUDA_VISIBLE_DEVICES=MIG-{second}/{instance}/{compute}");
    let mut command = sim.command(&["run", "--private", "--", "true"]);
    let (name, value) = old.split_once('=').unwrap();
    let ran = testkit::Ran::of(command.env(name, value));
    assert!(
        !ran.stderr.contains("there is no such device"),
        "{}",
        ran.stderr
    );
}

#[test]
fn settings_have_the_words_of_nvidias_programs() {
    let sim = Sim::small();
    sim.run(&[
        "set",
        "0.0",
        "pinned_device_mem_limit=0=2G",
        "set_default_active_thread_percentage=50%",
        "CUDA_MPS_CLIENT_PRIORITY=1",
    ])
    .ended(0);
    let device = sim.device("0.0");
    assert_eq!(device["pinned_memory_limit_bytes"], 2_u64 << 30);
    assert_eq!(device["active_thread_percentage"], 50.0);
    assert_eq!(device["client_priority"], "below-normal");
    let profile =
        "[mps]\npinned_device_mem_limit = \"2G\"\n[[gpu]]\nselect = { all = true }\nmig = false\n";
    let ran = sim.up(profile, &[]).ended(2);
    assert_contains(
        &ran.stderr,
        "write pinned-memory-limit instead of pinned_device_mem_limit",
    );
}

/// A device file is known by the driver: records have none.
#[test]
fn a_device_file_means_its_gpu_where_the_driver_is_asked() {
    let sim = Sim::served("h200", 2, &testkit::whole(""));
    for word in ["/dev/nvidia1", "nvidia1"] {
        assert_eq!(shown(&sim, &[word]), ["1"], "{word}");
        assert_eq!(shown(&sim, &["--gpu", word]), ["1"], "{word}");
        for command in [&["env", word][..], &["run", word, "--", "true"]] {
            let said = sim.run(command).stderr;
            let error = format!("error: only the driver can tell which GPU \"{word}\" is\n");
            assert_contains(&said, &error);
            assert_contains(
                &said,
                "hint: write the name of the device as in `mig-mps status`\n",
            );
        }
    }
    let said = sim.run(&["status", "/dev/nvidia7"]).ended(2).stderr;
    assert_eq!(
        said,
        "error: no GPU has the name \"/dev/nvidia7\"\nhint: choose one of the GPUs 0-1\n"
    );
}

/// The files of capabilities in `/dev/nvidia-caps` and in the driver's `/proc`, and what Slurm prints.
#[test]
fn capability_files_and_words_of_slurm_mean_devices() {
    let sim = Sim::with("a100-80gb", 2);
    let profile = "[[gpu]]\nselect = { index = [1] }\ndevices = [ { name = \"big\", profile = \"3g\" },\n\
                   { profile = \"2g\", compute = [\"1c\", \"1c\"] } ]\n\n[[gpu]]\nselect = { index = [0] }\nmig = false\n";
    sim.up(profile, &["--yes"]).ended(0);
    let list = sim.run(&["list", "--json"]).json();
    let lines = sim.run(&["slurm", "gres", "--node", "n1"]).ended(0).stdout;
    for device in list["gpus"][1]["devices"].as_array().unwrap() {
        let name = device["name"].as_str().unwrap();
        let line = lines
            .lines()
            .find(|line| line.ends_with(&format!("# {name}")))
            .unwrap();
        let files = line.split("MultipleFiles=").nth(1).unwrap();
        let files: Vec<&str> = files.split(' ').next().unwrap().split(',').collect();
        let [_, of_instance, of_compute] = files[..] else {
            panic!("{line}");
        };
        let (instance, compute) = (&device["gpu_instance_id"], &device["compute_instance_id"]);
        let below = format!("gpu1/mig/gi{instance}");
        let proc = format!("/proc/driver/nvidia/capabilities/{below}/ci{compute}/access");
        let base = of_compute.strip_prefix("/dev/nvidia-caps/").unwrap();
        for word in [of_compute, base, &proc] {
            assert_eq!(shown(&sim, &[word]), [name], "{word}");
        }
        let of_instance = [of_instance.to_owned(), format!("{below}/access")];
        for word in of_instance {
            if name == "big" {
                assert_eq!(shown(&sim, &[&word]), [name], "{word}");
            } else {
                let said = sim.run(&["status", &word]).ended(2).stderr;
                let error = format!("error: \"{word}\" is ambiguous: 1.0.c0 or 1.0.c1\n");
                assert_contains(&said, &error);
            }
        }
    }
    for word in [
        "gres:gpu:3g.40gb:1",
        "gres/gpu:3g.40gb=1",
        "nvidia.com/mig-3g.40gb=1",
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
    ] {
        assert_eq!(shown(&sim, &[word]), ["big"], "{word}");
    }
    // Capabilities that are no instance's, numbers of devices, and MIG devices of a GPU that has none, or not so many.
    for word in [
        "/dev/nvidia-caps/nvidia-cap1",
        "/dev/nvidia-caps/nvidia-cap2",
        "/dev/nvidia-caps/nvidia-cap9999",
        "gres/gpu=1",
        "0:0",
        "1:3",
    ] {
        let said = sim.run(&["status", word]).ended(2).stderr;
        assert_contains(
            &said,
            &format!("error: no device has the name \"{word}\"\n"),
        );
    }
}

/// The names of the devices need not begin with the word that means them.
#[test]
fn a_pattern_is_offered_only_where_it_matches() {
    let sim = Sim::served("a100-80gb", 2, NAMED);
    let said = sim.run(&["status", "trainer"]).ended(2).stderr;
    assert_contains(
        &said,
        "commands that accept several also accept 'trainer*'\n",
    );
    for word in ["mig-1g.10gb", "MIG-1g.10gb", "MIG 1g.10gb"] {
        let said = sim.run(&["status", word]).ended(2).stderr;
        assert_contains(&said, "\nhint: choose one device\n");
    }
    // A command that takes one device takes no pattern.
    let said = sim.run(&["env", "trainer"]).ended(2).stderr;
    assert_contains(
        &said,
        "\nhint: choose one device; `mig-mps run --any 'trainer*'` selects a free one\n",
    );
}
