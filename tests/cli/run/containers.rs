//! Devices in containers: the options and files for engines, and a real engine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use insta::assert_snapshot;
use serde_json::{Value, json};
use testkit::{
    App, NOBODY, Ran, Running, Sim, assert_contains, can_run, copy_program, is_root, needs_root,
    plain, shell, stop, under, wait_until,
};

const PROFILE: &str = r#"
cdi = true

[[gpu]]
select = { all = true }
devices = [
  { name = "trainer", profile = "3g" },
  { name = "nobodys", profile = "1g", mps = { serve = "user:nobody" } },
  { profile = "1g" },
]
"#;

/// The schema of CDI files, from Debian's golang-github-container-orchestrated-devices-container-device-interface-dev.
const SCHEMA: &str = "/usr/share/gocode/src/github.com/container-orchestrated-devices/container-device-interface/schema";

fn node() -> Sim {
    Sim::served("a100-80gb", 1, PROFILE)
}

fn cdi_file(sim: &Sim) -> PathBuf {
    sim.node.dir().join("root/var/run/cdi/mig-mps.json")
}

fn cdi(sim: &Sim) -> Value {
    serde_json::from_slice(&fs::read(cdi_file(sim)).unwrap()).unwrap()
}

/// Text with this node's places replaced.
fn anywhere(sim: &Sim, text: &str) -> String {
    let mut text = text.replace(sim.node.run_dir().to_str().unwrap(), "/run/mig-mps");
    for (number, device) in sim.status()["devices"]
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
    {
        text = text.replace(device["uuid"].as_str().unwrap(), &format!("MIG-{number}"));
    }
    text
}

/// The names of all devices of a CDI file.
fn names(cdi: &Value) -> Vec<&str> {
    let devices = cdi["devices"].as_array().unwrap().iter();
    devices
        .map(|device| device["name"].as_str().unwrap())
        .collect()
}

