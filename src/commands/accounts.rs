//! The users and groups that a profile names, checked before anything is touched. Not on loading: the profile may be
//! for another machine.

use std::io;
use std::path::Path;

use crate::error::Result;
use crate::host::{Account, Directories, Environment, Reader, Uid, group_named, names_in, nearest};
use crate::mps::MpsError;
use crate::node::{Detail, observe};
use crate::plan::{self, Refusal};
use crate::profile::{Profile, ProfileError, Span};
use crate::settings::Serve;
use crate::state::RunDir;

/// Refuses a profile that serves users or groups that this machine does not know, and shows its other mistakes on this
/// node too. `caller` is the user who would apply it.
pub(super) fn check(
    profile: &Profile,
    environment: &Environment,
    caller: Uid,
) -> Result<(), ProfileError> {
    let serves = profile.serves.iter();
    let unknown = serves.filter_map(|(serve, span)| unknown(profile, serve, *span));
    let mut mistakes: Vec<ProfileError> = unknown.collect();
    if !mistakes.is_empty() {
        mistakes.extend(on_node(profile, environment, caller));
    }
    ProfileError::all(mistakes).map_or(Ok(()), Err)
}

/// The mistakes that planning finds, if the node can be seen.
fn on_node(profile: &Profile, environment: &Environment, caller: Uid) -> Option<ProfileError> {
    let node = observe(environment, Detail::Offers).ok()?;
    let directories = environment.directories();
    let run_dir = directories.map_or_else(|_| environment.roots_run_dir(), |own| own.run);
    match plan::up(&node, profile, &RunDir::at(&run_dir), caller) {
        Err(Refusal::Profile(mistakes)) => Some(mistakes),
        _ => None,
    }
}

/// The mistake of serving a user or a group that this machine does not know.
fn unknown(profile: &Profile, serve: &Serve, span: Span) -> Option<ProfileError> {
    let (mistake, hint) = missing(serve)?;
    let error = profile.error(span, mistake);
    Some(match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    })
}

/// Describes the user or group that this machine does not know, and names a similar one.
pub(super) fn missing(serve: &Serve) -> Option<(String, Option<String>)> {
    let (what, name, found, list) = match serve {
        Serve::User(name) => {
            let found = Account::named(name).map(|account| account.is_some());
            ("user", name, found, "/etc/passwd")
        }
        Serve::Group(name) => {
            let found = group_named(name).map(|group| group.is_some());
            ("group", name, found, "/etc/group")
        }
        _ => return None,
    };
    if matches!(found, Ok(true)) {
        return None;
    }
    let names = names_in(list.as_ref());
    let near = nearest(name, names.iter().map(String::as_str));
    let hint = near.map(|near| format!("did you mean \"{what}:{near}\"?"));
    Some((said(what, name, &found), hint))
}

/// Refuses run and log directories that a served user cannot reach.
pub(super) fn check_ways(profile: &Profile, directories: &Directories) -> Result<()> {
    // A missing directory is made so that everybody can enter.
    let pipe = RunDir::at(&directories.run).pipe_dir("a-device");
    let log = directories.log.join("a-device/control.log");
    for (serve, _) in &profile.serves {
        let (who, reader, paths) = match serve {
            Serve::User(name) => {
                let Some(account) = Account::named(name)? else {
                    continue;
                };
                let reader = Reader::User(account.uid, account.groups()?);
                (name.clone(), reader, vec![&pipe, &log])
            }
            Serve::Group(name) => {
                let Some(group) = group_named(name)? else {
                    continue;
                };
                (
                    format!("the group {name}"),
                    Reader::Group(group),
                    vec![&pipe],
                )
            }
            _ => continue,
        };
        for path in paths {
            if let Some(closed) = reader.is_kept_out_of(path) {
                let path = path.parent().and_then(Path::parent).unwrap_or(path);
                return Err(MpsError::KeptOut {
                    who,
                    closed,
                    path: path.to_owned(),
                }
                .into());
            }
        }
    }
    Ok(())
}

fn said(what: &str, name: &str, found: &io::Result<bool>) -> String {
    match found {
        Err(error) => format!("whether there is a {what} \"{name}\" cannot be found out: {error}"),
        Ok(_) => format!("there is no {what} \"{name}\" on this machine"),
    }
}
