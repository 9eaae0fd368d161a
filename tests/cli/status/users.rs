//! Who may do and see what. These tests run as root and become another user.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use insta::assert_snapshot;

use testkit::{
    NOBODY, Ran, SMALL, Sim, WHOLE, assert_contains, in_state, kill, needs_root, plain, shell,
    whole,
};

#[test]
fn root_is_informed_that_users_take_turns() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let ran = sim.up(WHOLE, &[]).ended(0);
    assert!(
        ran.stderr
            .starts_with("note: these devices serve one user at a time"),
        "{}",
        ran.stderr
    );
    let all = whole("serve = \"all\"");
    let ran = sim.up(&all, &["--yes"]).ended(0);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert_eq!(sim.device("0")["serve"], "all");
    sim.up_does_nothing(&all);
    // Once for each node is enough.
    let again = sim.up(WHOLE, &["--yes"]).ended(0);
    assert_eq!(sim.device("0")["serve"], "one-at-a-time");
    assert!(
        !again.stderr.contains("one user at a time"),
        "{}",
        again.stderr
    );
}

#[test]
fn a_plain_user_sees_what_root_serves_and_cannot_change_it() {
    needs_root!();
    let sim = Sim::small();
    let roots = sim.node.run_dir();
    let status = Ran::of(
        sim.by_nobody(&["status", "--json"])
            .env("MIG_MPS_RUN_DIR", roots),
    )
    .json();
    assert_eq!(in_state(&status, "ready"), ["0.0", "0.2"]);
    assert!(
        !status["hidden"].to_string().contains("reserve"),
        "{status:#}"
    );
    let down = Ran::of(
        sim.by_nobody(&["down"])
            .env("MIG_MPS_RUN_DIR", roots)
            .env("MIG_MPS_LOG_DIR", sim.node.log_dir()),
    );
    let said = plain(&down.ended(1).stderr).replace(roots.to_str().unwrap(), "RUN");
    assert_snapshot!(said.replace(sim.node.log_dir().to_str().unwrap(), "LOG"), @"
    error: only root can change this node: the run directory RUN belongs to root
    hint: run it as root: `sudo MIG_MPS_RUN_DIR=RUN MIG_MPS_LOG_DIR=LOG mig-mps down`; or unset MIG_MPS_RUN_DIR for your own daemons
    ");
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
}

#[test]
fn a_plain_user_serves_himself() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(WHOLE);
    let up = ["up", profile.to_str().unwrap()];
    Ran::of(&mut sim.by_nobody(&up)).ended(0);
    let status = Ran::of(&mut sim.by_nobody(&["status", "--json"])).json();
    let device = &status["devices"][0];
    assert_eq!(
        (&device["state"], &device["serve"]),
        (&"ready".into(), &"self".into())
    );
    assert_eq!(device["servers"][0]["uid"], NOBODY);
    let pipe = fs::metadata(device["pipe_directory"].as_str().unwrap()).unwrap();
    assert_eq!(
        (pipe.uid(), pipe.permissions().mode() & 0o777),
        (NOBODY, 0o700)
    );
    assert!(
        Ran::of(&mut sim.by_nobody(&up))
            .ended(0)
            .stderr
            .starts_with("Nothing to do")
    );
    Ran::of(&mut sim.by_nobody(&["down"])).ended(0);
}

#[test]
fn a_plain_user_without_a_runtime_directory_gets_a_hint() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(WHOLE);
    let mut command = sim.by_nobody(&["up", profile.to_str().unwrap()]);
    let ran = Ran::of(command.env_remove("XDG_RUNTIME_DIR")).ended(1);
    assert_snapshot!(ran.stderr.replace(profile.to_str().unwrap(), "PROFILE"), @"
    error: XDG_RUNTIME_DIR is not set: there is no private directory for this user's daemons
    hint: run it as root: `sudo mig-mps up PROFILE`; for your own daemons, log in through a session that sets XDG_RUNTIME_DIR, or set MIG_MPS_RUN_DIR
    ");
}

#[test]
fn a_plain_user_cannot_partition_and_nothing_is_left() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(SMALL);
    let ran = Ran::of(&mut sim.by_nobody(&["up", profile.to_str().unwrap()])).ended(1);
    let said = plain(&ran.stderr.replace(profile.to_str().unwrap(), "PROFILE"));
    assert_snapshot!(said, @"
    note: GPU 0: 2g.20gb + 1g.10gb uses 42 of 98 SMs; 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb uses all
    error: GPU 0 (GPU-…): cannot enable MIG mode
      cause: nvmlDeviceSetMigMode failed on GPU-…: Insufficient Permissions (4)
    hint: run it as root: `sudo mig-mps up PROFILE`
    ");
    assert_eq!(sim.list()["gpus"][0]["mig"]["current"], false);
}

/// Runs `mig-mps` with these arguments as a plain user, on a node whose devices root serves from the system's run
/// directory, in a mount namespace of its own.
fn beside_roots(sim: &Sim, args: &[&str]) -> Ran {
    let plain = sim.by_nobody(args);
    let mut shell = Command::new("unshare");
    let script = "mount -t tmpfs tmpfs /run; mkdir /run/mig-mps; mount --bind \"$0\" /run/mig-mps; \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
    shell.args(["-m", "--propagation", "private", "sh", "-ec", script]);
    shell.arg(sim.node.run_dir()).arg(plain.get_program());
    shell.args(plain.get_args()).env_clear();
    for (name, value) in plain.get_envs() {
        shell.envs(value.map(|value| (name, value)));
    }
    Ran::of(&mut shell)
}

