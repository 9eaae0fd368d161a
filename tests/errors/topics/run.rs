//! Programs that are not started, and variables that are not printed.

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE};
use testkit::{SMALL, Sim, shell};

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with_profile("h200", 1, WHOLE);
    stage.show(
        topic,
        "A program that is not there",
        "mig-mps run 0 -- no-such-program",
    );
    stage.show(
        topic,
        "A file that is no program",
        "mig-mps run 0 -- /etc/passwd",
    );
    let _ = stage
        .run("mig-mps set 0 active-thread-percentage=50 max-clients=1")
        .ended(0);
    stage.show(
        topic,
        "More than the device allows",
        "mig-mps run 0 --threads 60 -- true",
    );
    stage.show(
        topic,
        "A memory limit of the caller that cannot be read",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=2G,junk mig-mps run 0 -- true",
    );
    stage.show(
        topic,
        "A memory limit of the caller for something that is no device",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=first=2G mig-mps run 0 -- true",
    );
    for (title, code) in [("CUDA fails", 999), ("CUDA sees no device", 100)] {
        stage.sim.node.fault("cuInit").fails(code).unwrap();
        stage.show(topic, title, "mig-mps run 0 -- true");
    }
    stage.sim.node.fault("cuInit").hangs().unwrap();
    stage.show(topic, "CUDA does not return", "mig-mps run 0 -- true");
    stage.show(
        topic,
        "libcuda is not there",
        "MIG_MPS_CUDA_LIBRARY=/no/libcuda.so.1 mig-mps run 0 -- true",
    );
    stage.show(
        topic,
        "Too few open files",
        "ulimit -n 24; mig-mps run 0 -- true",
    );
    stage.show(
        topic,
        "Too few open files for copies",
        "ulimit -n 128; mig-mps run -n 100 -- true",
    );
    stage.show(topic, "No rank", "mig-mps run --by-rank -- true");
    stage.show(
        topic,
        "A rank that is none",
        "SLURM_LOCALID=first mig-mps run --by-rank -- true",
    );
    stage.show(
        topic,
        "The number of ranks is not known",
        "SLURM_LOCALID=2 mig-mps run --by-rank --map block -- true",
    );
    stage.show(
        topic,
        "No device for a rank",
        "SLURM_LOCALID=2 mig-mps run --by-rank --profile 3g -- true",
    );
    faulty(topic);
    full(topic);
    hung(topic);
    others(topic);
    outside(topic);
}

fn faulty(topic: &mut Topic) {
    let stage = Stage::with_profile("h200", 1, WHOLE);
    let sim: &Sim = &stage.sim;
    let mut faulty = sim.app("0", &["hold", "--fault"]);
    faulty.wait_up();
    while sim.device("0")["state"] != "fault" {
        std::thread::yield_now();
    }
    stage.show(topic, "A GPU fault", "mig-mps run 0 -- true");
    faulty.finish();
    let _ = stage.run("mig-mps restart 0 --force --yes").ended(0);
    let sys = sim.node.dir().join("root/sys");
    std::fs::remove_dir_all(sys).unwrap();
    stage.show(
        topic,
        "The CPUs near the GPU are not known",
        "mig-mps run 0 --bind near -- true",
    );
    let pipe = std::fs::canonicalize(sim.pipe_link("0")).unwrap();
    let closed = pipe.parent().unwrap();
    std::fs::set_permissions(closed, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    stage.show_raw(
        topic,
        "A directory keeps the user out",
        "mig-mps run 0 -- true",
        crate::errors::stage::as_nobody,
    );
    stage.show_raw(
        topic,
        "A directory keeps the user out of all daemons",
        "mig-mps verify",
        crate::errors::stage::as_nobody,
    );
    let daemon = sim.device("0")["daemon_pid"].clone();
    testkit::stop(&daemon);
    stage.show(topic, "The daemon does not answer", "mig-mps run 0 -- true");
}

fn full(topic: &mut Topic) {
    let stage = Stage::with_profile("h200", 1, &format!("[mps]\nmax-clients = 1\n{WHOLE}"));
    let client = stage.sim.client("0");
    stage.show(
        topic,
        "The device has all the clients it takes",
        "mig-mps run 0 -- true",
    );
    stage.show(
        topic,
        "The device is not free in time",
        "mig-mps run 0 --wait 0.3 -- true",
    );
    stage.show(topic, "No device is free", "mig-mps run --any -- true");
    stage.show_raw(
        topic,
        "Another user's turn",
        "mig-mps run 0 -- true",
        crate::errors::stage::as_nobody,
    );
    client.finish();
}

fn hung(topic: &mut Topic) {
    let stage = Stage::with_profile("h200", 1, WHOLE);
    let sim: &Sim = &stage.sim;
    let starve = stage.run(
        "ulimit -n 24; CUDA_MPS_PIPE_DIRECTORY=$MIG_MPS_RUN_DIR/by-name/0/pipe cuda-app run 0",
    );
    assert!(starve.stdout.contains("err 46"), "{starve:?}");
    while sim.happened("device wedged") == 0 {
        std::thread::yield_now();
    }
    stage.show(topic, "The device hangs", "mig-mps run 0 -- true");
    let _ = stage.run("mig-mps restart 0 --force --yes").ended(0);
    let daemon = sim.device("0")["daemon_pid"].clone();
    shell(format!("kill -9 {daemon}")).ended(0);
    while testkit::is_alive(&daemon) {
        std::thread::yield_now();
    }
    stage.show(topic, "The daemon is dead", "mig-mps run 0 -- true");
}

fn others(topic: &mut Topic) {
    let profile = "[[gpu]]\nselect = { index = [0] }\nmig = false\nmps = { serve = \"user:daemon\" }\n\
         [[gpu]]\nselect = { index = [1] }\nmig = false\nmps = { serve = \"group:daemon\" }\n";
    let stage = Stage::with_profile("h200", 2, profile);
    for device in ["0", "1"] {
        let line = format!("mig-mps run {device} -- true");
        stage.show_raw(
            topic,
            "A device of another user or group",
            &line,
            crate::errors::stage::as_nobody,
        );
    }
}

fn outside(topic: &mut Topic) {
    let stage = Stage::with_profile("a100-80gb", 1, SMALL);
    let line =
        "mig-mps run 0.2 --require-mps -- env CUDA_MPS_PIPE_DIRECTORY=/nowhere cuda-app run 600";
    stage.show(topic, "A program leaves MPS", line);
    let unshare = "unshare -U mig-mps run 0.2 -- true";
    stage.show(topic, "A user without a name", unshare);
}
