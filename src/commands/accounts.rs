//! The users and groups that a profile serves: does this machine know them? Not asked on loading: the profile may be for
//! another machine.

use std::path::Path;

use crate::apply;
use crate::error::{Result, command_error};
use crate::failure::Problem;
use crate::host::{Account, Environment, Uid, closest_match, group_id, names_in};
use crate::node::{Detail, observe};
use crate::plan::{self, Refusal};
use crate::profile::{Profile, ProfileError, Span};
use crate::settings::Serve;
use crate::state::RunDir;

/// Returns the values of `serve` whose user or group this machine does not know, or cannot find now.
pub(super) fn find_unserved_users(
    profile: &Profile,
    environment: &Environment,
) -> Vec<(Serve, Problem)> {
    apply::begin_lookups(profile.serves.iter().map(|(serve, _)| serve));
    profile
        .serves
        .iter()
        .filter_map(|(serve, _)| {
            let unknown = find_unknown_account(serve, Some(environment));
            let problem = unknown.unwrap_or_else(|error| {
                let problem = Problem::without_hint(error.to_string());
                let hint = error.hints.into_iter().next();
                Some(Problem { hint, ..problem })
            })?;
            Some((serve.clone(), problem))
        })
        .collect()
}

/// Refuses a profile that serves users or groups that this machine does not know. Then it also plans for this node, to
/// show the profile's other mistakes with them. `caller` is the user who would apply it. If the name service does not
/// answer, the profile is not to blame: the exit status is another one.
pub fn check_accounts(profile: &Profile, environment: &Environment, caller: Uid) -> Result<()> {
    apply::begin_lookups(profile.serves.iter().map(|(serve, _)| serve));
    let mut mistakes = Vec::new();
    for (serve, span) in &profile.serves {
        mistakes.extend(unknown_account_error(profile, environment, serve, *span)?);
    }
    if !mistakes.is_empty() {
        mistakes.extend(mistakes_of_plan(profile, environment, caller));
    }
    match ProfileError::from_errors(mistakes) {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// The mistakes that planning finds, if the node can be seen.
fn mistakes_of_plan(
    profile: &Profile,
    environment: &Environment,
    caller: Uid,
) -> Option<ProfileError> {
    let node = observe(environment, Detail::OFFERS).ok()?;
    let run_dir = match environment.directories() {
        Ok(own) => own.run,
        Err(_) => environment.roots_run_dir(),
    };
    match plan::up(&node, profile, &RunDir::at(&run_dir), caller) {
        Err(Refusal::Profile(mistakes)) => Some(mistakes),
        _ => None,
    }
}

/// The mistake of serving a user or a group that this machine does not know.
fn unknown_account_error(
    profile: &Profile,
    environment: &Environment,
    serve: &Serve,
    span: Span,
) -> Result<Option<ProfileError>> {
    let unknown = find_unknown_account(serve, Some(environment))?;
    Ok(unknown.map(|problem| profile.problem_at(span, problem)))
}

/// Describes the user or group that this machine does not know, and names a similar one.
///
/// # Errors
/// The name service does not answer, and no device of the caller is recorded for that user or group.
pub fn find_unknown_account(
    serve: &Serve,
    environment: Option<&Environment>,
) -> Result<Option<Problem>> {
    let (what, name, found, list) = match serve {
        Serve::User(name) => {
            let found = Account::from_name(name).map(|account| account.is_some());
            ("user", name, found, "passwd")
        }
        Serve::Group(name) => {
            let found = group_id(name).map(|group| group.is_some());
            ("group", name, found, "group")
        }
        _ => return Ok(None),
    };
    let is_recorded = || {
        let directories = environment.and_then(|environment| environment.directories().ok());
        directories.is_some_and(|own| apply::has_recorded_id(&own.run, serve))
    };
    match found {
        Ok(true) => Ok(None),
        Ok(false) => {
            let names = names_in(Path::new("/etc").join(list).as_ref());
            let hint = closest_match(name, names.iter().map(String::as_str))
                .map(|near| format!("did you mean \"{what}:{near}\"?"));
            let why = format!("there is no {what} \"{name}\" on this machine");
            Ok(Some(Problem {
                hint,
                ..Problem::without_hint(why)
            }))
        }
        Err(_) if is_recorded() => Ok(None),
        Err(error) => Err(command_error(format_args!(
            "cannot check whether the {what} \"{name}\" exists: {error}"
        ))
        .with_hint(format!(
            "run `getent {list} {name}`, and repeat this command when it answers"
        ))),
    }
}
