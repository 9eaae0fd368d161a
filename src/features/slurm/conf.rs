//! Slurm's configuration files on this node, as far as devices are concerned.

use std::path::{Path, PathBuf};

use thiserror::Error;

use super::health::nonempty_variable;
use super::host_list::{expand_host_list, includes_node, is_list};
use super::lines::{ConfFile, ConfLine};
use crate::error::{Result, usage_error};
use crate::failure::Failure;
use crate::host::{Host, slurm_node_name, to_printable};

/// An entry for a generic resource: a GPU, or the shards of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gres {
    /// The value of `Type`.
    pub kind: Option<String>,
    /// Its device files, several for a GPU of `MultipleFiles`.
    pub files: Vec<String>,
    pub count: u64,
}

/// The entries of gres.conf for one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GresConf {
    /// The GPUs with device files, in Slurm's order. Slurm gives no job a GPU without a file.
    pub gpus: Vec<Gres>,
    /// The lines of shards. Slurm uses them only on nodes with shards in slurm.conf.
    pub shards: Vec<Gres>,
    /// True if Slurm is to detect GPUs itself.
    pub detects: bool,
}

/// A configuration that cannot be understood.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GresError {
    #[error("{place}: cannot read {word:?}")]
    Malformed { place: String, word: String },
    /// Slurm orders GPUs by the types in that line.
    #[error(
        "gres.conf has GPUs of several types, and no line of slurm.conf lists this node with Gres=, so the order of \
         its GPUs is unknown"
    )]
    NoNodeLine,
}

impl Failure for GresError {
    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Malformed { .. } => "run `mig-mps slurm gres` to print the lines of this node",
            Self::NoNodeLine => {
                "run `mig-mps slurm gres` to print the Gres= for the line of this node in slurm.conf"
            }
        };
        Some(hint.to_owned())
    }
}

impl GresConf {
    /// Reads the entries for a node.
    pub fn parse(text: &str, node: &str) -> Result<Self, GresError> {
        Self::from_lines(&ConfFile::parse_lines(text), node)
    }

    /// Reads the entries for a node. A line that is not about a GPU or shards of it cannot fail.
    fn from_lines(lines: &[ConfLine], node: &str) -> Result<Self, GresError> {
        let mut conf = Self::default();
        let (mut detection, mut own_detection) = (None, None);
        // Slurm puts the lines that begin with NodeName behind those that begin with Name.
        let mut of_nodes = Vec::new();
        for line in lines {
            match line.first_pair() {
                Some(("autodetect", value)) => detection = Some(value),
                Some(("name", name)) => conf.add_line(line, name)?,
                Some(("nodename", nodes)) if includes_node(nodes, node) => {
                    own_detection = line.value("autodetect").or(own_detection);
                    of_nodes.extend(line.value("name").map(|name| (line, name)));
                }
                _ => {}
            }
        }
        for (line, name) in of_nodes {
            conf.add_line(line, name)?;
        }
        let detection = own_detection.or(detection);
        conf.detects = detection.is_some_and(|value| !value.eq_ignore_ascii_case("off"));
        Ok(conf)
    }

    /// Adds the entries of a line about the resource of this name.
    fn add_line(&mut self, line: &ConfLine, name: &str) -> Result<(), GresError> {
        let is_gpu = name.eq_ignore_ascii_case("gpu");
        if !is_gpu && !name.eq_ignore_ascii_case("shard") {
            return Ok(());
        }
        let malformed = |word: &str| GresError::Malformed {
            place: line.place.clone(),
            word: word.to_owned(),
        };
        if let Some(word) = &line.stray {
            return Err(malformed(word));
        }
        let gres = |files, count| Gres {
            kind: line.value("type").map(str::to_owned),
            files,
            count,
        };
        let files = line.value("file").or(line.value("files"));
        let is_one = files.is_none();
        let list = files.or(line.value("multiplefiles")).unwrap_or_default();
        let files = expand_host_list(list).ok_or_else(|| malformed(list))?;
        if !is_gpu {
            let count = line.value("count").unwrap_or("1");
            let count = parse_count(count).ok_or_else(|| malformed(count))?;
            self.shards.push(gres(files, count));
        } else if !is_one {
            let entries = files.into_iter().map(|file| gres(vec![file], 1));
            self.gpus.extend(entries);
        } else if !files.is_empty() {
            self.gpus.push(gres(files, 1));
        }
        Ok(())
    }
}

