//! What a command line would have otherwise than `run` is asked to: by its launchers, its container engine, or its daemon.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::engine::{EngineCall, EngineKind, PASSED_ON, PIPE_VARIABLE};
use super::engine_words::option_variable;
use super::existing::{ExistingContainer, daemon_of};
use super::launcher::CommandLine;
use crate::host::join_words;

/// The device that the programs in a container are to use.
#[derive(Clone, Copy, Debug)]
pub struct WantedInContainer<'a> {
    /// Its name; none for a private device.
    pub device: Option<&'a str>,
    /// True if another run of the same command line may have another device.
    pub is_chosen: bool,
    /// True if the device is chosen by the rank.
    pub is_rank: bool,
    pub uuid: &'a str,
    /// The directory to mount, below which the pipe directory is.
    pub directory: &'a Path,
    /// The pipe directory by the path in the variable, and by the UUID.
    pub pipes: &'a [PathBuf; 2],
    /// The options of `run` and `env` for the limits of the programs, each after a blank.
    pub limits: &'a str,
    /// The variables by which the programs have these limits.
    pub limit_variables: &'a [&'static str],
    /// The variables of the caller by which the device was chosen.
    pub choosing: &'a [&'static str],
    /// The words `run … --` of the caller.
    pub command: &'a str,
    pub requires_mps: bool,
}

impl<'a> WantedInContainer<'a> {
    /// The name of the device that the same command line has each time.
    pub(super) fn fixed_device(&self) -> Option<&'a str> {
        if self.is_chosen { None } else { self.device }
    }

    /// True for the pipe directory.
    pub(super) fn has_pipe(&self, path: &Path) -> bool {
        self.pipes.iter().any(|pipe| pipe == path)
    }

    /// Says that the limits that are asked for do not hold.
    pub(super) fn effect_of_lost_limits(&self) -> String {
        format!("the limits ({}) have no effect", self.limits.trim())
    }

    /// True for a name of the device in the CDI file.
    pub(super) fn is_named(&self, name: &str) -> bool {
        self.device == Some(name) || name == self.uuid
    }
}

/// What a container lacks, and what brings it there.
pub(super) struct Missing {
    pub lacks: Vec<String>,
    pub remedy: String,
    /// What happens without it.
    pub effect: String,
}

pub(super) const OUTSIDE: &str = "the programs run outside MPS";

impl Missing {
    pub fn describe(&self, engine: &str) -> String {
        let it = if self.lacks.len() > 1 { "them" } else { "it" };
        format!(
            "a container of {engine} does not have {}, and without {it} {}; {}",
            join_words(&self.lacks, "and"),
            self.effect,
            self.remedy
        )
    }

    /// Returns the limits that have no effect, if there are any.
    pub fn limits(lost: &[&str], remedy: String, wanted: WantedInContainer<'_>) -> Option<Self> {
        (!lost.is_empty()).then(|| Self {
            lacks: lost.iter().map(|name| (*name).to_owned()).collect(),
            remedy,
            effect: wanted.effect_of_lost_limits(),
        })
    }
}

/// Says why the program that a command line starts, perhaps by way of a launcher or in a container, would not be as `run` is
/// asked to have it. `variable` returns a variable of the caller.
pub fn launch_warnings(
    words: &[OsString],
    wanted: WantedInContainer<'_>,
    variable: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let launch = CommandLine::of(&words);
    if launch.starts_mig_mps() {
        return Vec::new();
    }
    let own = option_variable(launch.program, &variable);
    let call = EngineCall::of(launch.program, own.as_ref());
    let existing = ExistingContainer::of(launch.program);
    let mut needed = vec![PIPE_VARIABLE.to_owned()];
    let mut needs_caller = !launch.starts_only_client_of_daemon();
    let mut of_engine = None;
    if let Some(call) = &call {
        let missing = call.missing_or_other(wanted, &variable);
        needs_caller = call.needs_caller(wanted, &variable);
        if let Some(Err(missing)) = &missing {
            needs_caller |= missing.remedy.contains(PASSED_ON);
        }
        if call.kind == EngineKind::Apptainer {
            needed.push(format!("{}_BINDPATH", call.engine.to_uppercase()));
        }
        of_engine = missing.map(|missing| match missing {
            Ok(text) => text,
            Err(missing) => missing.describe(call.engine),
        });
    } else if let Some(existing) = &existing {
        needs_caller = existing.call.passes_on(PIPE_VARIABLE);
        of_engine = existing.describe_lost(wanted);
    }
    // A limit that the command line gives has no need of the caller's.
    let start = call.as_ref().or(existing.as_ref().map(|one| &one.call));
    needed.extend(
        wanted
            .limit_variables
            .iter()
            .filter(|name| start.is_none_or(|call| call.passes_on(name)))
            .map(|name| (*name).to_owned()),
    );
    let mut warnings = Vec::new();
    if needs_caller {
        warnings.extend(launch.describe_lost(&needed, wanted, &variable));
    }
    warnings.extend(of_engine);
    if wanted.requires_mps {
        let of_daemon = daemon_of(launch.program).map(|engine| {
            format!(
                "--require-mps does not see the programs in a container of {engine}, because a daemon starts them; use podman \
                 or Apptainer, or run `mig-mps status`, which shows programs outside MPS"
            )
        });
        warnings.extend(of_daemon.or_else(|| launch.describe_unseen(wanted, &variable)));
    }
    warnings
}
