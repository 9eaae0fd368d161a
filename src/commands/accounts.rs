//! Whom a profile names must be there before anything is touched. Not on loading: the file may be for
//! another machine.

use std::io;

use crate::host::{Account, group_named, names_in};
use crate::profile::{Profile, ProfileError, Serve, nearest};

/// Refuses a profile that serves a user or a group whom this machine does not know.
///
/// # Errors
/// A [`ProfileError`] with the place where it is said.
pub(super) fn check(profile: &Profile) -> Result<(), ProfileError> {
    for (serve, span) in &profile.serves {
        let (what, name, found, list) = match serve {
            Serve::User(name) => {
                let found = Account::named(name).map(|account| account.is_some());
                ("user", name, found, "/etc/passwd")
            }
            Serve::Group(name) => {
                let found = group_named(name).map(|group| group.is_some());
                ("group", name, found, "/etc/group")
            }
            _ => continue,
        };
        if matches!(found, Ok(true)) {
            continue;
        }
        let error = profile.error(*span, said(what, name, &found));
        let names = names_in(list.as_ref());
        return Err(match nearest(name, names.iter().map(String::as_str)) {
            Some(near) => error.with_hint(format!("did you mean \"{what}:{near}\"?")),
            None => error,
        });
    }
    Ok(())
}

fn said(what: &str, name: &str, found: &io::Result<bool>) -> String {
    match found {
        Err(error) => format!("whether there is a {what} \"{name}\" cannot be found out: {error}"),
        Ok(_) => format!("there is no {what} \"{name}\" on this machine"),
    }
}
