//! Which programs share a private daemon: those of one job.

use testkit::{needs_root, whole};

use super::*;

#[test]
fn job_steps_do_not_meet_and_take_no_turns() {
    let sim = Sim::with("h200", 1);
    let step = |step: &str, words: &[&str]| {
        let mut command = private(&sim, words);
        command.env("SLURM_JOB_ID", "7").env("SLURM_STEP_ID", step);
        command
    };
    let mut first = App::start(step("0", &["--", "cuda-app", "hold"]));
    assert!(first.wait_up().ends_with("mps yes"));
    let same = Ran::of(&mut step("0", &["--", "cuda-app", "run", "0"])).ended(0);
    assert_contains(&same.stdout, "mps yes");
    let other = Ran::of(&mut step("1", &["--", "true"])).ended(125).stderr;
    assert_contains(&other, "device 0 already has an MPS daemon: pid ");
    assert_contains(&other, "run both programs in one job");
    first.finish();
    nothing_is_left(&sim);
}

/// Each is a job of one batch system; a batch system that ends the first one ends no daemon of the second.
#[test]
fn jobs_of_every_batch_system_do_not_meet() {
    let sim = Sim::with("h200", 1);
    for variables in [
        "PBS_JOBID=7",
        "LSB_JOBID=7",
        "LSB_JOBID=8 LSB_JOBINDEX=7",
        "JOB_ID=7 SGE_TASK_ID=undefined",
        "JOB_ID=8 SGE_TASK_ID=7",
        "OAR_JOB_ID=7",
        "FLUX_JOB_ID=7",
        "_CONDOR_JOB_AD=/var/lib/condor/execute/dir_7/.job.ad",
    ] {
        let of_job = |id: &str, words: &[&str]| {
            let mut command = private(&sim, words);
            let pairs = variables
                .split(' ')
                .map(|pair| pair.split_once('=').unwrap());
            command.envs(pairs.map(|(name, value)| (name, value.replace('7', id))));
            command
        };
        let mut first = App::start(of_job("7", &["--", "cuda-app", "hold"]));
        assert!(first.wait_up().ends_with("mps yes"), "{variables}");
        let same = Ran::of(&mut of_job("7", &["--", "cuda-app", "run", "0"])).ended(0);
        assert_contains(&same.stdout, "mps yes");
        let other = Ran::of(&mut of_job("9", &["--", "true"])).ended(125).stderr;
        assert_contains(&other, "device 0 already has an MPS daemon: pid ");
        assert!(first.finish().status.success(), "{variables}");
        nothing_is_left(&sim);
    }
}

/// A control group is a fact, and variables are input.
#[test]
fn the_control_group_of_a_job_decides_before_variables() {
    let sim = Sim::with("h200", 1);
    let in_group = |group: &str| sim.fake_proc("self", "cgroup", &format!("0::{group}\n"));
    in_group("/pbs_jobs.service/jobs/7.server");
    let first = holding(&sim, &[]);
    let mut same = private(&sim, &["--", "cuda-app", "run", "0"]);
    let same = Ran::of(same.env("PBS_JOBID", "9")).ended(0);
    assert_contains(&same.stdout, "mps yes");
    for group in [
        "/pbs_jobs.service/jobs/8.server",
        "/user.slice/user-0.slice/session-3.scope",
    ] {
        in_group(group);
        let other = Ran::of(&mut private(&sim, &["--", "true"]))
            .ended(125)
            .stderr;
        assert_contains(&other, "device 0 already has an MPS daemon: pid ");
    }
    assert!(first.finish().status.success());
    // Sessions of one user are no jobs.
    let first = holding(&sim, &[]);
    in_group("/user.slice/user-0.slice/session-4.scope");
    let same = Ran::of(&mut private(&sim, &["--", "cuda-app", "run", "0"])).ended(0);
    assert_contains(&same.stdout, "mps yes");
    assert!(first.finish().status.success());
    nothing_is_left(&sim);
}

/// `job end` ends a daemon in the control group of its job.
#[test]
fn jobs_that_are_recorded_do_not_meet() {
    needs_root!();
    let sim = Sim::served("h200", 2, &whole(""));
    sim.run(&["down", "1"]).ended(0);
    for id in ["7", "8"] {
        let group = format!("/site/jobs/{id}");
        let words = [
            "job",
            "begin",
            "--id",
            id,
            "--user",
            "root",
            "--devices",
            "0",
        ];
        sim.run(&[&words[..], &["--cgroup", &group]].concat())
            .ended(0);
    }
    let in_job = |id: &str, words: &[&str]| {
        sim.fake_proc("self", "cgroup", &format!("0::/site/jobs/{id}/inner\n"));
        let mut command = private(&sim, &[&["--"], words].concat());
        command.env("CUDA_VISIBLE_DEVICES", sim.uuid("1"));
        command
    };
    let mut first = App::start(in_job("7", &["cuda-app", "hold"]));
    let up = first.wait_up();
    assert!(up.ends_with("mps yes"), "{up}");
    let other = Ran::of(&mut in_job("8", &["true"])).ended(125).stderr;
    assert_contains(&other, "device 1 already has an MPS daemon: pid ");
    let mut same = in_job("7", &["cuda-app", "run", "0"]);
    let same = Ran::of(same.env("PBS_JOBID", "9")).ended(0);
    assert_contains(&same.stdout, "mps yes");
    assert!(first.finish().status.success());
}

/// Then the end of a session is the end of a daemon in it.
#[test]
fn sessions_whose_processes_logind_ends_do_not_meet() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let settings = sim.machine("etc/systemd/logind.conf.d");
    fs::create_dir_all(&settings).unwrap();
    fs::write(
        settings.join("50-site.conf"),
        "[Login]\nKillUserProcesses=yes\n",
    )
    .unwrap();
    let in_session = |number: u32, words: &[&str]| {
        let group = format!("0::/user.slice/user-65534.slice/session-{number}.scope\n");
        sim.fake_proc("self", "cgroup", &group);
        sim.by_nobody(&[&["run", "--private", "--"], words].concat())
    };
    let mut first = App::start(in_session(3, &["cuda-app", "hold"]));
    assert!(first.wait_up().ends_with("mps yes"));
    let same = Ran::of(&mut in_session(3, &["cuda-app", "run", "0"])).ended(0);
    assert_contains(&same.stdout, "mps yes");
    let other = Ran::of(&mut in_session(4, &["true"])).ended(125).stderr;
    assert_contains(&other, "device 0 already has an MPS daemon: pid ");
    assert!(first.finish().status.success());
}

/// A user cannot end the daemon of another one.
#[test]
fn the_job_of_another_user_gets_a_remedy_of_its_own() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let first = holding(&sim, &[]);
    let mut other = sim.by_nobody(&["run", "--private", "--", "true"]);
    let refused = Ran::of(other.env("TMPDIR", "/tmp")).ended(125).stderr;
    assert_contains(&refused, "device 0 already has an MPS daemon: pid ");
    assert_contains(&refused, "hint: use another device, or wait");
    assert!(!refused.contains("kill"), "{refused}");
    assert!(first.finish().status.success());
    nothing_is_left(&sim);
}
