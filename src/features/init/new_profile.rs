//! The file of a new profile.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::interview::{Interview, ended};
use crate::catalog::BuiltIn;
use crate::error::{Context as _, Result, chosen, failed, usage};
use crate::failure::ExitStatus;
use crate::host::{Uid, caller, directory_of, may_write, quoted, write_new_text_to, write_text_to};
use crate::plan::virtual_node::GpuArgument;
use crate::render::format::count;
use crate::render::{agrees, note, print};

/// The place of a new profile.
pub(super) enum NewProfile<'a> {
    StandardOutput,
    File {
        path: &'a Path,
        /// True if the user agreed to replace it.
        replaces: bool,
    },
}

impl<'a> NewProfile<'a> {
    /// Checks the place before the user answers questions, and asks whether to replace a file.
    pub(super) fn at(path: &'a Path, force: bool, interview: &Interview) -> Result<Self> {
        if path == Path::new("-") {
            return Ok(Self::StandardOutput);
        }
        let shown = path.display();
        let beside = directory_of(path);
        if path.is_dir() {
            let error = usage(format_args!("{shown} is a directory"));
            return Err(error.hint("name a file in it"));
        }
        if !beside.is_dir() {
            let beside = beside.display();
            let error = usage(format_args!("there is no directory {beside}"));
            return Err(error.hint(format!("mkdir -p {beside}")));
        }
        if !may_write(beside) {
            let message = format!("cannot write {shown}: no permission to write in its directory");
            return Err(failed(message).hint("name another file"));
        }
        let exists = fs::symlink_metadata(path).is_ok();
        if exists && !force {
            if !interview.asks() {
                let error = usage(format_args!("{shown} exists"));
                return Err(error.hint("replace it with --force, or name another file"));
            }
            let question = format!("{shown} exists. Replace it?");
            match agrees(&question).context("cannot ask on the terminal")? {
                Some(true) => {}
                Some(false) => {
                    return Err(chosen(ExitStatus::Refused, "Nothing was written."));
                }
                None => return Err(ended()),
            }
        }
        Ok(Self::File {
            path,
            replaces: exists || force,
        })
    }

    pub(super) fn write(&self, text: &str) -> Result<()> {
        let Self::File { path, replaces } = self else {
            print(text)?;
            return Ok(());
        };
        let written = if *replaces {
            write_text_to(path, text)
        } else {
            write_new_text_to(path, text)
        };
        written.context(format_args!("cannot write {}", path.display()))
    }

    /// Says what was written, and the next commands.
    pub(super) fn say_next(&self, devices: usize, gpus: usize, models: &[GpuArgument]) {
        let Self::File { path, .. } = self else {
            return;
        };
        let wrote = format!("{} on {}", count(devices, "device"), count(gpus, "GPU"));
        let word = word_of(path);
        let check = if models.is_empty() {
            String::new()
        } else {
            let models = models.iter().fold(String::new(), |mut all, gpu| {
                let _ = write!(all, " --gpu {}:{}", gpu.model.key, gpu.count);
                all
            });
            format!("  mig-mps check {word}{models}\n")
        };
        let shown = path.display();
        let sudo = if caller() == Uid::ROOT { "" } else { "sudo " };
        note(&format!(
            "\nWrote {shown}: {wrote}. Next:\n{check}  mig-mps plan {word}\n  {sudo}mig-mps up {word}"
        ));
    }
}

/// The file as a word of a command line: quoted if need be, and not the name of a built-in profile.
fn word_of(path: &Path) -> String {
    let text = path.to_string_lossy();
    let text = match text.as_ref() {
        text if BuiltIn::named(text).is_some() || text.starts_with('-') => format!("./{text}"),
        text => text.to_owned(),
    };
    quoted(&text)
}