#[test]
fn engines_get_options() {
    needs_root!();
    let sim = node();
    let text = |device: &str, format: &str| {
        let ran = sim.run(&["env", device, "--threads", "25", "--format", format]);
        anywhere(&sim, &ran.ended(0).stdout)
    };
    assert_snapshot!(text("0.1", "docker"), @"--gpus device=MIG-1 --mount type=bind,src=/run/mig-mps/by-name/0.1/pipe,dst=/run/mig-mps/by-name/0.1/pipe,readonly --env CUDA_MPS_PIPE_DIRECTORY=/run/mig-mps/by-name/0.1/pipe --env CUDA_VISIBLE_DEVICES=MIG-1 --env CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT= --env CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0");
    assert_snapshot!(text("nobodys", "podman"), @"--device nvidia.com/gpu=MIG-0 --mount type=bind,src=/run/mig-mps/by-name/nobodys/pipe,dst=/run/mig-mps/by-name/nobodys/pipe,readonly --env CUDA_MPS_PIPE_DIRECTORY=/run/mig-mps/by-name/nobodys/pipe --env CUDA_VISIBLE_DEVICES=MIG-0 --env CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25 --env CUDA_MPS_PINNED_DEVICE_MEM_LIMIT= --env CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING=0 --user 65534");
    assert_snapshot!(text("nobodys", "k8s"), @r#"
    # A pod on device nobodys of this node. NVIDIA's container runtime brings the GPU in.
    spec:
      runtimeClassName: nvidia
      containers:
      - name: main
        securityContext:
          runAsUser: 65534
        env:
        - name: NVIDIA_VISIBLE_DEVICES
          value: "MIG-0"
        - name: CUDA_MPS_PIPE_DIRECTORY
          value: "/run/mig-mps/by-name/nobodys/pipe"
        - name: CUDA_VISIBLE_DEVICES
          value: "MIG-0"
        - name: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
          value: "25"
        - name: CUDA_MPS_PINNED_DEVICE_MEM_LIMIT
          value: ""
        - name: CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING
          value: "0"
        volumeMounts:
        - name: mps
          mountPath: /run/mig-mps/by-name/nobodys/pipe
          readOnly: true
      volumes:
      - name: mps
        hostPath:
          path: /run/mig-mps/by-name/nobodys/pipe
          type: Directory
    "#);
}

#[test]
fn compose_gets_a_file() {
    needs_root!();
    let sim = node();
    let ran = sim.run(&["env", "nobodys", "--memory", "2G", "--format", "compose"]);
    assert_snapshot!(anywhere(&sim, &ran.ended(0).stdout), @r#"
    # For docker compose, as a second file: it gives device nobodys to the service main.
    services:
      main:
        user: "65534"
        environment:
          CUDA_MPS_PIPE_DIRECTORY: "/run/mig-mps/by-name/nobodys/pipe"
          CUDA_VISIBLE_DEVICES: "MIG-0"
          CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: "0=2048M"
          CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING: "0"
        volumes:
        - type: bind
          source: /run/mig-mps/by-name/nobodys/pipe
          target: /run/mig-mps/by-name/nobodys/pipe
          read_only: true
          bind: { create_host_path: false }
        deploy:
          resources:
            reservations:
              devices:
              - { driver: nvidia, device_ids: ["MIG-0"], capabilities: [gpu] }
    "#);
}

const GROUPS: &str = r#"
cdi = true

[[gpu]]
select = { all = true }
devices = [
  { name = "team", profile = "3g", mps = { serve = "group:users" } },
  { name = "all", profile = "3g", mps = { serve = "all" } },
]
"#;

/// The id of Debian's group `users`.
fn users() -> u64 {
    let ran = shell("getent group users | cut -d: -f3").ended(0);
    ran.stdout.trim().parse().unwrap()
}

/// Without the group a container's program could not reach the daemon, and would run outside MPS.
#[test]
fn a_container_joins_the_group_of_its_device() {
    needs_root!();
    let sim = Sim::served("a100-80gb", 1, GROUPS);
    let text = |device: &str, format: &str| {
        let ran = sim.run(&["env", device, "--format", format]);
        ran.ended(0).stdout
    };
    let option = format!(" --group-add {}", users());
    for format in ["docker", "podman"] {
        assert!(text("team", format).contains(&option));
        assert!(!text("all", format).contains("--group-add"));
    }
    let pod = text("team", "k8s");
    let groups = format!(
        "spec:\n  runtimeClassName: nvidia\n  securityContext:\n    supplementalGroups: [{}]\n  containers:\n",
        users()
    );
    assert_contains(&pod, &groups);
    assert!(!text("all", "k8s").contains("securityContext"));
    let service = format!("\n    group_add: [\"{}\"]\n", users());
    assert_contains(&text("team", "compose"), &service);
    assert!(!text("all", "compose").contains("group_add"));
    // Groups came with version 0.7.0 of CDI. Files without them stay readable by older engines.
    let before = cdi(&sim);
    assert_eq!(before["cdiVersion"], "0.7.0");
    let edits = |at: usize| &before["devices"][at]["containerEdits"]["additionalGids"];
    assert_eq!(names(&before)[0], "team");
    assert_eq!((edits(0), edits(1)), (&json!([users()]), &json!([users()])));
    assert!(edits(2).is_null());
    sim.run(&["down", "team"]).ended(0);
    assert_eq!(cdi(&sim)["cdiVersion"], "0.5.0");
}

/// A memory limit in the image may have an entry that lifts the device's. An empty one has none.
#[test]
fn an_image_lifts_no_memory_limit() {
    needs_root!();
    let sim = node();
    let empty = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=";
    let written = cdi(&sim);
    let devices = written["devices"].as_array().unwrap();
    let served = sim.status()["devices"].as_array().unwrap().len();
    assert_eq!(devices.len(), 2 * served, "by name and by UUID");
    for edits in devices {
        let variables = edits["containerEdits"]["env"].as_array().unwrap();
        assert!(variables.contains(&json!(empty)), "{variables:?}");
    }
}

#[test]
fn older_drivers_share_memory_files() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let version = sim.node.dir().join("root/proc/driver/nvidia/version");
    fs::write(
        &version,
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Release Build\n",
    )
    .unwrap();
    sim.up(PROFILE, &[]).ended(0);
    let text = |format| {
        sim.run(&["env", "trainer", "--format", format])
            .ended(0)
            .stdout
    };
    assert!(text("docker").ends_with(" --ipc host\n"));
    assert!(text("k8s").contains("\n  hostIPC: true\n"));
    assert!(text("compose").contains("\n    ipc: host\n"));
    let mounts = &cdi(&sim)["devices"][0]["containerEdits"]["mounts"];
    assert_eq!(mounts[1]["hostPath"], "/dev/shm");
    assert_eq!(mounts[1]["options"][0], "rw");
    // Nothing is promised of a driver that cannot be seen.
    fs::remove_file(version).unwrap();
    let unknown = sim.run(&["env", "trainer", "--format", "docker"]).ended(0);
    assert!(!unknown.stdout.contains("--ipc"));
    assert_snapshot!(unknown.stderr, @"warning: the version of the driver cannot be read. Before driver 580, a container must share /dev/shm with the host (--ipc host).");
}

#[test]
fn the_cdi_file_follows_the_devices() {
    needs_root!();
    let sim = node();
    let first = cdi(&sim);
    let uuids = ["nobodys", "0.1", "trainer"].map(|name| sim.uuid(name));
    assert_eq!(
        names(&first),
        ["nobodys", &uuids[0], "0.1", &uuids[1], "trainer", &uuids[2]]
    );
    let printed = sim.run(&["cdi"]).ended(0).stdout;
    assert_eq!(printed, fs::read_to_string(cdi_file(&sim)).unwrap());
    let mode = fs::metadata(cdi_file(&sim)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o644);

    sim.run(&["down", "0.1"]).ended(0);
    assert_eq!(
        names(&cdi(&sim)),
        ["nobodys", &uuids[0], "trainer", &uuids[2]]
    );
    // As after a reboot, or a crash between two steps.
    fs::remove_file(cdi_file(&sim)).unwrap();
    sim.up(PROFILE, &["--dry-run"]).ended(0);
    assert!(!cdi_file(&sim).exists());
    sim.up(PROFILE, &[]).ended(0);
    fs::remove_file(cdi_file(&sim)).unwrap();
    up_changes_the_file_alone(&sim, PROFILE, "written");
    assert_eq!(cdi(&sim), first);
    // A profile that does not say keeps it; one that says no removes it.
    sim.up_does_nothing(&PROFILE.replace("cdi = true", ""));
    assert_eq!(cdi(&sim), first);
    up_changes_the_file_alone(
        &sim,
        &PROFILE.replace("cdi = true", "cdi = false"),
        "removed",
    );
    assert!(!cdi_file(&sim).exists());
    up_changes_the_file_alone(&sim, PROFILE, "written");
    sim.run(&["down"]).ended(0);
    assert!(!cdi_file(&sim).exists());
    let nothing = sim.run(&["cdi"]).ended(1);
    assert_snapshot!(nothing.stderr, @"
    error: no device has a daemon
    hint: run `mig-mps up PROFILE` to start daemons
    ");
}

/// Applies a profile to a node that lacks nothing but for the file.
fn up_changes_the_file_alone(sim: &Sim, profile: &str, done: &str) {
    let ran = sim.up(profile, &[]).ended(0);
    let said = format!("The CDI file was {done}. The rest");
    assert!(ran.stderr.starts_with(&said), "{}", ran.stderr);
}

#[test]
fn a_missing_cdi_file_is_a_change() {
    needs_root!();
    let sim = node();
    let path = sim.profile(PROFILE);
    let plan = |status: i32| {
        sim.run(&["plan", path.to_str().unwrap(), "--exit-code"])
            .ended(status)
    };
    assert!(plan(0).stderr.starts_with("Nothing to do"));
    fs::remove_file(cdi_file(&sim)).unwrap();
    assert_snapshot!(plain(&plan(3).stdout), @"
    CDI file of container engines
      + write it

    Plan: write the CDI file.
    Apply with: mig-mps up profile.toml
    ");
    let dry = sim.up(PROFILE, &["--dry-run"]).ended(0);
    assert_contains(&dry.stdout, "+ write it");
    assert!(!cdi_file(&sim).exists());
    let up = |profile: &str| {
        let document = sim.up(profile, &["--json"]).json();
        (document["changed"].clone(), document["plan"]["cdi"].clone())
    };
    assert_eq!(up(PROFILE), (json!(true), json!("write")));
    assert_eq!(up(PROFILE), (json!(false), json!(null)));
    plan(0);
    // One that is old is written again.
    let text = fs::read_to_string(cdi_file(&sim)).unwrap();
    fs::write(cdi_file(&sim), text.replace("trainer", "trained")).unwrap();
    plan(3);
    let off = PROFILE.replace("cdi = true", "cdi = false");
    assert_eq!(up(&off), (json!(true), json!("remove")));
    // A change of daemons changes the file as well.
    sim.run(&["down"]).ended(0);
    sim.profile(PROFILE);
    assert!(
        plan(3)
            .stdout
            .contains("CDI file of container engines\n  + write it")
    );
}

#[test]
fn a_cdi_file_of_others_is_refused_before_anything_is_changed() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    fs::create_dir_all(cdi_file(&sim).parent().unwrap()).unwrap();
    fs::write(cdi_file(&sim), "garbage").unwrap();
    let path = sim.profile(PROFILE);
    for command in ["plan", "up"] {
        let refused = sim.run(&[command, path.to_str().unwrap()]).ended(1);
        assert!(refused.stdout.is_empty(), "{refused:?}");
        assert_eq!(
            said(&sim, &refused),
            "error: cannot update the CDI file: /var/run/cdi/mig-mps.json: mig-mps did not write it and does not replace it\nhint: move /var/run/cdi/mig-mps.json away, then run this command again\n"
        );
    }
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
}

/// The message of a command about a file, without the node's directory.
fn said(sim: &Sim, ran: &Ran) -> String {
    let machine = sim.node.dir().join("root/var").display().to_string();
    ran.stderr.replace(&machine, "/var")
}

/// A directory in which others could replace the file.
#[test]
fn a_cdi_directory_that_is_refused_concerns_those_who_asked_for_it() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let directory = cdi_file(&sim).parent().unwrap().to_owned();
    fs::create_dir_all(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
    let unasked = PROFILE.replace("cdi = true", "");
    let up = sim.up(&unasked, &["--json"]).ended(0);
    let document: Value = serde_json::from_str(&up.stdout).unwrap();
    assert_eq!(document["changed"], true);
    assert_eq!(document["error"], Value::Null);
    assert_snapshot!(said(&sim, &up), @r#"
    note: GPU 0: 1 × 3g.40gb + 2 × 1g.10gb uses 70 of 98 SMs; 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb uses all
    warning: cannot read the CDI file: /var/run/cdi: others can write to it
    note: 2 of these devices serve one user at a time: while a user has programs on a device, `mig-mps run` refuses programs of other users, and CUDA programs that they start without `mig-mps run` wait; serve = "all" lets users share
    "#);
    sim.up(&unasked, &[]).ended(0);
    let text = sim.up(PROFILE, &[]).ended(1);
    assert_snapshot!(said(&sim, &text), @"
    error: cannot update the CDI file: /var/run/cdi: others can write to it
    hint: examine the files in /var/run/cdi, then run `chmod go-w /var/run/cdi`
    ");
    let json = sim.up(PROFILE, &["--json"]).ended(1);
    let document: Value = serde_json::from_str(&json.stdout).unwrap();
    let what = document["error"]["what"].as_str().unwrap();
    assert!(what.starts_with("cannot update the CDI file: "), "{what}");
    // The error of the change itself is the one that ends the command.
    sim.node.fault("nvmlGpuInstanceDestroy").fails(999).unwrap();
    let down = sim.run(&["down", "--destroy-mig", "--yes"]).ended(1);
    let error = down.stderr.split("error: ").nth(1).unwrap();
    assert!(error.contains("Unknown Error"), "{}", down.stderr);
    assert!(!error.contains("CDI"), "{}", down.stderr);
}

#[test]
fn after_a_change_that_fails_the_cdi_file_says_what_runs() {
    needs_root!();
    let sim = node();
    sim.node.fault("nvmlGpuInstanceDestroy").fails(999).unwrap();
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(1);
    let devices = sim.status()["devices"].as_array().unwrap().clone();
    assert!(!devices.is_empty());
    assert!(devices.iter().all(|device| device["daemon_pid"].is_null()));
    assert!(!cdi_file(&sim).exists(), "{:#}", cdi(&sim));
}

#[test]
fn a_file_that_the_user_names_is_replaced_at_once() {
    needs_root!();
    let sim = node();
    let file = sim.node.dir().join("devices.json");
    fs::write(&file, "before").unwrap();
    let before = fs::File::open(&file).unwrap();
    let words = ["cdi", "--output", file.to_str().unwrap()];
    assert_eq!(sim.run(&words).ended(0).stdout, "");
    assert_eq!(fs::read(&file).unwrap(), fs::read(cdi_file(&sim)).unwrap());
    // A program that reads the old file goes on with it.
    assert_eq!(std::io::read_to_string(before).unwrap(), "before");
    let nowhere = sim.run(&["cdi", "-o", "/nowhere/devices.json"]).ended(1);
    assert_snapshot!(nowhere.stderr, @"
    error: cannot write /nowhere/devices.json: No such file or directory
    hint: run `mkdir -p /nowhere`
    ");
}

#[test]
fn only_root_has_a_cdi_file() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile("cdi = true\n[[gpu]]\nselect = { all = true }\nmig = false\n");
    let refused = Ran::of(&mut sim.by_nobody(&["up", path.to_str().unwrap()])).ended(2);
    let node = sim.node.dir().to_str().unwrap();
    assert_snapshot!(refused.stderr.replace(node, "NODE"), @"
    error: NODE/profile.toml:1:7: only root can use cdi = true
      |
    1 | cdi = true
      |       ^^^^ run it as root: `sudo mig-mps up NODE/profile.toml`; `mig-mps cdi` prints the file of your own devices
    ");
}

#[test]
fn the_cdi_file_has_the_form_of_its_schema() {
    needs_root!();
    let read = |name: &str| fs::read_to_string(Path::new(SCHEMA).join(name)).unwrap_or_default();
    let (schema, definitions) = (read("schema.json"), read("defs.json"));
    let why = "Debian's package of the CDI schema is missing";
    if !can_run(
        "the_cdi_file_has_the_form_of_its_schema",
        !schema.is_empty(),
        why,
    ) {
        return;
    }
    let mut schema: Value = serde_json::from_str(&schema.replace("defs.json#", "#")).unwrap();
    let definitions: Value = serde_json::from_str(&definitions).unwrap();
    schema["definitions"] = definitions["definitions"].clone();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let sim = node();
    let cdi = cdi(&sim);
    let errors: Vec<String> = validator
        .iter_errors(&cdi)
        .map(|error| error.to_string())
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
    // The schema says what it means.
    let mut wrong = cdi;
    wrong["devices"][0]["containerEdits"]["mounts"][0]["hostPath"] = json!(1);
    assert!(!validator.is_valid(&wrong));
}

/// The hook that an engine runs before it starts a container with this device, as the engine runs it.
fn hook(sim: &Sim, device: &str) -> Command {
    let cdi = cdi(sim);
    let mut devices = cdi["devices"].as_array().unwrap().iter();
    let edits = &devices.find(|entry| entry["name"] == device).unwrap()["containerEdits"];
    let hook = &edits["hooks"][0];
    assert_eq!(hook["hookName"], "createRuntime");
    let words = |key: &str| {
        let words = hook[key].as_array().unwrap().iter();
        words.map(|word| word.as_str().unwrap().to_owned())
    };
    let mut command = Command::new(hook["path"].as_str().unwrap());
    command.args(words("args").skip(1)).env_clear().envs(
        words("env")
            .map(|variable| {
                let (name, value) = variable.split_once('=').unwrap();
                (name.to_owned(), value.to_owned())
            })
            .collect::<Vec<_>>(),
    );
    command
}

/// The words by which the hook refuses a device.
fn refused(mut hook: Command) -> String {
    let ran = Ran::of(&mut hook).ended(1);
    assert_eq!(ran.stdout, "");
    ran.stderr
}

/// CUDA says nothing to a program that finds no daemon.
#[test]
fn no_container_starts_on_a_device_that_takes_no_client() {
    needs_root!();
    let sim = node();
    let mut admitted = hook(&sim, "trainer");
    Ran::of(&mut admitted).ended(0);
    Ran::of(&mut hook(&sim, &sim.uuid("trainer"))).ended(0);
    // Its record does not tell.
    let record = sim.node.run_dir().join(sim.uuid("trainer"));
    let record = record.join("device.json");
    let written = fs::read(&record).unwrap();
    fs::write(&record, "{").unwrap();
    Ran::of(&mut admitted).ended(0);
    fs::write(&record, written).unwrap();
    sim.kill_daemon("trainer");
    assert_eq!(
        refused(hook(&sim, "trainer")),
        "error: device trainer accepts no programs now: its daemon has died\n"
    );
    Ran::of(&mut hook(&sim, "0.1")).ended(0);
    stop(&sim.device("0.1")["daemon_pid"]);
    assert_eq!(
        refused(hook(&sim, "0.1")),
        "error: device 0.1 accepts no programs now: its daemon is stopped by a signal\n"
    );
    fs::remove_dir_all(sim.pipe("nobodys")).unwrap();
    assert_eq!(
        refused(hook(&sim, "nobodys")),
        "error: device nobodys accepts no programs now: its pipe directory was removed\n"
    );
    sim.run(&["heal"]).ended(0);
    Ran::of(&mut hook(&sim, "trainer")).ended(0);
    // An engine may have read the file before.
    let hooks = ["trainer", "0.1"].map(|device| hook(&sim, device));
    sim.run(&["down", "--force", "--yes"]).ended(0);
    assert_eq!(
        hooks.map(refused),
        ["trainer", "0.1"].map(|device| format!(
            "error: device {device} accepts no programs now: mig-mps no longer serves it\n"
        ))
    );
}

/// The daemon runs while a change works on its device.
#[test]
fn a_container_waits_for_a_device_that_starts_and_for_none_that_is_taken_down() {
    needs_root!();
    let sim = node();
    let mark = |key: &str, value: bool| {
        sim.edit("by-name/trainer/device.json", |record| {
            record[key] = value.into();
        });
    };
    mark("leaving", true);
    assert_eq!(
        refused(hook(&sim, "trainer")),
        "error: device trainer accepts no programs now: mig-mps is stopping it\n"
    );
    mark("leaving", false);
    mark("finished", false);
    let begun = Instant::now();
    assert_eq!(
        refused(hook(&sim, "trainer")),
        "error: device trainer accepts no programs now: its daemon is starting\n"
    );
    assert!(begun.elapsed() >= Duration::from_secs(5));
    mark("finished", true);
    Ran::of(&mut hook(&sim, "trainer")).ended(0);
}

/// Of rootless engines, whose hooks run in a user namespace: root is nobody there.
#[test]
fn a_hook_that_cannot_see_the_daemon_refuses_nothing() {
    needs_root!();
    let sim = node();
    sim.kill_daemon("trainer");
    assert_contains(&refused(hook(&sim, "trainer")), "its daemon has died");
    let hook = hook(&sim, "trainer");
    let mut in_namespace = under(&["unshare", "--user", "--map-root-user"], &hook);
    let ran = Ran::of(in_namespace.uid(NOBODY).gid(NOBODY));
    if can_run(
        "a_hook_that_cannot_see_the_daemon_refuses_nothing",
        !ran.stderr.contains("unshare"),
        "users cannot make user namespaces",
    ) {
        ran.ended(0);
    }
}

/// `set` and `restart` take a moment.
#[test]
fn a_container_waits_for_a_change() {
    needs_root!();
    let sim = node();
    // The daemon is stopped, and the next one has not been started.
    let held = sim.node.fault("daemon start").waits().unwrap();
    let mut restart = Running(sim.spawn(&["restart", "trainer", "--yes"]));
    wait_until("the daemon is stopped", || {
        sim.device("trainer")["state"] == "starting"
    });
    let mut hook = Running(hook(&sim, "trainer").spawn().unwrap());
    drop(held);
    assert!(hook.0.wait().unwrap().success());
    assert!(restart.0.wait().unwrap().success());
}

/// Several copies of the program do the same, and users may replace one that is theirs.
#[test]
fn the_hook_is_a_program_that_only_root_can_change() {
    needs_root!();
    let sim = node();
    let own = hook(&sim, "trainer").get_program().to_owned();
    let copy = sim.node.dir().join("mig-mps");
    copy_program(&own, &copy);
    let text = fs::read_to_string(cdi_file(&sim)).unwrap();
    let [own, copied] = [Path::new(&own), &copy].map(|path| path.display().to_string());
    let of_copy = text.replace(&own, &copied);
    fs::write(cdi_file(&sim), &of_copy).unwrap();
    sim.up_does_nothing(PROFILE);
    assert_eq!(fs::read_to_string(cdi_file(&sim)).unwrap(), of_copy);
    std::os::unix::fs::chown(&copy, Some(NOBODY), None).unwrap();
    sim.up(PROFILE, &[]).ended(0);
    assert_eq!(fs::read_to_string(cdi_file(&sim)).unwrap(), text);
    fs::write(cdi_file(&sim), &of_copy).unwrap();
    fs::remove_file(&copy).unwrap();
    sim.up(PROFILE, &[]).ended(0);
    assert_eq!(fs::read_to_string(cdi_file(&sim)).unwrap(), text);
}

/// A node whose devices are there for podman's containers.
pub(crate) struct Engine {
    pub(crate) sim: Sim,
    /// podman in namespaces of its own, with the node's CDI files.
    script: String,
}

impl Engine {
    /// On a node with this profile; `None` if there is no podman.
    pub(crate) fn of(test: &str, profile: &str) -> Option<Self> {
        let has_podman = ["podman", "runc", "unshare"].iter().all(|program| {
            let version = Command::new(program).arg("--version").output();
            version.is_ok_and(|output| output.status.success())
        });
        if !is_root(test) || !can_run(test, has_podman, "podman and runc are missing") {
            return None;
        }
        let sim = Sim::served("a100-80gb", 1, profile);
        let dir = sim.node.dir();
        let own = dir.join("podman");
        let root = own.join("rootfs");
        for place in ["usr", "proc", "sys", "dev", "tmp", "run", "etc"] {
            fs::create_dir_all(root.join(place)).unwrap();
        }
        for link in ["bin", "lib", "lib64", "sbin"] {
            std::os::unix::fs::symlink(Path::new("usr").join(link), root.join(link)).unwrap();
        }
        write_gpu_devices(&sim);
        let (own, cdi) = (own.display(), dir.join("root/var/run/cdi"));
        let podman = format!(
            "podman --root {own}/storage --runroot {own}/run --tmpdir {own}/tmp --runtime runc --storage-driver=vfs \
             --cgroup-manager=cgroupfs run --rm -i --network=none --ulimit=nofile=1024:1024 \
             --ulimit=nproc=1024:1024 --security-opt seccomp=unconfined"
        );
        let script = format!(
            "mount -t tmpfs tmpfs /run && mkdir /run/cdi && mount --bind {} /run/cdi && exec {podman} \"$@\" ",
            cdi.display()
        );
        Some(Self { sim, script })
    }

    /// A container with these options that runs these words.
    pub(crate) fn run(&self, options: &[&str], words: &[&str]) -> Command {
        let root = self.sim.node.dir().join("podman/rootfs");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c"]);
        command.args([&self.script, "podman"]).args(options);
        command.arg("--rootfs").arg(root).args(words);
        command
    }
}

/// Writes what NVIDIA's container toolkit would: the GPU and the libraries of its driver, for each device.
fn write_gpu_devices(sim: &Sim) {
    let dir = sim.node.dir();
    let programs = fs::canonicalize(dir.join("bin/cuda-app")).unwrap();
    let programs = programs.parent().unwrap();
    let mount = |path: &Path, mode: &str| json!({ "hostPath": path, "containerPath": path, "options": [mode, "rbind"] });
    let mut mounts = vec![mount(Path::new("/usr"), "ro"), mount(programs, "ro")];
    for place in ["bin", "lib", "node.json"] {
        mounts.push(mount(&dir.join(place), "ro"));
    }
    for place in ["state", "root"] {
        mounts.push(mount(&dir.join(place), "rw"));
    }
    let path = format!("PATH={}:/usr/bin", dir.join("bin").display());
    let edits = json!({ "env": [path], "mounts": mounts });
    let status = sim.status();
    let devices = status["devices"].as_array().unwrap().iter();
    let devices: Vec<Value> = devices
        .map(|device| json!({ "name": device["uuid"], "containerEdits": edits }))
        .collect();
    let cdi = json!({ "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": devices });
    fs::write(cdi_file(sim).with_file_name("nvidia.json"), cdi.to_string()).unwrap();
}

#[test]
fn a_container_is_a_client_of_its_device() {
    let Some(engine) = Engine::of("a_container_is_a_client_of_its_device", PROFILE) else {
        return;
    };
    let sim = &engine.sim;
    let gpu = format!("nvidia.com/gpu={}", sim.uuid("trainer"));
    let options = ["--device", &gpu, "--device", "mig-mps/device=trainer"];
    let mut app = App::start(engine.run(&options, &["cuda-app", "hold"]));
    let up = app.wait_up();
    assert!(
        up.contains("MIG 3g.40gb") && up.ends_with("mps yes"),
        "{up}"
    );
    let clients = sim.status()["clients"].clone();
    assert_eq!(clients.as_array().unwrap().len(), 1);
    assert_eq!(clients[0]["device"], "trainer");
    // By its pid on the host, which is not the one that it has in the container.
    let pid = clients[0]["pid"].as_u64().unwrap();
    assert!(!up.starts_with(&format!("pid {pid} ")), "{up}");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    assert!(status.starts_with("Name:\tcuda-app\n"), "{status}");
    assert!(
        clients[0]["memory_used_bytes"].as_u64() > Some(0),
        "{clients}"
    );
    assert!(app.finish().status.success());
    assert_eq!(sim.status()["clients"], json!([]));

    // Without the device, the same program is outside MPS.
    let mut alone = App::start(engine.run(&options[..2], &["cuda-app", "hold"]));
    assert!(alone.wait_up().ends_with("mps no"));
    alone.finish();
}

#[test]
fn an_engine_starts_nothing_outside_mps() {
    let Some(engine) = Engine::of("an_engine_starts_nothing_outside_mps", PROFILE) else {
        return;
    };
    let sim = &engine.sim;
    let gpu = format!("nvidia.com/gpu={}", sim.uuid("trainer"));
    let options = ["--device", &gpu, "--device", "mig-mps/device=trainer"];
    let run = || Ran::of(&mut engine.run(&options, &["cuda-app", "run", "0"]));
    sim.kill_daemon("trainer");
    let refused = run();
    assert_eq!((refused.status != 0, refused.stdout.as_str()), (true, ""));
    assert_contains(
        &refused.stderr,
        "device trainer accepts no programs now: its daemon has died",
    );
    sim.run(&["heal"]).ended(0);
    assert_contains(&run().ended(0).stdout, "mps yes");
    sim.run(&["down", "trainer"]).ended(0);
    let refused = run();
    assert_eq!((refused.status != 0, refused.stdout.as_str()), (true, ""));
    assert_contains(&refused.stderr, "mig-mps/device=trainer");
}

#[test]
fn the_options_of_env_do_the_same() {
    let Some(engine) = Engine::of("the_options_of_env_do_the_same", PROFILE) else {
        return;
    };
    let sim = &engine.sim;
    for device in ["trainer", "nobodys"] {
        let text = sim
            .run(&["env", device, "--format", "podman"])
            .ended(0)
            .stdout;
        let options: Vec<&str> = text.split_whitespace().collect();
        let mut app = App::start(engine.run(&options, &["cuda-app", "hold"]));
        let up = app.wait_up();
        assert!(up.ends_with("mps yes"), "{up}");
        // A server of a user ends if root comes.
        let user = if device == "nobodys" { NOBODY } else { 0 };
        assert_contains(&up, &format!(" uid {user} "));
        assert_eq!(sim.status()["clients"][0]["device"], device);
        app.finish();
    }
}

#[test]
fn a_container_of_a_group_is_a_client_or_does_not_start() {
    let test = "a_container_of_a_group_is_a_client_or_does_not_start";
    let Some(engine) = Engine::of(test, GROUPS) else {
        return;
    };
    let sim = &engine.sim;
    let printed = sim.run(&["env", "team", "--format", "podman"]).ended(0);
    let mut options: Vec<&str> = printed.stdout.split_whitespace().collect();
    options.extend(["--user", "65534:65534"]);
    let mut app = App::start(engine.run(&options, &["cuda-app", "hold"]));
    let up = app.wait_up();
    assert!(up.ends_with("mps yes"), "{up}");
    app.finish();
    // Without its group the program does not find the daemon.
    let at = options
        .iter()
        .position(|word| *word == "--group-add")
        .unwrap();
    options.drain(at..at + 2);
    let mut app = App::start(engine.run(&options, &["cuda-app", "hold"]));
    let up = app.wait_up();
    assert!(up.ends_with("mps no"), "{up}");
    app.finish();
    // An engine that knows groups takes the CDI file, and an older one starts nothing.
    let gpu = format!("nvidia.com/gpu={}", sim.uuid("team"));
    let options = [
        "--device",
        &gpu,
        "--device",
        "mig-mps/device=team",
        "--user",
        "65534:65534",
    ];
    let ran = Ran::of(&mut engine.run(&options, &["cuda-app", "run", "0"]));
    if ran.status == 0 {
        assert_contains(&ran.stdout, "mps yes");
    } else {
        assert_contains(&ran.stderr, "mig-mps/device=team");
        assert_eq!(ran.stdout, "");
    }
}

#[test]
fn a_container_user_without_a_name_waits_without_end() {
    let test = "a_container_user_without_a_name_waits_without_end";
    let Some(engine) = Engine::of(test, PROFILE) else {
        return;
    };
    let sim = &engine.sim;
    let gpu = format!("nvidia.com/gpu={}", sim.uuid("trainer"));
    let options = ["--device", &gpu, "--device", "mig-mps/device=trainer"];
    let words = ["timeout", "1", "unshare", "-U", "cuda-app", "run", "0"];
    let hung = Ran::of(&mut engine.run(&options, &words)).ended(124);
    assert_eq!(hung.stdout, "");
    // Mapped to another user of the host, it is that user's program.
    let mapped = [
        &["--uidmap", "0:20000:1000", "--gidmap", "0:20000:1000"],
        &options[..],
    ]
    .concat();
    let ran = Ran::of(&mut engine.run(&mapped, &["cuda-app", "run", "0"]));
    assert_contains(&ran.stdout, "mps yes");
}
