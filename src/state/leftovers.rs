//! Removes what interrupted changes and users left in a run directory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Instant;

use super::run_dir::{
    BY_NAME, HALF_MADE, JOURNAL, NODE, RECORD, RunDir, half_made, is_device_uuid,
};
use crate::host::Directory;
use crate::mps::SET_ASIDE;

impl RunDir {
    /// Returns the pipe directories that were set aside because their users had put files into them.
    pub fn set_aside(&self) -> Vec<PathBuf> {
        let mut set_aside: Vec<PathBuf> = self
            .names_set_aside()
            .unwrap_or_default()
            .iter()
            .map(|name| self.path().join(SET_ASIDE).join(name))
            .collect();
        set_aside.sort();
        set_aside
    }

    fn names_set_aside(&self) -> Option<Vec<OsString>> {
        self.open().ok()?.child(SET_ASIDE).ok()??.names().ok()
    }

    /// Removes the pipe directories of these devices, or of all, that were set aside. Stops at `until`.
    pub fn remove_set_aside(&self, devices: Option<&[String]>, until: Instant) -> io::Result<()> {
        let Some(directory) = Directory::open_if_there(self.path())? else {
            return Ok(());
        };
        let Some(set_aside) = directory.child(SET_ASIDE)? else {
            return Ok(());
        };
        let mut removed = Ok(());
        for name in set_aside.names()? {
            if devices.is_none_or(|uuids| uuids.iter().any(|uuid| is_pipe_dir_of(&name, uuid))) {
                removed = removed.and(set_aside.remove_all(&name, until));
            }
        }
        removed.and(directory.remove_dir_if_empty(SET_ASIDE))
    }

    /// Renames the files of the whole node that cannot be read. Returns what to say of each.
    pub fn put_aside_unreadable(&self) -> io::Result<Vec<String>> {
        let mut said = Vec::new();
        for (name, error) in self.unreadable() {
            let directory = self.open()?;
            let new = format!("{name}.unreadable");
            directory.rename(name, &directory, &new)?;
            let lost = if name == NODE {
                "mig-mps has forgotten which instances it made"
            } else {
                "make sure that the monitoring services it lists are running"
            };
            let path = self.path().join(new);
            said.push(format!("{error}. It is now {}: {lost}.", path.display()));
        }
        Ok(said)
    }

    /// True if a file of the whole node cannot be read.
    pub fn has_unreadable(&self) -> bool {
        !self.unreadable().is_empty()
    }

    fn unreadable(&self) -> Vec<(&'static str, io::Error)> {
        let read = [
            (NODE, self.node().map(drop)),
            (JOURNAL, self.journal().map(drop)),
        ];
        read.into_iter()
            .filter_map(|(name, read)| Some((name, read.err()?)))
            // What a newer mig-mps wrote is not damaged.
            .filter(|(_, error)| error.kind() != io::ErrorKind::Unsupported)
            .collect()
    }

    /// Removes the leftovers of a change that was killed while it wrote or removed a record: unfinished files, broken
    /// links, device directories without a record.
    pub fn remove_leftovers(&self) -> io::Result<()> {
        let directory = self.open()?;
        for name in directory.names()? {
            // A directory that is shared with other programs keeps their files.
            if name == half_made(NODE).as_str() || name == half_made(JOURNAL).as_str() {
                directory.remove_file(&name)?;
            } else if name.to_str().is_some_and(is_device_uuid)
                && let Ok(Some(device)) = directory.child(&name)
            {
                for file in device.names()?.iter().filter(|file| is_half_made(file)) {
                    device.remove_file(file)?;
                }
                if !device.has(RECORD) {
                    // Any other file in it is not of mig-mps.
                    directory.remove_dir_if_empty(&name)?;
                }
            }
        }
        let Some(by_name) = directory.child(BY_NAME)? else {
            return Ok(());
        };
        for name in by_name.names()? {
            let Some(to) = by_name.link(&name) else {
                continue;
            };
            let device = to.file_name().map(|uuid| directory.child(uuid));
            let has_record = matches!(device, Some(Ok(Some(device))) if device.has(RECORD));
            if !has_record || is_half_made(&name) {
                by_name.remove_file(&name)?;
            }
        }
        directory.remove_dir_if_empty(BY_NAME)
    }
}

/// True for the name of a pipe directory of this device that was set aside.
fn is_pipe_dir_of(name: &OsStr, uuid: &str) -> bool {
    name.to_string_lossy()
        .strip_prefix(uuid)
        .is_some_and(|rest| rest.starts_with('.'))
}

fn is_half_made(name: &OsStr) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == HALF_MADE)
}
