//! `up --keep-going`: what cannot be applied is left out and named, and the rest is applied.

use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;

use serde_json::{Value, json};

use testkit::{ONE_EACH, Ran, SMALL, Sim, TestNode, assert_contains, in_state, needs_root, whole};

const KEEP_GOING: [&str; 2] = ["--yes", "--keep-going"];

/// The beginning of the error.
const IN_PART: &str = "error: the profile was applied in part; left out:\n  ";

/// The problems of `status` about what is missing: the device and the sentence.
fn missing(sim: &Sim) -> Vec<(Value, String)> {
    let status = sim.status();
    let problems = status["problems"].as_array().unwrap().iter();
    problems
        .filter(|remark| remark["id"] == "profile-incomplete")
        .map(|remark| {
            let what = remark["what"].as_str().unwrap();
            (remark["device"].clone(), what.to_owned())
        })
        .collect()
}

/// Asserts that `up --keep-going` names this and exits with 1, and that `status` names it afterwards.
#[track_caller]
fn is_left_out(sim: &Sim, profile: &str, why: &str) -> Ran {
    let ran = sim.up(profile, &KEEP_GOING).ended(1);
    assert_contains(&ran.stderr, &format!("{IN_PART}{why}"));
    sim.run(&["status", "--exit-code"]).ended(3);
    let missing = missing(sim);
    assert_eq!(missing.len(), 1, "{missing:?}");
    assert!(
        missing[0]
            .1
            .starts_with("the applied profile is incomplete: ")
    );
    // Other users see no process, and no command line.
    assert!(!missing[0].1.contains("pid "), "{missing:?}");
    ran
}

#[track_caller]
fn is_complete(sim: &Sim) {
    let missing = missing(sim);
    assert!(missing.is_empty(), "{missing:?}");
}

fn daemons(sim: &Sim) -> Vec<Value> {
    let status = sim.status();
    let devices = status["devices"].as_array().unwrap().iter();
    devices
        .map(|device| device["daemon_pid"].clone())
        .filter(|pid| !pid.is_null())
        .collect()
}

#[test]
fn a_lost_gpu_leaves_the_others_served_until_it_is_found_again() {
    let sim = Sim::with("h100-80gb-sxm", 3);
    let profile = SMALL.replace("all = true", "index = [0, 1, 2]");
    sim.node.node().lose_gpu(1).unwrap();
    // Without the option nothing is touched.
    let ran = sim.up(&profile, &["--yes"]).ended(4);
    assert_contains(
        &ran.stderr,
        "use `mig-mps up --keep-going` to apply the rest of the profile",
    );
    assert_eq!(daemons(&sim), [] as [Value; 0]);
    let why = "GPU 1 is lost (nvmlDeviceGetHandleByIndex_v2: GPU is lost, 15)\n";
    is_left_out(&sim, &profile, why);
    let served = daemons(&sim);
    assert_eq!(
        in_state(&sim.status(), "ready"),
        ["0.0", "0.2", "2.0", "2.2"]
    );
    // There is nothing more to do, and still something is missing.
    let again = is_left_out(&sim, &profile, why);
    assert!(!again.stderr.contains("Nothing to do"), "{again:?}");
    assert_eq!(daemons(&sim), served);
    sim.node.reboot();
    is_complete(&sim);
    sim.up(&profile, &KEEP_GOING).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 6);
    is_complete(&sim);
}

/// A profile for every GPU means the lost one, too.
#[test]
fn a_lost_gpu_is_missed_by_a_block_for_all() {
    let sim = Sim::with("h100-80gb-sxm", 2);
    sim.node.node().lose_gpu(1).unwrap();
    let ran = sim.up(SMALL, &["--yes"]).ended(0);
    assert_contains(&ran.stderr, "GPU is lost, 15): this GPU stays as it is\n");
    is_left_out(
        &sim,
        SMALL,
        "GPU 1 is lost (nvmlDeviceGetHandleByIndex_v2: GPU is lost",
    );
    sim.node.node().lose_gpu(0).unwrap();
    // Nothing would be left.
    let ran = sim.up(SMALL, &KEEP_GOING).ended(4);
    assert_contains(
        &ran.stderr,
        "error: GPU 0 is lost (nvmlDeviceGetHandleByIndex_v2: GPU is lost",
    );
    let by_address = whole("").replace("all = true", "pci = \"0000:99:00.0\"");
    let ran = sim.up(&by_address, &[]).ended(4);
    assert_contains(&ran.stderr, "GPU is lost");
}

