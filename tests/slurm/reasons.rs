//! Devices that are broken: the prolog that fails, the health check, and the reason that stands.

use testkit::assert_contains;

use crate::slurm::lab::{Lab, Setup, USERS, can_start};

const WHOLE: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { all = true }
mig = false
"#;

#[test]
fn the_reason_of_the_health_check_stands_in_either_order() {
    if !can_start("the_reason_of_the_health_check_stands_in_either_order") {
        return;
    }
    let lab = Lab::start(vec![Setup::new("h200", 1, WHOLE)], "");
    let health = |words: &[&str]| lab.mig_mps(0, &[&["slurm", "health"], words].concat());
    let update = |words: &[&str]| {
        let words = [&["update", "NodeName=n1"], words].concat();
        lab.slurm("scontrol", &words).ended(0);
    };
    let healthy = health(&[]).ended(0);
    assert!(healthy.stdout.is_empty() && !lab.is_drained(0));
    let sim = &lab.nodes[0];
    sim.node.fault("cuInit").every().fails(999).unwrap();
    let found = "device 0: cuInit failed with error 999 (CUDA_ERROR_UNKNOWN)";
    let reason = format!("mig-mps: {found}");
    // The prolog first: Slurm drains the node and holds the job.
    let job = lab.submit(USERS[0], &["--gres=gpu:1"], "true");
    lab.until("Slurm has drained the node", || {
        lab.node_state(0).1 == "Prolog error"
    });
    assert_contains(&lab.log(0), &format!("output:mig-mps: job 1: {found}"));
    lab.await_state(job, &["PENDING"]);
    assert_eq!(health(&[]).ended(3).stdout, format!("{found}\n"));
    assert_eq!(lab.node_state(0).1, reason);
    // The health check first: the reason stays, and no job is begun.
    lab.slurm("scancel", &[&job.to_string()]).ended(0);
    update(&["State=RESUME"]);
    health(&[]).ended(3);
    assert!(lab.is_drained(0));
    assert_eq!(lab.node_state(0).1, reason);
    // An administrator's reason is left alone.
    update(&["State=DRAIN", "Reason=new memory"]);
    health(&[]).ended(3);
    assert_eq!(lab.node_state(0).1, "new memory");
    health(&["--resume"]).ended(3);
    sim.node.node().clear_faults().unwrap();
    health(&["--resume"]).ended(0);
    assert_eq!(lab.node_state(0).1, "new memory");
    // A node is taken back where mig-mps had drained it.
    update(&["State=DRAIN", "Reason=mig-mps: something"]);
    health(&[]).ended(0);
    assert!(lab.is_drained(0));
    health(&["--resume"]).ended(0);
    assert!(!lab.is_drained(0));
}

/// Each time that the daemon of a device that hangs is asked, it gets 2 s.
#[test]
fn the_health_check_heals_a_device_that_hangs_once_its_clients_have_gone() {
    if !can_start("the_health_check_heals_a_device_that_hangs_once_its_clients_have_gone") {
        return;
    }
    let lab = Lab::start(vec![Setup::new("h200", 1, WHOLE)], "");
    let client = lab.nodes[0].client("0");
    lab.nodes[0].hang("0");
    let hangs = "device 0 accepts no programs: it is hung, so new clients would wait forever";
    let found = lab.mig_mps(0, &["slurm", "health"]).ended(3);
    assert_eq!(found.stdout, format!("{hangs}\n"));
    assert_eq!(lab.node_state(0).1, format!("mig-mps: {hangs}"));
    client.finish();
    lab.mig_mps(0, &["slurm", "health", "--resume"]).ended(0);
    assert!(!lab.is_drained(0));
    lab.nodes[0].client("0").finish();
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
    assert_contains(&lab.output(own), "mps yes");
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
    let line = "output:mig-mps: job 2: device 0 serves only user daemon, not user bin";
    assert_contains(&lab.log(0), line);
}
