//! Profiles that cannot be read, or ask for what there is not.

use crate::errors::book::Topic;
use crate::errors::stage::Stage;

fn gpu(rest: &str) -> String {
    format!("[[gpu]]\nselect = {{ all = true }}\n{rest}\n")
}

fn device(entry: &str) -> String {
    gpu(&format!("devices = [\n  {entry},\n]"))
}

fn selecting(selector: &str) -> String {
    format!("[[gpu]]\nselect = {{ {selector} }}\nmig = false\n")
}

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with("a100-80gb", 2);
    stage.show(
        topic,
        "A profile that is not there",
        "mig-mps up no-such.toml",
    );
    for (title, profile) in [
        ("Malformed TOML", "name = \"x\"\n[[gpu]\n".to_owned()),
        (
            "A key that does not exist",
            device(r#"{ name = "a", profil = "3g" }"#),
        ),
        ("A key that is missing", device(r#"{ name = "a" }"#)),
        ("A value of the wrong kind", selecting("index = [\"x\"]")),
        (
            "A text that is no MIG profile",
            device(r#"{ profile = "3G.40GB" }"#),
        ),
        (
            "A MIG profile of another GPU model",
            device(r#"{ profile = "3g.71gb" }"#),
        ),
        (
            "A placement that does not exist",
            device(r#"{ profile = "3g", at = 2 }"#),
        ),
        (
            "A compute instance that does not fit",
            device(r#"{ profile = "4g", compute = ["3c", "1c"] }"#),
        ),
        ("A GPU that is not there", selecting("index = [7]")),
        ("A selector that selects nothing", selecting("index = []")),
        ("A prefix of several UUIDs", selecting("uuid = \"GPU-\"")),
        (
            "A block that is never reached",
            format!("{}\n{}", gpu("mig = false"), selecting("index = [0]")),
        ),
        (
            "A name for two devices of one entry",
            device(r#"{ name = "a", profile = "1g", count = 2 }"#),
        ),
        (
            "A name for two devices",
            device(r#"{ name = "a", profile = "1g" }, { name = "b", profile = "1g" }"#),
        ),
        (
            "A setting out of range",
            device(r#"{ profile = "1g", mps = { active-thread-percentage = 0 } }"#),
        ),
        (
            "A word that serve does not know",
            device(r#"{ profile = "1g", mps = { serve = "everybody" } }"#),
        ),
        (
            "A user that root cannot serve",
            device(r#"{ profile = "1g", mps = { serve = "self" } }"#),
        ),
    ] {
        stage.up(topic, title, &profile);
    }
    stage.show(
        topic,
        "A model of which too little is known",
        "mig-mps check profile.toml --gpu ax800",
    );
    stage.file(
        "models.toml",
        &format!("models = [\"a100\", \"b999\"]\n{}", gpu("mig = false")),
    );
    stage.show(
        topic,
        "Models that mean several or do not exist",
        "mig-mps check models.toml",
    );
}