#[test]
fn a_gpu_that_is_not_there_is_left_out() {
    let sim = Sim::with("h200", 1);
    let profile = whole("").replace("all = true", "index = [0, 5]");
    sim.up(&profile, &[]).ended(2);
    is_left_out(
        &sim,
        &profile,
        "line 2: { index = [0, 5] }: there is no GPU 5\n",
    );
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    let doctor = sim.run(&["doctor"]).stdout;
    assert_contains(&doctor, "there is no GPU 5 [profile-incomplete]\n");
    sim.up(&whole(""), &[]).ended(0);
    is_complete(&sim);
}

/// An A100 is reset by the switch: who holds it is known to be in the way before anything is touched.
#[test]
fn a_held_gpu_leaves_the_others_served() {
    let sim = Sim::with("a100-80gb", 3);
    let holder = sim.node.holder(&[1]);
    let path = sim.profile(SMALL);
    let plan = ["up", path.to_str().unwrap(), "--keep-going", "--dry-run"];
    let shown = sim.run(&plan).ended(0).stdout;
    assert_contains(
        &shown,
        "Left out: cannot switch the MIG mode of GPU 1: kept open by",
    );
    assert!(!shown.contains("In the way"), "{shown}");
    let ran = is_left_out(
        &sim,
        SMALL,
        "cannot switch the MIG mode of GPU 1: kept open by",
    );
    assert_contains(
        &ran.stderr,
        "hint: end these processes, then run the command again\n",
    );
    let ready = ["0.0", "0.2", "2.0", "2.2"];
    assert_eq!(in_state(&sim.status(), "ready"), ready);
    let state = sim.node.node().state().unwrap();
    assert!(!state.gpus[1].mig.current && state.gpus[2].mig.current);
    holder.finish();
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 6);
    is_complete(&sim);
}

/// On later GPUs the driver decides, when the change is under way.
#[test]
fn a_gpu_that_the_driver_refuses_leaves_the_others_served() {
    let sim = Sim::with("h100-80gb-sxm", 3);
    let _holder = sim.node.holder(&[1]);
    let ran = is_left_out(&sim, SMALL, "GPU 1 (GPU-");
    assert_contains(&ran.stderr, "cannot enable MIG mode\n");
    assert_eq!(
        in_state(&sim.status(), "ready"),
        ["0.0", "0.2", "2.0", "2.2"]
    );
}

#[test]
fn a_gpu_that_fails_is_put_back_alone() {
    let sim = Sim::with("a100-80gb", 2);
    sim.node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement")
        .nth(3)
        .fails(999)
        .unwrap();
    let path = sim.profile(SMALL);
    let up = [
        "up",
        path.to_str().unwrap(),
        "--keep-going",
        "--yes",
        "--json",
    ];
    let ran = sim.run(&up).ended(1);
    let document: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["changed"], true, "{document:#}");
    let error = document["error"]["what"].as_str().unwrap();
    assert_contains(error, "create ");
    let left_out = document["plan"]["missing"].as_array().unwrap();
    assert_eq!(left_out.len(), 1, "{document:#}");
    assert_contains(left_out[0]["why"].as_str().unwrap(), "create ");
    let ready = in_state(&sim.status(), "ready");
    assert_eq!(ready.len(), 2, "{ready:?}");
    let failed = usize::from(ready[0].starts_with("0."));
    let state = sim.node.node().state().unwrap();
    assert!(state.gpus[failed].instances.is_empty());
    assert_eq!(missing(&sim).len(), 1);
    let ran = sim.up(SMALL, &["--yes"]).ended(0);
    assert!(!ran.stdout.contains("profile-incomplete"), "{ran:?}");
    assert_eq!(in_state(&sim.status(), "ready").len(), 4);
}

/// A name that has gone from one GPU to another would be there twice.
#[test]
fn gpus_that_exchange_names_are_put_back_together() {
    let profile = |size: &str, names: [&str; 2]| -> String {
        let block = |gpu: usize| {
            format!(
                "[[gpu]]\nselect = {{ index = [{gpu}] }}\ndevices = [ {{ profile = \"{size}\", name = \"{}\" }} ]\n",
                names[gpu]
            )
        };
        block(0) + &block(1)
    };
    let sim = Sim::served("a100-80gb", 2, &profile("2g", ["a", "b"]));
    sim.node
        .fault("nvmlDeviceCreateGpuInstanceWithPlacement")
        .nth(1)
        .fails(999)
        .unwrap();
    let exchanged = profile("3g", ["b", "a"]);
    let ran = sim.up(&exchanged, &KEEP_GOING).ended(1);
    assert_contains(&ran.stderr, "a device of another GPU keeps the name ");
    assert_eq!(in_state(&sim.status(), "ready"), ["a", "b"]);
    for (name, gpu) in [("a", 0), ("b", 1)] {
        let device = sim.device(name);
        assert_eq!(
            (&device["gpu"], &device["profile"]),
            (&json!(gpu), &json!("2g.20gb"))
        );
    }
    // Nothing of it was applied.
    is_complete(&sim);
    sim.up(&exchanged, &KEEP_GOING).ended(0);
    assert_eq!(sim.device("a")["gpu"], 1);
    is_complete(&sim);
}

