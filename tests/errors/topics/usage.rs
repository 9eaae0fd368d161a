//! Words that the command line does not know.

use crate::book::Topic;
use crate::stage::{Stage, WHOLE};

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with_profile("h200", 1, WHOLE);
    for (title, line) in [
        ("A subcommand that does not exist", "mig-mps staus"),
        ("An option that does not exist", "mig-mps status --jsn"),
        ("No argument", "mig-mps up"),
        ("A topic that does not exist", "mig-mps help diagnoses"),
        (
            "A problem that does not exist",
            "mig-mps doctor --explain nothing",
        ),
        ("A duration that is none", "mig-mps down --drain soon"),
        (
            "status --watch without a terminal",
            "mig-mps status --watch",
        ),
        (
            "A column that does not exist",
            "mig-mps status --columns nam",
        ),
        ("A number of lines that is none", "mig-mps logs 0 -n some"),
        ("A number that is no pid", "mig-mps kill 0 0"),
        ("A signal that is not sent", "mig-mps kill 0 1 --signal=HUP"),
    ] {
        stage.show(topic, title, line);
    }
}
