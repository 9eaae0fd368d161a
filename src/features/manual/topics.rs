//! The table of contents of the manual.

/// A part of the manual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Start,
    Use,
    Operate,
    Reference,
}

impl Part {
    pub const ALL: [Self; 4] = [Self::Start, Self::Use, Self::Operate, Self::Reference];

    /// Its title in the list of topics.
    pub fn title(self) -> &'static str {
        match self {
            Self::Start => "Topics to start with",
            Self::Use => "Topics on using devices",
            Self::Operate => "Topics on operating a node",
            Self::Reference => "Topics for reference",
        }
    }
}

/// A chapter of the manual.
#[derive(Debug)]
pub struct Topic {
    /// The word that `mig-mps help` takes.
    pub name: &'static str,
    pub part: Part,
    pub about: &'static str,
    pub text: &'static str,
    /// The commands whose help refers to it.
    pub commands: &'static [&'static str],
}

macro_rules! topic {
    ($part:ident, $name:literal, $about:literal, $commands:expr) => {
        Topic {
            name: $name,
            part: Part::$part,
            about: $about,
            text: include_str!(concat!("../../manual/", $name, ".md")),
            commands: &$commands,
        }
    };
}

/// Every topic, in the order in which people need them.
pub const TOPICS: [Topic; 23] = [
    topic!(
        Start,
        "install",
        "Requirements, packages, and how to remove mig-mps",
        ["man", "completions"]
    ),
    topic!(
        Start,
        "concepts",
        "MIG, MPS and mig-mps in brief, and a glossary",
        ["list"]
    ),
    topic!(
        Start,
        "tutorial",
        "One hour, from a simulated node to a real GPU",
        ["init"]
    ),
    topic!(
        Use,
        "running",
        "How programs use devices",
        ["run", "env", "verify"]
    ),
    topic!(
        Use,
        "containers",
        "Devices in containers: Docker, Podman, Apptainer",
        ["run", "cdi", "env"]
    ),
    topic!(
        Use,
        "kubernetes",
        "Shares of devices for pods, by a device plugin of the kubelet",
        ["run", "systemd", "env"]
    ),
    topic!(Use, "slurm", "Devices for Slurm jobs", ["run", "slurm"]),
    topic!(
        Use,
        "jobs",
        "Jobs of PBS, LSF, Grid Engine, HTCondor and others",
        ["job"]
    ),
    topic!(
        Use,
        "sizing",
        "What MPS is worth to a program, and the smallest hardware",
        ["compare", "advise", "init"]
    ),
    topic!(
        Operate,
        "profile",
        "The profile file, and whether it fits your GPUs",
        ["init", "plan", "up", "check", "set"]
    ),
    topic!(
        Operate,
        "changing",
        "How a node is changed, and who is disrupted",
        [
            "plan", "up", "down", "set", "restart", "start", "kill", "profiles"
        ]
    ),
    topic!(
        Operate,
        "boot",
        "What happens at boot, and healing",
        ["up", "systemd", "heal"]
    ),
    topic!(
        Operate,
        "monitoring",
        "Metrics for Prometheus, and alerts",
        ["systemd", "metrics"]
    ),
    topic!(
        Operate,
        "upgrades",
        "Upgrades of mig-mps, the driver and the kernel",
        ["systemd", "down"]
    ),
    topic!(
        Operate,
        "recipes",
        "A class, a mail to users, a login default, roll back, Ansible",
        ["down", "profiles"]
    ),
    topic!(
        Operate,
        "troubleshooting",
        "Problems and remedies, frequent questions, and logs",
        [
            "up", "status", "logs", "doctor", "explain", "restart", "kill", "verify"
        ]
    ),
    topic!(
        Reference,
        "status",
        "States of devices, and the output of status",
        ["status", "start"]
    ),
    topic!(
        Reference,
        "checks",
        "Checks of doctor, and errors of CUDA and NVML",
        ["doctor", "explain", "status"]
    ),
    topic!(
        Reference,
        "interfaces",
        "JSON, exit statuses, environment and files, and what is stable",
        ["list", "status", "logs", "plan", "schema"]
    ),
    topic!(
        Reference,
        "drivers",
        "What each driver and each GPU model allows",
        ["list", "check"]
    ),
    topic!(
        Reference,
        "security",
        "What users of a device can do to each other and to root",
        ["up", "run", "kill", "down"]
    ),
    topic!(
        Reference,
        "evidence",
        "What was tested where, and a self-test of your GPUs",
        ["selftest"]
    ),
    topic!(
        Reference,
        "other-tools",
        "Comparison with other tools, mig-parted, NVIDIA's tools",
        ["import", "export"]
    ),
];

/// A word for a chapter, or for a section of one: most were topics in earlier versions.
#[derive(Debug)]
pub struct Alias {
    pub name: &'static str,
    /// The topic that it stands for.
    pub topic: &'static str,
    /// The title of the section; `None` for the whole chapter.
    pub section: Option<&'static str>,
}

const fn alias(name: &'static str, topic: &'static str, section: Option<&'static str>) -> Alias {
    Alias {
        name,
        topic,
        section,
    }
}

/// Other words that `mig-mps help` takes.
pub const ALIASES: [Alias; 19] = [
    alias(
        "advise",
        "sizing",
        Some("The smallest hardware for programs"),
    ),
    alias("auditing", "security", Some("Auditing")),
    alias("checking", "profile", Some("Checking profiles")),
    alias("clients", "changing", Some("Ending clients")),
    alias("comparing", "sizing", Some("What MPS is worth")),
    alias("daemon-logs", "troubleshooting", Some("Logs")),
    alias("diagnosis", "checks", None),
    alias("environment", "interfaces", Some("Environment and files")),
    alias("exit-status", "interfaces", Some("Exit statuses")),
    alias("faq", "troubleshooting", Some("Frequent questions")),
    alias("glossary", "concepts", Some("Glossary")),
    alias("files", "interfaces", Some("Environment and files")),
    alias("hardware", "evidence", None),
    alias("json", "interfaces", Some("JSON for programs")),
    alias("mig-parted", "other-tools", Some("mig-parted")),
    alias("selftest", "evidence", Some("Testing a node's own GPUs")),
    alias("stability", "interfaces", Some("Stability")),
    alias("start", "tutorial", Some("First steps")),
    alias("states", "status", None),
];

#[cfg(test)]
mod tests {
    use super::super::text::section;
    use super::*;

    #[test]
    fn the_sections_of_other_words_exist() {
        for alias in &ALIASES {
            let topic = TOPICS.iter().find(|topic| topic.name == alias.topic);
            let text = topic.unwrap().text;
            let is_there = alias
                .section
                .is_none_or(|title| section(text, title).is_some());
            assert!(is_there, "{alias:?}");
            assert!(TOPICS.iter().all(|topic| topic.name != alias.name));
        }
    }

    /// A list of the topics shows each part once.
    #[test]
    fn the_topics_of_a_part_follow_each_other() {
        assert!(TOPICS.is_sorted_by_key(|topic| topic.part as u8));
    }
}
