//! Problems of daemons that `status` reports are checks of the same id; and what `status` does not report.

use std::fs;
use std::process::Command;

use testkit::{
    App, Sim, assert_contains, copy_program, is_alive, kill, needs_root, shell, stop, terminate,
    wait_until, whole,
};

use super::{Report, doctor, healthy};
use crate::cli::faults::hung::accepts_nobody;
use crate::cli::status::foreign_programs::{beside, unmanaged_daemon};

/// Asserts that `status` reports the same id for the device.
#[track_caller]
fn is_in_status(sim: &Sim, list: &str, id: &str, device: Option<&str>) {
    let status = sim.status();
    let mut reported = status[list].as_array().unwrap().iter();
    let is_it =
        |one: &serde_json::Value| one["id"] == id && one["device"] == serde_json::json!(device);
    assert!(reported.any(is_it), "{id}: {status:#}");
}

#[test]
fn a_daemon_that_died() {
    let sim = healthy();
    sim.kill_daemon("0.0");
    let report = doctor(&sim, &[]);
    let command = report
        .check("daemon-dead")
        .is("fail", Some("0.0"), "its daemon has died");
    assert_eq!(command, "mig-mps restart 0.0");
    is_in_status(&sim, "problems", "daemon-dead", Some("0.0"));
    assert!(!doctor(&sim, &["0.2"]).ills().contains("daemon-dead"));
    sim.run(&["doctor", "0.0"]).ended(3);
}

#[test]
fn a_reboot_leaves_devices_of_an_earlier_boot() {
    let sim = healthy();
    sim.node.node().reboot().unwrap();
    let report = doctor(&sim, &[]);
    report
        .check("earlier-boot")
        .is("fail", Some("0.2"), "from an earlier boot");
    is_in_status(&sim, "problems", "earlier-boot", Some("0.2"));
}

#[test]
fn a_daemon_without_its_pipe_directory() {
    let sim = healthy();
    fs::remove_dir_all(sim.pipe("0.2")).unwrap();
    let report = doctor(&sim, &[]);
    let command = report.check("daemon-orphan").is(
        "fail",
        Some("0.2"),
        "its pipe directory no longer exists",
    );
    assert_eq!(command, "mig-mps restart 0.2 --force");
    is_in_status(&sim, "problems", "daemon-orphan", Some("0.2"));
}

#[test]
fn a_device_that_hangs() {
    let sim = Sim::whole("");
    sim.hang("0");
    let report = doctor(&sim, &[]);
    let command = report
        .check("device-hung")
        .is("fail", Some("0"), "it is hung");
    assert_eq!(command, "mig-mps restart 0");
    is_in_status(&sim, "problems", "device-hung", Some("0"));
}

#[test]
fn a_program_that_waits_for_another_users() {
    needs_root!();
    let sim = Sim::whole("");
    let first = sim.client("0");
    let second = sim.app_of_nobody("0", &["hold"]);
    sim.await_event("client waits", 1);
    let report = doctor(&sim, &[]);
    report.check("user-waiting").is(
        "warn",
        Some("0"),
        "(nobody) waits until the programs of root have exited",
    );
    is_in_status(&sim, "remarks", "user-waiting", Some("0"));
    assert!(first.finish().status.success());
    drop(second);
}

#[test]
fn a_daemon_that_is_stopped() {
    let sim = healthy();
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    stop(&daemon);
    let report = doctor(&sim, &[]);
    let command = report
        .check("daemon-stopped")
        .is("fail", Some("0.2"), "is stopped (SIGSTOP)");
    assert_eq!(command, format!("kill -CONT {daemon}"));
    is_in_status(&sim, "problems", "daemon-stopped", Some("0.2"));
    shell(command).ended(0);
    wait_until("it goes on", || {
        !doctor(&sim, &[]).ills().contains("daemon-stopped")
    });
}

#[test]
fn a_daemon_whose_answers_make_no_sense() {
    let sim = healthy();
    let client = sim.client("0.2");
    let control = sim.control_script("cat >/dev/null; echo nonsense");
    let mut doctor = sim.command(&["doctor", "--json"]);
    let report = Report::of(doctor.env("MIG_MPS_CONTROL", control));
    let command = report
        .check("daemon-silent")
        .is("fail", Some("0.2"), "does not answer");
    assert_eq!(command, "mig-mps restart 0.2 --force");
    drop(client);
}

