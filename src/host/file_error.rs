//! The error of an operation on files, directories or processes: what is wrong with which file, and the remedy.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::user::may_be_unmapped;
use super::{Uid, caller, root_hint, user_name};
use crate::failure::Failure;

pub type FileResult<T> = Result<T, FileError>;

/// An error of the operating system, or a file that is not used because of its fault.
#[derive(Clone, Debug)]
pub struct FileError(Box<Details>);

#[derive(Clone, Debug)]
struct Details {
    /// The message, without error numbers.
    text: String,
    kind: ErrorKind,
    errno: Option<Errno>,
    /// The file that it is about, if that is known.
    path: Option<PathBuf>,
    fault: Option<FileFault>,
}

/// A fault of a file, for which there is a remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileFault {
    /// It belongs to another user than the caller and root.
    Foreign(u32),
    /// It is a directory in which other users can make and replace files.
    OpenDirectory,
    /// Other users can have written what it contains.
    WritableByOthers,
    /// Something else is where mig-mps keeps a file.
    InTheWay,
    /// The path that the user named is a link, or no regular file.
    Irregular,
    /// A part of the path is no directory.
    NotADirectory,
    /// The directory for a new file does not exist.
    NoDirectory,
}

impl FileError {
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Box::new(Details {
            text: text.into(),
            kind,
            errno: None,
            path: None,
            fault: None,
        }))
    }

    /// An error that only words describe.
    pub fn other(text: impl Into<String>) -> Self {
        Self::new(ErrorKind::Other, text)
    }

    /// A file that is not used because of its fault. Its kind is that of a file that may not be used, `PermissionDenied`.
    pub(super) fn with_fault(fault: FileFault, text: impl Into<String>) -> Self {
        let mut error = Self::new(ErrorKind::PermissionDenied, text);
        error.0.fault = Some(fault);
        error
    }

    /// A new file whose directory does not exist.
    pub(super) fn no_directory(directory: &Path) -> Self {
        let mut error = Self::from(Errno::NOENT);
        error.0.path = Some(directory.to_owned());
        error.0.fault = Some(FileFault::NoDirectory);
        error
    }

    /// Puts the path of the file before the error.
    #[must_use]
    pub fn at(mut self, path: &Path) -> Self {
        self.0.text = format!("{}: {self}", path.display());
        self.0.path.get_or_insert_with(|| path.to_owned());
        self
    }

    /// Puts a part of a path before the error, unless it is the whole path.
    #[must_use]
    pub(super) fn at_part(self, part: &Path, whole: &Path) -> Self {
        if part == whole { self } else { self.at(part) }
    }

    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the error number, if a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        self.0.errno
    }

    /// Returns the file that it is about, if that is known.
    pub fn path(&self) -> Option<&Path> {
        self.0.path.as_deref()
    }

    /// True if the file is not used because of its fault, or its directory does not exist: not if it cannot be seen.
    pub fn has_fault(&self) -> bool {
        self.0.fault.is_some()
    }
}

impl From<io::Error> for FileError {
    fn from(error: io::Error) -> Self {
        Self::from(&error)
    }
}

impl From<&io::Error> for FileError {
    fn from(error: &io::Error) -> Self {
        let text = error.to_string();
        let plain = error
            .raw_os_error()
            .and_then(|number| text.strip_suffix(&format!(" (os error {number})")));
        let mut known = Self::new(error.kind(), plain.unwrap_or(&text));
        known.0.errno = Errno::from_io_error(error);
        known
    }
}

impl From<Errno> for FileError {
    fn from(errno: Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<nix::errno::Errno> for FileError {
    fn from(errno: nix::errno::Errno) -> Self {
        io::Error::from(errno).into()
    }
}

impl From<ErrorKind> for FileError {
    fn from(kind: ErrorKind) -> Self {
        io::Error::from(kind).into()
    }
}

impl fmt::Display for FileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
    }
}

impl std::error::Error for FileError {}

impl Failure for FileError {
    fn hint(&self) -> Option<String> {
        let path = self.path();
        let shown = path.map_or_else(|| "the file".to_owned(), |path| path.display().to_string());
        let hint = match (self.0.fault, self.kind()) {
            (Some(FileFault::Foreign(owner)), _) => foreign_hint(Uid(owner), &shown),
            (Some(FileFault::OpenDirectory), _) => {
                format!("examine the files in {shown}, then run `chmod go-w {shown}`")
            }
            (Some(FileFault::WritableByOthers), _) => {
                format!("examine {shown} and remove it, or choose another path")
            }
            (Some(FileFault::InTheWay), _) => {
                format!("move {shown} away, then run this command again")
            }
            (Some(FileFault::Irregular), _) => "choose another path".to_owned(),
            (Some(FileFault::NotADirectory), _) | (None, ErrorKind::NotADirectory) => {
                format!("move {shown} away, or choose another path")
            }
            (Some(FileFault::NoDirectory), _) => format!("run `mkdir -p {shown}`"),
            (None, ErrorKind::IsADirectory) => {
                "give the path of a file in this directory, or of another file".to_owned()
            }
            (None, ErrorKind::AlreadyExists) => format!("remove {shown}, or choose another file"),
            (None, ErrorKind::PermissionDenied) if caller() != Uid::ROOT => {
                format!("{}; or choose another path", root_hint())
            }
            (None, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                "free space on the file system, then run this command again".to_owned()
            }
            (None, ErrorKind::FileTooLarge) => {
                "run `ulimit -f unlimited` to allow larger files".to_owned()
            }
            (None, ErrorKind::ReadOnlyFilesystem) => "choose a writable path".to_owned(),
            _ => return None,
        };
        Some(hint)
    }
}

pub(super) fn describe_owner(uid: u32) -> String {
    format!("belongs to {}", describe_user(Uid(uid)))
}

/// `root`, `user alice`
fn describe_user(user: Uid) -> String {
    match user {
        Uid::ROOT => "root".to_owned(),
        user => format!("user {}", user_name(user)),
    }
}

/// Advice on a file of another user.
fn foreign_hint(owner: Uid, shown: &str) -> String {
    let name = describe_user(owner);
    if may_be_unmapped(owner) {
        format!(
            "run this command outside the user namespace, which does not map the owner of {shown}"
        )
    } else if caller() == Uid::ROOT {
        format!("examine {shown}, and remove it unless {name} needs it; or choose another path")
    } else {
        format!("run this command as {name}, or choose another path")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_names_the_innermost_file() {
        let error = FileError::with_fault(FileFault::OpenDirectory, "others can write to it");
        let error = error.at("/a".as_ref()).at("/a/b".as_ref());
        assert_eq!(error.to_string(), "/a/b: /a: others can write to it");
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert_eq!(
            error.hint().as_deref(),
            Some("examine the files in /a, then run `chmod go-w /a`")
        );
    }

    #[test]
    fn a_kind_alone_has_a_hint() {
        let full = FileError::from(ErrorKind::StorageFull).at("/a".as_ref());
        assert!(full.hint().unwrap().starts_with("free "));
        assert_eq!(FileError::from(ErrorKind::NotFound).hint(), None);
    }

    #[test]
    fn errors_of_the_system_have_words_and_no_numbers() {
        let error = FileError::from(Errno::NOENT).at("/a".as_ref());
        assert_eq!(error.to_string(), "/a: No such file or directory");
        assert_eq!(error.errno(), Some(Errno::NOENT));
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
