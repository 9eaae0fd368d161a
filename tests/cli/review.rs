//! What an outside review found, each with the test that showed it.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use crate::common::{Ran, SMALL, Sim, in_state, is_alive, is_root, shell, stop};

const ONE_EACH: &str = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" } ]
"#;

#[test]
fn a1_a_gpu_instance_without_devices_is_not_chosen_by_a_device_name() {
    let sim = Sim::with("a100-80gb", 2);
    sim.up(ONE_EACH, &[]).ended(0);
    sim.run(&["down", "1.0"]).ended(0);
    let id = sim.list()["gpus"][1]["gpu_instances"][0]["id"]
        .as_u64()
        .unwrap();
    let id = u32::try_from(id).unwrap();
    let destroy = sim
        .node
        .node()
        .update(|state| state.destroy_compute_instance(1, id, 0));
    destroy.unwrap().unwrap();
    sim.run(&["down", "0.0", "--destroy-mig", "--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(
        list["gpus"][0]["gpu_instances"].as_array().unwrap().len(),
        0
    );
    assert_eq!(
        list["gpus"][1]["gpu_instances"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn a2_a_name_means_one_device() {
    let sim = Sim::with("a100-80gb", 2);
    sim.up(ONE_EACH, &[]).ended(0);
    sim.run(&["down"]).ended(0);
    let profile = r#"
[[gpu]]
select = { index = [0] }
devices = [ { profile = "3g", name = "1.0" } ]
"#;
    let ran = sim.up(profile, &[]).ended(2);
    assert!(
        ran.stderr
            .contains("would name a device of GPU 0 and a device of another GPU"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a3_a_daemon_that_cannot_be_named_is_not_forgotten() {
    if !is_root("a3_a_daemon_that_cannot_be_named_is_not_forgotten") {
        return;
    }
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    let mut command = std::process::Command::new("unshare");
    let program = sim.command(&[]).get_program().to_owned();
    command
        .args(["-p", "-f", "--mount-proc"])
        .arg(program)
        .args(["down", "0.2", "--force"]);
    let ran = Ran::of(command.env_clear().envs(sim.node.env()));
    assert_eq!(ran.status, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(is_alive(&daemon));
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn a4_without_proc_nothing_is_said_and_nothing_done() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    for args in [&["status"][..], &["down"]] {
        let ran = Ran::of(sim.command(args).env("MIG_MPS_ROOT", "/nonexistent")).ended(1);
        assert!(ran.stderr.contains("cannot read /proc"), "{}", ran.stderr);
    }
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn a6_a_daemon_whose_record_cannot_be_read_is_not_passed_over() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    fs::write(sim.node.run_dir().join(uuid).join("device.json"), "{").unwrap();
    let ran = sim.run(&["down"]).ended(4);
    assert!(
        ran.stderr
            .contains("whether a daemon lives there is unknown"),
        "{}",
        ran.stderr
    );
    sim.up(SMALL, &[]).ended(0);
    sim.run(&["down"]).ended(0);
}

#[test]
fn a8_a_setting_changed_by_hand_is_drift() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let pipe = sim.device("0.2")["pipe_directory"]
        .as_str()
        .unwrap()
        .to_owned();
    let control = sim.node.dir().join("bin/nvidia-cuda-mps-control");
    let set = format!(
        "echo set_default_active_thread_percentage 10 | CUDA_MPS_PIPE_DIRECTORY={pipe} {}",
        control.display()
    );
    shell(set).ended(0);
    let ran = sim.up(SMALL, &["--yes"]).ended(0);
    assert!(
        ran.stdout
            .contains("active-thread-percentage is 10 in the daemon, not 100"),
        "{}",
        ran.stdout
    );
    assert!(
        sim.up(SMALL, &[])
            .ended(0)
            .stderr
            .starts_with("Nothing to do")
    );
}

#[test]
fn a9_a_daemon_that_does_not_answer_is_not_as_the_profile_says() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    stop(&daemon);
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    assert!(ran.stderr.contains("it does not answer"), "{}", ran.stderr);
    shell(format!("kill -CONT {daemon}")).ended(0);
}

#[test]
fn a11_what_destroy_mig_leaves_is_said() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let path = sim.node.run_dir().join("node.json");
    let text = fs::read_to_string(&path).unwrap();
    let mut node: serde_json::Value = serde_json::from_str(&text).unwrap();
    node["boot-id"] = "another".into();
    fs::write(&path, node.to_string()).unwrap();
    let ran = sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert!(
        ran.stderr.contains("These GPU instances stay"),
        "{}",
        ran.stderr
    );
    assert!(
        ran.stderr.contains("GPU 0 2g.20gb at 0:2"),
        "{}",
        ran.stderr
    );
}

#[test]
fn b1_whatever_lies_in_a_users_directory_holds_nobody_up() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let evil = sim.node.run_dir().join("x");
    fs::create_dir(&evil).unwrap();
    shell(format!("mkfifo {}", evil.join("device.json").display())).ended(0);
    let link = sim.node.run_dir().join("y");
    fs::create_dir(&link).unwrap();
    std::os::unix::fs::symlink("/dev/zero", link.join("device.json")).unwrap();
    let ran = sim.run(&["status"]).ended(0);
    assert_eq!(
        ran.stdout.matches("not seen: ").count(),
        2,
        "{}",
        ran.stdout
    );
    sim.run(&["list"]).ended(0);
}

#[test]
fn b3_a_record_cannot_write_to_the_terminal() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    let path = sim.node.run_dir().join(uuid).join("device.json");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"0.2\"", "\"evil\\u001b[31m\"")).unwrap();
    let ran = sim.run(&["status"]).ended(0);
    assert!(!ran.stdout.contains('\u{1b}'), "{:?}", ran.stdout);
    assert!(
        ran.stdout.contains("its record is of another device"),
        "{}",
        ran.stdout
    );
}

#[test]
fn b4_a_count_beyond_reason_is_refused_at_once() {
    let sim = Sim::with("a100-80gb", 1);
    for count in ["20", "100000000"] {
        let profile = format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = \"1g\", count = {count} }} ]\n"
        );
        let ran = sim.up(&profile, &[]).ended(5);
        assert!(
            ran.stderr
                .contains(&format!("{count} of 1g.10gb are asked for and 7 can exist")),
            "{}",
            ran.stderr
        );
        assert!(
            ran.stderr.contains("7 × 1g.10gb would fit"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn b6_directories_that_were_there_keep_their_permissions() {
    let sim = Sim::with("a100-80gb", 1);
    fs::create_dir(sim.node.log_dir()).unwrap();
    fs::set_permissions(sim.node.log_dir(), fs::Permissions::from_mode(0o750)).unwrap();
    sim.up(SMALL, &[]).ended(0);
    let mode = fs::metadata(sim.node.log_dir())
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o750);
}

#[test]
fn b7_a_corrupt_ledger_is_named() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let path = sim.node.run_dir().join("node.json");
    fs::write(&path, "{\n").unwrap();
    let ran = sim.run(&["down"]).ended(1);
    assert!(
        ran.stderr.contains(path.to_str().unwrap()),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("remove it"), "{}", ran.stderr);
}

#[test]
fn d5_relative_directories_are_made_absolute() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let mut up = sim.command(&["up", profile.to_str().unwrap()]);
    let parent = sim.node.run_dir().parent().unwrap();
    up.current_dir(parent)
        .env("MIG_MPS_RUN_DIR", "run")
        .env("MIG_MPS_LOG_DIR", "log");
    Ran::of(&mut up).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 2);
}