/// Reads a number with one of Slurm's suffixes: `4`, `4K`, `4KiB` or `4kB`.
fn parse_count(text: &str) -> Option<u64> {
    let digits = text.trim_start_matches(|sign: char| sign.is_ascii_digit());
    let (number, suffix) = text.split_at(text.len() - digits.len());
    let suffix = suffix.to_ascii_lowercase();
    let (letter, base) = match suffix.split_at_checked(1) {
        None => return number.parse().ok(),
        Some((letter, "" | "ib")) => (letter, 1024u64),
        Some((letter, "b")) => (letter, 1000),
        Some(_) => return None,
    };
    let power = "kmgtp".find(letter)? + 1;
    let number: u64 = number.parse().ok()?;
    number.checked_mul(base.checked_pow(u32::try_from(power).ok()?)?)
}

/// Returns the `Gres=` of a node's line in slurm.conf, its own or that of `NodeName=DEFAULT` before it.
pub fn gres_of_node(text: &str, node: &str) -> Option<String> {
    node_gres(&ConfFile::parse_lines(text), node)
}

fn node_gres(lines: &[ConfLine], node: &str) -> Option<String> {
    let mut default = None;
    let mut found = None;
    for line in lines {
        let Some(("nodename", nodes)) = line.first_pair() else {
            continue;
        };
        let gres = line.value("gres");
        if nodes.eq_ignore_ascii_case("default") {
            default = gres.or(default);
        } else if includes_node(nodes, node) {
            found = gres.or(default);
        }
    }
    found.map(str::to_owned)
}

/// Returns the resources in `gpu:a100:4,nvme:1600,gpu:h100:2(S:0,1)`, each with what is in parentheses behind it.
pub(super) fn split_resources(node_gres: &str) -> Vec<&str> {
    let mut is_inside = false;
    let parts = node_gres.split(move |sign| {
        match sign {
            '(' => is_inside = true,
            ')' => is_inside = false,
            _ => {}
        }
        sign == ',' && !is_inside
    });
    parts.filter(|part| !part.is_empty()).collect()
}

/// Returns how many of a resource a node's `Gres=` has of each type; of no type if it names none.
pub(super) fn counts_of<'g>(node_gres: &'g str, name: &str) -> Vec<(Option<&'g str>, u64)> {
    let mut counts: Vec<(Option<&str>, u64)> = Vec::new();
    for resource in split_resources(node_gres) {
        // Slurm reads no further, and forgets what it has counted.
        if resource == name {
            counts.retain(|(kind, _)| kind.is_some());
            counts.push((None, 1));
            break;
        }
        let resource = resource.rsplit_once('(').map_or(resource, |(it, _)| it);
        let Some((_, rest)) = resource.split_once(':').filter(|(first, _)| *first == name) else {
            continue;
        };
        let (kinds, last) = rest.rsplit_once(':').unwrap_or(("", rest));
        let (kinds, count) = if last.starts_with(|sign: char| sign.is_ascii_digit()) {
            let Some(count) = parse_count(last) else {
                break;
            };
            (kinds, count)
        } else {
            (rest, 1)
        };
        let mut kinds = kinds
            .split(':')
            .filter(|kind| !kind.is_empty() && !kind.eq_ignore_ascii_case("no_consume"))
            .peekable();
        if kinds.peek().is_none() {
            add_count(&mut counts, None, count);
        }
        for kind in kinds {
            add_count(&mut counts, Some(kind), count);
        }
    }
    if counts.iter().any(|(kind, _)| kind.is_some()) {
        counts.retain(|(kind, _)| kind.is_some());
    }
    counts
}