#[test]
fn a_gpu_fault() {
    let sim = healthy();
    let _clients = sim.faulty("0.2");
    let report = doctor(&sim, &[]);
    let command = report
        .check("gpu-fault")
        .is("fail", Some("0.2"), "a GPU fault");
    assert!(command.starts_with("mig-mps kill 0.2 "), "{command}");
    is_in_status(&sim, "problems", "gpu-fault", Some("0.2"));
}

#[test]
fn a_start_that_nobody_finished() {
    let sim = healthy();
    sim.node
        .fault("set_default_active_thread_percentage")
        .kills()
        .unwrap();
    let _ = sim.run(&["restart", "0.2", "--yes"]);
    let report = doctor(&sim, &[]);
    report
        .check("change-interrupted")
        .is("fail", None, "interrupted: ");
    is_in_status(&sim, "problems", "change-interrupted", None);
    sim.run(&["restart", "0.2"]).ended(4);
    let report = doctor(&sim, &[]);
    report
        .check("start-unfinished")
        .is("fail", Some("0.2"), "left it unfinished");
    is_in_status(&sim, "problems", "start-unfinished", Some("0.2"));
}

#[test]
fn settings_that_somebody_changed() {
    let sim = Sim::whole("pinned-memory-limit = \"2G\"");
    let client = sim.client("0");
    sim.ask(
        "0",
        "set_default_device_pinned_mem_limit 0 1G\nget_default_active_thread_percentage\n",
    );
    let report = doctor(&sim, &[]);
    report.check("settings-changed").is(
        "fail",
        Some("0"),
        "but mig-mps set it to 2G; it was changed from outside mig-mps",
    );
    is_in_status(&sim, "problems", "settings-changed", Some("0"));
    drop(client);
}

/// `status` asks no idle daemon for its settings, and JSON says so; `doctor` asks.
#[test]
fn settings_are_read_back_or_shown_as_configured() {
    let settings = "active-thread-percentage = 25\npinned-memory-limit = \"2G\"";
    let sim = Sim::whole(&settings.replace('\n', ", "));
    let columns = ["status", "--columns", "threads,limit,priority"];
    let cells = |sim: &Sim| {
        let text = sim.run(&columns).ended(0).stdout;
        let mut words = text.lines().nth(1).unwrap().split_whitespace();
        [(); 3].map(|()| words.next().unwrap().to_owned())
    };
    assert_eq!(cells(&sim), ["25%", "2G", "normal"]);
    let device = sim.device("0");
    assert_eq!(device["settings_read_back"], false);
    assert_eq!(device["active_thread_percentage"], 25.0);
    assert_eq!(doctor(&sim, &[]).ills(), std::collections::BTreeSet::new());
    let changed = "set_default_active_thread_percentage 70\nget_default_active_thread_percentage\n";
    sim.ask("0", changed);
    let command = doctor(&sim, &[]).check("settings-changed").is(
        "fail",
        Some("0"),
        "active-thread-percentage is 70, but mig-mps set it to 25",
    );
    assert_eq!(command, "mig-mps up");
    // A client makes `status` ask.
    let client = sim.client("0");
    assert_eq!(cells(&sim), ["70%!=25%", "2G", "normal"]);
    assert_eq!(sim.device("0")["settings_read_back"], true);
    drop(client);
}

#[test]
fn a_daemon_that_accepts_nobody() {
    let (sim, _waits) = accepts_nobody();
    let report = doctor(&sim, &[]);
    let command = report
        .check("device-hung")
        .is("fail", Some("0"), "accepts no connection");
    assert_eq!(command, "mig-mps restart 0");
    is_in_status(&sim, "problems", "device-hung", Some("0"));
}

/// Measured: SIGTERM ends the daemon of a device that hangs, and leaves its server.
#[test]
fn a_server_that_outlived_its_daemon() {
    let sim = Sim::whole("");
    sim.hang("0");
    terminate(&sim.await_state("0", "hung")["daemon_pid"]);
    let report = doctor(&sim, &[]);
    report
        .check("stray-server")
        .is("fail", Some("0"), "outlived its daemon");
    is_in_status(&sim, "problems", "stray-server", Some("0"));
}

