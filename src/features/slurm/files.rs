//! Slurm's configuration files on this node.

use std::io;
use std::path::{Path, PathBuf};

use super::conf::{GresConf, gres_of_node};
use super::health::variable;
use crate::error::{CommandError, Context as _, Result, failed, usage};
use crate::host::{printable, read_text_from};

/// The directories of slurm.conf, in the order in which slurmd finds one; the second is that of a node that gets its
/// configuration from the controller.
const DIRECTORIES: [&str; 2] = ["/etc/slurm", "/run/slurm/conf"];

/// The most files that include each other.
const DEEPEST: usize = 4;

/// The files of one directory.
pub(super) struct SlurmFiles {
    slurm_conf: PathBuf,
    pub(super) gres_conf: PathBuf,
}

impl SlurmFiles {
    /// Finds the files: by the variable that Slurm sets for its prologs, or where slurmd finds them.
    pub(super) fn find() -> Self {
        let set = variable("SLURM_CONF").map(PathBuf::from);
        let mut installed = DIRECTORIES
            .iter()
            .map(|dir| Path::new(dir).join("slurm.conf"));
        let slurm_conf = set.or_else(|| installed.find(|path| path.exists()));
        let slurm_conf = slurm_conf.unwrap_or_else(|| "/etc/slurm/slurm.conf".into());
        Self {
            gres_conf: slurm_conf.with_file_name("gres.conf"),
            slurm_conf,
        }
    }

    /// Reads the entries of gres.conf for a node.
    pub(super) fn gres_of(&self, node: &str) -> Result<GresConf> {
        let (shown, text) = read_text_from(&self.gres_conf);
        let text = text.map_err(|error| unreadable(shown, &error))?;
        GresConf::parse(&text, node).context(shown.display())
    }

    /// Returns the `Gres=` of the node's line in slurm.conf, with the files that it includes.
    pub(super) fn gres_string_of(&self, node: &str) -> Result<Option<String>> {
        let mut text = String::new();
        self.read_into(&self.slurm_conf, DEEPEST, &mut text)?;
        Ok(gres_of_node(&text, node))
    }

    fn read_into(&self, path: &Path, depth: usize, all: &mut String) -> Result<()> {
        let (shown, text) = read_text_from(path);
        let text = text.map_err(|error| unreadable(shown, &error))?;
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
                    let shown = shown.display();
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
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let short = name.trim().split('.').next();
        short.unwrap_or_default().to_owned()
    }))
}

/// Refuses what would be no name, or no list of names, in Slurm's files.
pub(super) fn checked_name(name: String) -> Result<String> {
    let is_fit = |c: char| c.is_ascii_alphanumeric() || "-_.[,]".contains(c);
    if !name.is_empty() && name.chars().all(is_fit) {
        return Ok(name);
    }
    let shown = printable(&name);
    let what = format!("a node of Slurm cannot be called \"{shown}\"");
    Err(usage(what)
        .hint("a name has letters, digits, \"-\", \"_\" and \".\", as in NodeName= of slurm.conf"))
}