/// Adds to the number of a type.
fn add_count<'g>(counts: &mut Vec<(Option<&'g str>, u64)>, kind: Option<&'g str>, count: u64) {
    match counts.iter_mut().find(|(of, _)| *of == kind) {
        Some((_, sum)) => *sum = sum.saturating_add(count),
        None => counts.push((kind, count)),
    }
}

/// Returns the GPUs that Slurm gives to jobs, in the order in which it numbers them: by the types of the node's `Gres=`, as
/// many as it counts, and within a type as in gres.conf.
///
/// # Errors
/// There are several types, and `node_gres` is not known.
pub fn numbered(mut gpus: Vec<Gres>, node_gres: Option<&str>) -> Result<Vec<Gres>, GresError> {
    let Some(node_gres) = node_gres else {
        let is_ordered = gpus.iter().all(|gpu| gpu.kind == gpus[0].kind);
        return if is_ordered {
            Ok(gpus)
        } else {
            Err(GresError::NoNodeLine)
        };
    };
    let mut ordered = Vec::with_capacity(gpus.len());
    for (kind, count) in counts_of(node_gres, "gpu") {
        let is_of_kind =
            |gpu: &mut Gres| kind.is_none_or(|kind| is_same_type(gpu.kind.as_deref(), kind));
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        ordered.extend(gpus.extract_if(.., is_of_kind).take(count));
    }
    Ok(ordered)
}

/// True if Slurm takes both for one type.
pub(super) fn is_same_type(kind: Option<&str>, other: &str) -> bool {
    kind.is_some_and(|kind| kind.eq_ignore_ascii_case(other))
}

/// The directories of slurm.conf, in the order in which slurmd finds one; the second is that of a node that gets its
/// configuration from the controller.
const DIRECTORIES: [&str; 2] = ["/etc/slurm", "/run/slurm/conf"];

/// The files of one directory.
pub struct SlurmFiles {
    pub(super) slurm_conf: PathBuf,
    pub(super) gres_conf: PathBuf,
    /// True if programs find them without a variable.
    pub(super) is_usual: bool,
}

impl SlurmFiles {
    /// Finds the files: by the variable that Slurm sets for its prologs, or where slurmd finds them.
    pub(super) fn find(host: &Host) -> Self {
        let [first, second] = DIRECTORIES.map(|dir| host.under_root(dir).join("slurm.conf"));
        let slurm_conf = match nonempty_variable("SLURM_CONF") {
            Some(set) => PathBuf::from(set),
            None if second.exists() && !first.exists() => second.clone(),
            None => first.clone(),
        };
        Self {
            is_usual: [first, second].contains(&slurm_conf),
            ..Self::at(&slurm_conf)
        }
    }

    /// Returns this slurm.conf, and the gres.conf beside it.
    pub fn at(slurm_conf: &Path) -> Self {
        Self {
            slurm_conf: slurm_conf.to_owned(),
            gres_conf: slurm_conf.with_file_name("gres.conf"),
            is_usual: false,
        }
    }

    /// Reads the entries of gres.conf for a node.
    pub fn gres_of(&self, node: &str) -> Result<GresConf> {
        let ConfFile { lines, unread, .. } = ConfFile::load_with_includes(&self.gres_conf)?;
        match unread {
            // It may have GPUs, and these their numbers.
            Some(error) => Err(error),
            None => Ok(GresConf::from_lines(&lines, node)?),
        }
    }

    /// Returns the `Gres=` of the node's line in slurm.conf, with the files that it includes.
    pub fn node_gres(&self, node: &str) -> Result<Option<String>> {
        let ConfFile { lines, unread, .. } = ConfFile::load_with_includes(&self.slurm_conf)?;
        match (node_gres(&lines, node), unread) {
            (None, Some(error)) => Err(error),
            (gres, _) => Ok(gres),
        }
    }

    /// True if the cluster has shards.
    pub(super) fn has_shards(&self) -> Result<bool> {
        let conf = ConfFile::load_with_includes(&self.slurm_conf)?;
        Ok(conf.gres_types().any(|kind| kind == "shard"))
    }