#[test]
fn programs_outside_mps_and_several_daemons() {
    let sim = healthy();
    let uuid = sim.uuid("0.2");
    let mut app = sim.node.program("cuda-app");
    app.arg("hold")
        .env("CUDA_VISIBLE_DEVICES", &uuid)
        .env("CUDA_MPS_PIPE_DIRECTORY", beside(&sim, "nowhere"));
    let mut lost = App::start(app);
    lost.wait_up();
    unmanaged_daemon(&sim, &beside(&sim, "theirs"), Some(&uuid));
    let report = doctor(&sim, &[]);
    report.check("outside-mps").is(
        "fail",
        Some("0.2"),
        "computes outside MPS: its pipe directory is",
    );
    report
        .check("several-daemons")
        .is("fail", Some("0.2"), "2 daemons serve it");
    is_in_status(&sim, "problems", "outside-mps", Some("0.2"));
    is_in_status(&sim, "problems", "several-daemons", Some("0.2"));
    // Another device has nothing of it.
    assert_eq!(doctor(&sim, &["0.0"]).ills().len(), 0);
}

#[test]
fn daemons_that_see_all_gpus_or_take_the_default_directory() {
    let sim = healthy();
    let pipe = beside(&sim, "all");
    unmanaged_daemon(&sim, &pipe, None);
    let report = doctor(&sim, &[]);
    let command = report
        .check("sees-all-gpus")
        .is("fail", None, "it sees all GPUs");
    let wanted = format!(
        "echo quit | CUDA_MPS_PIPE_DIRECTORY={} nvidia-cuda-mps-control",
        pipe.display()
    );
    assert_eq!(command, wanted);
    is_in_status(&sim, "problems", "sees-all-gpus", None);
    let status = sim.status();
    let mut problems = status["problems"].as_array().unwrap().iter();
    let shown = problems.find(|one| one["id"] == "sees-all-gpus").unwrap();
    let what = shown["what"].as_str().unwrap();
    assert!(
        what.ends_with(&format!("; run `{wanted}` to end it")),
        "{what}"
    );
    report
        .check("unmanaged-daemons")
        .is("ok", None, "nvidia-cuda-mps-control");
    fs::remove_dir_all(&pipe).unwrap();
    let command =
        doctor(&sim, &[])
            .check("unmanaged-daemons")
            .is("warn", None, "its pipe directory is gone");
    assert!(command.starts_with("kill "), "{command}");
}

#[test]
fn clients_up_to_the_limit_and_beyond() {
    let sim = Sim::whole("max-clients = 1");
    let first = sim.client("0");
    let second = sim.client("0");
    let report = doctor(&sim, &[]);
    report
        .check("too-many-clients")
        .is("warn", Some("0"), "2 clients and is meant for 1");
    is_in_status(&sim, "remarks", "too-many-clients", Some("0"));
    drop((first, second));
    let sim = Sim::whole("");
    let clients: Vec<App> = (0..48).map(|_| sim.client("0")).collect();
    let report = doctor(&sim, &[]);
    report
        .check("clients-full")
        .is("warn", Some("0"), "its limit of clients");
    drop(clients);
    // The hardware takes no more, whatever max-clients is.
    let sim = Sim::whole("max-clients = 100");
    let clients: Vec<App> = (0..48).map(|_| sim.client("0")).collect();
    doctor(&sim, &[])
        .check("clients-full")
        .is("warn", Some("0"), "its limit of clients");
    is_in_status(&sim, "remarks", "clients-full", Some("0"));
    drop(clients);
}

#[test]
fn a_server_that_ended() {
    let sim = Sim::whole("");
    kill(&sim.device("0")["servers"][0]["pid"]);
    sim.await_state("0", "no server yet");
    let report = doctor(&sim, &[]);
    report
        .check("server-ended")
        .is("warn", Some("0"), "the next client starts another");
    is_in_status(&sim, "remarks", "server-ended", Some("0"));
}

#[test]
fn a_device_that_is_gone() {
    let sim = healthy();
    sim.node
        .node()
        .update(|state| {
            state.gpus[0].instances.clear();
            state.contexts.clear();
        })
        .unwrap();
    let report = doctor(&sim, &[]);
    let command =
        report
            .check("device-gone")
            .is("fail", Some("0.2"), "its device no longer exists");
    assert_eq!(command, "mig-mps up");
    is_in_status(&sim, "problems", "device-gone", Some("0.2"));
    let command = report.check("instances-missing").is(
        "warn",
        None,
        "GPU 0: GPU instances that mig-mps created no longer exist: slices",
    );
    assert_eq!(command, "mig-mps up");
}

