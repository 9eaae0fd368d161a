//! Plans that are refused, or not agreed to.

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE};
use testkit::{ONE_EACH, SMALL, Sim};

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.up(
        topic,
        "More devices than fit",
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 8 } ]\n",
    );
    stage.profile(SMALL);
    let _ = stage.run("mig-mps up profile.toml").ended(0);
    let client = stage.sim.client("0.0");
    stage.up(topic, "A device in use would have to go", ONE_EACH);
    stage.show(
        topic,
        "A device in use, and force without a terminal",
        "mig-mps up profile.toml --force",
    );
    stage.show(topic, "A daemon with a client is to end", "mig-mps down");
    stage.show(
        topic,
        "The clients have not ended in time",
        "mig-mps down --drain 1 --yes",
    );
    stage.show(
        topic,
        "A restart of a daemon with a client",
        "mig-mps restart 0.0",
    );
    drop(client);
    let _ = stage.run("mig-mps down --destroy-mig --yes").ended(0);
    stage.sim.foreign_instance(0, 0);
    stage.profile("[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n");
    stage.show(
        topic,
        "An instance that another tool has made",
        "mig-mps up profile.toml",
    );
    answers(topic);
}

/// Answers on a terminal.
fn answers(topic: &mut Topic) {
    let stage = Stage::with_profile("h200", 1, WHOLE);
    let sim: &Sim = &stage.sim;
    let client = sim.client("0");
    let ran = sim.answered("restart 0 --force", "n\r");
    topic.add_dialogue(
        "The question is answered with no",
        "mig-mps restart 0 --force",
        &ran,
    );
    let mut dialogue = sim.dialogue("restart 0 --force");
    dialogue.await_text("Go on?");
    let other = sim.client("0");
    dialogue.press("y\r");
    topic.add_dialogue(
        "Another client has come while the question stood",
        "mig-mps restart 0 --force",
        &dialogue.end(),
    );
    drop((client, other));
}