#[test]
fn a_daemon_that_does_not_start_is_missing_alone() {
    let sim = Sim::with("a100-80gb", 1);
    sim.node.fault("daemon start").nth(1).fails(1).unwrap();
    is_left_out(&sim, SMALL, "GPU 0 (GPU-");
    let status = sim.status();
    let (ready, others) = (in_state(&status, "ready"), in_state(&status, "no daemon"));
    assert_eq!((ready.len(), others.len()), (1, 1), "{status:#}");
    assert_eq!(missing(&sim)[0].0, others[0].as_str());
    // A daemon is started for it in another way.
    sim.up(SMALL, &["--yes"]).ended(0);
    is_complete(&sim);
    // Where devices were served before, they are again.
    let before = in_state(&sim.status(), "ready");
    sim.node.fault("daemon start").nth(1).fails(1).unwrap();
    sim.up(ONE_EACH, &KEEP_GOING).ended(1);
    assert_eq!(in_state(&sim.status(), "ready"), before);
}

#[test]
fn a_user_who_is_not_known_leaves_one_device_without_a_daemon() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let for_user = |user: &str| {
        format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [\n  {{ profile = \"2g\", name = \"hers\", mps = {{ serve = \"user:{user}\" }} }},\n  \
             {{ profile = \"1g\" }},\n]\n"
        )
    };
    sim.up(&for_user("nobdy"), &["--yes"]).ended(2);
    let why = "device hers: there is no user \"nobdy\" on this machine\n";
    let ran = is_left_out(&sim, &for_user("nobdy"), why);
    assert_contains(&ran.stderr, "hint: did you mean \"user:nobody\"?\n");
    assert_eq!(missing(&sim)[0].0, "hers");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.2"]);
    let other = sim.device("0.2")["daemon_pid"].clone();
    sim.up(&for_user("nobody"), &KEEP_GOING).ended(0);
    is_complete(&sim);
    assert_eq!(in_state(&sim.status(), "ready"), ["hers", "0.2"]);
    // The name service is out of order: who is served goes on.
    let hers = sim.device("hers")["daemon_pid"].clone();
    let ran = sim.up(&for_user("nobdy"), &KEEP_GOING).ended(1);
    assert_contains(&ran.stderr, why);
    assert_eq!(sim.device("hers")["daemon_pid"], hers);
    assert_eq!(sim.device("0.2")["daemon_pid"], other);
}

#[test]
fn a_block_that_does_not_fit_leaves_the_other_gpus_served() {
    let sim = Sim {
        node: TestNode::builder()
            .gpu("a100-80gb", 1)
            .gpu("h200", 1)
            .build(),
    };
    let profile = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g.10gb\" } ]\n";
    sim.up(profile, &["--yes"]).ended(2);
    let ran = is_left_out(&sim, profile, "GPU 1 (");
    assert_contains(&ran.stderr, ") has no profile \"1g.10gb\"\n");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
}

/// Nothing is left to go on with: the answer is the one without the option, which a service does not try again.
#[test]
fn a_profile_that_fits_no_gpu_is_refused_all_the_same() {
    let sim = Sim::with("a100-80gb", 2);
    let profile =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 8 } ]\n";
    let refused = sim.up(profile, &["--yes"]).ended(5).stderr;
    assert_eq!(sim.up(profile, &KEEP_GOING).ended(5).stderr, refused);
    sim.up("[[gpu]]\nselect = { al = true }\n", &KEEP_GOING)
        .ended(2);
    assert_eq!(
        sim.up(SMALL, &["--keep-going", "--drain", "5"])
            .ended(2)
            .stdout,
        ""
    );
    assert!(!sim.node.run_dir().exists());
}

