use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::catalog::BuiltIn;
use crate::error::{CommandError, Result};
use crate::host::{nearest, read_text_from};
use crate::profile::{Profile, ProfileError};

/// The profile of a command line: a file, `-`, or the name of a built-in one.
#[derive(Clone, Debug)]
pub enum ProfileSource {
    File(PathBuf),
    BuiltIn(BuiltIn),
}

impl FromStr for ProfileSource {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        Ok(match BuiltIn::named(text) {
            Some(profile) => Self::BuiltIn(profile),
            None => Self::File(text.into()),
        })
    }
}

impl ProfileSource {
    /// Reads and checks the profile.
    pub fn load(&self) -> Result<Profile> {
        let path = match self {
            Self::BuiltIn(profile) => {
                let path = Path::new(profile.name);
                return Ok(Profile::parse(path, profile.text.to_owned())?);
            }
            Self::File(path) => path,
        };
        let (shown, text) = read_text_from(path);
        match text {
            Ok(text) => {
                let is_of_mig_parted = text.lines().any(|line| line.starts_with("mig-configs:"));
                let profile = Profile::parse(shown, text);
                profile.map_err(|error| misread(shown, is_of_mig_parted, error))
            }
            Err(error) => {
                let hint = (error.kind() == ErrorKind::NotFound).then(|| near(path));
                let error = CommandError::from(ProfileError::Unreadable {
                    path: shown.to_owned(),
                    error,
                });
                Err(match hint {
                    Some(hint) => error.with_hint(hint),
                    None => error,
                })
            }
        }
    }
}

/// The error of a file that is no profile, and may be a configuration of mig-parted.
fn misread(path: &Path, is_of_mig_parted: bool, error: ProfileError) -> CommandError {
    let error = CommandError::from(error);
    if !is_of_mig_parted {
        return error;
    }
    let path = path.display();
    let what = format!("{path} is a configuration of mig-parted (YAML), and not a profile (TOML)");
    let hint = format!("mig-mps import {path} makes a profile of it");
    CommandError::new(error.kind, what).with_hint(hint)
}

/// Names the built-in profile that was probably meant instead of a missing file.
fn near(path: &Path) -> String {
    let names: Vec<&str> = BuiltIn::all().iter().map(|profile| profile.name).collect();
    let word = path.to_string_lossy();
    match nearest(word.trim_end_matches(".toml"), names.iter().copied()) {
        Some(near) => format!("did you mean the built-in profile {near}?"),
        None => format!("the built-in profiles are {}", names.join(", ")),
    }
}
