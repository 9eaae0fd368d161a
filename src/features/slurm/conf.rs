//! Slurm's configuration files on this node, as far as devices are concerned, and lists such as `n[1-3,07],gpu4`, in which
//! they name nodes and device files.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::health::variable;
use crate::error::{CommandError, Context as _, Result, failed, usage};
use crate::failure::Failure;
use crate::host::{Host, host_name, printable, read_configuration};

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
    /// The GPUs, in the order of the file.
    pub gpus: Vec<Gres>,
    pub shards: Vec<Gres>,
    /// True if Slurm is to detect GPUs itself.
    pub detects: bool,
}

/// A configuration that cannot be understood.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum GresError {
    #[error("line {line}: cannot read {word:?}")]
    Malformed { line: usize, word: String },
    #[error("line {0}: Include is not followed: put the lines of this node into gres.conf itself")]
    Include(usize),
    /// Slurm orders GPUs by the types in that line.
    #[error(
        "gres.conf has GPUs of several types, and no line of slurm.conf names this node with Gres=: the order of its GPUs \
         is not known"
    )]
    NoNodeLine,
    #[error("gres.conf has GPUs of type {0}, which the node's Gres= in slurm.conf lacks")]
    NotInNodeLine(String),
}

impl Failure for GresError {
    fn hint(&self) -> Option<String> {
        let hint: Option<&str> = match self {
            Self::Malformed { .. } => Some("mig-mps slurm gres prints the lines of this node"),
            Self::Include(_) => None,
            Self::NoNodeLine | Self::NotInNodeLine(_) => {
                Some("mig-mps slurm gres prints the Gres= for the line of this node in slurm.conf")
            }
        };
        hint.map(str::to_owned)
    }
}

impl GresConf {
    /// Reads the entries for a node.
    pub fn parse(text: &str, node: &str) -> Result<Self, GresError> {
        let mut conf = Self::default();
        for (number, line) in &joined(text) {
            let line = Line::parse(*number, line)?;
            if let Some(nodes) = line.value("nodename")
                && !line.expand(nodes)?.iter().any(|name| name == node)
            {
                continue;
            }
            if let Some(detection) = line.value("autodetect") {
                conf.detects |= !detection.eq_ignore_ascii_case("off");
            }
            let Some(name) = line.value("name") else {
                continue;
            };
            let count = line.value("count").unwrap_or("1");
            let count = count.parse().map_err(|_| line.malformed(count))?;
            match name.to_ascii_lowercase().as_str() {
                "gpu" => match (line.value("multiplefiles"), line.value("file")) {
                    (Some(list), _) => conf.gpus.push(line.gres(line.expand(list)?, 1)),
                    (None, Some(list)) => {
                        for file in line.expand(list)? {
                            conf.gpus.push(line.gres(vec![file], 1));
                        }
                    }
                    (None, None) => conf.gpus.push(line.gres(Vec::new(), count)),
                },
                "shard" => {
                    let files = line.expand(line.value("file").unwrap_or_default())?;
                    conf.shards.push(line.gres(files, count));
                }
                _ => {}
            }
        }
        Ok(conf)
    }
}

/// A line as keys and values.
struct Line<'a> {
    /// The number of its first line.
    number: usize,
    /// The pairs, with keys in lower case.
    pairs: Vec<(String, &'a str)>,
}

impl<'a> Line<'a> {
    fn parse(number: usize, line: &'a str) -> Result<Self, GresError> {
        let mut parsed = Self {
            number,
            pairs: Vec::new(),
        };
        for word in line.split_whitespace() {
            if word.eq_ignore_ascii_case("include") {
                return Err(GresError::Include(number));
            }
            let (key, value) = word.split_once('=').ok_or_else(|| parsed.malformed(word))?;
            let pair = (key.to_ascii_lowercase(), value.trim_matches('"'));
            parsed.pairs.push(pair);
        }
        Ok(parsed)
    }