/// Nothing is left to apply: nothing is recorded as applied.
#[test]
fn a_profile_whose_gpus_are_all_in_the_way_is_refused() {
    let sim = Sim::served("a100-80gb", 1, SMALL);
    let client = sim.client("0.2");
    let applied = sim.run(&["profiles", "--applied"]).ended(0).stdout;
    let ran = sim.up(ONE_EACH, &KEEP_GOING).ended(4);
    assert_contains(&ran.stderr, "error: 1 client is still running: 0.2: pid");
    assert_eq!(sim.run(&["profiles", "--applied"]).stdout, applied);
    is_complete(&sim);
    client.finish();
    // The same of a GPU that is held.
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let ran = sim.up(SMALL, &KEEP_GOING).ended(4);
    assert_contains(&ran.stderr, "error: cannot switch the MIG mode of GPU 0");
    let none = sim.run(&["profiles", "--applied"]).stderr;
    assert_contains(&none, "no profile is recorded");
    holder.finish();
}

#[test]
fn a_gpu_in_use_keeps_its_devices_and_their_names() {
    let of_size = |count: usize| {
        format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = \"{count}g\", name = \"infer-{{n}}\" }} ]\n"
        )
    };
    let sim = Sim::served("a100-80gb", 2, &of_size(2));
    let client = sim.client("infer-0");
    let why = format!("1 client is still running: infer-0: pid {} (", client.pid());
    is_left_out(&sim, &of_size(3), &why);
    let status = sim.status();
    let devices = status["devices"].as_array().unwrap();
    let names: BTreeSet<&str> = devices
        .iter()
        .map(|device| device["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.len(), 2, "{status:#}");
    assert_eq!(sim.device("infer-0")["profile"], "2g.20gb");
    assert_eq!(sim.device("infer-0")["gpu"], 0);
    let other = devices.iter().find(|device| device["gpu"] == 1).unwrap();
    assert_eq!(other["profile"], "3g.40gb", "{status:#}");
    client.finish();
}

#[test]
fn a_device_in_no_block_and_in_use_is_not_pruned() {
    let sim = Sim::served("a100-80gb", 3, SMALL);
    let client = sim.client("1.0");
    let first = ONE_EACH.replace("all = true", "index = [0]");
    let ran = sim
        .up(&first, &["--yes", "--keep-going", "--prune"])
        .ended(1);
    assert_contains(&ran.stderr, "1 client is still running: 1.0: pid ");
    let ready = in_state(&sim.status(), "ready");
    assert_eq!(ready, ["0.0", "1.0", "1.2"]);
    client.finish();
    sim.up(&first, &["--yes", "--keep-going", "--prune"])
        .ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0"]);
}

#[test]
fn the_plan_says_what_is_left_out() {
    let sim = Sim::with("h100-80gb-sxm", 2);
    sim.node.node().lose_gpu(1).unwrap();
    let path = sim.profile(SMALL);
    let up = ["up", path.to_str().unwrap(), "--keep-going", "--dry-run"];
    let shown = sim.run(&up).ended(0).stdout;
    let why = "GPU 1 is lost (nvmlDeviceGetHandleByIndex_v2: GPU is lost, 15)";
    assert!(shown.contains(&format!("\nLeft out: {why}\n")), "{shown}");
    let document = sim.run(&[&up[..], &["--json"]].concat()).json();
    let hint = "run `dmesg | grep NVRM` to find the cause, then reset the GPU or reboot";
    let missing = json!([{ "gpu": 1, "device": null, "why": why, "hint": hint }]);
    assert_eq!(document["plan"]["missing"], missing, "{document:#}");
    assert_eq!(
        sim.run(&["plan", path.to_str().unwrap(), "--json"]).json()["missing"],
        json!([])
    );
}

/// A service of `Type=notify` is up when `up` has succeeded.
#[test]
fn systemd_hears_of_success_alone() {
    let sim = Sim::with("h200", 1);
    let socket = sim.node.dir().join("notify");
    let systemd = UnixDatagram::bind(&socket).unwrap();
    systemd.set_nonblocking(true).unwrap();
    let heard = |words: &[&str], profile: &str| {
        let path = sim.profile(profile);
        let mut up = sim.command(&[&["up", path.to_str().unwrap()], words].concat());
        let ran = Ran::of(up.env("NOTIFY_SOCKET", &socket));
        let mut message = [0; 32];
        let length = systemd.recv(&mut message).unwrap_or(0);
        (ran.status, message[..length].to_vec())
    };
    let twice = whole("").replace("all = true", "index = [0, 5]");
    assert_eq!(heard(&["--dry-run"], &whole("")), (0, vec![]));
    assert_eq!(heard(&[], &twice), (2, vec![]));
    assert_eq!(heard(&KEEP_GOING, &twice), (1, vec![]));
    assert_eq!(heard(&[], &whole("")), (0, b"READY=1".to_vec()));
}

/// Its neighbour cannot have the name that a GPU in use keeps.
#[test]
fn a_name_that_a_gpu_in_use_keeps_is_given_to_nobody_else() {
    let named = |names: [&str; 3]| {
        let blocks = names.iter().enumerate().map(|(gpu, name)| {
            format!("[[gpu]]\nselect = {{ index = [{gpu}] }}\nmig = false\nname = \"{name}\"\n")
        });
        blocks.collect::<String>()
    };
    let sim = Sim::served("h200", 3, &named(["a", "b", "c"]));
    let client = sim.client("a");
    let ran = sim.up(&named(["d", "a", "e"]), &KEEP_GOING).ended(1);
    assert_contains(&ran.stderr, "1 client is still running: a: pid ");
    assert_contains(&ran.stderr, "a device of another GPU keeps the name a\n");
    assert_eq!(in_state(&sim.status(), "ready"), ["a", "b", "e"]);
    // Other users see no command line.
    let said = missing(&sim)[0].1.clone();
    assert!(said.contains("1 client is still running: a; fix"), "{said}");
    client.finish();
    sim.up(&named(["d", "a", "e"]), &KEEP_GOING).ended(0);
    assert_eq!(in_state(&sim.status(), "ready"), ["d", "a", "e"]);
    is_complete(&sim);
}

/// The daemon from before goes on, and the profile that was applied is still the one from before.
#[test]
fn a_daemon_for_somebody_else_is_not_what_was_asked_for() {
    needs_root!();
    let sim = Sim::served("h200", 1, &whole("serve = \"user:nobody\""));
    let profile = whole("serve = \"user:nobdy\"");
    let ran = sim.up(&profile, &KEEP_GOING).ended(1);
    let why = "error: no part of the profile could be applied; left out:\n  \
               device 0: there is no user \"nobdy\" on this machine\n";
    assert_contains(&ran.stderr, why);
    assert_eq!(applied(&sim), whole("serve = \"user:nobody\""));
    is_complete(&sim);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// A profile for one whole GPU.
fn one_gpu(index: u32, settings: &str) -> String {
    format!("[[gpu]]\nselect = {{ index = [{index}] }}\nmig = false\nmps = {{ {settings} }}\n")
}

/// The text of the profile that `up` would apply again.
fn applied(sim: &Sim) -> String {
    sim.run(&["profiles", "--applied"]).ended(0).stdout
}

/// A profile of which nothing was applied is not the applied one, whatever was there before, and nothing is said of its
/// devices.
#[test]
fn a_profile_of_which_nothing_was_applied_is_not_recorded() {
    let nothing = "error: no part of the profile could be applied; left out:\n";
    let sim = Sim::with("h100-80gb-sxm", 2);
    let first = one_gpu(0, "");
    sim.up(&first, &[]).ended(0);
    let second = one_gpu(1, "");
    let other = one_gpu(0, "nofile = 5000");
    for (profile, fault) in [
        (&second, "daemon start"),
        (&other, "daemon start"),
        (&one_gpu(0, "serve = \"user:nobdy\""), ""),
    ] {
        if !fault.is_empty() {
            sim.node.fault(fault).nth(1).fails(1).unwrap();
        }
        let ran = sim.up(profile, &KEEP_GOING).ended(1);
        if rustix::process::geteuid().is_root() || !fault.is_empty() {
            assert_contains(&ran.stderr, nothing);
        }
        assert!(!ran.stderr.contains("one user at a time"), "{ran:?}");
        assert!(!ran.stderr.contains("mig-mps status lists"), "{ran:?}");
        assert_eq!(applied(&sim), first, "{ran:?}");
        is_complete(&sim);
        assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    }
    sim.up(&second, &KEEP_GOING).ended(0);
    assert_eq!(applied(&sim), second);
}

/// The remarks of `up` on its devices are about those that started.
#[test]
fn of_devices_that_did_not_start_nothing_is_said() {
    let sim = Sim::with("h100-80gb-sxm", 2);
    sim.node.fault("daemon start").nth(1).fails(1).unwrap();
    let serve = |index, serve: &str| one_gpu(index, &format!("serve = \"{serve}\""));
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let profile = serve(0, "one-at-a-time") + &serve(1, "one-at-a-time");
    let ran = sim.up(&profile, &KEEP_GOING).ended(1);
    assert_contains(&ran.stderr, "these devices serve one user at a time");
    sim.run(&["down"]).ended(0);
    sim.node.fault("daemon start").fails(1).unwrap();
    let only = serve(0, "one-at-a-time");
    let ran = sim.up(&only, &KEEP_GOING).ended(1);
    assert!(!ran.stderr.contains("one user at a time"), "{ran:?}");
}
