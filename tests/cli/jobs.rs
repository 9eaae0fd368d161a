//! Jobs of batch systems: their names, and `mig-mps job`.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use testkit::{App, NOBODY, Ran, Running, Sim, assert_contains, needs_root, wait_until, whole};

const GROUP: &str = "/pbs_jobs.service/jobid/101.server";

/// Puts a program into a control group.
fn put(sim: &Sim, app: &App, group: &str) {
    sim.node.node().show_in_cgroup(app.pid(), group).unwrap();
}

/// A client of device 0 with these variables.
fn client_with(sim: &Sim, variables: &[(&str, &str)]) -> App {
    let mut command = sim.command(&["run", "0", "--", "cuda-app", "hold"]);
    command.envs(variables.iter().copied());
    let mut app = App::start(command);
    assert!(app.wait_up().ends_with("mps yes"));
    app
}

/// The name of a program's job in the JSON of a status, and the line of the program in its table.
fn job_of(sim: &Sim, app: &App) -> (Value, String) {
    let status = sim.status();
    let lists = ["clients", "outside_mps"].map(|list| status[list].as_array().unwrap().clone());
    let programs = lists.concat();
    let found = programs.iter().find(|program| program["pid"] == app.pid());
    let text = sim.run(&["status"]).ended(0).stdout;
    let pid = format!(" {} ", app.pid());
    let line = text.lines().find(|line| line.contains(&pid)).unwrap();
    (
        found.unwrap()["workload"]["batch_job"].clone(),
        line.to_owned(),
    )
}

fn begin(sim: &Sim, words: &[&str]) -> Ran {
    let common = [
        "job",
        "begin",
        "--id",
        "101",
        "--user",
        "root",
        "--devices",
        "0",
    ];
    sim.run(&[&common, words].concat())
}

fn end(sim: &Sim) -> Ran {
    sim.run(&["job", "end", "--id", "101"])
}

fn record(sim: &Sim) -> PathBuf {
    sim.node.run_dir().join("jobs/101")
}

#[test]
fn a_program_has_the_job_of_its_control_group() {
    let sim = Sim::whole("");
    let client = client_with(&sim, &[("PBS_JOBID", "9")]);
    for (group, system, id) in [
        (GROUP, "pbs", "101.server"),
        ("/lsf/cluster1/job.101[3].4711.1700000000", "lsf", "101[3]"),
        ("/UGE/101.1", "sge", "101.1"),
        (
            "/system.slice/condor.service/htcondor/condor_var_lib_condor_execute_slot1_1@n1",
            "htcondor",
            "slot1_1@n1",
        ),
    ] {
        put(&sim, &client, group);
        let (job, line) = job_of(&sim, &client);
        assert_eq!(
            job,
            json!({ "system": system, "id": id, "unverified": false })
        );
        assert_contains(&line, &format!("  {system} {id}  "));
        let metrics = sim.run(&["metrics"]).ended(0).stdout;
        assert_contains(&metrics, &format!("batch_job=\"{system} {id}\""));
    }
    let outside = sim.outside("0");
    put(&sim, &outside, GROUP);
    assert_contains(&job_of(&sim, &outside).1, "  pbs 101.server  ");
}

/// Whoever starts a program chooses its environment.
#[test]
fn a_job_that_only_the_environment_tells_is_not_verified() {
    let sim = Sim::whole("");
    let client = client_with(&sim, &[("PBS_JOBID", "101.server")]);
    let forged = client_with(&sim, &[("PBS_JOBID", "\u{1b}[2J")]);
    put(&sim, &client, "/");
    put(&sim, &forged, "/");
    let (job, line) = job_of(&sim, &client);
    assert_eq!(
        job,
        json!({ "system": "pbs", "id": "101.server", "unverified": true })
    );
    assert_contains(&line, "  pbs 101.server?  ");
    assert_eq!(job_of(&sim, &forged).0, Value::Null);
    let metrics = sim.run(&["metrics"]).ended(0).stdout;
    assert_contains(&metrics, "batch_job=\"\"");
    assert!(!metrics.contains("101.server"), "{metrics}");
    // As it is for a group that a user has made.
    put(
        &sim,
        &client,
        &format!("/user.slice/user-1000.slice/user@1000.service{GROUP}"),
    );
    assert_eq!(job_of(&sim, &client).0["unverified"], true);
}

