//! A name service that never answers (LDAP or sssd on a bad day).

use std::process::Command;

use testkit::{
    NOBODY, Ran, Sim, WHOLE, assert_contains, built, copy_program, in_mount_namespace, in_state,
    needs_root, under, whole,
};

/// The command in a mount namespace in which only a name service that never answers may know [`NOBODY`] and users without
/// an account.
fn in_silence(sim: &Sim, command: &Command) -> Command {
    let module = built().programs.join("examples/libsilent_names.so");
    // A directory of LD_LIBRARY_PATH.
    copy_program(module, sim.node.dir().join("lib/libnss_silent.so.2"));
    let script = format!(
        "cd {}; echo 'passwd: files silent\ngroup: files silent' > nsswitch.conf
         for file in passwd group; do
             grep -v ':{NOBODY}:' /etc/$file > $file; mount --bind $file /etc/$file
         done
         mount --bind nsswitch.conf /etc/nsswitch.conf",
        sim.node.dir().display()
    );
    in_mount_namespace(&script, &under(&["timeout", "300"], command))
}

fn ran_in_silence(sim: &Sim, args: &[&str]) -> Ran {
    Ran::of(&mut in_silence(sim, &sim.command(args)))
}

#[test]
fn a_client_without_a_name_is_shown_with_its_number() {
    needs_root!();
    let sim = Sim::whole("serve = \"all\"");
    let mut client = sim.app_of_nobody("0", &["hold"]);
    client.wait_up();
    assert_contains(&sim.run(&["status"]).ended(0).stdout, "nobody");
    let number = NOBODY.to_string();
    assert_contains(&ran_in_silence(&sim, &["status"]).ended(0).stdout, &number);
    let status = ran_in_silence(&sim, &["status", "--json"]).json();
    assert_eq!(in_state(&status, "ready"), ["0"]);
    let metrics = ran_in_silence(&sim, &["metrics"]).ended(0).stdout;
    assert_contains(&metrics, &format!("user=\"{number}\""));
    let report = ran_in_silence(&sim, &["doctor", "--json"]);
    assert_contains(&report.stdout, "\"checks\"");
    let refused = ran_in_silence(&sim, &["down"]).ended(4);
    assert_contains(&refused.stderr, &number);
    ran_in_silence(&sim, &["down", "--force", "--yes"]).ended(0);
    assert!(in_state(&sim.status(), "ready").is_empty());
}

#[test]
fn up_changes_nothing_if_it_cannot_find_the_user() {
    needs_root!();
    let sim = Sim::served("h200", 1, WHOLE);
    let before = sim.device("0")["daemon"].clone();
    for (what, name) in [("user", "alice"), ("group", "vision")] {
        let profile = sim.profile(&whole(&format!("serve = \"{what}:{name}\"")));
        let up = ["up", profile.to_str().unwrap(), "--yes"];
        let refused = ran_in_silence(&sim, &up).ended(1);
        let why = format!(
            "error: cannot check whether the {what} \"{name}\" exists: the name service (LDAP, sssd) does not answer"
        );
        assert_contains(&refused.stderr, &why);
        assert_eq!(sim.device("0")["daemon"], before);
    }
}

#[test]
fn a_device_whose_user_cannot_be_found_is_left_out_and_drift_is_unknown() {
    needs_root!();
    let sim = Sim::with("h200", 2);
    let profile = sim.profile(
        "[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = { serve = \"all\" }\n\
         [[gpu]]\nselect = { all = true }\nmig = false\nmps = { serve = \"user:alice\" }\n",
    );
    let profile = profile.to_str().unwrap();
    let why = "cannot check whether the user \"alice\" exists: the name service";
    let up = ran_in_silence(&sim, &["up", profile, "--yes", "--keep-going"]).ended(1);
    assert_contains(&up.stderr, why);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    let metrics = ran_in_silence(&sim, &["metrics", "--drift", profile]).ended(0);
    assert_contains(&metrics.stderr, why);
    assert_contains(&metrics.stdout, "mig_mps_drift_known 0\n");
}

