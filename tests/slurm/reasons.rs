//! Devices that are broken: the prolog that fails, the health check, and the reason that stands.

use std::process::{Command, Stdio};

use crate::slurm::lab::{Lab, Setup, USERS, can_start};

const WHOLE: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { all = true }
mig = false
"#;

/// The device takes nobody any more: a client died while it connected, and another one goes on.
fn wedge(lab: &Lab, name: &str) -> testkit::App {
    let pipe = lab.nodes[0]
        .run_dir()
        .join("by-name")
        .join(name)
        .join("pipe");
    let mut app = lab.nodes[0].cuda_app(&pipe, &["hold"]);
    assert!(app.wait_up().ends_with("mps yes"));
    let program = lab.nodes[0].program("cuda-app");
    let mut starved = Command::new("sh");
    starved
        .args([
            "-c",
            "ulimit -n 24; exec \"$0\"",
            program.get_program().to_str().unwrap(),
        ])
        .env_clear()
        .envs(lab.nodes[0].env())
        .env("CUDA_MPS_PIPE_DIRECTORY", &pipe)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let _ = starved.status().unwrap();
    lab.until("the device hangs", || {
        let events = lab.nodes[0].events();
        events.iter().any(|event| event.what == "device wedged")
    });
    app
}

#[test]
fn the_reason_of_the_health_check_stands_in_either_order() {
    if !can_start("the_reason_of_the_health_check_stands_in_either_order") {
        return;
    }
    let lab = Lab::start(vec![Setup::new("h200", 2, WHOLE)], "");
    let healthy = lab.mig_mps(0, &["slurm", "health"]).ended(0);
    assert!(healthy.stdout.is_empty() && !lab.is_drained(0));
    // It has a client, so nobody heals it.
    let client = wedge(&lab, "0");
    // The prolog first: Slurm drains the node and holds the job.
    let job = lab.submit(USERS[0], &["--gres=gpu:2"], "true");
    lab.until("Slurm has drained the node", || {
        lab.node_state(0).1 == "Prolog error"
    });
    assert!(
        lab.log(0).contains("output:mig-mps: job 1: 0 hangs"),
        "{}",
        lab.log(0)
    );
    lab.await_state(job, &["PENDING"]);
    let reason = "mig-mps: 0 hangs: every new client waits without end";
    let found = lab.mig_mps(0, &["slurm", "health"]).ended(3);
    assert_eq!(
        found.stdout,
        "0 hangs: every new client waits without end\n"
    );
    assert_eq!(lab.node_state(0).1, reason);
    // The health check first: the reason stays, and no job is begun.
    lab.slurm("scancel", &[&job.to_string()]).ended(0);
    lab.slurm("scontrol", &["update", "NodeName=n1", "State=RESUME"])
        .ended(0);
    lab.mig_mps(0, &["slurm", "health"]).ended(3);
    assert!(lab.is_drained(0));
    assert_eq!(lab.node_state(0).1, reason);
    // An administrator's reason is left alone.
    let theirs = ["update", "NodeName=n1", "State=DRAIN", "Reason=new memory"];
    lab.slurm("scontrol", &theirs).ended(0);
    lab.mig_mps(0, &["slurm", "health"]).ended(3);
    assert_eq!(lab.node_state(0).1, "new memory");
    lab.mig_mps(0, &["slurm", "health", "--resume"]).ended(3);
    // Without the client the device is healed, and the node taken back where mig-mps had drained it.
    let ours = [
        "update",
        "NodeName=n1",
        "State=DRAIN",
        "Reason=mig-mps: something",
    ];
    client.finish();
    lab.mig_mps(0, &["slurm", "health", "--resume"]).ended(0);
    assert_eq!(lab.node_state(0).1, "new memory");
    lab.slurm("scontrol", &ours).ended(0);
    lab.mig_mps(0, &["slurm", "health"]).ended(0);
    assert!(lab.is_drained(0));
    lab.mig_mps(0, &["slurm", "health", "--resume"]).ended(0);
    assert!(!lab.is_drained(0));
}

const OF_ONE_USER: &str = r#"
[[gpu]]
select = { all = true }
mig = false
mps = { serve = "user:daemon" }
"#;

#[test]
fn a_job_does_not_begin_on_a_device_for_somebody_else() {
    if !can_start("a_job_does_not_begin_on_a_device_for_somebody_else") {
        return;
    }
    let lab = Lab::start(vec![Setup::new("h200", 1, OF_ONE_USER)], "");
    let own = lab.submit(USERS[0], &["--gres=gpu:1"], "cuda-app run 0.1");
    assert_eq!(lab.await_state(own, &["COMPLETED", "FAILED"]), "COMPLETED");
    assert!(lab.output(own).contains("mps yes"));
    let other = lab.submit(
        USERS[1],
        &["--no-requeue", "--gres=gpu:1"],
        "cuda-app run 0.1",
    );
    assert_eq!(
        lab.await_state(other, &["CANCELLED", "COMPLETED", "FAILED"]),
        "CANCELLED"
    );
    assert!(!lab.output(other).contains("up devices"));
    let line = "output:mig-mps: job 2: only daemon may use 0, and this is bin";
    assert!(lab.log(0).contains(line), "{}", lab.log(0));
}
