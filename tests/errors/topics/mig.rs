//! MIG mode and instances.

use simnode::node::Platform;

use crate::errors::book::Topic;
use crate::errors::stage::Stage;
use testkit::SMALL;

/// As nvidia-smi answers.
const IN_USE: &str = "echo 'GPU 00000000:07:00.0 is currently in use by another process.'; exit 1";

const CREATE: &str = "nvmlDeviceCreateGpuInstanceWithPlacement";

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.profile(SMALL);
    let holder = stage.sim.node.holder(&[0]);
    stage.show(topic, "A process holds the GPU", "mig-mps up profile.toml");
    holder.finish();
    stage.sim.node.service("nvidia-dcgm.service");
    stage.show(
        topic,
        "A monitoring service holds the GPU",
        "mig-mps up profile.toml",
    );
    let stop = "mig-mps up profile.toml --yes --stop-holders";
    for (title, fault) in [
        ("systemd does not stop the service", "systemctl stop"),
        (
            "systemd does not start the service again",
            "systemctl start",
        ),
    ] {
        stage.sim.node.fault(fault).fails(1).unwrap();
        stage.show(topic, title, stop);
    }
    let stage = Stage::with("h200", 1);
    stage.profile(SMALL);
    let holder = stage.sim.node.holder(&[0]);
    stage.show(
        topic,
        "A process holds a GPU that needs no reset",
        "mig-mps up profile.toml",
    );
    holder.finish();
    services(topic);
    failures(topic);
    resets(topic);
    unread(topic);
}

fn unread(topic: &mut Topic) {
    let stage = Stage::with_profile("a100-80gb", 1, SMALL);
    let placements = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
    let fault = stage.sim.node.fault(placements);
    fault.every().fails(12).unwrap();
    stage.show(
        topic,
        "A GPU to clear cannot be read",
        "mig-mps down --destroy-mig --yes --progress none",
    );
}

fn services(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.profile(SMALL);
    stage.sim.node.service("nvidia-dcgm.service");
    let stop = "mig-mps up profile.toml --yes --stop-holders";
    let idle = r#"case " $* " in *" stop "*) exit 0;; esac; exec "$real" "$@""#;
    let idle = stage.sim.program_script("systemctl", idle);
    stage.show_with(
        topic,
        "systemctl stop does nothing",
        stop,
        &[("MIG_MPS_SYSTEMCTL", &idle)],
    );
    let absent = std::path::PathBuf::from("/no/systemctl");
    stage.show_with(
        topic,
        "systemctl is not there",
        stop,
        &[("MIG_MPS_SYSTEMCTL", &absent)],
    );
    let node = stage.sim.node.node();
    node.update(|state| state.policy.systemd = false).unwrap();
    stage.show(topic, "systemd does not run", stop);
}

fn failures(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.profile(SMALL);
    stage.sim.node.fault(CREATE).fails(999).unwrap();
    stage.show(
        topic,
        "The driver makes no instance",
        "mig-mps up profile.toml",
    );
    stage
        .sim
        .node
        .fault("nvmlGpuInstanceCreateComputeInstance")
        .fails(999)
        .unwrap();
    stage
        .sim
        .node
        .fault("nvmlGpuInstanceDestroy")
        .every()
        .fails(999)
        .unwrap();
    stage.show(
        topic,
        "An instance is left behind",
        "mig-mps up profile.toml",
    );
    let stage = Stage::a100();
    stage.profile(SMALL);
    stage
        .sim
        .node
        .fault("nvmlSystemGetDriverVersion")
        .nth(5)
        .fails(999)
        .unwrap();
    stage.show(
        topic,
        "The node cannot be read back",
        "mig-mps up profile.toml",
    );
    let stage = Stage::with("h200", 1);
    stage.profile(SMALL);
    stage
        .sim
        .node
        .fault("nvmlDeviceSetMigMode")
        .fails(4)
        .unwrap();
    stage.show(
        topic,
        "The driver refuses MIG mode",
        "mig-mps up profile.toml",
    );
    stage
        .sim
        .node
        .fault("nvmlGpuInstanceCreateComputeInstance")
        .fails(999)
        .unwrap();
    stage
        .sim
        .node
        .fault("nvmlGpuInstanceDestroy")
        .every()
        .fails(19)
        .unwrap();
    stage.show(
        topic,
        "MIG mode cannot be switched back",
        "mig-mps up profile.toml",
    );
}

fn resets(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.profile(SMALL);
    let set = |platform| {
        stage
            .sim
            .node
            .node()
            .update(|state| state.policy.platform = platform)
            .unwrap();
    };
    set(Platform::PassThrough);
    stage.show(
        topic,
        "MIG mode waits for a reset",
        "mig-mps up profile.toml",
    );
    let reset = "mig-mps up profile.toml --reset --yes";
    stage.show(topic, "The GPU cannot be reset", reset);
    let stage = Stage::a100();
    stage.profile(SMALL);
    let update = stage
        .sim
        .node
        .node()
        .update(|state| state.policy.platform = Platform::NoOwnReset);
    update.unwrap();
    let smi = |script: &str| stage.sim.program_script("nvidia-smi", script);
    stage.show_with(
        topic,
        "A process that cannot be seen keeps the GPU from its reset",
        reset,
        &[("MIG_MPS_NVIDIA_SMI", &smi(IN_USE))],
    );
    stage.show_with(
        topic,
        "nvidia-smi says nothing of a reset",
        reset,
        &[("MIG_MPS_NVIDIA_SMI", &smi("echo hello"))],
    );
    let _ = stage.run("mig-mps down --destroy-mig --yes");
    stage.show_with(
        topic,
        "nvidia-smi writes without end",
        reset,
        &[("MIG_MPS_NVIDIA_SMI", &smi("head -c 2000000 /dev/zero"))],
    );
    let none = std::path::PathBuf::from("/no/nvidia-smi");
    stage.show_with(
        topic,
        "nvidia-smi is not there",
        reset,
        &[("MIG_MPS_NVIDIA_SMI", &none)],
    );
    stage.show_raw(topic, "nvidia-smi is not in PATH", reset, |command| {
        command.env_remove("MIG_MPS_NVIDIA_SMI");
        command.env("PATH", stage.path_without(&["nvidia-smi"]));
    });
}