#[test]
fn a_job_that_ends_takes_its_own_programs_only() {
    needs_root!();
    let sim = Sim::whole("serve = \"all\"");
    begin(&sim, &["--cgroup", GROUP]).ended(0);
    let client = client_with(&sim, &[]);
    let outside = sim.outside("0");
    let others = client_with(&sim, &[("PBS_JOBID", "101.server")]);
    put(&sim, &client, &format!("{GROUP}/inner"));
    put(&sim, &outside, GROUP);
    put(&sim, &others, "/pbs_jobs.service/jobid/101.server2");
    assert_contains(&job_of(&sim, &client).1, "  pbs 101  ");
    let ended = end(&sim).ended(0);
    for app in [&client, &outside] {
        let line = format!("mig-mps: job 101 left pid {} (", app.pid());
        assert_contains(&ended.stdout, &line);
    }
    assert_eq!(ended.stdout.lines().count(), 2, "{ended:?}");
    wait_until("the programs of the job end", || {
        sim.status()["clients"].as_array().unwrap().len() == 1
    });
    assert_eq!(sim.status()["clients"][0]["pid"], others.pid());
    assert!(!record(&sim).exists());
    assert!(others.finish().status.success());
    let again = end(&sim).ended(0);
    assert_eq!(
        again.stderr,
        "note: job 101 has not begun, or has ended already\n"
    );
}

#[test]
fn a_job_whose_control_group_has_another_name_is_named_by_its_record() {
    needs_root!();
    let sim = Sim::whole("");
    begin(&sim, &["--cgroup", "/site/101"]).ended(0);
    let client = client_with(&sim, &[]);
    put(&sim, &client, "/site/101");
    let (job, line) = job_of(&sim, &client);
    assert_eq!(
        job,
        json!({ "system": null, "id": "101", "unverified": false })
    );
    assert_contains(&line, "  job 101  ");
    // A record that cannot be read names nothing, and disturbs nothing.
    fs::write(record(&sim).with_file_name("102"), "{").unwrap();
    fs::write(record(&sim).with_file_name(".103"), "{}").unwrap();
    assert_eq!(job_of(&sim, &client).0["id"], "101");
    // After a boot, the group may be another job's.
    let text = fs::read_to_string(record(&sim)).unwrap();
    let boot = text
        .split("\"boot-id\"")
        .nth(1)
        .unwrap()
        .split('"')
        .nth(1)
        .unwrap();
    fs::write(record(&sim), text.replace(boot, "another")).unwrap();
    assert_eq!(job_of(&sim, &client).0, Value::Null);
    let ended = end(&sim).ended(0);
    assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("", ""));
    assert!(!record(&sim).exists());
}

/// LSF makes a group for each process that it starts.
#[test]
fn a_job_of_lsf_ends_with_all_its_groups() {
    needs_root!();
    let sim = Sim::whole("");
    let group = "/lsf/cluster1/job.101[2].4711.1700000000";
    begin(&sim, &["--cgroup", &format!("{group}/")]).ended(0);
    let own = client_with(&sim, &[]);
    let other = client_with(&sim, &[]);
    put(&sim, &other, "/lsf/cluster1/job.101[3].4711.1700000000");
    // It is the group of the same job.
    let words = "job begin --id 102 --user root --devices 0 --cgroup";
    let words: Vec<&str> = words.split(' ').collect();
    let one = "/lsf/cluster1/job.101[2]";
    let refused = sim.run(&[&words[..], &[one]].concat()).ended(2);
    assert_contains(&refused.stderr, "job 101 has the same control group\n");
    put(&sim, &own, "/lsf/cluster1/job.101[2].4722.1700000009");
    let ended = end(&sim).ended(0);
    assert_contains(&ended.stdout, &format!("job 101 left pid {} (", own.pid()));
    assert_eq!(ended.stdout.lines().count(), 1, "{ended:?}");
    assert!(other.finish().status.success());
}

