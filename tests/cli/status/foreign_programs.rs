//! Everything `status` sees beside the daemons that mig-mps has started.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use insta::assert_snapshot;
use serde_json::{Value, json};
use simnode::node::{ControlVersion, Permissions, State};
use testkit::{
    App, Ran, Sim, WHOLE, assert_contains, in_state, is_alive, is_root, kill, needs_root,
    wait_until,
};

/// The loop of a script from the field that starts a daemon for each MIG device, with its directories
/// below DIR. It asks `nvidia-smi -L`, whose lines are LISTED here.
const SCRIPT: &str = r#"
set -eu
for GPU in $(echo "$LISTED" | grep -oE "(MIG)-[0-9a-f]*-[0-9a-f]*-[0-9a-f]*-[0-9a-f]*-[0-9a-f]*"); do
  mkdir $DIR/mps_$GPU $DIR/mps_log_$GPU
  export CUDA_VISIBLE_DEVICES=$GPU
  export CUDA_MPS_PIPE_DIRECTORY=$DIR/mps_$GPU
  export CUDA_MPS_LOG_DIRECTORY=$DIR/mps_log_$GPU
  nvidia-cuda-mps-control -d
done
"#;

/// The problems that `status` reports for a device, or for the node.
fn problems(status: &Value, device: Option<&str>) -> Vec<String> {
    let all = status["problems"].as_array().unwrap().iter();
    all.filter(|problem| problem["device"] == json!(device))
        .map(|problem| problem["what"].as_str().unwrap().to_owned())
        .collect()
}

/// A daemon that somebody has started by hand.
pub(crate) fn unmanaged_daemon(sim: &Sim, pipe: &Path, devices: Option<&str>) {
    fs::create_dir(pipe).unwrap();
    let mut control = sim.node.program("nvidia-cuda-mps-control");
    control
        .arg("-d")
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
        .env("CUDA_MPS_LOG_DIRECTORY", pipe);
    if let Some(devices) = devices {
        control.env("CUDA_VISIBLE_DEVICES", devices);
    }
    assert!(control.status().unwrap().success());
}

/// A directory beside the node's own ones.
pub(crate) fn beside(sim: &Sim, name: &str) -> PathBuf {
    sim.node.run_dir().with_file_name(name)
}

#[test]
fn programs_beside_mps_are_shown_with_the_likely_cause() {
    let sim = Sim::small();
    assert_eq!(sim.status()["outside_mps"], json!([]));
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    let other = sim.pipe("0.0");
    let outside = |pipe: &str, protocol: Option<&str>| {
        let mut app = sim.node.program("cuda-app");
        app.arg("hold").env("CUDA_VISIBLE_DEVICES", &uuid);
        app.env("CUDA_MPS_PIPE_DIRECTORY", pipe);
        app.envs(protocol.map(|version| ("CUDA_MPS_PROTOCOL_VERSION", version)));
        let mut app = App::start(app);
        let said = app.wait_up();
        assert!(said.ends_with("mps no"), "{said}");
        app
    };
    let client = sim.client("0.2");
    let lost = sim.outside("0.2");
    let status = sim.status();
    let shown = &status["outside_mps"][0];
    assert_eq!(status["outside_mps"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&shown["pid"], &shown["device"]),
        (&lost.pid().into(), &"0.2".into())
    );
    assert_eq!(shown["cause"], "its pipe directory is /nowhere");
    assert_eq!(sim.device("0.2")["client_count"], 1);
    assert_contains(&problems(&status, Some("0.2"))[0], "computes outside MPS");
    sim.run(&["status", "--exit-code"]).ended(3);
    sim.run(&["status", "--exit-code", "0.0"]).ended(0);
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&text, "OUTSIDE MPS");
    drop(lost);

    // The right directory, and an older program than the daemon: `restart` of a daemon leaves such.
    let protocol = outside("/nowhere", Some("3"));
    assert_eq!(
        sim.status()["outside_mps"][0]["cause"],
        "CUDA_MPS_PROTOCOL_VERSION is 3, and the daemon speaks 2"
    );
    drop(protocol);
    // Its neighbour's daemon is dead: the program finds nobody there, and computes alone.
    sim.kill_daemon("0.0");
    let wrong = outside(&other, None);
    assert_eq!(
        sim.status()["outside_mps"][0]["cause"],
        "its pipe directory is that of 0.0, whose daemon is dead"
    );
    drop(wrong);
    assert!(client.finish().status.success());
    assert_eq!(sim.status()["outside_mps"], json!([]));
}

