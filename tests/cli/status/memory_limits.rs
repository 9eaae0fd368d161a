//! Limits that CUDA lets a program lift, or that limit nothing.

use std::process::Command;

use insta::assert_snapshot;
use serde_json::{Value, json};
use simnode::node::ControlVersion;
use testkit::{App, Ran, Sim, assert_contains, needs_root, plain, whole};

const VARIABLE: &str = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT";
const LIMITED: &str = "active-thread-percentage = 25, pinned-memory-limit = \"2G\"";

/// An H200 whose clients may have 2 GiB each.
fn limited() -> Sim {
    Sim::whole(LIMITED)
}

/// `mig-mps` with a memory limit in the caller's environment.
fn with_limit(sim: &Sim, limit: &str, args: &[&str]) -> Ran {
    Ran::of(sim.command(args).env(VARIABLE, limit))
}

/// A client that was not started by `run`, with a memory limit of its own.
fn client(sim: &Sim, limit: &str, allocations: &[&str]) -> App {
    let mut program: Command = sim.node.program("cuda-app");
    program.env("CUDA_MPS_PIPE_DIRECTORY", sim.pipe_link("0"));
    program.env(VARIABLE, limit).arg("hold");
    for mebibytes in allocations {
        program.args(["--alloc", mebibytes]);
    }
    let mut app = App::start(program);
    assert!(app.wait_up().ends_with(" mps yes"));
    for mebibytes in allocations {
        let got = format!(" alloc {mebibytes} MiB -> 0 no error");
        let line = app.wait_up();
        assert!(line.ends_with(&got), "{line}");
    }
    app
}

fn problems(sim: &Sim) -> Vec<Value> {
    let status = sim.status();
    status["problems"].as_array().unwrap().clone()
}

#[test]
fn no_leftover_variable_lifts_the_limit_of_a_program_that_run_starts() {
    let sim = limited();
    let uuid = sim.device("0")["uuid"].as_str().unwrap().to_owned();
    let app = ["cuda-app", "run", "0", "--alloc", "1200", "--alloc", "6000"];
    let run = [&["run", "0", "--"], &app[..]].concat();
    let own = format!("{uuid}=60G");
    let elsewhere = ["1=4G", "0=2G,5=4G", "GPU-1234=4G", "0=60G,1=60G", "", &own];
    for left in elsewhere {
        let ran = with_limit(&sim, left, &run).ended(0).stdout;
        assert!(ran.contains("alloc 1200 MiB -> 0 "), "{left}: {ran}");
        assert!(ran.contains("alloc 6000 MiB -> 2 "), "{left}: {ran}");
    }
    let copies = [&["run", "-n", "2", "0", "--"], &app[..]].concat();
    let ran = with_limit(&sim, "1=4G", &copies).ended(0).stdout;
    assert_eq!(ran.matches("alloc 6000 MiB -> 2 ").count(), 2, "{ran}");
    // The program's own limit is kept.
    for tighter in ["0=1G", "0=1G,1=4G", &format!("{uuid}=1024MB")] {
        let ran = with_limit(&sim, tighter, &run).ended(0).stdout;
        assert!(ran.contains(" free 877MiB "), "{tighter}: {ran}");
    }
    // An option takes its place.
    let asked = [&["run", "0", "--memory", "1G", "--"], &app[..]].concat();
    let ran = with_limit(&sim, "junk", &asked).ended(0).stdout;
    assert_contains(&ran, " free 877MiB ");
}

