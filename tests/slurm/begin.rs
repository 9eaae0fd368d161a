//! Jobs that begin: prologs and task prologs.

use crate::slurm::lab::{Lab, Setup, USERS, can_start};

const MIXED: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { index = [0] }
devices = [ { profile = "1g", count = 2 }, { profile = "3g" } ]
[[gpu]]
select = { all = true }
mig = false
"#;

/// Each type of device goes to the job that asks for it, and each task to one device.
#[test]
fn a_job_gets_the_device_that_slurm_has_chosen() {
    if !can_start("a_job_gets_the_device_that_slurm_has_chosen") {
        return;
    }
    let lab = Lab::start(vec![Setup::new("a100-80gb", 2, MIXED)], "");
    let show = "cuda-app run 0.1; echo \"$CUDA_MPS_PIPE_DIRECTORY\"";
    let jobs = [
        ("--gres=gpu:3g.40gb:1", "0.4"),
        ("--gres=gpu:1g.10gb:1", "0.0"),
        ("--gres=gpu:nvidia_a100-sxm4-80gb:1", "1"),
    ];
    let ids = jobs.map(|(gres, _)| lab.submit(USERS[0], &[gres], show));
    for ((gres, name), id) in jobs.into_iter().zip(ids) {
        assert_eq!(
            lab.await_state(id, &["COMPLETED", "FAILED"]),
            "COMPLETED",
            "{gres}"
        );
        let output = lab.output(id);
        assert!(output.contains("mps yes"), "{gres}: {output}");
        assert!(
            output.contains(&format!("/by-name/{name}/pipe")),
            "{gres}: {output}"
        );
    }
    let several = lab.submit(
        USERS[1],
        &["--gres=gpu:1g.10gb:2", "--ntasks=2"],
        "srun --ntasks=2 --gres=gpu:1g.10gb:2 sh -c 'cuda-app run 0.1; echo $CUDA_MPS_PIPE_DIRECTORY'",
    );
    assert_eq!(
        lab.await_state(several, &["COMPLETED", "FAILED"]),
        "COMPLETED"
    );
    let output = lab.output(several);
    assert!(
        output.contains("/0.0/pipe") && output.contains("/0.1/pipe"),
        "{output}"
    );
    let without = lab.submit(USERS[1], &[], "env | grep -c ^CUDA; true");
    assert_eq!(
        lab.await_state(without, &["COMPLETED", "FAILED"]),
        "COMPLETED"
    );
    assert_eq!(lab.output(without), "0\n");
}