#[test]
fn what_computes_where_no_daemon_serves_is_shown_and_no_problem() {
    let sim = Sim::with("h200", 1);
    let alone = sim.outside("0");
    let status = sim.status();
    assert_eq!(
        status["outside_mps"][0]["cause"],
        "no daemon serves this device"
    );
    assert_eq!(status["degraded"], false);
    sim.run(&["status", "--exit-code"]).ended(0);
    drop(alone);
}

#[test]
fn a_user_who_may_not_enter_computes_outside_mps() {
    needs_root!();
    let sim = Sim::whole("");
    let pipe = sim.pipe("0");
    fs::set_permissions(&pipe, fs::Permissions::from_mode(0o700)).unwrap();
    let mut app = sim.app_of_nobody("0", &["hold"]);
    assert!(app.wait_up().ends_with("mps no"));
    let status = sim.status();
    assert_eq!(status["outside_mps"][0]["user"], "nobody");
    assert_eq!(
        status["outside_mps"][0]["cause"],
        format!("nobody may not enter {pipe}")
    );
}

#[test]
fn daemons_of_a_script_are_shown_and_left_alone() {
    let sim = Sim::with("a100-80gb", 1);
    let profile =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 3 } ]\n";
    sim.up(profile, &[]).ended(0);
    sim.run(&["down"]).ended(0);
    let dir = beside(&sim, "by-hand");
    fs::create_dir(&dir).unwrap();
    let devices = sim.status();
    let devices = devices["devices"].as_array().unwrap().iter();
    let listed: Vec<String> = devices
        .map(|device| {
            format!(
                "  MIG 1g.10gb  Device  0: (UUID: {})",
                device["uuid"].as_str().unwrap()
            )
        })
        .collect();
    let mut script = Command::new("/bin/sh");
    script.args(["-c", SCRIPT]).env_clear().envs(sim.node.env());
    script.env("DIR", &dir).env("LISTED", listed.join("\n"));
    Ran::of(&mut script).ended(0);
    let status = sim.status();
    let unmanaged = status["unmanaged"].as_array().unwrap();
    let served: Vec<&Value> = unmanaged
        .iter()
        .flat_map(|f| f["devices"].as_array().unwrap())
        .collect();
    assert_eq!(served, ["0.0", "0.1", "0.2"]);
    for daemon in unmanaged {
        assert_eq!(
            (&daemon["program"], &daemon["is_orphan"]),
            (&"control".into(), &false.into())
        );
        let uuid = daemon["visible_devices"].as_str().unwrap();
        assert_eq!(
            daemon["pipe_directory"],
            dir.join(format!("mps_{uuid}")).to_str().unwrap()
        );
    }
    assert_eq!(status["degraded"], false, "{status:#}");
    // A client of theirs is no program outside MPS, and their server none either.
    let uuid = unmanaged[0]["visible_devices"].as_str().unwrap();
    let mut app = sim
        .node
        .cuda_app(&dir.join(format!("mps_{uuid}")), &["hold"]);
    assert!(app.wait_up().ends_with("mps yes"));
    let status = sim.status();
    assert_eq!(status["outside_mps"], json!([]));
    assert_eq!(
        status["unmanaged"][0]["servers"].as_array().unwrap().len(),
        1
    );
    assert!(app.finish().status.success());
    // Beside it, one of ours makes two; nothing of ours ends theirs.
    sim.up(profile, &["--yes"]).ended(0);
    let status = sim.status();
    assert!(
        problems(&status, Some("0.1"))[0].starts_with("2 daemons serve it: pid "),
        "{status:#}"
    );
    sim.run(&["status", "--exit-code"]).ended(3);
    sim.run(&["down"]).ended(0);
    let pids: Vec<Value> = unmanaged
        .iter()
        .map(|daemon| daemon["pid"].clone())
        .collect();
    assert!(pids.iter().all(is_alive));
}

#[test]
fn a_daemon_that_sees_everything_and_one_without_a_directory_are_named() {
    let sim = Sim::with("h200", 2);
    unmanaged_daemon(&sim, &beside(&sim, "all"), None);
    let status = sim.status();
    assert_eq!(status["unmanaged"][0]["devices"], json!(["0", "1"]));
    assert!(
        problems(&status, None)[0].contains("it sees all GPUs; run `echo quit | "),
        "{status:#}"
    );
    unmanaged_daemon(&sim, &beside(&sim, "one"), Some("1"));
    fs::remove_dir_all(beside(&sim, "one")).unwrap();
    let status = sim.status();
    let orphan = status["unmanaged"]
        .as_array()
        .unwrap()
        .iter()
        .find(|f| f["is_orphan"] == true);
    assert_eq!(orphan.unwrap()["devices"], json!(["1"]));
    let text = sim.run(&["status"]).ended(0).stdout;
    assert!(
        text.contains("UNMANAGED") && text.contains("orphan"),
        "{text}"
    );
}

