//! `init`, `import`, `export`, `check`, `man`.

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE};

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with("a30", 2);
    stage.show(
        topic,
        "init: more jobs than fit",
        "mig-mps init --gpu a100-80gb --jobs 3 --memory 30G --yes",
    );
    stage.show(
        topic,
        "init: a model that does not exist",
        "mig-mps init --gpu a100-80 --jobs 3 --yes",
    );
    stage.show(
        topic,
        "init: no driver",
        "MIG_MPS_NVML_LIBRARY=/no/lib mig-mps init --jobs 2 --yes",
    );
    stage.show(topic, "init: no terminal", "mig-mps init");
    stage.show(
        topic,
        "init: a file that cannot be written",
        "mig-mps init --jobs 2 --yes /no/layout.toml",
    );
    let hidden = Stage::with_profile("a30", 1, "[[gpu]]\nselect = { all = true }\ndevices = []\n");
    let node = &hidden.sim.node;
    node.fault("nvmlDeviceGetGpuInstances").fails(4).unwrap();
    hidden.show(topic, "export: nothing to say", "mig-mps export");
    stage.show(
        topic,
        "import: a file that is not there",
        "mig-mps import no-such.yaml",
    );
    stage.file(
        "config.yaml",
        "version: v1\nmig-configs:\n  all:\n    - devices: [2]\n      mig-enabled: \"true\"\n",
    );
    stage.show(
        topic,
        "import: a value of the wrong kind",
        "mig-mps import config.yaml",
    );
    stage.file("config.yaml", "version: v1\nmig-configs:\n  off:\n    - devices: all\n      mig-enabled: false\n  on:\n    - devices: all\n      mig-enabled: true\n      mig-devices: { 1g.6gb: 4 }\n");
    stage.show(
        topic,
        "import: the file is already there",
        "mig-mps import config.yaml --config on --output config.yaml",
    );
    stage.show(
        topic,
        "import: a directory that is not there",
        "mig-mps import config.yaml --config on --output /no/profile",
    );
    stage.show(
        topic,
        "up: a configuration of mig-parted",
        "mig-mps up config.yaml",
    );
    stage.profile(WHOLE);
    stage.show(topic, "import: a profile", "mig-mps import profile.toml");
    stage.show(
        topic,
        "check: a model for which there is no block",
        "mig-mps check profile.toml --gpu b999",
    );
    stage.show(
        topic,
        "man: a directory that cannot be made",
        "mig-mps man --dir /etc/passwd/man",
    );
}