/// A user's directory has a record of a device that root serves: programs go to root's daemon.
#[test]
fn a_device_in_two_run_directories_is_that_of_the_system() {
    needs_root!();
    let sim = Sim::whole("");
    let runtime = sim.node.run_dir().with_file_name("nobody");
    let _makes_it = sim.by_nobody(&[]);
    let [from, to] = [sim.node.run_dir(), &runtime].map(|path| path.display().to_string());
    shell(format!(
        "cp -r {from} {to}/mig-mps; chown -R {NOBODY}:{NOBODY} {to}"
    ))
    .ended(0);
    let status = beside_roots(&sim, &["status", "--json"]).json();
    assert_eq!(status["devices"].as_array().unwrap().len(), 1, "{status:#}");
    assert_contains(&status["hidden"].to_string(), "also has a device");
    let env = beside_roots(&sim, &["env", "0"]).ended(0).stdout;
    assert_contains(&env, "=/run/mig-mps/by-name/0/pipe\n");
}

#[test]
fn a_forgotten_sudo_is_named_with_the_whole_command_line() {
    needs_root!();
    let sim = Sim::small();
    let words: [&[&str]; 5] = [
        &["down"],
        &["down", "0.0", "--purge"],
        &["set", "0.0", "active-thread-percentage=50"],
        &["restart", "0.0", "--force"],
        &["heal", "0.0"],
    ];
    let daemon = sim.device("0.0")["daemon_pid"].clone();
    for args in &words[..4] {
        let ran = beside_roots(&sim, args);
        let hint = format!("hint: run it as root: `sudo mig-mps {}`\n", args.join(" "));
        assert!(ran.stderr.ends_with(&hint), "{args:?}: {ran:?}");
        assert_ne!(ran.status, 0, "{args:?}");
        assert!(!ran.stderr.contains("Nothing to do"), "{args:?}: {ran:?}");
    }
    assert_eq!(sim.device("0.0")["daemon_pid"], daemon);
    kill(&daemon);
    for args in &words[4..] {
        let ran = beside_roots(&sim, args);
        let hint = format!("hint: run it as root: `sudo mig-mps {}`\n", args.join(" "));
        assert!(ran.stderr.ends_with(&hint), "{args:?}: {ran:?}");
        assert_ne!(ran.status, 0, "{args:?}");
    }
}

#[test]
fn down_names_roots_daemons_to_a_user_who_has_none() {
    needs_root!();
    let sim = Sim::small();
    assert_snapshot!(beside_roots(&sim, &["down"]).ended(4).stderr, @"
    error: you own none of the daemons here: 2 devices are served by daemons of /run/mig-mps
    hint: run it as root: `sudo mig-mps down`
    ");
    sim.run(&["down"]).ended(0);
    assert_eq!(
        beside_roots(&sim, &["down"]).ended(0).stderr,
        "Nothing to do: mig-mps serves no device here.\n"
    );
}

/// The arguments are quoted for a shell, and nobody is advised to open a directory of his session.
#[test]
fn a_profile_for_others_is_roots_to_apply() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let text = whole("serve = \"user:daemon\"");
    let profile = sim.node.dir().join("two users'.toml");
    fs::write(&profile, text).unwrap();
    let mut up = sim.by_nobody(&["up", profile.to_str().unwrap(), "--yes"]);
    // As a session's directory is.
    let runtime = sim.node.run_dir().with_file_name("nobody");
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o700)).unwrap();
    let ran = Ran::of(&mut up).ended(2);
    let said = ran.stderr.replace(sim.node.dir().to_str().unwrap(), "DIR");
    assert_snapshot!(said, @r#"
    error: DIR/two users'.toml:4:17: a plain user cannot serve "user:daemon"
      |
    4 | mps = { serve = "user:daemon" }
      |                 ^^^^^^^^^^^^^ run it as root: `sudo mig-mps up 'DIR/two users'\''.toml' --yes`; use "self", or omit serve
    "#);
}

/// A plain user's `heal` says the same as root's.
#[test]
fn heal_says_the_same_to_everybody() {
    needs_root!();
    let sim = Sim::whole("");
    let root = sim.run(&["heal"]).ended(0);
    let plain = beside_roots(&sim, &["heal"]).ended(0);
    assert_eq!((root.stdout, root.stderr), (plain.stdout, plain.stderr));
    assert_eq!(sim.run(&["heal", "--json"]).json()["changed"], false);
}

/// Without a directory of the own, too, the devices are those of the run directory that was named.
#[test]
fn export_takes_the_run_directory_that_was_named() {
    needs_root!();
    let sim = Sim::served("h200", 1, &WHOLE.replace("mig", "name = \"big\"\nmig"));
    let mut export = sim.by_nobody(&["export"]);
    export.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
    export.env_remove("XDG_STATE_HOME").env_remove("HOME");
    let ran = Ran::of(&mut export).ended(0);
    assert_contains(&ran.stdout, "name = \"big\"");
}
