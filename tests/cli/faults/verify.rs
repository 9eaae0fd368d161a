//! `verify`: devices are checked by becoming their client.

use std::fs;
use std::os::unix::fs::symlink;

use testkit::{NOBODY, Ran, SMALL, Sim, assert_contains, needs_root, shell, whole};

fn verified(sim: &Sim) -> Ran {
    sim.run(&["verify"])
}

#[test]
fn devices_that_are_well_are_said_to_be() {
    let sim = Sim::small();
    let servers: Vec<u64> = ["0.0", "0.2"]
        .iter()
        .map(|name| sim.device(name)["servers"][0]["pid"].as_u64().unwrap())
        .collect();
    let ran = verified(&sim).ended(0);
    let lines: Vec<&str> = ran.stdout.lines().collect();
    for (line, (name, sms, server)) in lines
        .iter()
        .zip([("0.0", 28, servers[0]), ("0.2", 14, servers[1])])
    {
        assert!(line.starts_with(&format!("{name}: attached in ")), "{line}");
        let user = testkit::user();
        let end = format!(" ms as {user}, {sms} SMs, server {server}");
        assert!(line.ends_with(&end), "{line}");
    }
    let total = "2 devices verified\n";
    assert_eq!((lines.len(), ran.stderr.as_str()), (2, total));
    assert_eq!(sim.run(&["verify", "-q"]).ended(0).stderr, "");
    // No slot, and on no list.
    assert_eq!(sim.happened("client admitted"), 0);
    let one = sim.run(&["verify", "0.2"]).ended(0);
    assert_eq!(one.stdout.lines().count(), 1);
    let of_gpu = sim.run(&["verify", "--gpu", "0"]).ended(0);
    assert_eq!(of_gpu.stdout.lines().count(), 2);
}

#[test]
fn what_is_wrong_is_said_for_each_device() {
    let sim = Sim::served("h200", 2, "[[gpu]]\nselect = { all = true }\nmig = false\n");
    sim.hang("0");
    let daemon = sim.device("1")["daemon_pid"].as_u64().unwrap();
    shell(format!("kill -9 {daemon}")).ended(0);
    let ran = verified(&sim).ended(1);
    assert_eq!(ran.stderr.lines().last(), Some("2 of 2 devices failed"));
    let document = sim.run(&["verify", "1", "--json"]).ended(1).stdout;
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    let device = &document["devices"][0];
    assert_eq!(device["result"], "failed");
    assert_eq!(
        device["error"]["what"],
        "device 1 accepts no programs: its daemon has died"
    );
}

/// Two links were exchanged by hand. A program that sees its device as number 0 would be a client of another daemon.
#[test]
fn a_daemon_of_another_device_is_not_taken_for_that_of_this_one() {
    let sim = Sim::served("h200", 2, &whole("visible = \"index\""));
    let link = sim.node.run_dir().join("by-name/1");
    fs::remove_file(&link).unwrap();
    symlink(sim.node.run_dir().join(sim.uuid("0")), &link).unwrap();
    let ran = verified(&sim).ended(1);
    let shown = sim.uuid("0").replacen("GPU-", "", 1);
    let why = format!("1: CUDA shows another device: {shown}\n");
    assert_contains(&ran.stderr, &why);
    let refused = sim.run(&["run", "1", "--", "true"]).ended(125);
    assert_contains(&refused.stderr, &why);
}

/// A client of another user makes a user's daemon end its server, and replaces an idle server of root's daemon.
#[test]
fn nobody_is_disturbed() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let profile = "[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = { serve = \"user:daemon\" }\n\
         [[gpu]]\nselect = { index = [1] }\nmig = false\n";
    sim.up(profile, &[]).ended(0);
    // The server of the second is another user's now, and idle.
    let mut command = sim.by_nobody(&["run", "1", "--", "cuda-app", "run", "0"]);
    Ran::of(command.env("MIG_MPS_RUN_DIR", sim.node.run_dir())).ended(0);
    let servers = || {
        ["0", "1"].map(|name| {
            let server = &sim.device(name)["servers"][0];
            (server["pid"].clone(), server["uid"].clone())
        })
    };
    let before = servers();
    assert_eq!((&before[0].1, &before[1].1), (&1.into(), &NOBODY.into()));
    let ran = verified(&sim).ended(0);
    assert!(
        ran.stdout.contains(" as daemon,") && ran.stdout.contains(" as nobody,"),
        "{}",
        ran.stdout
    );
    assert_eq!(servers(), before);
    // While somebody works, a plain user's check waits for nobody.
    let client = sim.client("1");
    let mut command = sim.by_nobody(&["verify", "1"]);
    let ran = Ran::of(command.env("MIG_MPS_RUN_DIR", sim.node.run_dir())).ended(4);
    assert!(
        ran.stderr
            .starts_with("note: not checked: device 1 is in use by root: pid "),
        "{}",
        ran.stderr
    );
    client.finish();
}

#[test]
fn up_can_verify_what_it_made() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.up(SMALL, &["--verify"]).ended(0);
    assert_eq!(
        ran.stdout.matches(": attached in ").count(),
        2,
        "{}",
        ran.stdout
    );
    let again = sim.up(SMALL, &["--verify"]).ended(0);
    assert_eq!(
        again.stdout.matches(": attached in ").count(),
        2,
        "{}",
        again.stdout
    );
    sim.node.fault("cuInit").every().fails(999).unwrap();
    let ran = sim.up(SMALL, &["--verify", "--json"]).ended(1);
    assert!(
        ran.stderr
            .contains("error: device 0.0: cuInit failed with error 999"),
        "{}",
        ran.stderr
    );
    // The document has the result.
    let document = serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
    let verified = &document["verified"];
    assert_eq!(
        (&verified[0]["name"], &verified[0]["result"]),
        (&"0.0".into(), &"failed".into())
    );
    let what = verified[0]["error"]["what"].as_str().unwrap();
    assert!(what.contains("cuInit failed with error 999"), "{what}");
    sim.run(&["down"]).ended(0);
    let ran = sim.up(SMALL, &["--verify", "--json"]).ended(1);
    let document = serde_json::from_str::<serde_json::Value>(&ran.stdout).unwrap();
    assert_eq!(document["changed"], true);
    assert_eq!(document["verified"][1]["result"], "failed");
    assert_eq!(
        sim.up(SMALL, &["--json"]).json()["verified"],
        serde_json::Value::Null
    );
}

/// Devices of other users are not checked, and nothing is wrong with them.
#[test]
fn devices_of_others_are_no_failure() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let profile = "[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = { serve = \"user:daemon\" }\n\
         [[gpu]]\nselect = { index = [1] }\nmig = false\n";
    sim.up(profile, &[]).ended(0);
    let mut verify = sim.by_nobody(&["verify"]);
    let ran = Ran::of(verify.env("MIG_MPS_RUN_DIR", sim.node.run_dir())).ended(4);
    assert!(ran.stdout.starts_with("1: attached in"), "{ran:?}");
    assert_eq!(
        ran.stderr,
        "note: not checked: device 0 serves only user daemon, not user nobody\n1 of 2 devices verified\n"
    );
    let mut verify = sim.by_nobody(&["verify", "--json"]);
    let ran = Ran::of(verify.env("MIG_MPS_RUN_DIR", sim.node.run_dir())).ended(4);
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["devices"][0]["result"], "reserved");
}
