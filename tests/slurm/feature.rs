//! Features that name the profile of an idle node.

use std::fs;

use crate::slurm::lab::{Lab, Setup, USERS, can_start};

const PLAIN: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" }, { profile = "3g" } ]
"#;

const HALVED: &str = r#"
[mps]
serve = "all"
active-thread-percentage = 50
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" }, { profile = "3g" } ]
"#;

const SEVENTHS: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { all = true }
devices = [ { profile = "1g", count = 7 } ]
"#;

#[test]
fn a_feature_names_the_profile_of_an_idle_node() {
    if !can_start("a_feature_names_the_profile_of_an_idle_node") {
        return;
    }
    let setup = Setup {
        more: "Feature=halved,sevenths,unknown",
        ..Setup::new("a100-80gb", 1, PLAIN)
    };
    let lab = Lab::start(vec![setup], "");
    let profiles = lab.path("profiles");
    fs::create_dir(&profiles).unwrap();
    fs::write(profiles.join("halved.toml"), HALVED).unwrap();
    fs::write(profiles.join("sevenths.toml"), SEVENTHS).unwrap();
    let threads = || lab.device(0, "0.0")["active_thread_percentage"].clone();
    let run = |options: &[&str]| {
        let options = [&["--no-requeue"], options].concat();
        let job = lab.submit(USERS[0], &options, "cuda-app run 0.1");
        let state = lab.await_state(job, &["COMPLETED", "FAILED", "CANCELLED"]);
        lab.until("the job is gone", || {
            lab.slurm("squeue", &["-h"]).stdout.is_empty()
        });
        state
    };
    let before = threads();
    assert_eq!(run(&["--constraint=unknown", "--gres=gpu:1"]), "COMPLETED");
    assert_eq!(threads(), before);
    assert_eq!(run(&["--constraint=halved", "--gres=gpu:1"]), "COMPLETED");
    assert_eq!(threads(), 50.0);
    // Slurm has chosen a device that would be gone.
    assert_eq!(run(&["--constraint=sevenths", "--gres=gpu:1"]), "CANCELLED");
    assert!(
        lab.log(0).contains("it changes the geometry"),
        "{}",
        lab.log(0)
    );
    lab.slurm("scontrol", &["update", "NodeName=n1", "State=RESUME"])
        .ended(0);
    // Another job is there, even if it does nothing yet.
    let other = lab.submit(USERS[1], &[], "sleep 300");
    lab.await_state(other, &["RUNNING"]);
    let refused = lab.submit(USERS[0], &["--no-requeue", "--constraint=sevenths"], "true");
    lab.await_state(refused, &["CANCELLED"]);
    let line = format!("job {other} is on the node, too");
    assert!(lab.log(0).contains(&line), "{}", lab.log(0));
    lab.slurm("scancel", &[&other.to_string()]).ended(0);
    lab.slurm("scontrol", &["update", "NodeName=n1", "State=RESUME"])
        .ended(0);
    lab.until("the node is idle", || {
        lab.node_state(0).0.starts_with("IDLE")
    });
    let alone = lab.submit(USERS[0], &["--constraint=sevenths"], "true");
    assert_eq!(
        lab.await_state(alone, &["COMPLETED", "FAILED"]),
        "COMPLETED"
    );
    assert_eq!(lab.device(0, "0.6")["state"], "ready");
}