#[test]
fn programs_and_shells_do_not_wait_for_it() {
    needs_root!();
    let sim = Sim::whole("serve = \"all\"");
    let mut client = sim.app_of_nobody("0", &["hold"]);
    client.wait_up();
    ran_in_silence(&sim, &["run", "0", "--", "true"]).ended(0);
    ran_in_silence(&sim, &["verify"]).ended(0);
    let pid = client.pid().to_string();
    let completed = ran_in_silence(&sim, &["__complete", "mig-mps", "kill", "0", ""]).ended(0);
    assert_contains(&completed.stdout, &pid);
}

#[test]
fn the_way_to_a_device_needs_no_lookup() {
    needs_root!();
    let sim = Sim::whole("serve = \"user:nobody\"");
    let without_lookups = |mut command: Command| {
        command.env("NO_LOOKUPS", "1");
        Ran::of(&mut in_silence(&sim, &command)).ended(0);
    };
    let as_nobody = ["unshare", "-S", "65534", "-G", "65534"];
    let mut run = under(&as_nobody, &sim.by_nobody(&["run", "0", "--", "true"]));
    run.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
    without_lookups(run);
    without_lookups(sim.command(&["env", "0", "--format", "docker"]));
    without_lookups(sim.command(&["cdi"]));
    without_lookups(sim.command(&["env", "0"]));
    without_lookups(sim.command(&["run", "--no-check", "0", "--", "true"]));
    for words in ["prolog", "epilog", "task-prolog"] {
        let mut job = sim.command(&["slurm", words]);
        job.env("SLURM_JOB_ID", "7").env("SLURM_JOB_UID", "70001");
        without_lookups(job);
    }
}

#[test]
fn a_daemon_is_restarted_for_the_recorded_user() {
    needs_root!();
    let sim = Sim::whole("serve = \"user:nobody\"");
    let before = sim.device("0")["daemon_pid"].clone();
    ran_in_silence(&sim, &["restart", "0", "--yes"]).ended(0);
    let after = sim.device("0");
    assert_ne!(after["daemon_pid"], before);
    assert_eq!(after["servers"][0]["uid"], NOBODY);
}

/// `status` shows what it knows soon, and a change waits for the ids that it depends on.
#[test]
fn a_slow_name_service_is_waited_for_before_a_change() {
    needs_root!();
    for (serve, what) in [
        ("user:nobody", "the user nobody"),
        ("group:nogroup", "the group nogroup"),
    ] {
        let settings = format!("serve = \"{serve}\"");
        let sim = Sim::whole(&settings);
        let slowly = |args: &[&str]| {
            let mut command = sim.command(args);
            command.env("SLOW_ID", "61000");
            Ran::of(&mut in_silence(&sim, &command))
        };
        let changed = format!("{what} now has the id 61000, but the daemon serves the id 65534");
        let status = slowly(&["status"]).ended(0).stdout;
        assert!(!status.contains(&changed), "{status}");
        let profile = sim.profile(&whole(&settings));
        let profile = profile.to_str().unwrap();
        let plan = slowly(&["plan", profile, "--exit-code"]).ended(3).stdout;
        assert_contains(&plan, &changed);
        let up = slowly(&["up", profile, "--yes"]).ended(0).stderr;
        assert!(!up.contains("Nothing to do"), "{up}");
        let again = slowly(&["up", profile, "--yes"]).ended(0).stderr;
        assert_contains(&again, "Nothing to do");
    }
}

/// Each lookup may take seconds.
#[test]
fn users_are_looked_up_side_by_side() {
    needs_root!();
    let sim = Sim::with("h200", 4);
    let users = ["user:alice", "user:bob", "group:vision", "user:carol"];
    let mut gpus = 0..;
    let blocks = users.map(|user| {
        let gpu = gpus.next().unwrap();
        format!(
            "[[gpu]]\nselect = {{ index = [{gpu}] }}\nmig = false\nmps = {{ serve = \"{user}\" }}\n"
        )
    });
    let profile = sim.profile(&blocks.concat());
    let mut up = sim.command(&["up", profile.to_str().unwrap(), "--yes"]);
    up.env("LOOKUPS_TOGETHER", "4");
    let refused = Ran::of(&mut in_silence(&sim, &up)).ended(2);
    for name in [
        "user \"alice\"",
        "user \"bob\"",
        "group \"vision\"",
        "user \"carol\"",
    ] {
        assert_contains(
            &refused.stderr,
            &format!("there is no {name} on this machine"),
        );
    }
}