#[test]
fn the_control_group_of_a_process_of_the_job_is_the_jobs() {
    needs_root!();
    let sim = Sim::whole("");
    let client = client_with(&sim, &[]);
    put(&sim, &client, &format!("{GROUP}/inner"));
    let pid = client.pid().to_string();
    let begun = begin(&sim, &["--pid", &pid, "--json"]).ended(0);
    let document: Value = serde_json::from_str(&begun.stdout).unwrap();
    assert_eq!(document["control_group"], GROUP);
    assert_eq!(
        (&document["id"], &document["uid"]),
        (&json!("101"), &json!(0))
    );
    let environment = sim.run(&["env", "0", "--format", "json"]).ended(0).stdout;
    let environment: Value = serde_json::from_str(&environment).unwrap();
    assert_eq!(document["devices"], json!([environment]));
    // A service has the programs of many jobs, and users give their groups any name.
    for group in [
        "/",
        "/system.slice/pbs.service",
        "/system.slice/shell-in-a-box.service",
        "/user.slice/user-0.slice/user@0.service/pbs_jobs.service/jobid/7",
        "/slurm/uid_0/job_7/step_0",
        "/user.slice/user-0.slice/session-3.scope",
    ] {
        put(&sim, &client, group);
        let refused = begin(&sim, &["--pid", &pid]).ended(1);
        assert_contains(
            &refused.stderr,
            &format!("the control group of pid {pid} was not created by a batch system"),
        );
    }
}

/// A hint of another command helps nobody who writes a prolog.
#[test]
fn a_word_that_names_no_single_thing_gets_a_hint_for_prologs() {
    needs_root!();
    let sim = Sim::served("h200", 2, &whole("").replace("index = [0]", "all = true"));
    let gone = begin(&sim, &["--pid", "4000000"]).ended(1);
    assert_contains(
        &gone.stderr,
        "error: pid 4000000 does not run\nhint: give --pid a running process",
    );
    let uuids = [sim.uuid("0"), sim.uuid("1")];
    let length = uuids[0]
        .bytes()
        .zip(uuids[1].bytes())
        .take_while(|(a, b)| a == b);
    let prefix = &uuids[0][..length.count()];
    for words in [prefix, "*"] {
        let common = [
            "job", "begin", "--id", "101", "--user", "root", "--cgroup", GROUP,
        ];
        let refused = sim
            .run(&[&common[..], &["--devices", words]].concat())
            .ended(2);
        let hint = "\nhint: give --devices the names of the job's devices\n";
        assert_contains(&refused.stderr, hint);
        assert!(!refused.stderr.contains("mig-mps run"), "{refused:?}");
    }
}

/// Nobody can tell which programs such a job has left.
#[test]
fn the_end_of_a_job_whose_record_is_damaged_names_the_record() {
    needs_root!();
    let sim = Sim::whole("");
    begin(&sim, &["--cgroup", "/site/101"]).ended(0);
    let whole = fs::read_to_string(record(&sim)).unwrap();
    let client = client_with(&sim, &[]);
    put(&sim, &client, "/site/101");
    let with_group = |group: &str| whole.replace("\"/site/101\"", &format!("\"{group}\""));
    let mut damaged: Vec<String> = ["/", "", "site", ".", "//", "/site/a/101/", "/site/../101"]
        .map(with_group)
        .to_vec();
    damaged.extend(["", "{", "[]", "{}", "\u{0}"].map(str::to_owned));
    damaged.push(whole.replace("\"101\"", "\"102\""));
    damaged.push(with_group("/system.slice/pbs.service"));
    let hint = format!(
        "\nhint: end the programs of the job with `mig-mps kill`, then remove {}\n",
        record(&sim).display()
    );
    for text in damaged {
        assert_ne!(text, whole);
        fs::write(record(&sim), &text).unwrap();
        let refused = end(&sim);
        assert_ne!(refused.status, 0, "{text}");
        assert_contains(&refused.stderr, &hint);
        assert!(record(&sim).exists(), "{text}");
    }
    fs::remove_file(record(&sim)).unwrap();
    fs::create_dir(record(&sim)).unwrap();
    fs::write(record(&sim).join("file"), "").unwrap();
    assert_contains(&end(&sim).ended(1).stderr, &hint);
    fs::remove_dir_all(record(&sim)).unwrap();
    end(&sim).ended(0);
    assert!(client.finish().status.success());
}