#[test]
fn a_limit_of_the_caller_that_cannot_be_read_is_refused() {
    let sim = limited();
    let refused = |left: &str| {
        let ran = with_limit(&sim, left, &["run", "0", "--", "echo", "started"]).ended(125);
        assert_eq!(ran.stdout, "", "{left}");
        ran.stderr
    };
    assert_snapshot!(refused("junk"), @r#"
    error: cannot read CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=junk: "junk" is not DEVICE=SIZE, as in 0=4G
    hint: unset CUDA_MPS_PINNED_DEVICE_MEM_LIMIT; with this value CUDA would ignore the memory limit of the device
    "#);
    for (left, why) in [
        ("0=2G,junk", "\"junk\" is not DEVICE=SIZE, as in 0=4G"),
        ("0=much", "\"much\" is not a size with M or G, as in 0=4G"),
        // A size that only mig-mps reads would lift the limit.
        ("0=2g", "\"2g\" is not a size with M or G, as in 0=4G"),
        (
            "first=2G",
            "\"first\" is neither a number nor the UUID of a device",
        ),
    ] {
        let said = refused(left);
        let error = format!("error: cannot read {VARIABLE}={left}: {why}\n");
        assert!(said.starts_with(&error), "{said}");
    }
    // A shell is freed of it.
    let mig_mps = sim.command(&[]).get_program().to_owned();
    let mut shell = Command::new("/bin/sh");
    let script = "eval \"$(\"$0\" env 0 --shell sh)\"; exec cuda-app run 0 --alloc 6000";
    shell.arg("-c").arg(script).arg(mig_mps);
    shell.env_clear().envs(sim.node.env()).env(VARIABLE, "junk");
    let ran = Ran::of(&mut shell).ended(0).stdout;
    assert_contains(&ran, "alloc 6000 MiB -> 2 ");
}

/// The clients whose memory is seen do not stand for all.
#[test]
fn clients_over_their_limit_are_not_counted_where_memory_is_hidden() {
    let sim = limited();
    let _over = client(&sim, "1=4G", &["6000"]);
    let processes = "nvmlDeviceGetMPSComputeRunningProcesses_v3";
    sim.node.fault(processes).every().fails(4).unwrap();
    let metrics = sim.run(&["metrics"]).ended(0).stdout;
    assert_contains(&metrics, "mig_mps_device_clients{device=\"0\"} 1\n");
    assert_contains(&metrics, "mig_mps_device_user_clients{");
    for hidden in ["over_memory_limit{", "user_memory_used_bytes{"] {
        assert!(!metrics.contains(hidden), "{metrics}");
    }
}

#[test]
fn a_client_over_its_limit_is_a_fault_and_the_remedy_ends_it() {
    let sim = limited();
    // One that fills its limit is none. The driver lists some memory that MPS does not count.
    let full = client(&sim, "0=60G", &["1901"]);
    let uncounted = client(&sim, "1=4G", &["1960"]);
    assert_eq!(sim.status()["problems"], json!([]));
    drop(uncounted);
    let metrics = sim.run(&["metrics"]).ended(0).stdout;
    let by_device = "mig_mps_device_clients_over_memory_limit{device=\"0\"}";
    assert_contains(&metrics, &format!("{by_device} 0\n"));

    let over = client(&sim, "1=4G", &["6000"]);
    let found = problems(&sim);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(
        (&found[0]["id"], &found[0]["device"]),
        (&"memory-over-limit".into(), &"0".into())
    );
    let what = found[0]["what"].as_str().unwrap();
    let named = format!("pid {} (", over.pid());
    assert!(what.starts_with(&named), "{what}");
    let uses = "uses 6147 MiB, more than the pinned-memory-limit of 2G: ";
    assert_contains(what, uses);
    assert_eq!(sim.run(&["status", "--exit-code"]).status, 3);
    let doctor = sim.run(&["doctor"]).ended(3).stdout;
    assert_contains(&doctor, "[memory-over-limit]");
    let metrics = sim.run(&["metrics"]).ended(0).stdout;
    assert_contains(&metrics, &format!("{by_device} 1\n"));
    let of_kind = "mig_mps_problems{id=\"memory-over-limit\"} 1\n";
    assert_contains(&metrics, of_kind);

    let remedy = what.split('`').nth(1).unwrap();
    assert_eq!(remedy, format!("mig-mps kill 0 {} --signal", over.pid()));
    let words: Vec<&str> = remedy.split(' ').skip(1).chain(["--yes"]).collect();
    sim.run(&words).ended(0);
    assert!(!over.await_end().status.success());
    assert_eq!(sim.status()["problems"], json!([]));
    assert!(full.finish().status.success());
}

/// The limit of a daemon that somebody has changed is a problem, and clients that keep to it are none.
#[test]
fn a_client_within_the_limit_that_its_daemon_has_is_not_accused() {
    let sim = limited();
    let server = &sim.device("0")["servers"][0]["pid"];
    let changes = format!(
        "set_default_device_pinned_mem_limit 0 8G\nset_device_pinned_mem_limit {server} 0 8G\n"
    );
    sim.ask("0", &changes);
    let client = client(&sim, "", &["3000"]);
    let found = problems(&sim);
    let ids: Vec<&Value> = found.iter().map(|problem| &problem["id"]).collect();
    assert_eq!(ids, ["settings-changed"], "{found:?}");
    assert!(client.finish().status.success());
}

/// A limit that is set live holds for programs that start afterwards: an older one keeps to the limit with which it started.
#[test]
fn a_client_that_is_older_than_the_limit_is_not_accused() {
    let sim = limited();
    let older = client(&sim, "", &["1500"]);
    let over = client(&sim, "1=4G", &["6000"]);
    let accused = || {
        let found = problems(&sim);
        let ids = found.iter().map(|one| one["id"].as_str().unwrap());
        assert!(ids.clone().all(|id| id == "memory-over-limit"), "{found:?}");
        found
            .iter()
            .map(|one| one["what"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    let metrics = || sim.run(&["metrics"]).ended(0).stdout;
    let counted = "mig_mps_device_clients_over_memory_limit{device=\"0\"} 1\n";
    for limit in ["1G", "none", "1G", "768M"] {
        let set = format!("pinned-memory-limit={limit}");
        sim.run(&["set", "0", &set]).ended(0);
        // The one that lifted its limit has more than it had by any limit.
        let what = accused();
        assert_eq!(what.len(), 1, "{limit}: {what:?}");
        let named = format!("pid {} (", over.pid());
        assert!(what[0].starts_with(&named), "{what:?}");
        assert_contains(&what[0], "more than the pinned-memory-limit of 2G: ");
        assert_contains(&metrics(), counted);
    }
    // What starts now is held to the present limit.
    let newer = client(&sim, "1=4G", &["1200"]);
    assert_eq!(accused().len(), 2);
    assert_contains(&accused()[1], "more than the pinned-memory-limit of 768M: ");
    drop(over);
    assert!(newer.finish().status.success());
    // A profile changes limits as `set` does.
    sim.up(&whole("pinned-memory-limit = \"640M\""), &[])
        .ended(0);
    sim.await_state("0", "ready");
    assert_eq!(sim.status()["problems"], json!([]));
    assert!(older.finish().status.success());
}

#[test]
fn on_driver_535_everybody_changes_limits_and_up_and_doctor_say_so() {
    needs_root!();
    let with = |driver, settings: &str| {
        let sim = Sim::with("h200", 1);
        sim.node
            .node()
            .update(|state| state.install(driver))
            .unwrap();
        let said = sim.up(&whole(settings), &[]).ended(0).stderr;
        (sim, said)
    };
    let warning = "every user of 0 can change its limits, because the MPS of driver 535.161.07 accepts settings from all users;";
    let (sim, said) = with(ControlVersion::R535, LIMITED);
    assert_contains(&said, warning);
    let doctor = sim.run(&["doctor", "0"]).stdout;
    assert_contains(
        &doctor,
        "warn    0: every user of the device can change its limits",
    );
    let said = sim
        .run(&["set", "0", "pinned-memory-limit=3G"])
        .ended(0)
        .stderr;
    assert_contains(&said, warning);
    // One user alone is served: she can.
    let hers = format!("serve = \"user:nobody\", {LIMITED}");
    assert_contains(&with(ControlVersion::R535, &hers).1, warning);
    for (driver, settings) in [(ControlVersion::R535, ""), (ControlVersion::R550, LIMITED)] {
        let (sim, said) = with(driver, settings);
        assert!(!said.contains("Every user of"), "{driver:?}: {said}");
        let doctor = sim.run(&["doctor", "0"]).stdout;
        assert!(!doctor.contains("every user of"), "{driver:?}: {doctor}");
    }
}

#[test]
fn a_limit_above_the_memory_of_a_device_gets_a_remark() {
    let profile = "[mps]\npinned-memory-limit = \"20G\"\n[[gpu]]\nselect = { all = true }\n\
        devices = [ { profile = \"3g\" }, { profile = \"1g\" } ]\n";
    let sim = Sim::with("a100-80gb", 2);
    let path = sim.profile(profile).display().to_string();
    let remark = |ran: Ran| plain(&ran.ended(0).stderr);
    assert_snapshot!(remark(sim.run(&["plan", &path])), @"
    note: GPUs 0-1: 3g.40gb + 1g.10gb uses 56 of 98 SMs; 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb uses all
    note: a pinned-memory-limit of 20G has no effect on devices 0.0, 1.0, which have 9728 MiB of memory
    ");
    let check = sim.run(&["check", &path, "--gpu", "a100-80gb"]);
    assert_snapshot!(remark(check), @"
    note: GPU 0: 3g.40gb + 1g.10gb uses 56 of 98 SMs; 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb uses all
    note: a pinned-memory-limit of 20G has no effect on device 0.0, which has 9728 MiB of memory
    ");
    let up = sim.up(profile, &[]).ended(0).stderr;
    assert_contains(&up, "has no effect on");
    // Also where it changes under a running daemon, where no GPU is named, and on this node as it is.
    let more = format!(
        "models = [\"a100-80gb\"]\n{}",
        profile.replace("20G", "30G")
    );
    let more = sim.profile(&more);
    let more = more.to_str().unwrap();
    let plan = sim.run(&["plan", more]).ended(0).stdout;
    assert_contains(
        &plan,
        "(the device has 9728 MiB, so this limit has no effect): 0.0, 1.0\n      pinned-memory-limit  20G → 30G\n",
    );
    for (option, devices) in [
        (&[][..], "devices 0.0, 1.0, which have 9728 MiB"),
        (&["--models"], "device 0.0, which has 9728 MiB"),
    ] {
        let args = [&["check", more], option].concat();
        let said = sim.run(&args).ended(0).stderr;
        assert_contains(
            &said,
            &format!("a pinned-memory-limit of 30G has no effect on {devices} of memory"),
        );
    }
    let whole = whole("pinned-memory-limit = \"100G\"");
    let up = sim.up(&whole, &["--force", "--yes"]).ended(0).stderr;
    assert_contains(
        &up,
        "a pinned-memory-limit of 100G has no effect on devices 0, 1, which have ",
    );
    let fits = Sim::with("h200", 1).up(&whole, &[]).ended(0).stderr;
    assert!(!fits.contains("has no effect on"), "{fits}");
}
