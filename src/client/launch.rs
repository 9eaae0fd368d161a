//! What a command line would have otherwise than `run` is asked to: by its launchers, its container engine, or its daemon.

use std::ffi::OsString;

use super::engine::{EngineCall, EngineKind, PASSED_ON, PIPE_VARIABLE, WantedInContainer};
use super::launcher::CommandLine;

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
    let call = EngineCall::of(launch.program);
    let mut needed = vec![PIPE_VARIABLE.to_owned()];
    let mut needs_caller = !launch.starts_only_client_of_daemon();
    let mut of_engine = None;
    if let Some(call) = &call {
        let missing = call.missing_or_other(wanted, &variable);
        needs_caller = call.needs_caller(wanted, &variable);
        if let Some(Err(missing)) = &missing {
            needs_caller |= missing.add.contains(PASSED_ON);
        }
        if call.kind == EngineKind::Apptainer {
            needed.push(format!("{}_BINDPATH", call.engine.to_uppercase()));
        }
        of_engine = missing.map(|missing| match missing {
            Ok(text) => text,
            Err(missing) => missing.describe(call.engine),
        });
    }
    let mut warnings = Vec::new();
    if needs_caller {
        warnings.extend(launch.describe_lost(&needed, wanted.command, &variable));
    }
    warnings.extend(of_engine);
    if wanted.requires_mps {
        let of_daemon = EngineCall::daemon_of(launch.program).map(|engine| {
            format!(
                "--require-mps does not see the programs in a container of {engine}, because a daemon starts them; use podman \
                 or Apptainer, or run `mig-mps status`, which shows programs outside MPS"
            )
        });
        warnings.extend(of_daemon.or_else(|| launch.describe_unseen(wanted.command)));
    }
    warnings
}
