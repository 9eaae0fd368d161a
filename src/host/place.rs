//! The places of what mig-mps makes in its directories. A container runtime makes a directory of each mount source that is
//! missing: directories that hold nothing but directories are removed from such a place, and anything else is refused.

use std::ffi::OsStr;
use std::path::Path;

use rustix::fs::{FileType, Stat};

use super::file_error::{FileFault, describe_owner};
use super::trusted_path::OTHERS_WRITE;
use super::{Directory, FileError, FileResult, caller};

/// The deepest directory, and the most directories, that are removed from a place.
const MAX_DEPTH: u32 = 16;
const MAX_DIRECTORIES: u32 = 1000;

/// The most names that are tried for an unfinished file.
const MAX_NAME_TRIES: u32 = 100;

/// The kind of a place.
#[derive(Clone, Copy)]
pub enum EntryKind<'a> {
    File,
    Directory,
    /// A link to one of these targets.
    Link(&'a dyn Fn(&Path) -> bool),
}

/// The content of a place.
enum PlaceContent {
    Nothing,
    /// A file, link or directory of mig-mps.
    Made,
    /// A directory that holds nothing but directories.
    Directories,
    /// Anything else, described.
    Other(&'static str),
}

impl Directory {
    fn classify_place(&self, name: &OsStr, made: EntryKind<'_>) -> FileResult<PlaceContent> {
        let Some(meta) = self.stat(name)? else {
            return Ok(PlaceContent::Nothing);
        };
        Ok(PlaceContent::Other(
            match (made, FileType::from_raw_mode(meta.st_mode)) {
                (EntryKind::File, FileType::RegularFile)
                | (EntryKind::Directory, FileType::Directory) => {
                    return Ok(PlaceContent::Made);
                }
                (EntryKind::Link(is_ours), FileType::Symlink)
                    if self.read_link(name).is_some_and(|to| is_ours(&to)) =>
                {
                    return Ok(PlaceContent::Made);
                }
                (_, FileType::Directory) if self.holds_only_directories(name)? => {
                    return Ok(PlaceContent::Directories);
                }
                (_, FileType::Directory) => "it is a directory with other files",
                (EntryKind::Link(_), FileType::Symlink) => "it is another link",
                (_, FileType::Symlink) => "it is a symbolic link, which mig-mps does not follow",
                (EntryKind::File, _) => "it is not a regular file",
                (EntryKind::Directory, _) => "it is not a directory",
                (EntryKind::Link(_), _) => "it is not a link",
            },
        ))
    }

    /// True if the place is taken by a directory that holds nothing but directories, and must be freed before anything is
    /// made there. Refuses what else mig-mps does not make there.
    pub fn is_to_be_freed(&self, name: impl AsRef<OsStr>, made: EntryKind<'_>) -> FileResult<bool> {
        let name = name.as_ref();
        match self.classify_place(name, made)? {
            PlaceContent::Nothing | PlaceContent::Made => Ok(false),
            PlaceContent::Directories => Ok(true),
            PlaceContent::Other(what) => {
                Err(self.error_at(name, FileError::with_fault(FileFault::InTheWay, what)))
            }
        }
    }

    /// Removes what mig-mps has made in a place, or a directory that holds nothing but directories. Returns false if
    /// anything else is there, which stays.
    pub fn remove_made(&self, name: impl AsRef<OsStr>, made: EntryKind<'_>) -> FileResult<bool> {
        let name = name.as_ref();
        match self.classify_place(name, made)? {
            PlaceContent::Nothing => {}
            PlaceContent::Made => self.remove_file(name)?,
            PlaceContent::Directories => self.remove_directories(name)?,
            PlaceContent::Other(_) => return Ok(false),
        }
        Ok(true)
    }

