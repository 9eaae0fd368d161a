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
pub const TOPICS: [Topic; 18] = [
    topic!(
        "security",
        "What users of a device can do to each other and to root",
        ["up", "down", "restart"]
    ),
    topic!(
        "profile",
        "The profile file: selectors, devices, MPS settings",
        ["init", "plan", "up", "check", "set"]
    ),
    topic!(
        "changing",
        "How a node is changed, and who is disrupted",
        ["plan", "up", "down", "set", "restart"]
    ),
    topic!(
        "boot",
        "What happens at boot, healing, and fleets",
        ["systemd", "heal"]
    ),
    topic!(
        "monitoring",
        "Metrics for Prometheus, and alerts",
        ["metrics", "status"]
    ),
    topic!(
        "states",
        "States of devices, and what status shows",
        ["status", "list"]
    ),
    topic!(
        "running",
        "How programs use devices",
        ["run", "env", "cdi", "verify", "compare"]
    ),
    topic!("slurm", "Devices for Slurm jobs", ["slurm"]),
    topic!("clients", "How a client is ended", ["kill", "status"]),
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
    topic!(
        "json",
        "JSON for programs, and its schemas",
        ["list", "status", "logs", "plan", "schema"]
    ),
    topic!("environment", "Environment variables and files", []),
    topic!("exit-status", "Exit statuses", ["plan", "up", "status"]),
    topic!(
        "troubleshooting",
        "What goes wrong, and the remedy",
        ["status", "logs", "restart", "kill"]
    ),
    topic!(
        "diagnosis",
        "Checks that doctor makes, with their ids",
        ["doctor", "status"]
    ),
];

/// The meaning of a setting, from the table of the chapter `profile`; empty if it is not there.
pub fn setting_meaning(key: &str) -> String {
    let row = format!("| `{key}` | ");
    let rows = TOPICS.iter().flat_map(|topic| topic.text.lines());
    let meaning = rows
        .filter_map(|line| line.strip_prefix(&row))
        .find_map(|rest| rest.trim_end_matches(" |").rsplit(" | ").next());
    meaning.unwrap_or_default().replace('`', "")
}