#[test]
fn a_change_in_progress() {
    let sim = healthy();
    sim.node.fault("daemon start").hangs().unwrap();
    let _restart = sim.talk(&["restart", "0.2", "--yes"]);
    sim.await_event("fault", 1);
    let report = doctor(&sim, &["--all"]);
    report
        .check("change-under-way")
        .is("warn", None, "a change is under way");
    is_in_status(&sim, "remarks", "change-under-way", None);
}

#[test]
fn a_record_that_cannot_be_read() {
    let sim = healthy();
    let uuid = sim.uuid("0.2");
    fs::write(sim.node.run_dir().join(uuid).join("device.json"), "{").unwrap();
    let report = doctor(&sim, &[]);
    report
        .check("record-unreadable")
        .is("fail", None, "device.json");
    is_in_status(&sim, "problems", "record-unreadable", None);
}

#[test]
fn a_memory_limit_that_lets_no_program_start() {
    // What another version may have recorded: `up` refuses it.
    let sim = Sim::whole("pinned-memory-limit = \"516M\"");
    let command =
        doctor(&sim, &[])
            .check("memory-limit")
            .is("warn", Some("0"), "516M may be too small");
    assert_eq!(command, "mig-mps set 0 pinned-memory-limit=2G");
    let record = sim.node.run_dir().join("by-name/0/device.json");
    let text = fs::read_to_string(&record).unwrap();
    assert_contains(&text, "516M");
    fs::write(&record, text.replace("516M", "400M")).unwrap();
    doctor(&sim, &[])
        .check("memory-limit")
        .is("fail", Some("0"), "too small for any program");
}

#[test]
fn a_daemon_that_may_open_few_files() {
    let sim = Sim::whole("");
    let daemon = sim.device("0")["daemon_pid"].clone();
    shell(format!("prlimit --pid {daemon} --nofile=600:600")).ended(0);
    let command = doctor(&sim, &[])
        .check("daemon-files")
        .is("warn", Some("0"), "600 files");
    assert_eq!(command, "mig-mps restart 0 --drain 5m");
    shell(format!("prlimit --pid {daemon} --nofile=20:20")).ended(0);
    let report = doctor(&sim, &[]);
    let command = report
        .check("daemon-files")
        .is("fail", Some("0"), "20 files");
    run_as_shown(&sim, &command);
    assert!(!doctor(&sim, &[]).ills().contains("daemon-files"));
    // A restart would give it the same number again.
    let sim = Sim::whole("nofile = 512");
    let command = doctor(&sim, &[]).check("daemon-files").is(
        "warn",
        Some("0"),
        "512 files, as its profile says (nofile)",
    );
    assert_eq!(command, "");
}

/// Runs a command that the program has shown, and adds `--yes`.
fn run_as_shown(sim: &Sim, command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(words[0], "mig-mps", "{command}");
    sim.run(&[&words[1..], &["--yes"]].concat()).ended(0);
}

#[test]
fn a_daemon_whose_program_was_replaced() {
    let sim = Sim::with("h200", 1);
    let real = sim.node.dir().join("bin/nvidia-cuda-mps-control");
    let copy = sim.node.dir().join("nvidia-cuda-mps-control");
    copy_program(&real, &copy);
    fs::remove_file(&real).unwrap();
    copy_program(&copy, &real);
    sim.up(&whole(""), &[]).ended(0);
    doctor(&sim, &[])
        .check("daemon-outdated")
        .is("ok", Some("0"), "the installed one");
    fs::remove_file(&real).unwrap();
    copy_program(&copy, &real);
    let command = doctor(&sim, &[])
        .check("daemon-outdated")
        .is("warn", Some("0"), "was replaced");
    assert_eq!(command, "mig-mps restart 0 --drain 5m");
}

#[test]
fn a_daemon_in_a_login_session() {
    let sim = Sim::whole("");
    let pid = sim.device("0")["daemon_pid"].clone();
    let cgroup = |path: &str| sim.fake_proc(&pid, "cgroup", &format!("0::{path}\n"));
    cgroup("/user.slice/user-0.slice/session-3.scope");
    let command =
        doctor(&sim, &[])
            .check("daemon-cgroup")
            .is("warn", Some("0"), "ends with session-3.scope");
    assert_eq!(command, format!("systemctl status {pid}"));
    for own in ["/mig-mps.slice/mig-mps-0.scope", "/"] {
        cgroup(own);
        assert!(!doctor(&sim, &[]).ills().contains("daemon-cgroup"), "{own}");
    }
}