/// A prolog runs in the control group of its job, if a batch system has made one.
#[test]
fn without_a_control_group_the_job_has_that_of_its_prolog() {
    needs_root!();
    let sim = Sim::served("h200", 2, &whole("").replace("index = [0]", "all = true"));
    let begin_in = |group: &str, devices: &[&str]| {
        let words = [
            &[
                "job",
                "begin",
                "--id",
                "101",
                "--user",
                "root",
                "--json",
                "--devices",
            ],
            devices,
        ]
        .concat();
        sim.fake_proc("self", "cgroup", &format!("0::{group}\n"));
        sim.run(&words)
    };
    for devices in [
        &["0", "1"][..],
        &["0,1"],
        &["0,1", "0"],
        &["0 1"],
        &[" 0, 1\t"],
    ] {
        let begun = begin_in(&format!("{GROUP}/inner"), devices).ended(0).stdout;
        let document: Value = serde_json::from_str(&begun).unwrap();
        assert_eq!(document["control_group"], GROUP);
        assert_eq!(document["devices"].as_array().unwrap().len(), 2);
        end(&sim).ended(0);
    }
    for devices in ["", " ", "0,", ",0", "0,,1"] {
        let refused = begin_in(GROUP, &[devices]).ended(2);
        assert_contains(&refused.stderr, "error: the name of a device is empty\n");
        assert!(!record(&sim).exists(), "{devices}");
    }
    for group in [
        "/",
        "/system.slice/pbs.service",
        "/slurm/uid_0/job_7/step_0",
        "/user.slice/user-0.slice/user@0.service/pbs_jobs.service/jobid/7",
    ] {
        let refused = begin_in(group, &["0"]).ended(2);
        assert_contains(
            &refused.stderr,
            "error: --cgroup or --pid is required, because",
        );
        assert!(!record(&sim).exists(), "{group}");
    }
}

#[test]
fn a_directory_of_a_control_group_is_its_path() {
    needs_root!();
    let sim = Sim::whole("");
    let group = |path: &str| {
        let begun = begin(&sim, &["--cgroup", path, "--json"]).ended(0).stdout;
        let document: Value = serde_json::from_str(&begun).unwrap();
        document["control_group"].as_str().unwrap().to_owned()
    };
    fs::create_dir_all(sim.machine("sys/fs/cgroup/memory")).unwrap();
    assert_eq!(group("/sys/fs/cgroup/memory/pbspro/101"), "/pbspro/101");
    // Version 1 has no such tree: this is the path of version 2.
    let refused = begin(&sim, &["--cgroup", "/sys/fs/cgroup/pbspro/102"]).ended(2);
    assert_contains(&refused.stderr, "is not the path of a control group");
    fs::write(sim.machine("sys/fs/cgroup/cgroup.controllers"), "memory").unwrap();
    assert_eq!(group("/sys/fs/cgroup/pbspro/101"), "/pbspro/101");
    assert_eq!(group("/sys/fs/cgroup/UGE/101.1/"), "/UGE/101.1");
    // Another path that ends with a slash may lack the value of a variable.
    for wrong in [
        "/",
        "pbspro/101",
        "/a/../b",
        "/a//b",
        "/sys/fs/cgroup",
        "/sys/fs/cgroup/",
        "/pbs_jobs.service/jobid/",
        "/proc/self/cgroup",
        "/sys/kernel/101",
        "/sys/fs/cgroup/pbspro/101/cgroup.procs",
        "/a\n",
    ] {
        let refused = begin(&sim, &["--cgroup", wrong]).ended(2);
        assert_contains(&refused.stderr, "is not the path of a control group");
    }
}

