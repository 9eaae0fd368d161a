//! The manual: a Markdown file per topic, embedded in the program.

/// A chapter of the manual.
#[derive(Debug)]
pub struct Topic {
    /// The word that `mig-mps help` takes.
    pub name: &'static str,
    pub about: &'static str,
    pub text: &'static str,
    /// The commands whose help refers to it.
    pub commands: &'static [&'static str],
}

macro_rules! topic {
    ($name:literal, $about:literal, $commands:expr) => {
        Topic {
            name: $name,
            about: $about,
            text: include_str!(concat!($name, ".md")),
            commands: &$commands,
        }
    };
}

/// Every topic, in the order of the manual.
pub const TOPICS: [Topic; 12] = [
    topic!(
        "security",
        "What users of a device can do to each other and to root",
        ["up", "down", "restart"]
    ),
    topic!(
        "profile",
        "The profile file: selectors, devices, MPS settings",
        ["plan", "up", "check", "set"]
    ),
    topic!(
        "changing",
        "How a node is changed, and who is disrupted",
        ["plan", "up", "down", "set", "restart"]
    ),
    topic!(
        "states",
        "States of devices, and what status shows",
        ["status", "list"]
    ),
    topic!(
        "clients",
        "How a program uses a device, and how a client is ended",
        ["kill", "status"]
    ),
    topic!(
        "daemon-logs",
        "What the daemons write, and what it means",
        ["logs"]
    ),
    topic!("checking", "Profiles and commands without a GPU", ["check"]),
    topic!(
        "mig-parted",
        "Import from and export to mig-parted",
        ["import", "export"]
    ),
    topic!(
        "hardware",
        "Drivers, models, and what was tried on real GPUs",
        ["list", "check"]
    ),
    topic!("environment", "Environment variables and files", []),
    topic!("exit-status", "Exit statuses", ["plan", "up", "status"]),
    topic!(
        "troubleshooting",
        "What goes wrong, and the remedy",
        ["status", "logs", "restart", "kill"]
    ),
];