    /// Returns the lines of slurm.conf with the files that it includes; none if there is no slurm.conf yet.
    pub(super) fn slurm_conf_lines(&self) -> Result<ConfFile> {
        if self.slurm_conf.exists() {
            ConfFile::load_with_includes(&self.slurm_conf)
        } else {
            Ok(ConfFile::default())
        }
    }
}

/// Returns the name of this node in Slurm, which is one name or a list of names.
pub(super) fn node_name() -> Result<String> {
    check_name(slurm_node_name())
}

/// Refuses what would be no name, or no list of names, in Slurm's files.
pub(super) fn check_name(name: String) -> Result<String> {
    let is_fit = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.[,]".contains(c));
    if is_fit && is_list(&name) {
        return Ok(name);
    }
    let shown = to_printable(&name);
    let what = format!("\"{shown}\" cannot be the name of a Slurm node");
    Err(usage_error(what)
        .with_hint("use letters, digits, \"-\", \"_\" and \".\", and ranges such as n[1-3,07] for a list, as in \
         NodeName= of slurm.conf"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus(conf: &GresConf) -> Vec<String> {
        conf.gpus
            .iter()
            .map(|gpu| format!("{:?} {}", gpu.kind.as_deref(), gpu.files.join(" ")))
            .collect()
    }

    const CONF: &str = "
# devices
NodeName=n[1-2] Name=gpu Type=1g.10gb \\
    MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66,/dev/nvidia-caps/nvidia-cap67 # 0.0
nodename=n1 name=gpu type=h200 file=/dev/nvidia[1-2]
NodeName=n3 Name=gpu File=/dev/nvidia0
Name=shard Count=4 File=/dev/nvidia1
Name=nic File=/dev/ib0
";

    #[test]
    fn a_node_has_its_own_lines_and_those_without_a_name() {
        let conf = GresConf::parse(CONF, "n1").unwrap();
        assert_eq!(
            gpus(&conf),
            [
                "Some(\"1g.10gb\") /dev/nvidia0 /dev/nvidia-caps/nvidia-cap66 /dev/nvidia-caps/nvidia-cap67",
                "Some(\"h200\") /dev/nvidia1",
                "Some(\"h200\") /dev/nvidia2",
            ]
        );
        assert_eq!((conf.shards.len(), conf.shards[0].count), (1, 4));
        assert!(!conf.detects);
        let conf = GresConf::parse(CONF, "n3").unwrap();
        assert_eq!(gpus(&conf), ["None /dev/nvidia0"]);
    }

    #[test]
    fn a_mistake_is_an_error_where_it_concerns_a_gpu_or_shards() {
        let conf = |text: &str| GresConf::parse(text, "n1");
        for line in [
            "Name=gpu File=/dev/nvidia[0-",
            "Name=gpu and",
            "NodeName=n1 Name=GPU Type=a stray File=/dev/nvidia0",
            "Name=shard Count=many",
        ] {
            assert!(conf(line).is_err(), "{line}");
            let of_others = [
                ("=gpu", "=nic"),
                ("=GPU", "=nic"),
                ("=shard", "=nic"),
                ("=n1", "=n2"),
            ];
            let line = of_others
                .iter()
                .fold(line.to_owned(), |line, (ours, others)| {
                    line.replace(ours, others)
                });
            assert!(conf(&line).is_ok(), "{line}");
        }
        let error = conf("\nName=gpu File=/dev/nvidia[0-").unwrap_err();
        assert_eq!(error.to_string(), "line 2: cannot read \"/dev/nvidia[0-\"");
        for line in [
            "Name=bandwidth Type=lustre Count=4G Flags=CountOnly",
            "Name=nic Count=-1 stray",
            "NodeName=n[2- Name=gpu File=/dev/nvidia[0-",
            "nonsense",
            "=",
        ] {
            assert_eq!(conf(line), Ok(GresConf::default()), "{line}");
        }
    }

    #[test]
    fn a_nodes_own_detection_is_above_that_of_all() {
        let detects = |text| GresConf::parse(text, "n1").unwrap().detects;
        assert!(detects("AutoDetect=nvml"));
        assert!(!detects("NodeName=n2 AutoDetect=nvml"));
        assert!(!detects("Autodetect=OFF"));
        assert!(!detects(
            "AutoDetect=nvml\nNodeName=n[1-2] AutoDetect=off Name=gpu File=/dev/nvidia0"
        ));
        assert!(detects("NodeName=n1 AutoDetect=nvml\nAutoDetect=off"));
        assert!(!detects("Name=gpu AutoDetect=nvml File=/dev/nvidia0"));
    }

    #[test]
    fn the_gres_of_a_node_is_found() {
        let conf = "ClusterName=c\nPrologFlags=Alloc\nNodeName=DEFAULT Gres=gpu:1g:7\nNodeName=n[1-2] CPUs=2\n\
                    NodeName = n3 CPUs=2 Reason=\"bad fan\" Gres=gpu:h200:1,shard:4 # why\nPartitionName=p Nodes=n[1-3]";
        assert_eq!(gres_of_node(conf, "n2").unwrap(), "gpu:1g:7");
        assert_eq!(gres_of_node(conf, "n3").unwrap(), "gpu:h200:1,shard:4");
        assert_eq!(gres_of_node(conf, "n4"), None);
    }

    #[test]
    fn a_count_has_slurms_suffixes() {
        for (text, count) in [
            ("4", Some(4)),
            ("4K", Some(4096)),
            ("4kib", Some(4096)),
            ("4KB", Some(4000)),
            ("4G", Some(4 << 30)),
            ("4P", Some(4 << 50)),
            ("4E", None),
            ("4 K", None),
            ("K", None),
            ("", None),
            ("99999999P", None),
        ] {
            assert_eq!(parse_count(text), count, "{text}");
        }
    }

    fn order(node_gres: Option<&str>) -> String {
        let all = [
            ("3g", "cap5"),
            ("1g", "cap9"),
            ("1g", "cap2"),
            ("1g", "cap10"),
        ];
        let all = all.map(|(kind, file)| Gres {
            kind: Some(kind.to_owned()),
            files: vec![file.to_owned()],
            count: 1,
        });
        match numbered(all.into(), node_gres) {
            Ok(gpus) => {
                let files = gpus.iter().map(|gpu| gpu.files[0].as_str());
                files.collect::<Vec<_>>().join(" ")
            }
            Err(error) => error.to_string(),
        }
    }

    /// As Slurm 22.05.8 numbered them, with these very lines.
    #[test]
    fn types_come_as_in_the_line_of_the_node_and_devices_as_in_gres_conf() {
        for (node_gres, expected) in [
            ("gpu:1g:3,gpu:3g:1,shard:8", "cap9 cap2 cap10 cap5"),
            ("gpu:3g:1(S:0),gpu:1g:3(S:0,1)", "cap5 cap9 cap2 cap10"),
            ("gpu:1G:2,gpu:7g:9,nvme:4G,gpu:3g:1", "cap9 cap2 cap5"),
            ("gpu:4", "cap5 cap9 cap2 cap10"),
            ("gpu(S:0),gpu", "cap5"),
            ("gpu(S:0)", ""),
            ("gpu:3,gpu", "cap5"),
            ("gpu:1g:1,gpu:3g:no_consume:1,gpu:1g:1", "cap9 cap2 cap5"),
            ("nvme:4", ""),
        ] {
            assert_eq!(order(Some(node_gres)), expected, "{node_gres}");
        }
    }

    #[test]
    fn an_order_that_is_not_known_is_not_guessed() {
        assert!(order(None).contains("slurm.conf"));
        let one_type = |file: &str| Gres {
            kind: None,
            files: vec![file.to_owned()],
            count: 1,
        };
        let gpus = vec![one_type("b"), one_type("a")];
        assert_eq!(numbered(gpus.clone(), None).unwrap(), gpus);
    }
}