/// Everything in a job's control group may be ended.
#[test]
fn a_control_group_of_others_is_no_jobs() {
    needs_root!();
    let sim = Sim::whole("");
    let daemon = sim.device("0")["daemon_pid"].as_u64().unwrap();
    let daemon = u32::try_from(daemon).unwrap();
    sim.node
        .node()
        .show_in_cgroup(daemon, "/system.slice/mig-mps.service")
        .unwrap();
    let refused = begin(&sim, &["--cgroup", "/system.slice"]).ended(2);
    assert_contains(
        &refused.stderr,
        "/system.slice is not that of one job: a daemon of mig-mps is in it",
    );
    sim.fake_proc("1", "cgroup", "0::/init.scope\n");
    let refused = begin(&sim, &["--cgroup", "/init.scope"]).ended(2);
    assert_contains(&refused.stderr, "init is in it");
    assert!(!record(&sim).exists());
    // Nor is one that such a process has entered since.
    begin(&sim, &["--cgroup", "/init.scope/job"]).ended(0);
    let client = client_with(&sim, &[]);
    put(&sim, &client, "/init.scope/job");
    sim.fake_proc("1", "cgroup", "0::/init.scope/job\n");
    end(&sim).ended(2);
    assert!(client.finish().status.success());
}

#[test]
fn a_device_is_healed_for_a_job_that_begins() {
    needs_root!();
    let sim = Sim::whole("");
    sim.kill_daemon("0");
    begin(&sim, &["--cgroup", GROUP]).ended(0);
    assert_eq!(sim.device("0")["state"], "ready");
    sim.up(&whole("serve = \"user:nobody\""), &["--yes"])
        .ended(0);
    let refused = sim.run(&[
        "job",
        "begin",
        "--id",
        "102",
        "--user",
        "65533",
        "--devices",
        "0",
        "--cgroup",
        GROUP,
    ]);
    assert_contains(
        &refused.ended(1).stderr,
        "error: job 102: device 0 serves only user nobody, not user 65533\nhint: give the job another device",
    );
    assert!(!record(&sim).with_file_name("102").exists());
    let refused = Ran::of(&mut sim.by_nobody(&["job", "end", "--id", "101"])).ended(1);
    assert_contains(&refused.stderr, "error: only root can begin and end jobs");
}

/// The other lists of the node do not have them.
#[test]
fn the_programs_of_a_daemon_that_does_not_answer_are_ended() {
    needs_root!();
    let sim = Sim::whole("");
    begin(&sim, &["--cgroup", GROUP]).ended(0);
    let client = client_with(&sim, &[]);
    put(&sim, &client, GROUP);
    let daemon = sim.device("0")["daemon_pid"].as_u64().unwrap();
    testkit::stop(u32::try_from(daemon).unwrap());
    sim.node
        .fault("nvmlDeviceGetComputeRunningProcesses_v3")
        .fails(999)
        .unwrap();
    sim.node
        .fault("nvmlDeviceGetMPSComputeRunningProcesses_v3")
        .fails(999)
        .unwrap();
    let refused = end(&sim).ended(1);
    let what = "error: job 101 may have left programs on device 0, whose clients are unknown";
    assert_contains(&refused.stderr, what);
    assert!(record(&sim).exists());
    sim.node.node().clear_faults().unwrap();
    let ended = end(&sim).ended(0);
    assert_contains(
        &ended.stdout,
        &format!("job 101 left pid {} ", client.pid()),
    );
    assert!(!record(&sim).exists());
}

#[test]
fn a_group_with_several_jobs_is_no_jobs() {
    needs_root!();
    let sim = Sim::whole("");
    let client = client_with(&sim, &[]);
    put(&sim, &client, "/site/many/pbspro/102.server");
    for (group, why) in [
        (
            "/pbs_jobs.service/jobid",
            "the batch system creates the groups of jobs below it",
        ),
        ("/site/many", "groups of jobs are below it"),
        (
            "/site.slice/jobs.slice",
            "its name is that of a whole slice or tree",
        ),
        ("/slurm", "its name is that of a whole slice or tree"),
        ("/system.slice/pbs.service", "its name is that of a service"),
        (
            "/user.slice/user-1000.slice/user@1000.service",
            "its name is that of a service",
        ),
        (
            "/user.slice/user-1000.slice/user@1000.service/init.scope",
            "its name is that of a service manager",
        ),
        (
            "/user.slice/user-1000.slice/session-5.scope",
            "its name is that of a login session",
        ),
        (
            "/site/uid_1000",
            "its name is that of all programs of a user",
        ),
        ("/lsf/cluster1/job.", "its name lacks the ID of a job"),
        ("/oar/system", "its name is not that of a job"),
        ("/openrc/pbs", "its name is that of a service"),
        (
            "/machine.slice/machine-n1.scope",
            "it belongs to a virtual machine",
        ),
        ("/lxc/n1", "it belongs to a virtual machine"),
    ] {
        let refused = begin(&sim, &["--cgroup", group]).ended(2);
        assert_contains(
            &refused.stderr,
            &format!("{group} is not that of one job: {why}"),
        );
        assert!(!record(&sim).exists(), "{group}");
    }
    // A job that was recorded may have no programs yet.
    begin(&sim, &["--cgroup", "/site/jobs/101"]).ended(0);
    for group in ["/site/jobs", "/site/jobs/101/inner"] {
        let other = [
            "job",
            "begin",
            "--id",
            "102",
            "--user",
            "root",
            "--devices",
            "0",
            "--cgroup",
            group,
        ];
        let refused = sim.run(&other).ended(2);
        assert_contains(
            &refused.stderr,
            "error: job 101 has the control group /site/jobs/101\n",
        );
    }
}

