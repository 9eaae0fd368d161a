//! Words that the command line does not know.

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE};

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
        ("A client without its device", "mig-mps kill 4711"),
        ("A signal that is not sent", "mig-mps kill 0 1 --signal=HUP"),
        ("No setting", "mig-mps set --gpu 0"),
        ("A GPU index that is none", "mig-mps status --gpu x"),
        (
            "An option of another subcommand",
            "mig-mps set 0 --memory 1G",
        ),
        ("An option that resembles none", "mig-mps up --gpu 0 whole"),
        ("A second profile", "mig-mps up balanced inference"),
        ("A program without --", "mig-mps run 0 python"),
        ("A program without a device", "mig-mps run -- python"),
        (
            "Options that exclude each other",
            "mig-mps run --any --by-rank -- python",
        ),
        ("No copy", "mig-mps run -n 0 -- python"),
        (
            "A pattern that is none",
            "mig-mps run --any --product '(' -- python",
        ),
        ("An option without its value", "mig-mps env 0 --format"),
        (
            "A word that a slurm subcommand lacks",
            "mig-mps slurm prologue",
        ),
    ] {
        stage.show(topic, title, line);
    }
}
