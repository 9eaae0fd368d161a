//! Errors that name a file, with the fault of it and its remedy.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::user::may_be_unmapped;
use super::{Uid, as_root, caller, user_name};
use crate::failure::Failure;

/// A fault of a file, for which there is a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It belongs to another user than the caller and root.
    Foreign(u32),
    /// Users other than its owner can write to it.
    Writable,
    /// It is no regular file, or not one of mig-mps.
    InTheWay,
    /// It is no regular file, and not in the way: a link, a disk, somebody's FIFO.
    Irregular,
    /// A part of the path is no directory.
    NotADirectory,
    /// The directory for a new file does not exist.
    NoDirectory,
}

/// An error with the file that it is about.
#[derive(Debug)]
struct FileError {
    text: String,
    path: Option<PathBuf>,
    fault: Option<Fault>,
}

impl std::error::Error for FileError {}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Adds the path to an error.
pub fn in_path(path: &Path, error: &io::Error) -> io::Error {
    let known = known(error);
    let inner = known.and_then(|known| known.path.as_deref());
    let about = FileError {
        text: format!("{}: {error}", path.display()),
        path: Some(inner.unwrap_or(path).to_owned()),
        fault: known.and_then(|known| known.fault),
    };
    io::Error::new(error.kind(), about)
}

/// Adds the part of a path to an error, unless it is the whole path.
pub(super) fn of_part(part: &Path, whole: &Path, error: io::Error) -> io::Error {
    if part == whole {
        error
    } else {
        in_path(part, &error)
    }
}

/// Notes the file and its fault, and keeps the words of the error.
pub(super) fn with_fault(path: &Path, fault: Fault, error: &io::Error) -> io::Error {
    let about = FileError {
        text: error.to_string(),
        path: Some(path.to_owned()),
        fault: Some(fault),
    };
    io::Error::new(error.kind(), about)
}

pub(super) fn belongs_to(uid: u32) -> String {
    format!("belongs to {}", user_name(Uid(uid)))
}

/// A file that is not used because of its fault.
pub(super) fn refused(fault: Fault, why: impl Into<String>) -> io::Error {
    let about = FileError {
        text: why.into(),
        path: None,
        fault: Some(fault),
    };
    io::Error::new(ErrorKind::PermissionDenied, about)
}

/// A file of somebody else where mig-mps would write its own.
pub fn in_the_way(path: &Path, why: &str) -> io::Error {
    in_path(path, &refused(Fault::InTheWay, why))
}

fn known(error: &io::Error) -> Option<&FileError> {
    error.get_ref()?.downcast_ref()
}

impl Failure for io::Error {
    fn hint(&self) -> Option<String> {
        let known = known(self);
        let path = known.and_then(|known| known.path.as_ref());
        let shown = path.map_or_else(|| "the file".to_owned(), |path| path.display().to_string());
        let hint = match (known.and_then(|known| known.fault), self.kind()) {
            (Some(Fault::Foreign(owner)), _) if may_be_unmapped(Uid(owner)) => {
                format!(
                    "run this outside the user namespace, which does not map the owner of {shown}"
                )
            }
            (Some(Fault::Foreign(owner)), _) if caller() == Uid::ROOT => {
                let owner = user_name(Uid(owner));
                format!("chown root {shown}, if {owner} has no use for it; or choose another path")
            }
            (Some(Fault::Foreign(owner)), _) => {
                let owner = user_name(Uid(owner));
                format!("run this as {owner}, or choose a path of your own")
            }
            (Some(Fault::Writable), _) => format!("chmod go-w {shown}"),
            (Some(Fault::InTheWay), _) => format!("move {shown} away, and run this again"),
            (Some(Fault::Irregular), _) => "choose another path".to_owned(),
            (Some(Fault::NotADirectory), _) | (None, ErrorKind::NotADirectory) => {
                format!("move {shown} away, or choose another path")
            }
            (Some(Fault::NoDirectory), _) => format!("mkdir -p {shown}"),
            (None, ErrorKind::IsADirectory) => "name a file in it, or another one".to_owned(),
            (None, ErrorKind::AlreadyExists) => "remove it, or choose another file".to_owned(),
            (None, ErrorKind::PermissionDenied) if caller() != Uid::ROOT => {
                format!("{}; or choose a path of your own", as_root())
            }
            (None, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                "make room on the file system, and run this again".to_owned()
            }
            (None, ErrorKind::FileTooLarge) => "ulimit -f unlimited allows larger files".to_owned(),
            (None, ErrorKind::ReadOnlyFilesystem) => "choose a path that can be written".to_owned(),
            _ => return None,
        };
        Some(hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_names_the_innermost_file() {
        let error = refused(Fault::Writable, "others can write to it");
        let error = in_path("/a/b".as_ref(), &in_path("/a".as_ref(), &error));
        assert_eq!(error.to_string(), "/a/b: /a: others can write to it");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(error.hint().as_deref(), Some("chmod go-w /a"));
    }

    #[test]
    fn a_kind_alone_has_a_hint() {
        let full = in_path("/a".as_ref(), &ErrorKind::StorageFull.into());
        assert!(full.hint().unwrap().starts_with("make room"));
        assert_eq!(io::Error::from(ErrorKind::NotFound).hint(), None);
    }
}
