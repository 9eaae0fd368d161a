//! Users and groups that the name service does not know any more, or knows by another id, or that it does not name. These
//! tests run as root, and give the program another /etc/passwd and /etc/group.

use std::fs;
use std::process::Command;

use insta::assert_snapshot;
use serde_json::Value;

use testkit::{NOBODY, Ran, Sim, assert_contains, needs_root, whole};

/// A node whose only device serves these users.
fn serving(serve: &str) -> Sim {
    Sim::whole(&format!("serve = \"{serve}\""))
}

/// Runs `mig-mps` where a file of the system is another one, which a shell makes of it. In the script `$new` is its path.
fn where_file_is(sim: &Sim, file: &str, script: &str, args: &[&str]) -> Ran {
    let plain = sim.command(args);
    let mut shell = Command::new("unshare");
    let script = format!(
        "printf 'passwd: files\\ngroup: files\\n' > \"$new.nss\"; mount --bind \"$new.nss\" /etc/nsswitch.conf; \
         {script}; mount --bind \"$new\" {file}; exec \"$0\" \"$@\""
    );
    shell.args(["-m", "--propagation", "private", "sh", "-ec", &script]);
    shell.arg(plain.get_program()).args(plain.get_args());
    shell.env_clear();
    for (name, value) in plain.get_envs() {
        shell.envs(value.map(|value| (name, value)));
    }
    shell.env("new", sim.node.dir().join("accounts"));
    Ran::of(&mut shell)
}

/// Without the user `nobody`.
fn without_nobody(sim: &Sim, args: &[&str]) -> Ran {
    let script = "sed /^nobody:/d /etc/passwd > \"$new\"";
    where_file_is(sim, "/etc/passwd", script, args)
}

/// With a name service that fails: what it reads is no file.
fn without_answers(sim: &Sim, args: &[&str]) -> Ran {
    let socket = sim.pipe("0") + "/control";
    let keep = sim.node.dir().join("a-socket");
    if !keep.exists() {
        fs::hard_link(socket, &keep).unwrap();
    }
    let script = format!("new='{}'; mount --bind $new /etc/group", keep.display());
    where_file_is(sim, "/etc/passwd", &script, args)
}

fn record(sim: &Sim) -> Value {
    let path = sim.node.run_dir().join(sim.uuid("0")).join("device.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_daemon_whose_user_is_gone_goes_on() {
    needs_root!();
    let sim = serving("user:nobody");
    let before = sim.device("0");
    let refused = without_nobody(&sim, &["restart", "0", "--yes"]).ended(1);
    assert_snapshot!(refused.stderr, @r#"
    error: cannot start the daemon of 0: there is no user "nobody" on this machine
    hint: make the user, or name another one in the profile
    "#);
    let dry = without_nobody(&sim, &["restart", "0", "--dry-run"]).ended(1);
    assert_eq!(dry.stderr, refused.stderr);
    assert_eq!(sim.device("0")["daemon_pid"], before["daemon_pid"]);
    assert_eq!(sim.device("0")["state"], "ready");
    assert_eq!(sim.happened("daemon end"), 0);
    // What hangs without clients is as it was, too.
    sim.hang("0");
    let servers = sim.device("0")["servers"].clone();
    let healed = without_nobody(&sim, &["heal"]).ended(1);
    assert_contains(&healed.stderr, "there is no user \"nobody\"");
    assert_eq!(sim.device("0")["servers"], servers);
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
    // `heal` goes on with the others, and the next one starts it.
    sim.kill_daemon("0");
    without_nobody(&sim, &["heal"]).ended(1);
    sim.run(&["heal"]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
}

#[test]
fn a_user_with_another_uid_is_refused() {
    needs_root!();
    let sim = serving("user:nobody");
    let before = sim.device("0");
    let script = "sed s/^nobody:x:65534:/nobody:x:61000:/ /etc/passwd > \"$new\"";
    let ran = where_file_is(&sim, "/etc/passwd", script, &["restart", "0", "--yes"]).ended(1);
    assert_snapshot!(ran.stderr, @"
    error: cannot start the daemon of 0: the user nobody now has the id 61000, and its daemon serves 65534
    hint: mig-mps down DEVICE, and apply the profile again: then the device serves the new id
    ");
    assert_eq!(sim.device("0"), before);
    let profile = sim.profile(&whole("serve = \"user:nobody\", nofile = 5000"));
    let up = ["up", profile.to_str().unwrap(), "--yes"];
    where_file_is(&sim, "/etc/passwd", script, &up).ended(1);
    assert_eq!(sim.device("0"), before);
    // The hint leads on.
    sim.run(&["down", "0"]).ended(0);
    where_file_is(&sim, "/etc/passwd", script, &up).ended(0);
    assert_eq!(record(&sim)["served-id"], 61000);
}

#[test]
fn a_silent_name_service_leaves_what_is_recorded() {
    needs_root!();
    for serve in ["user:nobody", "group:nogroup"] {
        let sim = serving(serve);
        assert_eq!(record(&sim)["served-id"], NOBODY);
        // An earlier version recorded none.
        sim.edit(&format!("{}/device.json", sim.uuid("0")), |record| {
            record.as_object_mut().unwrap().remove("served-id");
        });
        without_answers(&sim, &["restart", "0", "--yes"]).ended(0);
        assert_eq!(record(&sim)["served-id"], NOBODY);
        let profile = sim.profile(&whole(&format!("serve = \"{serve}\", nofile = 5000")));
        let up = ["up", profile.to_str().unwrap(), "--yes"];
        without_answers(&sim, &up).ended(0);
        sim.kill_daemon("0");
        without_answers(&sim, &["heal"]).ended(0);
        let device = sim.device("0");
        assert_eq!(device["state"], "ready");
        if serve == "user:nobody" {
            assert_eq!(device["servers"][0]["uid"], NOBODY);
            sim.app_of_nobody("0", &["run", "0"]).wait_up();
        }
        // For a user who is not recorded, nothing is known.
        let other = sim.profile(&whole("serve = \"user:daemon\""));
        let refused = without_answers(&sim, &["up", other.to_str().unwrap(), "--yes"]).ended(1);
        let said = "cannot find out whether there is a user \"daemon\"";
        assert_contains(&refused.stderr, said);
    }
}

#[test]
fn a_group_that_is_gone_is_refused() {
    needs_root!();
    let sim = serving("group:nogroup");
    let before = sim.device("0");
    let script = "sed /^nogroup:/d /etc/group > \"$new\"";
    let ran = where_file_is(&sim, "/etc/group", script, &["restart", "0", "--yes"]).ended(1);
    assert_contains(&ran.stderr, "there is no group \"nogroup\" on this machine");
    assert_eq!(sim.device("0"), before);
}

/// A limit that the system does not allow: the record asks for more than it did when the daemon started.
#[test]
fn what_the_system_does_not_allow_stops_no_daemon() {
    needs_root!();
    let sim = serving("user:nobody");
    let uuid = sim.uuid("0");
    sim.edit(&format!("{uuid}/device.json"), |record| {
        record["settings"]["nofile"] = Value::from(u64::MAX >> 1);
    });
    let before = sim.device("0")["daemon_pid"].clone();
    for args in [
        &["restart", "0", "--yes"][..],
        &["restart", "0", "--force", "--yes"],
    ] {
        let ran = sim.run(args).ended(1);
        assert_contains(&ran.stderr, "the system does not allow");
    }
    assert_eq!(sim.device("0")["daemon_pid"], before);
}