    fn value(&self, key: &str) -> Option<&'a str> {
        let (_, value) = self.pairs.iter().find(|(name, _)| name == key)?;
        Some(value)
    }

    fn malformed(&self, word: &str) -> GresError {
        GresError::Malformed {
            line: self.number,
            word: word.to_owned(),
        }
    }

    fn expand(&self, list: &str) -> Result<Vec<String>, GresError> {
        expand(list).ok_or_else(|| self.malformed(list))
    }

    fn gres(&self, files: Vec<String>, count: u64) -> Gres {
        Gres {
            kind: self.value("type").map(str::to_owned),
            files,
            count,
        }
    }
}

/// Returns the `Gres=` of a node's line in slurm.conf, its own or that of `NodeName=DEFAULT` before it.
pub fn gres_of_node(text: &str, node: &str) -> Option<String> {
    let mut default = None;
    let mut found = None;
    for (number, line) in &joined(text) {
        let Ok(line) = Line::parse(*number, line) else {
            continue;
        };
        let Some(("nodename", nodes)) = line
            .pairs
            .first()
            .map(|(key, value)| (key.as_str(), *value))
        else {
            continue;
        };
        let gres = line.value("gres").map(str::to_owned);
        if nodes.eq_ignore_ascii_case("default") {
            default = gres.or(default);
        } else if expand(nodes).is_some_and(|names| names.iter().any(|name| name == node)) {
            found = gres.or_else(|| default.clone());
        }
    }
    found
}

/// Returns the values of a key of slurm.conf that stands alone on its line. Slurm takes some keys on several lines.
pub(super) fn settings(text: &str, key: &str) -> Vec<String> {
    let mut values = Vec::new();
    for (number, line) in &joined(text) {
        let Ok(line) = Line::parse(*number, line) else {
            continue;
        };
        match line.pairs.first() {
            Some((name, value)) if name.eq_ignore_ascii_case(key) => {
                values.push((*value).to_owned());
            }
            _ => {}
        }
    }
    values
}

/// Returns the lines without comments, continued lines joined, each with its number.
fn joined(text: &str) -> Vec<(usize, String)> {
    let mut lines: Vec<(usize, String)> = Vec::new();
    let mut goes_on = false;
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let (line, next_goes_on) = match line.strip_suffix('\\') {
            Some(line) => (line, true),
            None => (line, false),
        };
        match lines.last_mut().filter(|_| goes_on) {
            Some((_, begun)) => {
                begun.push(' ');
                begun.push_str(line);
            }
            None => lines.push((at + 1, line.to_owned())),
        }
        goes_on = next_goes_on;
    }
    lines.retain(|(_, line)| !line.trim().is_empty());
    lines
}

/// The most names that a list may stand for.
const MOST: usize = 65_536;

/// The most memory that the names may take.
const MOST_BYTES: usize = 16 << 20;

/// The most digits of a number, leading zeros included.
const LONGEST: usize = 20;

/// Returns the names that a list stands for; `None` if it is malformed, or stands for too many.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for part in split(list) {
        let mut found = vec![String::new()];
        let mut rest = part;
        while let Some((before, after)) = rest.split_once('[') {
            let (ranges, after) = after.split_once(']')?;
            let numbers = numbers(ranges)?;
            let count = found.len().checked_mul(numbers.len())?;
            if count > MOST || count.checked_mul(part.len())? > MOST_BYTES {
                return None;
            }
            found = found
                .iter()
                .flat_map(|name| {
                    numbers
                        .iter()
                        .map(move |number| format!("{name}{before}{number}"))
                })
                .collect();
            rest = after;
        }
        names.extend(found.into_iter().map(|name| name + rest));
        if names.len() > MOST {
            return None;
        }
    }
    Some(names)
}

/// Splits a list at the commas outside brackets.
fn split(list: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    list.split(move |sign| {
        match sign {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ => {}
        }
        sign == ',' && !is_inside
    })
    .filter(|part| !part.is_empty())
}

