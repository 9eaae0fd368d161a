//! Jobs that end: epilogs.

use testkit::{assert_contains, is_alive};

use crate::slurm::lab::{Lab, Setup, USERS, can_start};

const SHARED: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { all = true }
mig = false
"#;

/// A program that leaves its job: it has a session of its own, and init for a parent.
const LEAVES: &str = "(setsid cuda-app run 300 > $out/$SLURM_JOB_ID.left 2>&1 &)
while ! grep -qs up $out/$SLURM_JOB_ID.left; do sleep 0.05; done
sed -n 's/^pid \\([0-9]*\\) .*/\\1/p' $out/$SLURM_JOB_ID.left";

#[test]
fn a_job_leaves_no_client_and_other_jobs_keep_theirs() {
    if !can_start("a_job_leaves_no_client_and_other_jobs_keep_theirs") {
        return;
    }
    let lab = Lab::start(vec![Setup::new("h200", 1, SHARED).shards(8)], "");
    let stays = "cuda-app run 300 > $out/$$.app 2>&1 &
    while ! grep -qs up $out/$$.app; do sleep 0.05; done
    sed -n 's/^pid \\([0-9]*\\) .*/\\1/p' $out/$$.app; wait";
    let shard = ["--gres=shard:1"];
    let of_same_user = lab.submit(USERS[0], &shard, stays);
    // It says that it is the first job, which is another user's.
    let forged = format!("SLURM_JOB_ID={of_same_user}; export SLURM_JOB_ID; {stays}");
    let of_another = lab.submit(USERS[1], &shard, &forged);
    lab.until("both are up", || {
        !lab.output(of_same_user).is_empty() && !lab.output(of_another).is_empty()
    });
    let pid = |job| lab.output(job).trim().to_owned();
    let (first, second) = (pid(of_same_user), pid(of_another));
    let leaves = lab.submit(USERS[0], &shard, LEAVES);
    assert_eq!(
        lab.await_state(leaves, &["COMPLETED", "FAILED"]),
        "COMPLETED"
    );
    let left = pid(leaves);
    assert_ne!(left, "");
    lab.until("the epilog has ended what was left", || !is_alive(&left));
    assert!(is_alive(&first), "{first:?} {}", lab.log(0));
    assert!(is_alive(&second), "{second:?} {}", lab.log(0));
    // The epilog of the first job ends none of the program that says it is of that job, but is another user's.
    lab.slurm("scancel", &[&of_same_user.to_string()]).ended(0);
    lab.until("the job is over", || {
        lab.slurm("squeue", &["-h", "-t", "R,CG", "-o", "%A"])
            .stdout
            .trim()
            == of_another.to_string()
    });
    assert!(!is_alive(&first) && is_alive(&second));
    assert!(!lab.is_drained(0));
}

const OF_ONE_USER: &str = r#"
[[gpu]]
select = { all = true }
mig = false
mps = { serve = "user:daemon", active-thread-percentage = 50 }
"#;

/// The only user of a device changes none of its settings, for this job or the next.
#[test]
fn a_job_changes_no_setting_of_its_device() {
    if !can_start("a_job_changes_no_setting_of_its_device") {
        return;
    }
    let lab = Lab::start(vec![Setup::new("h200", 1, OF_ONE_USER)], "");
    let changes = "echo set_default_active_thread_percentage 90 | nvidia-cuda-mps-control
    echo get_default_active_thread_percentage | nvidia-cuda-mps-control";
    let job = lab.submit(USERS[0], &["--gres=gpu:1"], changes);
    assert_eq!(lab.await_state(job, &["COMPLETED", "FAILED"]), "COMPLETED");
    let output = lab.output(job);
    assert_contains(&output, "Insufficient privileges for UID");
    assert!(output.ends_with("50.0\n"), "{output}");
    lab.until("the node is free", || {
        lab.node_state(0).0.starts_with("IDLE")
    });
    let asks = "echo get_default_active_thread_percentage | nvidia-cuda-mps-control";
    let next = lab.submit(USERS[0], &["--gres=gpu:1"], asks);
    lab.await_state(next, &["COMPLETED", "FAILED"]);
    assert_eq!(lab.output(next), "50.0\n");
}