/// A job that starts another batch system cannot keep its own epilog from ending it.
#[test]
fn groups_that_a_job_makes_below_its_own_end_with_it() {
    needs_root!();
    let sim = Sim::whole("");
    begin(&sim, &["--cgroup", "/site/101"]).ended(0);
    let client = client_with(&sim, &[]);
    put(&sim, &client, "/site/101/pbs_jobs.service/jobid/7");
    let ended = end(&sim).ended(0);
    assert_contains(
        &ended.stdout,
        &format!("job 101 left pid {} ", client.pid()),
    );
    assert!(!record(&sim).exists());
}

/// A batch system may have a group for each slot.
#[test]
fn a_control_group_that_is_used_again_is_the_later_jobs() {
    needs_root!();
    let sim = Sim::whole("");
    begin(&sim, &["--cgroup", "/htcondor/condor_slot1_1@n1"]).ended(0);
    let later = sim.run(&[
        "job",
        "begin",
        "--id",
        "102",
        "--user",
        "root",
        "--devices",
        "0,0",
        "--cgroup",
        "/htcondor/condor_slot1_1@n1",
    ]);
    assert_contains(
        &later.ended(0).stderr,
        "job 101 has the same control group, so it has ended\n",
    );
    end(&sim).ended(0);
    let client = client_with(&sim, &[]);
    put(&sim, &client, "/htcondor/condor_slot1_1@n1");
    let (job, line) = job_of(&sim, &client);
    assert_eq!(job["id"], "102");
    assert_contains(&line, "  htcondor 102  ");
    let text = fs::read_to_string(record(&sim).with_file_name("102")).unwrap();
    assert_eq!(text.matches(&sim.uuid("0")).count(), 1);
}

/// Before its first program runs, nothing in the group shows that the earlier job has not ended.
#[test]
fn two_jobs_do_not_have_one_control_group() {
    needs_root!();
    let sim = Sim::whole("");
    let groups = ["/site/shared", "/pbs_jobs.service/jobid/101", "/sge/101.1"];
    for group in groups {
        begin(&sim, &["--cgroup", group]).ended(0);
        let words = "job begin --id 102 --user root --devices 0 --cgroup";
        let words: Vec<&str> = words.split(' ').chain([group]).collect();
        let refused = sim.run(&words).ended(2).stderr;
        assert_contains(&refused, "error: job 101 has the same control group\n");
        assert_contains(
            &refused,
            "hint: run `mig-mps job end --id 101` if that job has ended\n",
        );
        end(&sim).ended(0);
        sim.run(&words).ended(0);
        sim.run(&["job", "end", "--id", "102"]).ended(0);
    }
}