#[test]
fn zombies_are_counted() {
    let sim = healthy();
    let program = sim.node.dir().join("nvidia-cuda-mps-server");
    copy_program("/bin/true", &program);
    let mut child = Command::new(&program).spawn().unwrap();
    wait_until("it has exited", || !is_alive(child.id()));
    sim.node.node().show_process(child.id());
    // The simulated /proc enters live processes alone.
    let entry = sim.machine(&format!("proc/{}", child.id()));
    if !entry.is_symlink() {
        std::os::unix::fs::symlink(format!("/proc/{}", child.id()), &entry).unwrap();
    }
    // It is a matter of the program that started it, which is no daemon and no init process.
    let (parent, child_id) = (std::process::id(), child.id());
    let seen =
        format!("an MPS program has exited, and pid {parent} does not reap it: pid {child_id}");
    doctor(&sim, &[]).check("zombies").is("ok", None, &seen);
    // An init process that does not reap, and a daemon that does not.
    let daemon = sim.device("0.0")["daemon_pid"].clone();
    for parent in [serde_json::json!(1), daemon] {
        let stat = format!("{child_id} (nvidia-cuda-mps) Z {parent} 0 0 0");
        sim.fake_proc(child_id, "stat", &stat);
        let seen =
            format!("an MPS program has exited, and pid {parent} does not reap it: pid {child_id}");
        let command = doctor(&sim, &[]).check("zombies").is("warn", None, &seen);
        assert_eq!(
            command,
            format!("ps -o pid,ppid,stat,args -p {parent},{child_id}")
        );
    }
    fs::remove_dir_all(&entry).unwrap();
    child.wait().unwrap();
    assert!(!doctor(&sim, &[]).ills().contains("zombies"));
}

#[test]
fn a_device_that_heal_has_given_up() {
    let sim = Sim::whole("");
    let now = jiff::Timestamp::now().to_string();
    sim.edit("by-name/0/device.json", |record| {
        record["healed"] = serde_json::json!(vec![now; 5]);
    });
    sim.kill_daemon("0");
    let report = doctor(&sim, &[]);
    report
        .check("device-failing")
        .is("fail", Some("0"), "`heal` has started it 5 times");
    is_in_status(&sim, "problems", "device-failing", Some("0"));
}

#[test]
fn a_plain_user_sees_less_and_is_not_misled() {
    needs_root!();
    let sim = Sim::whole("serve = \"user:nobody\"");
    // A user sees less, and is not misled.
    sim.run(&["down"]).ended(0);
    sim.up(&whole("serve = \"all\""), &["--yes"]).ended(0);
    let pipe = beside(&sim, "theirs");
    unmanaged_daemon(&sim, &pipe, None);
    let mut doctor = sim.by_other(&["doctor", "--json"]);
    let report = Report::after_any(&mut doctor);
    for id in ["sees-all-gpus", "default-pipe-directory"] {
        report.check(id).is("unknown", None, "is hidden");
    }
    report.check("daemon-files").is("ok", Some("0"), "files");
    let update = sim.node.node();
    update
        .update(|state| state.policy.permissions = simnode::node::Permissions::Strict)
        .unwrap();
    let report = Report::after_any(&mut doctor);
    report
        .check("outside-mps")
        .is("unknown", Some("0"), "only to root");
}

#[test]
fn a_daemon_that_cannot_be_asked() {
    let sim = healthy();
    let client = sim.client("0.2");
    let mut doctor = sim.command(&["doctor", "--json"]);
    let control = sim.control_script("");
    fs::write(&control, "#!/no/interpreter\n").unwrap();
    let report = Report::of(doctor.env("MIG_MPS_CONTROL", control));
    assert!(
        report.ills().contains("daemon-not-asked"),
        "{:?}: {}",
        report.ills(),
        sim.status()
    );
    report
        .check("daemon-not-asked")
        .is("fail", Some("0.2"), "cannot be asked");
    report
        .check("device-hung")
        .is("unknown", Some("0.2"), "was not asked");
    drop(client);
}
