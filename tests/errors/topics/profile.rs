//! Profiles that cannot be read, or ask for what there is not.

use crate::book::Topic;
use crate::stage::Stage;

fn gpu(rest: &str) -> String {
    format!("[[gpu]]\nselect = {{ all = true }}\n{rest}\n")
}

fn device(entry: &str) -> String {
    gpu(&format!("devices = [\n  {entry},\n]"))
}

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::a100();
    stage.show(topic, "A profile that is not there", "mig-mps up no-such.toml");
    stage.up(topic, "Malformed TOML", "name = \"x\"\n[[gpu]\n");
    stage.up(topic, "A key that does not exist", &device(r#"{ name = "a", profil = "3g" }"#));
}
