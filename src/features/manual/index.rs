//! The index of the manual: words that people search for and that the manual has under another name.

/// A place in the manual, or a command that helps.
#[derive(Debug)]
pub(super) struct IndexEntry {
    /// The command line without `mig-mps`.
    ours: &'static str,
    /// The title of a section, or what the command shows.
    pub(super) what: &'static str,
}

impl IndexEntry {
    pub(super) fn command(&self) -> String {
        format!("mig-mps {}", self.ours)
    }
}

const fn at(ours: &'static str, what: &'static str) -> IndexEntry {
    IndexEntry { ours, what }
}

/// Words in small letters, with blanks in the place of dashes, and their places.
const INDEX: &[(&[&str], &[IndexEntry])] = &[
    (
        &[
            "oom",
            "out of memory",
            "cuda out of memory",
            "oomkilled",
            "vram",
            "memory limit",
        ],
        &[
            at(
                "explain 2",
                "CUDA error 2: why no memory is left, and the remedy",
            ),
            at(
                "status --help",
                "shows the memory of each client, and the limits of devices",
            ),
            at("help running", "Limits of one program"),
            at("help profile", "MPS settings"),
        ],
    ),
    (
        &[
            "joint",
            "several gpus",
            "multi gpu",
            "multiple gpus",
            "tensor parallel",
            "ddp",
            "nvlink",
        ],
        &[
            at("help running", "Programs on several GPUs"),
            at("help profile", "Joint devices"),
        ],
    ),
    (
        &[
            "email",
            "teach",
            "semester",
            "course",
            "lecture",
            "professor",
        ],
        &[
            at("help recipes", "A class of twenty"),
            at("help recipes", "What to tell your users"),
        ],
    ),
    (
        &["maintenance", "reboot", "autostart"],
        &[
            at("help recipes", "One GPU out of service"),
            at("help slurm", "One device out of service"),
            at("help upgrades", "The driver or the kernel, with a reboot"),
            at("help install", "From a package"),
            at("systemd --help", "applies a profile at every boot"),
        ],
    ),
    (
        &["outside", "outside mps", "steal"],
        &[
            at(
                "status --help",
                "shows programs outside MPS, with user and memory",
            ),
            at("help running", "Programs that leave MPS"),
        ],
    ),
    (
        &["drain", "later", "at night", "schedule"],
        &[
            at("help changing", "The flags of every change"),
            at("help recipes", "Tonight at two"),
        ],
    ),
    (
        &[
            "mpi", "mpirun", "openmpi", "open mpi", "hpc", "rank", "ranks",
        ],
        &[
            at("help running", "Choosing a device"),
            at("help running", "A daemon for one program"),
            at("help slurm", "Jobs that start private daemons"),
        ],
    ),
    (
        &["apptainer", "singularity", "enroot", "pyxis"],
        &[
            at("help containers", "Apptainer and Singularity"),
            at("help containers", "Enroot, pyxis and other engines"),
        ],
    ),
    (
        &["buy", "purchase", "how many gpus", "capacity"],
        &[
            at(
                "advise --help",
                "which GPUs and layout programs with measured figures need",
            ),
            at("init --help", "asks what is wanted, and writes a profile"),
            at("help sizing", "The smallest hardware for programs"),
        ],
    ),
    (
        &[
            "quota",
            "quotas",
            "resource quota",
            "resourcequota",
            "fair share",
            "fairness",
            "limits",
        ],
        &[
            at("help profile", "MPS settings"),
            at("help running", "Limits of one program"),
            at(
                "set --help",
                "changes share, memory and threads of a device",
            ),
            at("help kubernetes", "Quotas"),
        ],
    ),
    (
        &["stop", "own program", "own programs"],
        &[
            at("kill --help", "ends the work of clients"),
            at("down --help", "stops the daemons of devices"),
            at("help changing", "Ending clients"),
            at("help changing", "Taking devices down"),
        ],
    ),
    (
        &["audit"],
        &[
            at("help security", "Auditing"),
            at("help monitoring", "Who uses a device"),
        ],
    ),
    (
        &["rollback", "roll back"],
        &[
            at("help recipes", "Roll back"),
            at("help changing", "Which profile was applied, and going back"),
            at("help changing", "When something fails"),
        ],
    ),
    (
        &["drift"],
        &[
            at("plan --help", "shows what differs from a profile"),
            at("help status", "States"),
            at("help monitoring", "Alerts"),
        ],
    ),
    (
        &["alert", "alerts", "alerting"],
        &[
            at("metrics --help", "prints metrics and alerts for Prometheus"),
            at("help monitoring", "Alerts"),
        ],
    ),
    (
        &["hog", "greedy", "abuse", "abuser"],
        &[
            at("status --by-user", "shows who uses how much"),
            at("kill --help", "ends a client"),
            at("help changing", "Ending clients"),
            at("help troubleshooting", "A job is slow"),
            at("help profile", "MPS settings"),
        ],
    ),
    (
        &[
            "mig manager",
            "nvidia mig manager",
            "migmanager",
            "dcgm",
            "dcgmi",
            "dcgm exporter",
            "nvidia dcgm",
            "persistenced",
            "nvidia persistenced",
            "persistence mode",
        ],
        &[
            at("help other-tools", "Alongside NVIDIA's tools"),
            at(
                "doctor --help",
                "finds tools that manage the same GPUs, and what holds them",
            ),
            at("help changing", "MIG mode"),
        ],
    ),
    (
        &["nvidia smi", "smi"],
        &[
            at("help other-tools", "Alongside NVIDIA's tools"),
            at(
                "list --help",
                "shows GPUs and MIG devices, and with --offers what each GPU offers",
            ),
            at(
                "status --help",
                "shows who computes where, and how much memory is in use",
            ),
        ],
    ),
    (
        &[
            "gpu operator",
            "nvidia gpu operator",
            "device plugin",
            "nvidia device plugin",
            "dra",
        ],
        &[
            at("help kubernetes", "Alongside NVIDIA's tools"),
            at("help other-tools", "Alongside NVIDIA's tools"),
        ],
    ),
    (
        &[
            "pytorch",
            "torch",
            "tensorflow",
            "jax",
            "jupyter",
            "jupyterlab",
            "jupyterhub",
            "notebook",
            "python",
            "conda",
            "vllm",
            "ollama",
        ],
        &[
            at("help recipes", "What to tell your users"),
            at("help recipes", "A login default"),
            at("help running", "Programs that read numbers"),
        ],
    ),
];

