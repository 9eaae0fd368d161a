//! An owner's run, from the built file to the signal that ends it.

use std::process::{Command, Stdio};

use testkit::needs_root;

use crate::node::Node;
use crate::process::{eventually, signal};
use crate::simulated::{assert_same, node, partition};

/// The test as an owner starts it, from the built file alone. It takes the simulated node for a real one, as its environment says
/// where programs and library are.
#[test]
fn an_owner_runs_it_and_interrupts_it() {
    needs_root!();
    let node = node("a30");
    partition(&node);
    let simulated = Node::simulated(&node);
    let before = node.node().state().unwrap().gpus.clone();
    let transcript = node.dir().join("on-mig.txt");
    let start = |consent: &str| {
        let mut owner = Command::new(std::env::current_exe().unwrap());
        owner
            .args(["a_real_gpu", "--exact", "--nocapture"])
            .env_remove("SIMNODE")
            .env("PATH", node.dir().join("bin"))
            .env("MIG_MPS_NVML_LIBRARY", &simulated.nvml)
            .env("ON_MIG_GPU", &before[0].uuid[..12])
            .env("ON_MIG_DESTROY_INSTANCES", consent)
            .env("ON_MIG_MIG_MPS", &simulated.mig_mps)
            .env("ON_MIG_CUDA_APP", simulated.cuda_app.as_ref().unwrap())
            .env("ON_MIG_ROWS", "mig.")
            .env("ON_MIG_TRANSCRIPT", &transcript)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        owner.spawn().unwrap()
    };
    let output = start("").wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("refused, nothing was changed"), "{said}");

    let output = start("yes").wait_with_output().unwrap();
    let text = std::fs::read_to_string(&transcript).unwrap();
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("0 things are not as expected, after "),
        "{text}"
    );
    assert_same(&node, &before);

    std::fs::remove_file(&transcript).unwrap();
    let mut owner = start("yes");
    eventually("something is made", || {
        let text = std::fs::read_to_string(&transcript).unwrap_or_default();
        assert!(owner.try_wait().unwrap().is_none(), "{text}");
        text.contains("$ mig-mps up")
    });
    signal(owner.id(), rustix::process::Signal::INT);
    let output = owner.wait_with_output().unwrap();
    assert!(!output.status.success());
    let text = std::fs::read_to_string(&transcript).unwrap();
    assert!(text.contains("not as expected: interrupted"), "{text}");
    assert_same(&node, &before);
}