/// The end of the later job would end it.
#[test]
fn a_job_that_still_runs_keeps_its_control_group() {
    needs_root!();
    let sim = Sim::whole("serve = \"all\"");
    let group = "/htcondor/condor_slot1_1@n1";
    let other = |id: &str, user: &str| {
        let words = [
            "--id",
            id,
            "--user",
            user,
            "--devices",
            "0",
            "--cgroup",
            group,
        ];
        sim.run(&[&["job", "begin"], &words[..]].concat())
    };
    let refusal = |pid: u32| format!("error: job 101 has the same control group, and pid {pid} (");
    let hint = "hint: run `mig-mps job end --id 101` if that job has ended\n";
    begin(&sim, &["--cgroup", group]).ended(0);
    // A client, and a program outside MPS.
    for app in [client_with(&sim, &[]), sim.outside("0")] {
        put(&sim, &app, &format!("{group}/inner"));
        for user in ["nobody", "root"] {
            let refused = other("102", user).ended(2).stderr;
            assert_contains(&refused, &refusal(app.pid()));
            assert_contains(&refused, hint);
        }
        // The same job may begin again.
        begin(&sim, &["--cgroup", group]).ended(0);
        let ended = end(&sim).ended(0).stdout;
        assert_contains(&ended, &format!("job 101 left pid {} (", app.pid()));
        begin(&sim, &["--cgroup", group]).ended(0);
    }
    assert!(!record(&sim).with_file_name("102").exists());
    // A process that has no device yet, unless it is of the job that begins, or of root, as a prolog is.
    let sleeping = |user: u32| {
        let child = Command::new("sleep").arg("1000").uid(user).spawn();
        let child = Running(child.unwrap());
        let node = sim.node.node();
        node.show_in_cgroup(child.0.id(), group).unwrap();
        child
    };
    let users = sleeping(NOBODY);
    let refused = other("102", "root").ended(2).stderr;
    assert_contains(&refused, &refusal(users.0.id()));
    let _roots = sleeping(0);
    other("102", "nobody").ended(0);
}

#[test]
fn all_groups_of_a_job_of_lsf_are_the_jobs() {
    needs_root!();
    let sim = Sim::whole("");
    let clients = [(); 3].map(|()| client_with(&sim, &[]));
    for (client, group) in
        clients
            .iter()
            .zip(["job.101.4711.17", "job.101.4722.18", "job.1012.4733.19"])
    {
        put(&sim, client, &format!("/lsf/cluster1/{group}"));
    }
    begin(&sim, &["--pid", &clients[0].pid().to_string()]).ended(0);
    let ended = end(&sim).ended(0).stdout;
    assert_eq!(ended.lines().count(), 2, "{ended}");
    assert!(
        !ended.contains(&format!(" {} ", clients[2].pid())),
        "{ended}"
    );
}

#[test]
fn the_environment_adds_nothing_to_the_name_of_a_recorded_job() {
    needs_root!();
    let sim = Sim::whole("");
    fs::create_dir_all(sim.machine("sys/fs/cgroup/memory")).unwrap();
    let begun = begin(&sim, &["--cgroup", "/site/101"]).ended(0);
    assert_eq!(
        begun.stderr,
        "note: the control group /site/101 does not exist yet\n"
    );
    fs::create_dir_all(sim.machine("sys/fs/cgroup/memory/site/101")).unwrap();
    assert_eq!(begin(&sim, &["--cgroup", "/site/101"]).ended(0).stderr, "");
    let client = client_with(&sim, &[("SLURM_JOB_ID", "5")]);
    put(&sim, &client, "/site/101");
    // A file that is not written whole has another name.
    let text = fs::read_to_string(record(&sim)).unwrap();
    fs::write(
        record(&sim).with_file_name(".99"),
        text.replace("101", ".99"),
    )
    .unwrap();
    assert_contains(&job_of(&sim, &client).1, "  job 101  ");
    let wrong = sim.run(&[
        "job",
        "begin",
        "--id",
        "101",
        "--user",
        "4294967295",
        "--devices",
        "0",
        "--cgroup",
        "/a/b",
    ]);
    assert_contains(
        &wrong.ended(2).stderr,
        "user 4294967295 does not exist on this machine",
    );
    let with = |id: &str, user: &str| {
        let (id, user) = (format!("--id={id}"), format!("--user={user}"));
        let words = [
            "job",
            "begin",
            &id,
            &user,
            "--devices",
            "0",
            "--cgroup",
            "/a/b",
        ];
        sim.run(&words).ended(2).stderr
    };
    assert_contains(&with("101", "+5"), "user +5 does not exist");
    assert_contains(&with("101", ""), "error: the name of the user is empty\n");
    assert_contains(&with("-x", "root"), "does not begin with a dot or a hyphen");
}
