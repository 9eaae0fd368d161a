//! `mig-mps import`

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use thiserror::Error;

use super::Context;
use crate::convert::{import, mig_parted};
use crate::error::{CommandError, Context as _, ExitStatus, Result};
use crate::host::read_text;
use crate::profile::Profile;

/// Convert a configuration of mig-parted to a profile
///
/// Makes the same GPU and compute instances on the same GPUs. What a profile cannot express is refused,
/// with its line.
#[derive(Args, Debug)]
pub struct ImportArgs {
    /// Configuration file of mig-parted (YAML), or - for standard input
    #[arg(value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Configuration to import, if the file has several
    #[arg(long, short, value_name = "NAME")]
    config: Option<String>,
    /// Write the profile to this new file [default: standard output]
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Import mig-enabled: false as mig = false, which starts a daemon [default: leave such GPUs alone]
    #[arg(long)]
    serve_whole: bool,
}

/// The file cannot be read, or it is unclear what to import.
#[derive(Debug, Error)]
pub enum ImportError {
    #[error("cannot read {}: {error}", path.display())]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{} has {} configurations: choose one with --config:\n  {}", path.display(), names.len(), names.join("\n  "))]
    WhichOne { path: PathBuf, names: Vec<String> },
    #[error("{} has no configuration \"{wanted}\"; it has:\n  {}", path.display(), names.join("\n  "))]
    NoSuchOne {
        path: PathBuf,
        wanted: String,
        names: Vec<String>,
    },
}

impl From<ImportError> for CommandError {
    fn from(error: ImportError) -> Self {
        Self::new(ExitStatus::Usage, error)
    }
}

/// Converts a configuration of mig-parted to a profile.
pub fn run(args: &ImportArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let Context { ui, .. } = *context;
    let text = read(&args.file).map_err(|error| ImportError::Unreadable {
        path: shown(&args.file).to_owned(),
        error,
    })?;
    let spec = mig_parted::Spec::parse(shown(&args.file), text)?;
    let name = choose(args, &spec)?;
    let imported = import(&spec, name, args.serve_whole)?;
    let text = imported.draft.to_string();
    Profile::parse(Path::new("the imported profile"), text.clone())?;
    match &args.output {
        Some(path) => write_new(path, &text)?,
        None => ui.text(&text)?,
    }
    for note in imported.notes {
        ui.note(&note);
    }
    Ok(ExitStatus::Done)
}

fn read(path: &Path) -> io::Result<String> {
    if path == Path::new("-") {
        return read_text(io::stdin());
    }
    read_text(File::open(path)?)
}

/// The name of a file in messages.
fn shown(path: &Path) -> &Path {
    if path == Path::new("-") {
        return Path::new("standard input");
    }
    path
}

fn choose<'a>(args: &ImportArgs, spec: &'a mig_parted::Spec) -> Result<&'a str, ImportError> {
    let names = || spec.configs.keys().cloned().collect();
    let path = shown(&args.file).to_owned();
    let mut keys = spec.configs.keys();
    match (&args.config, keys.next(), keys.next()) {
        (None, Some(only), None) => Ok(only),
        (None, _, _) => Err(ImportError::WhichOne {
            path,
            names: names(),
        }),
        (Some(wanted), _, _) => match spec.configs.get_key_value(wanted) {
            Some((name, _)) => Ok(name),
            None => Err(ImportError::NoSuchOne {
                path,
                wanted: wanted.clone(),
                names: names(),
            }),
        },
    }
}

/// Writes a new file. An existing one may have been edited, and is not replaced.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .context(format!("cannot make {}", path.display()))?;
    file.write_all(text.as_bytes())
        .context(format!("cannot write {}", path.display()))
}