#[test]
fn d7_what_cannot_work_is_found_before_anything_is_touched() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let up = ["up", profile.to_str().unwrap()];
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_CONTROL", "/etc/passwd")).ended(1);
    assert!(
        ran.stderr.contains("where there is no program"),
        "{}",
        ran.stderr
    );
    let ran = Ran::of(sim.command(&up).env("MIG_MPS_LOG_DIR", "/proc/log")).ended(1);
    assert!(
        ran.stderr
            .contains("cannot use the log directory: /proc/log: "),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
}

#[test]
fn d9_purge_removes_the_logs_of_earlier_daemons_too() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    sim.run(&["down"]).ended(0);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 2);
    sim.run(&["down", "--purge"]).ended(0);
    assert_eq!(fs::read_dir(sim.node.log_dir()).unwrap().count(), 0);
}

#[test]
fn d12_completions_that_cannot_be_written_are_an_error() {
    let sim = Sim::with("a100-80gb", 1);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let ran = shell(format!("{program} completions bash > /dev/full")).ended(1);
    assert!(
        ran.stderr.contains("cannot write to standard output"),
        "{}",
        ran.stderr
    );
}

#[test]
fn d13_every_index_must_be_there_and_something_must_be_asked_for() {
    let sim = Sim::with("a100-80gb", 1);
    for (profile, word) in [
        (
            "[[gpu]]\nselect = { index = [0, 9] }\nmig = false\n",
            "there is no GPU 9",
        ),
        (
            "[[gpu]]\nselect = { index = [] }\nmig = false\n",
            "index = [] selects nothing",
        ),
        (
            "[[gpu]]\nselect = { all = true }\ndevices = []\n",
            "devices = [] asks for nothing",
        ),
    ] {
        let ran = sim.up(profile, &[]).ended(2);
        assert!(ran.stderr.contains(word), "{}", ran.stderr);
    }
}

