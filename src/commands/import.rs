//! `mig-mps import`

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;

use super::Context;
use crate::convert::{ImportOptions, import, mig_parted};
use crate::error::{CommandError, Context as _, Result, usage};
use crate::failure::ExitStatus;
use crate::host::{read_text_from, write_new_text_to};
use crate::profile::Profile;
use crate::render::{note, print};

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
    #[arg(long, short, value_name = "CONFIGURATION")]
    config: Option<String>,
    /// Write the profile to this new file [default: standard output]
    #[arg(long, short, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Start a daemon for each GPU with mig-enabled: false [default: only switch MIG off]
    #[arg(long)]
    serve_whole: bool,
    /// Make mig-parted's compute instances, also where they lack SMs [default: those with all SMs]
    #[arg(long)]
    exact: bool,
}

fn unreadable(path: &Path, error: &io::Error) -> CommandError {
    usage(format_args!("cannot read {}: {error}", path.display()))
        .hint("import reads a configuration of mig-parted (YAML)")
}

/// Converts a configuration of mig-parted to a profile.
pub fn run(args: &ImportArgs, _context: &Context<'_>) -> Result<ExitStatus> {
    let (path, text) = read_text_from(&args.file);
    let text = text.map_err(|error| unreadable(path, &error))?;
    let is_toml = path.extension().is_some_and(|end| end == "toml")
        && !text.lines().any(|line| line.starts_with("mig-configs:"));
    if is_toml {
        let what = format!(
            "{} is not a configuration of mig-parted (YAML)",
            path.display()
        );
        return Err(usage(what).hint("mig-mps up takes a profile (TOML) as it is"));
    }
    let spec = mig_parted::Spec::parse(path, text)?;
    let name = choose(args, path, &spec)?;
    let options = ImportOptions {
        serve_whole: args.serve_whole,
        exact: args.exact,
    };
    let imported = import(&spec, name, options)?;
    let text = imported.draft.to_string();
    Profile::parse(Path::new("the imported profile"), text.clone())?;
    match &args.output {
        Some(path) => {
            write_new(path, &text)?;
            note(&format!("wrote {}", path.display()));
        }
        None => print(&text)?,
    }
    for remark in imported.notes {
        note(&remark);
    }
    Ok(ExitStatus::Done)
}

fn choose<'a>(args: &ImportArgs, path: &Path, spec: &'a mig_parted::Spec) -> Result<&'a str> {
    let path = path.display();
    let names: Vec<&str> = spec.configs.keys().map(String::as_str).collect();
    let list = names.join("\n  ");
    match (&args.config, names.as_slice()) {
        (None, [only]) => Ok(*only),
        (None, all) => Err(usage(format_args!(
            "{path} has {} configurations: choose one with --config:\n  {list}",
            all.len()
        ))),
        (Some(wanted), all) => {
            let chosen = all.iter().find(|name| *name == wanted);
            chosen.copied().ok_or_else(|| {
                usage(format_args!(
                    "{path} has no configuration \"{wanted}\"; it has:\n  {list}"
                ))
            })
        }
    }
}

/// Writes a new file. An existing one may have been edited, and is not replaced.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let written = write_new_text_to(path, text);
    written.context(format_args!("cannot write {}", path.display()))
}