/// Returns the numbers of `1-3,07`, with their leading zeros.
fn numbers(ranges: &str) -> Option<Vec<String>> {
    let mut numbers = Vec::new();
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (from, to): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        let width = first.len();
        if numbers.len().saturating_add(to.checked_sub(from)?) > MOST || width > LONGEST {
            return None;
        }
        numbers.extend((from..=to).map(|number| format!("{number:0width$}")));
    }
    Some(numbers)
}

/// The directories of slurm.conf, in the order in which slurmd finds one; the second is that of a node that gets its
/// configuration from the controller.
const DIRECTORIES: [&str; 2] = ["/etc/slurm", "/run/slurm/conf"];

/// The most files that include each other.
const DEEPEST: usize = 4;

/// The files of one directory.
pub(super) struct SlurmFiles {
    pub(super) slurm_conf: PathBuf,
    pub(super) gres_conf: PathBuf,
    /// True if programs find them without a variable.
    pub(super) is_usual: bool,
}

impl SlurmFiles {
    /// Finds the files: by the variable that Slurm sets for its prologs, or where slurmd finds them.
    pub(super) fn find(host: &Host) -> Self {
        let [first, second] = DIRECTORIES.map(|dir| host.below(dir).join("slurm.conf"));
        let set = variable("SLURM_CONF").map(PathBuf::from);
        let is_usual = set
            .as_ref()
            .is_none_or(|set| [&first, &second].contains(&set));
        let slurm_conf = match set {
            Some(set) => set,
            None if second.exists() && !first.exists() => second,
            None => first,
        };
        Self {
            gres_conf: slurm_conf.with_file_name("gres.conf"),
            slurm_conf,
            is_usual,
        }
    }

    /// Reads the entries of gres.conf for a node.
    pub(super) fn gres_of(&self, node: &str) -> Result<GresConf> {
        let path = &self.gres_conf;
        let text = read_configuration(path).map_err(|error| unreadable(path, &error))?;
        GresConf::parse(&text, node).context(path.display())
    }

    /// Returns the `Gres=` of the node's line in slurm.conf, with the files that it includes.
    pub(super) fn gres_string_of(&self, node: &str) -> Result<Option<String>> {
        let mut text = String::new();
        self.read_into(&self.slurm_conf, DEEPEST, &mut text)?;
        Ok(gres_of_node(&text, node))
    }

    /// Returns the text of slurm.conf with the files that it includes; nothing if there is no slurm.conf yet.
    pub(super) fn text(&self) -> Result<String> {
        let mut text = String::new();
        if self.slurm_conf.exists() {
            self.read_into(&self.slurm_conf, DEEPEST, &mut text)?;
        }
        Ok(text)
    }

    fn read_into(&self, path: &Path, depth: usize, all: &mut String) -> Result<()> {
        let text = read_configuration(path).map_err(|error| unreadable(path, &error))?;
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let is_include = words
                .next()
                .is_some_and(|word| word.eq_ignore_ascii_case("include"));
            match words.next().filter(|_| is_include) {
                None => {
                    all.push_str(line);
                    all.push('\n');
                }
                Some(_) if depth == 0 => {
                    let shown = path.display();
                    return Err(failed(format_args!(
                        "{shown}: files include each other, or more than {DEEPEST} deep"
                    ))
                    .hint("put the line of this node into slurm.conf itself"));
                }
                Some(file) => {
                    self.read_into(&self.slurm_conf.with_file_name(file), depth - 1, all)?;
                }
            }
        }
        Ok(())
    }
}

fn unreadable(path: &Path, error: &io::Error) -> CommandError {
    failed(format_args!("cannot read {}: {error}", path.display())).hint(
        "slurm.conf is the file in SLURM_CONF or /etc/slurm; gres.conf and what they include are beside it",
    )
}

/// Returns the name of this node in Slurm: that of the slurmd that runs this, or else of the machine.
pub(super) fn node_name() -> Result<String> {
    let name = variable("SLURMD_NODENAME");
    checked_name(name.unwrap_or_else(|| {
        let name = host_name();
        name.split('.').next().unwrap_or_default().to_owned()
    }))
}