#[test]
fn d15_a_time_may_have_a_unit() {
    let sim = Sim::with("a100-80gb", 1);
    sim.run(&["down", "--drain", "30s"]).ended(0);
    sim.run(&["down", "--drain", "1m"]).ended(0);
    sim.run(&["down", "--drain", "soon"]).ended(2);
}

#[test]
fn e1_disable_mig_leaves_the_gpus_of_other_devices_alone() {
    let sim = Sim::with("h200", 2);
    sim.up(ONE_EACH, &[]).ended(0);
    sim.run(&["down", "1.0", "--destroy-mig", "--yes"]).ended(0);
    sim.run(&["down", "0.0", "--disable-mig", "--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(list["gpus"][0]["mig"]["current"], false, "{list:#}");
    assert_eq!(list["gpus"][1]["mig"]["current"], true, "{list:#}");
}

#[test]
fn e2_who_agreed_beforehand_is_not_told_to_agree_beforehand() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(ONE_EACH, &[]).ended(0);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let lock = fs::File::create(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    let path = sim.profile(ONE_EACH);
    let mut command = sim.command(&["up", path.to_str().unwrap(), "--yes"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut up = command.spawn().unwrap();
    let mut shown = BufReader::new(up.stdout.take().unwrap());
    let mut line = String::new();
    while !line.contains("+ start") {
        line.clear();
        assert_ne!(shown.read_line(&mut line).unwrap(), 0);
    }
    // Somebody makes an instance while it waits for the lock.
    sim.foreign_instance(0, 6);
    drop(lock);
    std::io::copy(&mut shown, &mut std::io::sink()).unwrap();
    let ended = up.wait_with_output().unwrap();
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(4), "{stderr}");
    assert!(!stderr.contains("--yes"), "{stderr}");
    assert!(
        stderr.contains(
            "it would now destroy GPU 0 1g.10gb at 6:1, which the plan shown before did not"
        ),
        "{stderr}"
    );
}

#[test]
fn e3_a_journal_that_cannot_be_read_is_not_the_end() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    fs::write(sim.node.run_dir().join("journal.json"), "{").unwrap();
    for ran in [sim.up(SMALL, &[]), sim.run(&["down"])] {
        let ran = ran.ended(1);
        let advice = "remove it, and see that the monitoring services it lists run";
        assert!(ran.stderr.contains(advice), "{}", ran.stderr);
    }
}

#[test]
fn e4_a_mode_that_was_only_noted_is_no_longer_ours_once_it_is_taken_back() {
    let sim = in_a_virtual_machine();
    sim.up(SMALL, &[]).ended(3);
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert!(
        ran.stderr.contains("MIG mode off on 1 GPU."),
        "{}",
        ran.stderr
    );
    assert_eq!(sim.run_dir(), ["lock"]);
}

#[test]
fn e5_disable_mig_says_where_the_mode_stays() {
    let sim = in_a_virtual_machine();
    sim.up(SMALL, &[]).ended(3);
    sim.node.reboot();
    sim.up(SMALL, &[]).ended(0);
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert!(
        ran.stderr.contains("MIG mode stays on: GPU 0"),
        "{}",
        ran.stderr
    );
}

#[test]
fn e6_disable_mig_warns_of_the_reset_that_ampere_needs() {
    for (model, warns) in [("a100-80gb", true), ("h200", false)] {
        let sim = Sim::with(model, 1);
        sim.up(SMALL, &[]).ended(0);
        let ran = sim.run(&["down", "--disable-mig"]).ended(4);
        let warned = ran.stderr.contains("needs a GPU reset");
        assert_eq!(warned, warns, "{model}: {}", ran.stderr);
    }
}

#[test]
fn e7_force_says_whom_it_ends() {
    let sim = Sim::with("a100-80gb", 2);
    sim.up(SMALL, &[]).ended(0);
    let app = sim.client("1.2");
    let ran = sim.up(ONE_EACH, &["--force", "--dry-run"]).ended(0);
    let named = format!("1 client is ended:\n  1.2: pid {} (", app.pid());
    assert!(ran.stdout.contains(&named), "{}", ran.stdout);
    // Both are treated alike, whoever has a client.
    assert!(ran.stdout.starts_with("GPU 0-1  "), "{}", ran.stdout);
}

#[test]
fn e8_json_has_the_plan_that_was_carried_out() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let app = sim.client("0.2");
    let path = sim.profile(ONE_EACH);
    let args = [
        "up",
        path.to_str().unwrap(),
        "--json",
        "--yes",
        "--drain",
        "60",
    ];
    let mut command = sim.command(&args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut up = command.spawn().unwrap();
    let mut said = BufReader::new(up.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("waiting for at most") {
        line.clear();
        assert_ne!(said.read_line(&mut line).unwrap(), 0);
    }
    app.finish();
    std::io::copy(&mut said, &mut std::io::sink()).unwrap();
    let ended = up.wait_with_output().unwrap();
    let outcome: serde_json::Value = serde_json::from_slice(&ended.stdout).unwrap();
    assert_eq!(outcome["changed"], true);
    let disturbed = &outcome["plan"]["gpus"][0]["disturbs"];
    assert_eq!(disturbed, &serde_json::json!([]), "nobody was disturbed");
}

#[test]
fn e9_a_mistake_on_an_endless_line_is_shown_in_part() {
    let sim = Sim::with("a100-80gb", 1);
    let file = sim.node.dir().join("long.yaml");
    let text = format!("version: v1\nmig-configs: {}\n", "[".repeat(100_000));
    fs::write(&file, text).unwrap();
    let ran = sim.run(&["import", file.to_str().unwrap()]).ended(2);
    assert!(ran.stderr.len() < 1000, "{} bytes", ran.stderr.len());
    let profile = format!(
        "{}[[gpu]]\nselect = {{ all = treu }} # {}",
        "\n",
        "x".repeat(5000)
    );
    let ran = sim.up(&profile, &[]).ended(2);
    assert!(
        ran.stderr.contains("select = { all = treu }"),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.len() < 1000, "{} bytes", ran.stderr.len());
}

#[test]
fn f1_a_change_that_was_killed_is_told_of_by_those_that_only_look() {
    let sim = Sim::with("a100-80gb", 1);
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    sim.node.fault(create).kills().unwrap();
    let _ = sim.up(SMALL, &[]);
    let path = sim.profile(SMALL);
    for args in [&["status"][..], &["plan", path.to_str().unwrap()]] {
        let ran = sim.run(args).ended(0);
        let told = ran.stderr.contains("A change was interrupted: ")
            || ran.stdout.contains("\ninterrupted: ");
        assert!(told, "{args:?}: {}", ran.stderr);
    }
    sim.up(SMALL, &["--yes"]).ended(0);
    let ran = sim.run(&["status"]).ended(0);
    let said = ran.stdout + &ran.stderr;
    assert!(!said.contains("interrupted"), "{said}");
}

#[test]
fn f2_a_uuid_means_one_gpu() {
    let sim = Sim::with("a100-80gb", 2);
    let profile = "[[gpu]]\nselect = { uuid = \"GPU-\" }\nmig = false\n";
    let ran = sim.up(profile, &[]).ended(2);
    let said = "the UUIDs of several GPUs begin like this";
    assert!(ran.stderr.contains(said), "{}", ran.stderr);
    assert_eq!(in_state(&sim.status(), "ready").len(), 0);
}

/// Where an Ampere GPU's MIG mode changes with a reboot.
fn in_a_virtual_machine() -> Sim {
    let sim = Sim::with("a100-80gb", 1);
    let platform = simnode::node::Platform::PassThrough;
    let update = sim
        .node
        .node()
        .update(|state| state.policy.platform = platform);
    update.unwrap();
    sim
}

#[test]
fn g1_an_empty_product_name_is_a_mistake() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim
        .up("[[gpu]]\nselect = { product = \"\" }\nmig = false\n", &[])
        .ended(2);
    assert!(ran.stderr.contains("all = true"), "{}", ran.stderr);
}

#[test]
fn g2_switching_mig_off_is_asked_for() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let whole = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    let ran = sim.up(whole, &[]).ended(4);
    assert!(
        ran.stderr.contains("switch MIG mode off on GPU 0"),
        "{}",
        ran.stderr
    );
    sim.up(whole, &["--yes"]).ended(0);
}

#[test]
fn g3_whoever_holds_a_gpu_for_a_moment_fails_nothing() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let path = sim.profile(SMALL);
    let up = sim.spawn(&["up", path.to_str().unwrap()]);
    while sim.happened("nvmlDeviceSetMigMode") < 2 {
        std::thread::yield_now();
    }
    drop(holder);
    assert!(up.wait_with_output().unwrap().status.success());
    assert_eq!(in_state(&sim.status(), "ready").len(), 2);
}
