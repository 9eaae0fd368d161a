//! Errors that name a file.

use std::io;
use std::path::Path;

use super::{Uid, user_name};

/// Adds the path to an error.
pub fn in_path(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Adds the part of a path to an error, unless it is the whole path.
pub(super) fn of_part(part: &Path, whole: &Path, error: io::Error) -> io::Error {
    if part == whole {
        error
    } else {
        in_path(part, &error)
    }
}

pub(super) fn belongs_to(uid: u32) -> String {
    format!("belongs to {}", user_name(Uid(uid)))
}

pub(super) fn refused(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why.into())
}