    /// Returns a free name for an unfinished file or link: this one, or with a number before it if anything else is in its
    /// place. Removes what a killed process has left there.
    pub fn free_unfinished(&self, name: &str, made: EntryKind<'_>) -> String {
        let numbered = (1..MAX_NAME_TRIES).map(|number| format!("{number}.{name}"));
        let mut all = std::iter::once(name.to_owned()).chain(numbered);
        all.find(|free| matches!(self.remove_made(free, made), Ok(true)))
            .unwrap_or_else(|| name.to_owned())
    }

    /// Refuses a subdirectory that [`make_child`](Self::make_child) refuses, and touches nothing.
    pub fn check_child(&self, name: impl AsRef<OsStr>) -> FileResult<()> {
        let name = name.as_ref();
        self.open_child(name)?.map_or(Ok(()), |child| {
            check_caller_owns(&child.stat_self()?).map_err(|error| self.error_at(name, error))
        })
    }

    /// True for a directory, and not for a link to one.
    pub(super) fn is_directory(&self, name: &OsStr) -> bool {
        let meta = self.stat(name).ok().flatten();
        meta.is_some_and(|meta| FileType::from_raw_mode(meta.st_mode) == FileType::Directory)
    }

    /// Frees a place for what mig-mps makes there.
    pub fn free_place(&self, name: impl AsRef<OsStr>, made: EntryKind<'_>) -> FileResult<()> {
        if self.is_to_be_freed(&name, made)? {
            self.remove_directories(name.as_ref())?;
        }
        Ok(())
    }

    /// Reads a regular file of at most 1 MiB. Returns `None` if there is none, or if directories are in its place that are
    /// removed when it is written.
    pub fn read_file_in_place(&self, name: impl AsRef<OsStr>) -> FileResult<Option<Vec<u8>>> {
        match self.read_file(&name) {
            Err(_) if matches!(self.holds_only_directories(&name), Ok(true)) => Ok(None),
            read => read,
        }
    }

    /// Makes a link, or replaces one of these targets, atomically. A process that is killed meanwhile leaves `half_made`, or
    /// that name with a number before it.
    pub fn replace_link(
        &self,
        name: &str,
        half_made: &str,
        to: &Path,
        is_ours: &dyn Fn(&Path) -> bool,
    ) -> FileResult<()> {
        self.free_place(name, EntryKind::Link(is_ours))?;
        let half_made = self.free_unfinished(half_made, EntryKind::Link(is_ours));
        self.make_link(to, &half_made)
            .and_then(|()| self.rename(&half_made, self, name))
            .inspect_err(|_| {
                let _ = self.remove_file(&half_made);
            })
    }

    /// True for a directory that holds nothing but directories. Follows no link and enters no mount.
    pub fn holds_only_directories(&self, name: impl AsRef<OsStr>) -> FileResult<bool> {
        let mut rest = MAX_DIRECTORIES;
        self.are_only_directories(name.as_ref(), MAX_DEPTH, &mut rest)
    }

