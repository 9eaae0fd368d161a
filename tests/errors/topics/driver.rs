//! The driver and the GPUs.

use crate::book::Topic;
use crate::common::SMALL;
use crate::stage::Stage;

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.profile(SMALL);
    stage.show(
        topic,
        "There is no NVML library",
        "MIG_MPS_NVML_LIBRARY=/no/libnvidia-ml.so.1 mig-mps list",
    );
    stage.show(
        topic,
        "Another library in its place",
        "MIG_MPS_NVML_LIBRARY=libm.so.6 mig-mps list",
    );
    for code in [9, 18, 15, 4, 999] {
        stage
            .sim
            .node
            .fault("nvmlInit_v2")
            .every()
            .fails(code)
            .unwrap();
        stage.show(
            topic,
            &format!("NVML begins with error {code}"),
            "mig-mps list",
        );
    }
    let stage = Stage::a100();
    stage.profile(SMALL);
    stage.sim.node.fault("nvmlInit_v2").every().hangs().unwrap();
    stage.show(topic, "The driver hangs", "mig-mps list");
    stage.show(topic, "The driver hangs: up", "mig-mps up profile.toml");
}
