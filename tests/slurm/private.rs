//! `run --private` in jobs: their daemons run as the job's user, and end with the step.

use testkit::assert_contains;

use crate::slurm::lab::{Lab, Setup, USERS, can_start};

const WHOLE: &str = "[[gpu]]\nselect = { all = true }\nmig = false\n";

/// The processes of MPS on a node, and those that keep daemons.
fn processes(lab: &Lab) -> Vec<u32> {
    let of_node = |words| lab.nodes[0].node.processes(words);
    [of_node("nvidia-cuda-mps-"), of_node(" keep --device ")].concat()
}

fn lab() -> Lab {
    Lab::start(vec![Setup::new("h200", 2, WHOLE).without_daemons()], "")
}

#[test]
fn the_ranks_of_a_step_share_the_jobs_devices() {
    if !can_start("the_ranks_of_a_step_share_the_jobs_devices") {
        return;
    }
    let lab = lab();
    let program = "cuda-app run 1; echo device $CUDA_VISIBLE_DEVICES";
    let mig_mps = lab.nodes[0].program();
    let script = format!(
        "unset MIG_MPS_LOG_DIR; export TMPDIR=/tmp
        srun --ntasks=4 {mig_mps} run --private -- sh -c '{program}'
        srun --ntasks=1 {mig_mps} run --private -n 3 --share even -- cuda-app run 0.1
        srun --ntasks=2 --gpus-per-task=1 {mig_mps} run --private -- sh -c '{program}'"
    );
    let options = ["--gres=gpu:2", "--ntasks=4"];
    let job = lab.submit(USERS[0], &options, &script);
    assert_eq!(
        lab.await_state(job, &["COMPLETED", "FAILED"]),
        "COMPLETED",
        "{}",
        lab.output(job)
    );
    let output = lab.output(job);
    let clients = output.matches("mps yes").count();
    assert_eq!(clients, 4 + 3 + 2, "{output}");
    assert_contains(&output, &format!(" uid {} ", USERS[0].1));
    for device in ["0", "1"] {
        let uuid = lab.nodes[0].uuid(device);
        let ranks = output.matches(&format!("device {uuid}")).count();
        assert!((2..=4).contains(&ranks), "{device}: {output}");
    }
    lab.until("nothing is left", || processes(&lab).is_empty());
}

/// Slurm ends the step with SIGTERM, and what goes on with SIGKILL.
#[test]
fn a_cancelled_job_leaves_nothing() {
    if !can_start("a_cancelled_job_leaves_nothing") {
        return;
    }
    let lab = lab();
    let mig_mps = lab.nodes[0].program();
    let stubborn = "trap \"\" TERM; cuda-app run 600 & wait; while :; do sleep 0.1; done";
    let script = format!(
        "unset MIG_MPS_LOG_DIR; export TMPDIR=/tmp
        srun --ntasks=2 {mig_mps} run --private -- sh -c '{stubborn}'"
    );
    let job = lab.submit(USERS[1], &["--gres=gpu:1", "--ntasks=2"], &script);
    lab.until("both are up", || {
        lab.output(job).matches("mps yes").count() == 2
    });
    assert!(!processes(&lab).is_empty());
    lab.slurm("scancel", &[&job.to_string()]).ended(0);
    lab.await_state(job, &["CANCELLED"]);
    lab.until("nothing is left", || processes(&lab).is_empty());
}
