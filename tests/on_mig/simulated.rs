//! The same run on simulated nodes: it is the run itself that is tested here.

use std::time::Duration;

use simnode::node::{ComputeMode, Gpu, Platform, State};
use testkit::TestNode;

use crate::judge::{Request, Verdict, judge};
use crate::node::Node;
use crate::process::{Notes, Running};
use crate::transcript::Transcript;

/// Two GPUs of a model. The second has MIG on and an instance, and nobody may touch it.
pub(crate) fn node(model: &str) -> TestNode {
    let node = TestNode::builder().gpu(model, 2).build();
    change(&node, |state| {
        state.set_mig_mode(1, true);
        let profile = smallest(state);
        make(state, 1, profile, &[0]);
    });
    node
}

fn change(node: &TestNode, change: impl FnOnce(&mut State)) {
    node.node().update(change).unwrap();
}

/// The ID of the smallest plain profile.
fn smallest(state: &State) -> u32 {
    let profiles = state.gpus[0].catalog().profiles.iter();
    let plain = profiles.filter(|profile| profile.attributes.is_empty());
    plain
        .min_by_key(|profile| (profile.placements.size, profile.sm))
        .unwrap()
        .id
}

/// A GPU instance with these compute instances.
fn make(state: &mut State, gpu: usize, profile: u32, compute: &[u32]) {
    let gi = state.create_gpu_instance(gpu, profile, None).unwrap();
    for profile in compute {
        state
            .create_compute_instance(gpu, gi, *profile, None)
            .unwrap();
    }
}

/// MIG on with somebody's instances: a small one, one without a compute instance, and one with two.
pub(crate) fn partition(node: &TestNode) {
    change(node, |state| {
        state.set_mig_mode(0, true);
        let small = smallest(state);
        let profiles = &state.gpus[0].catalog().profiles;
        let split = profiles
            .iter()
            .find(|profile| profile.slices == 2 && profile.attributes.is_empty())
            .unwrap()
            .id;
        make(state, 0, split, &[0, 0]);
        make(state, 0, small, &[0]);
        make(state, 0, small, &[]);
    });
}

fn request(node: &TestNode, rows: &str) -> Request {
    Request {
        gpu: node.node().state().unwrap().gpus[0].uuid.clone(),
        may_destroy: false,
        rows: rows.into(),
    }
}

fn run(node: &TestNode, request: &Request) -> (Verdict, String) {
    let transcript = Transcript::in_memory();
    let verdict = judge(&Node::simulated(node), request, &transcript);
    (verdict, transcript.text())
}

/// Somebody's program on a device, without MPS.
fn program_on(node: &TestNode, device: &str) -> Running {
    let mut program = node.program("cuda-app");
    program
        .env("CUDA_VISIBLE_DEVICES", device)
        .env("CUDA_MPS_PIPE_DIRECTORY", node.dir().join("none"));
    let mut program = Running::start(&mut program, &Notes::default());
    assert!(program.line().ends_with(" mps no"));
    program
}

/// The run must find no difference from what is expected, and leave everything as it was.
fn succeeds(model: &str, is_partitioned: bool) {
    let node = node(model);
    let mut request = request(&node, "mig.");
    if is_partitioned {
        partition(&node);
        request.may_destroy = true;
    }
    let before = node.node().state().unwrap().gpus.clone();
    let beside = program_on(&node, &before[1].instances[0].compute[0].uuid);
    let (verdict, text) = run(&node, &request);
    assert_eq!(beside.end().status, 0);
    assert_eq!(verdict.refused, None);
    assert!(
        verdict.failures.is_empty(),
        "{:#?}\n{text}",
        verdict.failures
    );
    assert_eq!(verdict.remarks, [""; 0]);
    assert!(
        text.contains("settings and instances: none"),
        "{model}: {text}"
    );
    assert_same(&node, &before);
}

/// Settings and geometry are as before; on the second GPU even the serial numbers, which say that no instance was made again.
#[track_caller]
pub(crate) fn assert_same(node: &TestNode, before: &[Gpu]) {
    let without_serials = |gpus: &[Gpu]| {
        let mut gpus = gpus.to_vec();
        for gi in gpus.iter_mut().flat_map(|gpu| &mut gpu.instances) {
            gi.serial = 0;
            gi.compute.iter_mut().for_each(|ci| ci.serial = 0);
        }
        gpus
    };
    let after = node.node().state().unwrap().gpus.clone();
    assert_eq!(without_serials(&after), without_serials(before));
    assert_eq!(after[1], before[1]);
    assert_eq!(node.node().state().unwrap().live_contexts().count(), 0);
}

/// The run fails, and gives everything back nevertheless.
#[track_caller]
fn fails(node: &TestNode, request: &Request, with: &str) {
    let before = node.node().state().unwrap().gpus.clone();
    let (verdict, text) = run(node, request);
    assert_eq!(verdict.refused, None);
    let failures = verdict.failures.join("\n");
    assert!(failures.contains(with), "{failures}\n{text}");
    assert!(text.contains("settings and instances: none"), "{text}");
    assert_same(node, &before);
}