#[test]
fn a_user_behind_another_is_shown_as_waiting() {
    needs_root!();
    let sim = Sim::whole("");
    let first = sim.client("0");
    let mut second = sim.app_of_nobody("0", &["hold"]);
    let waiting = || sim.status()["waiting"].as_array().unwrap().clone();
    wait_until("somebody waits", || !waiting().is_empty());
    assert_eq!(waiting()[0]["pid"], second.pid());
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&text, "1/48+1 waiting");
    assert_contains(
        &text,
        &format!(
            "0: pid {} (nobody) waits until the programs of root have exited: pid {};",
            second.pid(),
            first.pid()
        ),
    );
    assert_eq!(sim.status()["degraded"], false);
    assert!(first.finish().status.success());
    assert!(second.wait_up().ends_with("mps yes"));
    assert_eq!(waiting(), Vec::<Value>::new());
    assert_eq!(sim.status()["clients"][0]["user"], "nobody");
}

#[test]
fn clients_are_counted_against_a_limit_only_where_it_is_known() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let whole = sim.device("0");
    assert_eq!(
        (&whole["client_count"], &whole["client_limit"]),
        (&1.into(), &48.into())
    );
    assert_eq!(whole["utilization_percent"], 0);
    let text = sim
        .run(&["status", "--columns", "clients,util"])
        .ended(0)
        .stdout;
    assert!(text.starts_with("CLIENTS  UTIL\n   1/48    0%\n"), "{text}");
    drop(client);
    // Later drivers are documented with 60, which nobody has measured.
    let sim = Sim::with("h200", 1);
    let r595 = |state: &mut State| state.install(ControlVersion::R595);
    sim.node.node().update(r595).unwrap();
    sim.up(WHOLE, &[]).ended(0);
    let client = sim.client("0");
    assert_eq!(sim.device("0")["client_limit"], Value::Null);
    let text = sim.run(&["status", "--columns", "clients"]).ended(0).stdout;
    assert!(text.starts_with("CLIENTS\n      1\n"), "{text}");
    drop(client);
    let sim = Sim::small();
    assert_eq!(sim.device("0.2")["client_limit"], Value::Null);
    let text = sim
        .run(&["status", "--columns", "name,clients,util"])
        .ended(0)
        .stdout;
    assert_contains(&text, "0.2         0     -\n");
    sim.run(&["set", "0.2", "max-clients=5"]).ended(0);
    assert_eq!(sim.device("0.2")["client_limit"], 5);
}

#[test]
fn clients_whose_pid_is_not_visible_are_counted() {
    let sim = Sim::small();
    let (first, second) = (sim.client("0.2"), sim.client("0.2"));
    // A control program of a daemon in a pid namespace of its own: it calls both 0.
    let (first_pid, second_pid) = (first.pid(), second.pid());
    let control = sim.control_script(&format!(
        "$real | /bin/sed -E 's/^({first_pid}|{second_pid})$/0/'"
    ));
    let run = |args: &[&str]| Ran::of(sim.command(args).env("MIG_MPS_CONTROL", &control)).ended(0);
    let text = run(&["status", "0.2"]).stdout;
    assert!(
        text.contains("hidden") && text.contains("2 in containers"),
        "{text}"
    );
    let status = run(&["status", "--json", "0.2"]).json();
    let device = &status["devices"][0];
    assert_eq!(
        (&device["client_count"], &device["clients_unseen"]),
        (&2.into(), &2.into())
    );
    assert_eq!(status["clients"][0]["pid"], Value::Null);
}

#[test]
fn gpus_whose_process_lists_are_hidden_are_said_to_be() {
    needs_root!();
    let sim = Sim::whole("");
    let update = sim
        .node
        .node()
        .update(|state| state.policy.permissions = Permissions::Strict);
    update.unwrap();
    let ran = Ran::of(
        sim.by_nobody(&["status"])
            .env("MIG_MPS_RUN_DIR", sim.node.run_dir()),
    )
    .ended(0);
    assert_contains(
        &ran.stdout,
        "not seen: who computes on 0, which the driver shows only to root",
    );
}

