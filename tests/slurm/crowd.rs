//! Sixty jobs of three users on three nodes with 42 devices, while daemons die, a device hangs and a GPU is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::{Command, Stdio};

use simnode::node::Event;

use crate::slurm::lab::{Lab, Setup, USERS, can_start};

/// Seven devices on each GPU, which jobs share.
const SEVENTHS: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { all = true }
devices = [ { profile = "1g", count = 7 } ]
"#;

const MIXED: &str = r#"
[mps]
serve = "all"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g" }, { profile = "2g" }, { profile = "1g", count = 2 } ]
"#;

/// Each device serves one user at a time: another one waits in `cuInit`.
const WHOLE: &str = "
[[gpu]]
select = { all = true }
mig = false
";

/// The number of jobs that share a device of the first node.
const SHARDS: u32 = 4;

/// The program of a job: it notes its process id, and runs for so many seconds.
fn program(seconds: &str) -> String {
    format!("cuda-app run {seconds} & echo $! > $out/$SLURM_JOB_ID.pid; wait $!")
}

/// A program on a device, by the event log of its node.
#[derive(Debug)]
struct Client {
    job: u32,
    device: String,
    in_mps: bool,
    from: u64,
    to: u64,
}

/// The programs of the jobs on a node.
fn clients(lab: &Lab, node: usize, jobs: &BTreeMap<u32, u32>) -> Vec<Client> {
    let events = lab.nodes[node].events();
    let started = events.iter().filter(|event| event.what == "client start");
    let of_jobs = started.filter_map(|start: &Event| {
        let job = *jobs.get(&start.pid)?;
        let mut later = events.iter().filter(|event| event.time > start.time);
        let end = later.find(|event| {
            event.pid == start.pid && matches!(event.what.as_str(), "client leaves" | "client end")
        });
        Some(Client {
            job,
            device: start.detail["device"].as_str().unwrap().to_owned(),
            in_mps: start.detail["mps"] == true,
            from: start.time,
            to: end.map_or(u64::MAX, |end| end.time),
        })
    });
    of_jobs.collect()
}

/// A client that dies while it connects, after which the device takes nobody.
fn wedge(lab: &Lab, node: usize, name: &str) {
    let simulated = &lab.nodes[node];
    let pipe = simulated.run_dir().join("by-name").join(name).join("pipe");
    let program = simulated.program("cuda-app");
    let mut starved = Command::new("sh");
    starved
        .args(["-c", "ulimit -n 24; exec \"$0\""])
        .arg(program.get_program())
        .env_clear()
        .envs(simulated.env())
        .env("CUDA_MPS_PIPE_DIRECTORY", pipe)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let _ = starved.status().unwrap();
    lab.until("the device hangs", || {
        let mut events = simulated.events().into_iter();
        events.any(|event| event.what == "device wedged")
    });
}

#[test]
fn sixty_jobs_run_in_mps_on_their_own_devices() {
    if !can_start("sixty_jobs_run_in_mps_on_their_own_devices") {
        return;
    }
    let nodes = vec![
        Setup::new("a100-80gb", 2, SEVENTHS).shards(SHARDS),
        Setup::new("a100-80gb", 4, MIXED),
        Setup::new("h200", 12, WHOLE),
    ];
    let lab = Lab::start(nodes, "HealthCheckInterval=4\nHealthCheckNodeState=ANY");
    let mut jobs = Vec::new();
    let submit = |count: usize, gres: &str, seconds: &str, jobs: &mut Vec<u32>| {
        for nth in 0..count {
            let user = USERS[nth % USERS.len()];
            let options = [format!("--gres={gres}"), "--no-requeue".to_owned()];
            let options = options.each_ref().map(String::as_str);
            jobs.push(lab.submit(user, &options, &program(seconds)));
        }
    };
    // On each GPU of the third node, and on all but the 2g of the second.
    submit(12, "gpu:nvidia_h200:1", "3", &mut jobs);
    let on_whole_gpus = jobs.clone();
    submit(4, "gpu:3g.40gb:1", "1", &mut jobs);
    submit(12, "shard:1", "1", &mut jobs);
    // Meanwhile, on devices that no job has.
    let daemon = &lab.device(1, "1.2")["daemon_pid"];
    let killed = Command::new("kill")
        .args(["-9", &daemon.to_string()])
        .status();
    assert!(killed.unwrap().success());
    wedge(&lab, 1, "2.2");
    submit(8, "gpu:2g.20gb:1", "1", &mut jobs);
    submit(12, "gpu:1g.10gb:1", "1", &mut jobs);
    submit(12, "shard:2", "1", &mut jobs);
    assert_eq!(jobs.len(), 60);
    // A GPU falls off the bus under a job.
    let broken = 5;
    let uuid = lab.device(2, "5")["uuid"].as_str().unwrap().to_owned();
    lab.until("a program runs on the GPU that is to break", || {
        let mut events = lab.nodes[2].events().into_iter();
        events.any(|event| event.what == "client start" && event.detail["device"] == uuid.as_str())
    });
    lab.nodes[2].node().lose_gpu(broken).unwrap();
    lab.until("the node with the broken GPU is drained", || {
        lab.is_drained(2)
    });
    // By the loss of the GPU, or by a check of the device that was under way.
    let (_, reason) = lab.node_state(2);
    assert!(reason.starts_with("mig-mps: "), "{reason}");
    assert!(
        reason.contains("GPU 5") || reason.contains(" 5: "),
        "{reason}"
    );
    lab.until("all jobs are over", || {
        lab.slurm("squeue", &["-h"]).stdout.is_empty()
    });

    let pids = jobs.iter().filter_map(|&job| {
        let pid = fs::read_to_string(lab.path(&format!("out/{job}.pid"))).ok()?;
        Some((pid.trim().parse().ok()?, job))
    });
    let pids: BTreeMap<u32, u32> = pids.collect();
    let on_nodes: Vec<Vec<Client>> = (0..3).map(|node| clients(&lab, node, &pids)).collect();
    for client in on_nodes.iter().flatten() {
        assert!(client.in_mps, "{client:?}");
    }
    // All others finish: only the job on the broken GPU may not.
    let lost = on_nodes[2].iter().filter(|client| client.device == uuid);
    let lost: BTreeSet<u32> = lost.map(|client| client.job).collect();
    assert!(lost.iter().all(|job| on_whole_gpus.contains(job)));
    for job in jobs.iter().filter(|job| !lost.contains(job)) {
        assert_eq!(
            lab.state(*job),
            "COMPLETED",
            "job {job}: {}",
            lab.output(*job)
        );
        assert_eq!(
            on_nodes
                .iter()
                .flatten()
                .filter(|client| client.job == *job)
                .count(),
            1
        );
    }
    // Nobody shares a device, except as shards of the first node.
    for (node, clients) in on_nodes.iter().enumerate() {
        for client in clients {
            let beside = clients.iter().filter(|other| {
                let meets = other.from < client.to && client.from < other.to;
                other.device == client.device && meets
            });
            let most = if node == 0 { SHARDS as usize } else { 1 };
            assert!(beside.count() <= most, "node {node}: {client:?}");
        }
    }
    for node in 0..2 {
        assert!(!lab.is_drained(node), "{:?}", lab.node_state(node));
    }
    // Both devices of the second node were healed, by the prologs of jobs or by the health check.
    for name in ["1.2", "2.2"] {
        assert_eq!(lab.device(1, name)["state"], "ready", "{name}");
    }
}