    fn are_only_directories(&self, name: &OsStr, depth: u32, rest: &mut u32) -> FileResult<bool> {
        let meta = self.stat(name)?;
        let is_directory =
            meta.is_some_and(|meta| FileType::from_raw_mode(meta.st_mode) == FileType::Directory);
        if !is_directory || depth == 0 || *rest == 0 {
            return Ok(false);
        }
        *rest -= 1;
        let Some(directory) = self.open_child(name)? else {
            return Ok(false);
        };
        for entry in directory.entry_names()? {
            if !directory.are_only_directories(&entry, depth - 1, rest)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes a directory that holds nothing but directories; returns false if there is none, or it holds anything else.
    pub fn remove_if_only_directories(&self, name: impl AsRef<OsStr>) -> FileResult<bool> {
        let name = name.as_ref();
        let is_one = self.holds_only_directories(name)?;
        if is_one {
            self.remove_directories(name)?;
        }
        Ok(is_one)
    }

    /// Removes directories from the innermost on. A file that has come meanwhile stays, with the directories above it.
    fn remove_directories(&self, name: &OsStr) -> FileResult<()> {
        if let Some(directory) = self.open_child(name)? {
            for entry in directory.entry_names()? {
                directory.remove_directories(&entry)?;
            }
        }
        self.remove_dir(name)
    }
}

/// Refuses a directory of another user, and one that others can write to.
pub(super) fn check_caller_owns(meta: &Stat) -> FileResult<()> {
    if meta.st_uid != caller().0 {
        let why = format!("it {}", describe_owner(meta.st_uid));
        return Err(FileError::with_fault(FileFault::Foreign(meta.st_uid), why));
    }
    if meta.st_mode & OTHERS_WRITE != 0 {
        return Err(FileError::with_fault(
            FileFault::OpenDirectory,
            "others can write to it",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::failure::Failure as _;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir().unwrap();
        let directory = Directory::open(temporary.path()).unwrap();
        (temporary, directory)
    }

    #[test]
    fn directories_without_files_leave_a_place() {
        let (temporary, directory) = directory();
        fs::create_dir_all(temporary.path().join("a/b/c")).unwrap();
        fs::create_dir_all(temporary.path().join("a/d")).unwrap();
        assert!(directory.is_to_be_freed("a", EntryKind::File).unwrap());
        assert!(!directory.is_to_be_freed("a", EntryKind::Directory).unwrap());
        directory.free_place("a", EntryKind::File).unwrap();
        assert!(!directory.has_entry("a"));
    }

    #[test]
    fn anything_else_stays_whole() {
        let (temporary, directory) = directory();
        let path = |name: &str| temporary.path().join(name);
        fs::create_dir_all(path("a/b")).unwrap();
        fs::write(path("a/b/file"), "").unwrap();
        fs::create_dir_all(path("a/empty")).unwrap();
        symlink("empty", path("a/link")).unwrap();
        fs::write(path("file"), "").unwrap();
        symlink("a", path("link")).unwrap();
        let never = |_: &Path| false;
        for (name, made, why) in [
            ("a", EntryKind::File, "it is a directory with other files"),
            (
                "link",
                EntryKind::Directory,
                "it is a symbolic link, which mig-mps does not follow",
            ),
            ("file", EntryKind::Directory, "it is not a directory"),
            (
                "link",
                EntryKind::File,
                "it is a symbolic link, which mig-mps does not follow",
            ),
            ("link", EntryKind::Link(&never), "it is another link"),
            ("file", EntryKind::Link(&never), "it is not a link"),
        ] {
            let error = directory.free_place(name, made).unwrap_err();
            let shown = path(name).display().to_string();
            assert_eq!(error.to_string(), format!("{shown}: {why}"));
            let hint = format!("move {shown} away, then run this command again");
            assert_eq!(error.hint(), Some(hint));
        }
        assert!(path("a/empty").exists() && path("a/b/file").exists());
    }

    #[test]
    fn an_unfinished_file_of_others_stays() {
        let (temporary, directory) = directory();
        let path = |name: &str| temporary.path().join(name);
        fs::create_dir(path("a.new")).unwrap();
        fs::write(path("a.new/file"), "hers").unwrap();
        symlink("file", path("1.a.new")).unwrap();
        fs::write(path("2.a.new"), "of a killed process").unwrap();
        let free = directory.free_unfinished("a.new", EntryKind::File);
        assert_eq!(free, "2.a.new");
        assert!(!directory.has_entry("2.a.new"));
        directory.replace_file("a", "a.new", b"new", 0o644).unwrap();
        assert_eq!(fs::read(path("a")).unwrap(), b"new");
        assert!(directory.has_entry("1.a.new") && !directory.has_entry("2.a.new"));
        assert!(path("a.new/file").exists());
    }

    #[test]
    fn a_tree_too_deep_stays() {
        let (temporary, directory) = directory();
        let deep = "a/".repeat(MAX_DEPTH as usize + 1);
        fs::create_dir_all(temporary.path().join(&deep)).unwrap();
        assert!(!directory.remove_if_only_directories("a").unwrap());
        assert!(temporary.path().join(&deep).exists());
    }
}