/// Returns the places that the index has for a word; none if it does not have the word.
pub(super) fn places_of(word: &str) -> &'static [IndexEntry] {
    let word = word.trim().to_lowercase().replace(['-', '_'], " ");
    let entry = INDEX
        .iter()
        .find(|(words, _)| words.contains(&word.as_str()));
    entry.map_or(&[], |(_, places)| places)
}

#[cfg(test)]
mod tests {
    use super::super::TOPICS;
    use super::*;

    #[test]
    fn the_places_exist() {
        for place in INDEX.iter().flat_map(|(_, places)| *places) {
            let Some(name) = place.ours.strip_prefix("help ") else {
                continue;
            };
            let topic = TOPICS.iter().find(|topic| topic.name == name).unwrap();
            let title = format!("## {}\n", place.what);
            let is_there = topic.text.contains(&title) || topic.about == place.what;
            assert!(is_there, "{place:?}");
        }
    }

    #[test]
    fn each_word_has_one_entry() {
        let mut words: Vec<&str> = INDEX
            .iter()
            .flat_map(|(words, _)| *words)
            .copied()
            .collect();
        let all = words.len();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), all);
        let topics = TOPICS.iter().map(|topic| topic.name.replace('-', " "));
        for name in topics {
            assert!(!words.contains(&name.as_str()), "{name} is a topic");
        }
    }
}
