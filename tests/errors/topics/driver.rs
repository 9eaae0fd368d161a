//! The driver and the GPUs.

use testkit::without_pidfd;

use crate::errors::book::Topic;
use crate::errors::stage::Stage;

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.show(
        topic,
        "There is no NVML library",
        "MIG_MPS_NVML_LIBRARY=/no/libnvidia-ml.so.1 mig-mps list",
    );
    stage.show(
        topic,
        "A library that is not NVML",
        "MIG_MPS_NVML_LIBRARY=/lib/x86_64-linux-gnu/libm.so.6 mig-mps list",
    );
    stage.show_raw(
        topic,
        "A kernel before Linux 5.3",
        "mig-mps list",
        without_pidfd,
    );
    for code in [9, 18, 15, 4, 999] {
        stage.sim.node.node().clear_faults().unwrap();
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
}