#[test]
fn an_interrupted_change_is_named_with_what_is_missing() {
    let sim = Sim::small();
    sim.node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement")
        .nth(1)
        .kills()
        .unwrap();
    let large = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n";
    let killed = sim.up(large, &["--yes"]);
    assert_eq!(killed.status, -1, "{}", killed.stderr);
    let ran = sim.run(&["status", "--exit-code"]).ended(3);
    let line = ran
        .stdout
        .lines()
        .find(|line| line.starts_with("interrupted: "));
    let line = line.unwrap_or_else(|| panic!("{}", ran.stdout));
    assert!(
        line.contains(" up ") && line.contains("(process "),
        "{line}"
    );
    assert_contains(line, "; missing: GPU 0 ");
    sim.up(large, &["--yes"]).ended(0);
    sim.run(&["status", "--exit-code"]).ended(0);
}

#[test]
fn directories_of_an_earlier_boot_and_dead_daemons_and_servers_are_named() {
    let sim = Sim::small();
    sim.run(&["status", "--exit-code"]).ended(0);
    sim.kill_daemon("0.0");
    kill(&sim.device("0.2")["servers"][0]["pid"]);
    let status = sim.status();
    assert_snapshot!(problems(&status, Some("0.0")).join("\n"), @"its daemon has died: run `mig-mps restart 0.0` to start it again, or `mig-mps down 0.0` to remove what it left");
    assert_eq!(
        status["remarks"],
        json!([{
            "id": "server-ended",
            "device": "0.2",
            "what": "its server has ended, and so have its clients; the next client starts another",
        }])
    );
    sim.node.node().reboot().unwrap();
    let status = sim.status();
    assert_eq!(in_state(&status, "dead"), ["0.0", "0.2"]);
    assert_snapshot!(problems(&status, Some("0.2")).join("\n"), @"its directory is from an earlier boot: run `up` to start it again, or `mig-mps down 0.2` to remove its record");
}

/// A device that another command destroys between two calls of NVML is read again, and is no problem of the node's.
#[test]
fn a_device_that_vanishes_while_it_is_read_is_no_problem() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(
        "[[gpu]]\nselect = { all = true }\ndevices = [{ profile = \"1g\", count = 2 }]\n",
        &[],
    )
    .ended(0);
    let processes = "nvmlDeviceGetMPSComputeRunningProcesses_v3";
    // 2: a stale handle; 6: not found.
    for (call, code) in [
        ("nvmlDeviceGetAttributes_v2", 2),
        (processes, 2),
        (processes, 6),
    ] {
        let mut commands = vec![sim.command(&["status", "--json"])];
        if is_root("a_device_that_vanishes_while_it_is_read_is_no_problem, as nobody") {
            commands.push(sim.by_nobody(&["status", "--json"]));
        }
        for mut command in commands {
            sim.node.fault(call).fails(code).unwrap();
            let status = Ran::of(&mut command).ended(0).json();
            assert_eq!(status["problems"], json!([]), "{call} {code}");
            assert_eq!(status["devices"].as_array().unwrap().len(), 2);
        }
    }
    // As many as a GPU can have, one in each attempt.
    for nth in 1..=14 {
        sim.node.fault(processes).nth(nth).fails(6).unwrap();
    }
    assert_eq!(sim.status()["problems"], json!([]));
}

/// The same while the device is looked for by its ids, where NVML names the GPU of a compute instance.
#[test]
fn a_device_that_vanishes_while_it_is_looked_for_is_no_problem() {
    let sim = Sim::with("a100-80gb", 1);
    let node = sim.node.node();
    node.update(|state| state.policy.compute_info_names_gpu = true)
        .unwrap();
    sim.up(
        "[[gpu]]\nselect = { all = true }\ndevices = [{ profile = \"1g\", count = 2 }]\n",
        &[],
    )
    .ended(0);
    let instances = || {
        let list = sim.run(&["list", "--json"]).ended(0).json();
        assert_eq!(list["hidden"], json!([]), "{list:#}");
        list["gpus"][0]["gpu_instances"].clone()
    };
    let all = instances();
    assert_eq!(all.as_array().unwrap().len(), 2);
    for call in [
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId",
    ] {
        for code in [2, 6] {
            sim.node.fault(call).fails(code).unwrap();
            assert_eq!(instances(), all, "{call} {code}");
        }
    }
}