/// Refuses what would be no name, or no list of names, in Slurm's files.
pub(super) fn checked_name(name: String) -> Result<String> {
    let is_fit = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.[,]".contains(c));
    if is_fit && !name.is_empty() {
        return Ok(name);
    }
    let shown = printable(&name);
    let what = format!("a node of Slurm cannot be called \"{shown}\"");
    Err(usage(what)
        .hint("a name has letters, digits, \"-\", \"_\" and \".\", as in NodeName= of slurm.conf"))
}

#[cfg(test)]
mod tests {
    use super::{expand, *};

    const CONF: &str = "
# devices
NodeName=n[1-2] Name=gpu Type=1g.10gb \\
    MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66,/dev/nvidia-caps/nvidia-cap67 # 0.0
nodename=n1 name=gpu type=h200 file=/dev/nvidia[1-2]
NodeName=n3 Name=gpu File=/dev/nvidia0
Name=shard Count=4 File=/dev/nvidia1
Name=nic File=/dev/ib0
";

    fn gpus(conf: &GresConf) -> Vec<String> {
        conf.gpus
            .iter()
            .map(|gpu| format!("{:?} {}", gpu.kind.as_deref(), gpu.files.join(" ")))
            .collect()
    }

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
    fn detection_and_mistakes_are_noticed() {
        let conf = |text| GresConf::parse(text, "n1");
        assert!(conf("AutoDetect=nvml").unwrap().detects);
        assert!(!conf("NodeName=n2 AutoDetect=nvml").unwrap().detects);
        assert!(!conf("AutoDetect=off").unwrap().detects);
        assert_eq!(conf("\nInclude more.conf"), Err(GresError::Include(2)));
        let error = conf("Name=gpu File=/dev/nvidia[0-").unwrap_err();
        assert_eq!(error.to_string(), "line 1: cannot read \"/dev/nvidia[0-\"");
        assert!(conf("Name=gpu and").is_err());
    }

    #[test]
    fn the_gres_of_a_node_is_found() {
        let conf = "ClusterName=c\nPrologFlags=Alloc\nNodeName=DEFAULT Gres=gpu:1g:7\nNodeName=n[1-2] CPUs=2\n\
                    NodeName=n3 CPUs=2 Gres=gpu:h200:1,shard:4\nPartitionName=p Nodes=n[1-3]";
        assert_eq!(gres_of_node(conf, "n2").unwrap(), "gpu:1g:7");
        assert_eq!(gres_of_node(conf, "n3").unwrap(), "gpu:h200:1,shard:4");
        assert_eq!(gres_of_node(conf, "n4"), None);
    }

    fn expanded(list: &str) -> String {
        expand(list).map_or_else(|| "refused".to_owned(), |names| names.join(" "))
    }

    #[test]
    fn a_list_is_expanded() {
        assert_eq!(expanded("n1"), "n1");
        assert_eq!(expanded("n[1-3,07],gpu4"), "n1 n2 n3 n07 gpu4");
        assert_eq!(expanded("n[008-010]"), "n008 n009 n010");
        assert_eq!(expanded("r[1-2]n[1-2]x"), "r1n1x r1n2x r2n1x r2n2x");
        assert_eq!(expanded("/dev/nvidia[0-1]"), "/dev/nvidia0 /dev/nvidia1");
    }

    #[test]
    fn a_malformed_or_huge_list_is_refused() {
        let zeros = format!("n[{}1]", "0".repeat(70_000));
        let ranges = format!("n[{}]", ["0-65000"; 1000].join(","));
        let long = format!("{}[1-65000]", "n".repeat(1 << 20));
        for list in [
            "n[1-",
            "n[a]",
            "n[3-1]",
            "n[1-99999999]",
            "n[0,0-18446744073709551615]",
            "n[1-999]x[1-999]",
            &zeros,
            &ranges,
            &long,
        ] {
            assert_eq!(expanded(list), "refused", "{list:.20}");
        }
    }
}