#[test]
fn what_fails_half_way_is_given_back() {
    for is_partitioned in [false, true] {
        let node = node("a100-80gb");
        let mut request = request(&node, "mig.remake");
        if is_partitioned {
            partition(&node);
            request.may_destroy = true;
        }
        let on = "nvmlDeviceCreateGpuInstanceWithPlacement";
        node.fault(on).nth(3).fails(999).unwrap();
        fails(&node, &request, "ends with 1 instead of 0");
        node.fault(on).nth(3).kills().unwrap();
        fails(&node, &request, "ends with 137 instead of 0");
        node.fault("daemon start").nth(2).kills().unwrap();
        fails(&node, &request, "ends with 137 instead of 0");
    }
}

#[test]
fn a_panic_half_way_is_no_reason_to_keep_the_gpu() {
    let node = node("a30");
    partition(&node);
    let mut request = request(&node, "mig.remake");
    request.may_destroy = true;
    let before = node.node().state().unwrap().gpus.clone();
    let mut simulated = Node::simulated(&node);
    let no_program = node.dir().join("events");
    std::fs::write(&no_program, "").unwrap();
    simulated.cuda_app = Some(no_program);
    let verdict = judge(&simulated, &request, &Transcript::in_memory());
    assert!(
        verdict.failures[0].contains("/cuda-app: Permission denied"),
        "{verdict:#?}"
    );
    assert_same(&node, &before);
}

#[test]
fn without_a_cuda_program_the_rest_is_done() {
    let node = node("a30");
    let mut simulated = Node::simulated(&node);
    simulated.cuda_app = None;
    let transcript = Transcript::in_memory();
    let verdict = judge(&simulated, &request(&node, "mig."), &transcript);
    assert!(verdict.failures.is_empty(), "{verdict:#?}");
    let text = transcript.text();
    for line in [
        "left out: no client, as ON_MIG_CUDA_APP names no program",
        "         there is no CUDA program",
        "held     mig.uuid-again",
    ] {
        assert!(text.contains(line), "{line} is not in {text}");
    }
}

#[test]
fn where_mig_wants_a_reboot_that_is_said() {
    let node = node("a100-80gb");
    change(&node, |state| state.policy.platform = Platform::PassThrough);
    fails(
        &node,
        &request(&node, ""),
        "MIG mode could not be switched on: nothing else was tried",
    );
}

#[test]
fn nobody_is_hurt() {
    let node = node("a100-80gb");
    let request = request(&node, "");
    let changes = || {
        let events = node.events().into_iter();
        events
            .filter(|event| event.what.contains("Set") || event.what.contains("Create"))
            .count()
    };
    let refused = |request: &Request, why: &str| {
        let before = (node.node().state().unwrap().gpus.clone(), changes());
        let (verdict, _) = run(&node, request);
        let refused = verdict.refused.unwrap_or_default();
        assert!(refused.contains(why), "not `{why}` but `{refused}`");
        let after = (node.node().state().unwrap().gpus.clone(), changes());
        assert_eq!(after, before);
    };
    let named = |gpu: &str| Request {
        gpu: gpu.into(),
        ..request.clone()
    };
    refused(&named("GPU-"), "GPU- is the beginning of more than one: ");
    refused(&named("GPU-nobody"), "no GPU here is GPU-nobody: ");

    change(&node, |state| {
        state.gpus[0].compute_mode = ComputeMode::ExclusiveProcess;
    });
    refused(
        &request,
        "GPU 0 has compute mode 3: set it to Default first",
    );
    change(&node, |state| {
        state.gpus[0].compute_mode = ComputeMode::Default;
    });

    let program = program_on(&node, &request.gpu);
    refused(
        &request,
        &format!("GPU 0 is in use by pids [{}]", program.pid()),
    );
    program.end();

    let pipe = node.dir().join("pipe");
    let mut daemon = node.program("nvidia-cuda-mps-control");
    daemon.arg("-d").env("CUDA_MPS_PIPE_DIRECTORY", &pipe);
    assert!(daemon.status().unwrap().success());
    let pid = std::fs::read_to_string(pipe.join("nvidia-cuda-mps-control.pid")).unwrap();
    refused(
        &request,
        &format!("an MPS daemon or server, pid {pid}, may use GPU 0: end it first"),
    );
    let left = simnode::node::processes::end_all(node.dir(), Duration::from_secs(10));
    assert_eq!(left, [0; 0]);

    let profile = node.dir().join("profile.toml");
    std::fs::write(&profile, "[[gpu]]\nselect = { index = [0] }\nmig = false\n").unwrap();
    let profile = profile.to_str().unwrap();
    let mig_mps =
        |args: &[&str]| assert!(node.mig_mps().args(args).output().unwrap().status.success());
    mig_mps(&["up", profile, "--yes"]);
    let (verdict, _) = run(&node, &request);
    assert!(
        verdict
            .refused
            .unwrap()
            .starts_with("GPU 0 is in use by pids ")
    );
    mig_mps(&["down"]);

    partition(&node);
    refused(&request, "ON_MIG_DESTROY_INSTANCES=yes");
}

#[test]
fn an_h200() {
    succeeds("h200-141gb-sxm", false);
}

#[test]
fn a_partitioned_h200() {
    succeeds("h200-141gb-sxm", true);
}

/// Other sizes, and Ampere, which keeps its mode.
#[test]
fn an_a30() {
    succeeds("a30", false);
}

#[test]
fn a_partitioned_a30() {
    succeeds("a30", true);
}
