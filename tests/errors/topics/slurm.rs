//! `mig-mps slurm`.

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE, as_nobody};

const TASK: &str = "SLURM_CONF=slurm.conf SLURMD_NODENAME=n1 SLURM_JOB_ID=7 SLURM_JOB_UID=0";

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with("h200", 1);
    stage.show(topic, "No device has a daemon", "mig-mps slurm gres");
    stage.profile(WHOLE);
    let _ = stage.run("mig-mps up profile.toml").ended(0);
    stage.show(
        topic,
        "A name that no node has",
        "mig-mps slurm gres --node 'n 1'",
    );
    stage.show(topic, "Not run by Slurm", "mig-mps slurm prolog");
    stage.show(
        topic,
        "A variable that cannot be read",
        "SLURM_JOB_ID=seven mig-mps slurm epilog",
    );
    stage.show_raw(
        topic,
        "A health check by a plain user",
        "mig-mps slurm health",
        as_nobody,
    );
    let task = |more: &str| format!("{TASK} {more} mig-mps slurm task-prolog");
    stage.show(
        topic,
        "A GPU without a number",
        &task("SLURM_GPUS_ON_NODE=1"),
    );
    let number = task("SLURM_JOB_GPUS=0");
    stage.show(topic, "No gres.conf", &number);
    let entry = "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia0\n";
    for (title, gres, slurm) in [
        (
            "A line of gres.conf that cannot be read",
            "NodeName=n1 Name=gpu nonsense\n",
            "",
        ),
        ("gres.conf includes a file", "Include more.conf\n", ""),
        (
            "gres.conf leaves the GPUs to Slurm",
            "AutoDetect=nvml\n",
            "",
        ),
        (
            "Several types, and no line of the node",
            "NodeName=n1 Name=gpu Type=a File=/dev/nvidia0\nNodeName=n1 Name=gpu Type=b File=/dev/nvidia1\n",
            "",
        ),
        (
            "A type that slurm.conf lacks",
            "NodeName=n1 Name=gpu Type=a File=/dev/nvidia0\nNodeName=n1 Name=gpu Type=b File=/dev/nvidia1\n",
            "NodeName=n1 Gres=gpu:a:1\n",
        ),
        ("slurm.conf includes itself", entry, "Include slurm.conf\n"),
        (
            "A file that slurm.conf includes is not there",
            entry,
            "Include nodes.conf\n",
        ),
        (
            "More GPUs than gres.conf has",
            "NodeName=n2 Name=gpu File=/dev/nvidia0\n",
            "",
        ),
        (
            "gres.conf has a file of no device",
            "NodeName=n1 Name=gpu Type=h200 File=/dev/nvidia7\n",
            "",
        ),
    ] {
        stage.file("gres.conf", gres);
        stage.file("slurm.conf", slurm);
        stage.show(topic, title, &number);
    }
    stage.show(
        topic,
        "A device that no daemon serves",
        &task("SLURM_JOB_GPUS=0 CUDA_VISIBLE_DEVICES=GPU-0"),
    );
    for feature in ["a", "b"] {
        stage.file(&format!("{feature}.toml"), WHOLE);
    }
    let prolog = "SLURM_JOB_GPUS=0 SLURM_JOB_CONSTRAINTS='a&b' mig-mps slurm prolog --profile-from-feature=.";
    stage.show(
        topic,
        "Features of two profiles",
        &format!("{TASK} {prolog}"),
    );
    without_a_controller(topic, &stage);
    capabilities(topic);
}

/// `slurm health` where Slurm cannot be asked.
fn without_a_controller(topic: &mut Topic, stage: &Stage) {
    stage.show(
        topic,
        "There is no scontrol",
        "PATH=${PATH%%:*} mig-mps slurm health --resume",
    );
    let failing = stage.sim.program_script(
        "scontrol",
        "echo 'slurm_load_node error: Unable to contact slurm controller' >&2; exit 1",
    );
    let path = format!(
        "{}:{}",
        failing.parent().unwrap().display(),
        stage.path().display()
    );
    stage.show_raw(
        topic,
        "scontrol fails",
        "mig-mps slurm health --resume",
        |command| {
            command.env("PATH", &path);
        },
    );
}

/// The files of MIG devices.
fn capabilities(topic: &mut Topic) {
    let stage = Stage::with_profile("a100-80gb", 1, testkit::SMALL);
    let table = stage.run("find root -name 'mig-minors'").ended(0).stdout;
    let table = stage.sim.node.dir().join(table.trim());
    std::fs::write(&table, "").unwrap();
    stage.show(
        topic,
        "The driver's table lacks the device",
        "mig-mps slurm gres",
    );
    std::fs::remove_file(&table).unwrap();
    stage.show(
        topic,
        "The driver's table is not there",
        "mig-mps slurm gres",
    );
}
