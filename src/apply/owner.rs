//! The user that a recorded daemon runs as.

use super::cause::Cause;
use crate::host::{Account, Uid};
use crate::settings::Serve;
use crate::state::DeviceRecord;

/// The owner of a recorded daemon.
pub(super) fn owner(record: &DeviceRecord) -> Result<Uid, Cause> {
    match serve(record) {
        Serve::User(name) => Ok(user(&name)?.uid),
        _ => Ok(crate::host::caller()),
    }
}

/// The users that a recorded device serves. A record always has them.
pub(super) fn serve(record: &DeviceRecord) -> Serve {
    let serve = record.settings.serve.clone();
    serve.unwrap_or(Serve::OneAtATime)
}

/// The single user that a daemon serves and runs as, if that is not the caller.
pub(super) fn user_beside_caller(serve: Serve) -> Option<String> {
    match serve {
        Serve::User(name) => {
            let is_caller = user(&name).is_ok_and(|user| user.uid == crate::host::caller());
            (!is_caller).then_some(name)
        }
        _ => None,
    }
}

pub(super) fn user(name: &str) -> Result<Account, Cause> {
    Account::named(name)?.ok_or_else(|| Cause::nobody("user", name))
}
