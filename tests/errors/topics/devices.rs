//! Devices that a command names and that are not there, or several.

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE};
use testkit::SMALL;

pub(crate) fn play(topic: &mut Topic) {
    let empty = Stage::a100();
    empty.show(topic, "No device has a daemon: verify", "mig-mps verify");
    empty.show(topic, "No device has a daemon: cdi", "mig-mps cdi");
    empty.show(topic, "A restart of nothing", "mig-mps restart 0");
    let stage = Stage::with_profile("a100-80gb", 1, SMALL);
    stage.show(topic, "A name that no device has", "mig-mps status trainer");
    stage.show(
        topic,
        "A name that is nearly that of a device",
        "mig-mps restart 0.1",
    );
    stage.show(topic, "A prefix of several devices", "mig-mps logs MIG-");
    stage.show(topic, "A GPU in place of a device", "mig-mps restart 0");
    stage.show(
        topic,
        "A pattern where one device is wanted",
        "mig-mps run '0.*' -- true",
    );
    stage.show(topic, "A GPU that is not there", "mig-mps verify --gpu 3");
    stage.show(topic, "Logs of no device", "mig-mps logs");
    stage.show(topic, "A restart of no device", "mig-mps restart");
    stage.show(
        topic,
        "The logs of two devices at once",
        "mig-mps logs --follow '0.*'",
    );
    let _ = stage.run("rm -r $MIG_MPS_LOG_DIR").ended(0);
    stage.show(topic, "A device whose logs are gone", "mig-mps logs 0.0");
    let _ = stage.run("mig-mps down").ended(0);
    stage.show(topic, "A device without logs", "mig-mps logs 0.0");
    let named = "[[gpu]]\nselect = { all = true }\ndevices = [{ name = \"infer-{n}\", profile = \"1g\", count = 7 }]\n";
    let many = Stage::with_profile("a100-80gb", 2, &named.replace("-{n}", "-{gpu}{n}"));
    many.show(
        topic,
        "The beginning of many names",
        "mig-mps restart infer",
    );
    many.show(
        topic,
        "A name that resembles one of many",
        "mig-mps restart infr-01",
    );
    many.sim.node.node().lose_gpu(1).unwrap();
    many.show(topic, "A device of a lost GPU", "mig-mps restart infer-10");
    let _ = many.run("mig-mps down --gpu 1").ended(0);
    many.show(topic, "A lost GPU", "mig-mps restart --gpu 1");
    let whole = Stage::with_profile("h200", 1, WHOLE);
    let replace =
        r#"sed -i 's/"gpu": "GPU-[^"]*"/"gpu": "GPU-1"/' $MIG_MPS_RUN_DIR/GPU-*/device.json"#;
    let _ = whole.run(replace).ended(0);
    whole.show(
        topic,
        "A name that is recorded for a device of a GPU that is not there",
        "mig-mps up profile.toml",
    );
}
