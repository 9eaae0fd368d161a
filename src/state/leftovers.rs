//! Removes what interrupted changes and users left in a run directory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::time::Instant;

use super::run_dir::{
    BY_NAME, JOURNAL, NODE, PIPE, RECORD, RESERVE, RunDir, half_made, is_device_uuid, is_half_made,
    leads_to_device, load_record_in,
};
use crate::host::{Directory, EntryKind, FileError, FileResult, Uid, caller};
use crate::mps::QUARANTINE;

/// Removes the unfinished files in the directory of a device.
pub(super) fn remove_half_made(device: &Directory) -> FileResult<()> {
    for name in device
        .entry_names()?
        .iter()
        .filter(|name| is_half_made(name))
    {
        device.remove_made(name, EntryKind::File)?;
    }
    Ok(())
}

impl RunDir {
    /// Returns the pipe directories that were set aside because their users had put files into them.
    pub fn quarantined_dirs(&self) -> Vec<PathBuf> {
        let mut set_aside: Vec<PathBuf> = self
            .quarantined_names()
            .unwrap_or_default()
            .iter()
            .map(|name| self.path().join(QUARANTINE).join(name))
            .collect();
        set_aside.sort();
        set_aside
    }

    fn quarantined_names(&self) -> Option<Vec<OsString>> {
        self.open()
            .ok()?
            .open_child(QUARANTINE)
            .ok()??
            .entry_names()
            .ok()
    }

    /// Removes the pipe directories of these devices, or of all, that were set aside. Stops at `until`.
    pub fn remove_quarantined(&self, devices: Option<&[String]>, until: Instant) -> FileResult<()> {
        let Some(directory) = Directory::open_if_there(self.path())? else {
            return Ok(());
        };
        let Some(set_aside) = directory.open_child(QUARANTINE)? else {
            return Ok(());
        };
        let mut removed = Ok(());
        for name in set_aside.entry_names()? {
            if devices.is_none_or(|uuids| uuids.iter().any(|uuid| is_pipe_dir_of(&name, uuid))) {
                removed = removed.and(set_aside.remove_all(&name, until));
            }
        }
        removed.and(directory.remove_dir_if_empty(QUARANTINE))
    }

    /// Renames the files of the whole node that cannot be read. Returns what to say of each.
    pub fn quarantine_unreadable(&self) -> FileResult<Vec<String>> {
        let mut said = Vec::new();
        for (name, error) in self.unreadable_files() {
            let directory = self.open()?;
            let new = format!("{name}.unreadable");
            directory.rename(name, &directory, &new)?;
            let lost = if name == NODE {
                "mig-mps no longer knows which instances it created"
            } else {
                "make sure that the monitoring services that it listed are running"
            };
            let path = self.path().join(new);
            said.push(format!("{error}; it is now {}; {lost}", path.display()));
        }
        Ok(said)
    }

    /// True if a file of the whole node cannot be read.
    pub fn has_unreadable(&self) -> bool {
        !self.unreadable_files().is_empty()
    }

    fn unreadable_files(&self) -> Vec<(&'static str, FileError)> {
        let read = [
            (NODE, self.load_node().map(drop)),
            (JOURNAL, self.load_journal().map(drop)),
        ];
        read.into_iter()
            .filter_map(|(name, read)| Some((name, read.err()?)))
            // What a newer mig-mps wrote is not damaged.
            .filter(|(_, error)| error.kind() != io::ErrorKind::Unsupported)
            .collect()
    }

    /// Removes the leftovers of a change that was killed while it wrote or removed a record: unfinished files, links that are
    /// broken or have an earlier name, device directories without a record. Removes the directories of container runtimes, too.
    pub fn remove_leftovers(&self) -> FileResult<()> {
        let directory = self.open()?;
        for name in directory.entry_names()? {
            let name = name.to_string_lossy();
            // A directory that is shared with other programs keeps their files.
            if is_half_made_of(&name, NODE) || is_half_made_of(&name, JOURNAL) {
                directory.remove_made(&*name, EntryKind::File)?;
            } else if is_device_uuid(&name)
                && let Ok(Some(device)) = directory.open_child(&*name)
            {
                remove_half_made(&device)?;
            }
        }
        if let Ok(Some(by_name)) = directory.open_child(BY_NAME) {
            for name in by_name.entry_names()? {
                let Some(to) = by_name.read_link(&name) else {
                    continue;
                };
                let record = to.file_name().and_then(OsStr::to_str);
                let is_its_name = match record.map(|uuid| load_record_in(&directory, uuid)) {
                    Some(Ok(Some(record))) => *record.name == name,
                    // The link is the only name of a device whose record cannot be read.
                    Some(Err(_)) => true,
                    Some(Ok(None)) | None => false,
                };
                if !is_its_name || is_half_made(&name) {
                    by_name.remove_made(&name, LINK)?;
                }
            }
        }
        self.remove_mount_sources()
    }

    /// Removes directories that hold nothing but directories where mig-mps would make links and records: container runtimes
    /// make them of mount sources that are missing.
    pub fn remove_mount_sources(&self) -> FileResult<()> {
        let Some(directory) = Directory::open_if_there(self.path())? else {
            return Ok(());
        };
        for found in self
            .find_misplaced()
            .iter()
            .filter(|found| found.is_removed)
        {
            if let Some(parent) = found.path.parent()
                && let Some(name) = found.path.file_name()
            {
                Directory::open(parent)?.remove_if_only_directories(name)?;
            }
        }
        match directory.open_child(BY_NAME) {
            Ok(Some(_)) => directory.remove_dir_if_empty(BY_NAME),
            _ => Ok(()),
        }
    }

    /// Finds what other programs have made in the places of files, links and directories.
    pub fn find_misplaced(&self) -> Vec<Misplaced> {
        let Ok(Some(directory)) = Directory::open_if_there(self.path()) else {
            return Vec::new();
        };
        let mut all = Vec::new();
        for name in [BY_NAME, RESERVE, QUARANTINE] {
            all.extend(Misplaced::find_at(
                &directory,
                name.as_ref(),
                EntryKind::Directory,
            ));
        }
        for name in [NODE, JOURNAL, &half_made(NODE), &half_made(JOURNAL)] {
            all.extend(Misplaced::find_at(
                &directory,
                name.as_ref(),
                EntryKind::File,
            ));
        }
        if let Ok(Some(by_name)) = directory.open_child(BY_NAME) {
            for name in by_name.entry_names().unwrap_or_default() {
                all.extend(Misplaced::find_at(&by_name, &name, LINK));
            }
        }
        for name in directory.entry_names().unwrap_or_default() {
            if !name.to_str().is_some_and(is_device_uuid) {
                continue;
            }
            all.extend(Misplaced::find_at(&directory, &name, EntryKind::Directory));
            // Without a record it is nobody's.
            if matches!(directory.holds_only_directories(&name), Ok(true)) {
                all.push(Misplaced::new_removable(&directory, &name));
            } else if let Ok(Some(device)) = directory.open_child(&name) {
                all.extend(misplaced_in(&device));
            }
        }
        all.sort_by(|a, b| a.path.cmp(&b.path));
        all
    }

    /// Fails if anything that mig-mps did not make is in the way of the link and the directory of a device. Returns the
    /// directories that are removed when those are made.
    pub fn check_places(&self, name: &str, uuid: Option<&str>) -> FileResult<Vec<PathBuf>> {
        let mut freed = Vec::new();
        let Some(directory) = Directory::open_if_there(self.path())? else {
            return Ok(freed);
        };
        directory.is_to_be_freed(BY_NAME, EntryKind::Directory)?;
        directory.check_child(BY_NAME)?;
        if let Some(by_name) = directory.open_child(BY_NAME)?
            && by_name.is_to_be_freed(name, LINK)?
        {
            freed.push(self.by_name(name));
        }
        let Some(uuid) = uuid else {
            return Ok(freed);
        };
        directory.is_to_be_freed(uuid, EntryKind::Directory)?;
        directory.check_child(uuid)?;
        if let Some(device) = directory.open_child(uuid)? {
            // One of another user is set aside, and a mount there is detached.
            if let Ok(Some(pipe)) = device.stat(PIPE)
                && Uid(pipe.st_uid) == caller()
            {
                device.check_child(PIPE)?;
            }
            device.is_to_be_freed(RECORD, EntryKind::File)?;
        }
        Ok(freed)
    }
}

/// A link of mig-mps by the name of a device.
const LINK: EntryKind<'_> = EntryKind::Link(&leads_to_device);

/// Something that another program has made in a place of mig-mps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misplaced {
    pub path: PathBuf,
    /// The reason why mig-mps does not use it.
    pub why: String,
    /// True for directories that hold nothing but directories: the next change removes them.
    pub is_removed: bool,
}

impl Misplaced {
    fn find_at(directory: &Directory, name: &OsStr, made: EntryKind<'_>) -> Option<Self> {
        match directory.is_to_be_freed(name, made) {
            Ok(false) => None,
            Ok(true) => Some(Self::new_removable(directory, name)),
            // It cannot be seen.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !error.has_fault() => {
                None
            }
            Err(error) => Some(Self {
                path: directory.path().join(name),
                why: error.to_string(),
                is_removed: false,
            }),
        }
    }

    fn new_foreign(directory: &Directory, name: &OsStr) -> Self {
        let path = directory.path().join(name);
        Self {
            why: format!("{}: it is not a file of mig-mps", path.display()),
            path,
            is_removed: false,
        }
    }

    fn new_removable(directory: &Directory, name: &OsStr) -> Self {
        let path = directory.path().join(name);
        Self {
            why: format!("{}: it contains only directories", path.display()),
            path,
            is_removed: true,
        }
    }
}

/// Finds the same in the directory of a device that holds files.
fn misplaced_in(device: &Directory) -> Vec<Misplaced> {
    let names = device.entry_names().unwrap_or_default();
    let found = names.iter().filter_map(|name| {
        if name == RECORD || is_half_made(name) {
            return Misplaced::find_at(device, name, EntryKind::File);
        }
        // Beside a record, another file is in no way.
        let is_left = name != PIPE && !device.has_entry(RECORD);
        is_left.then(|| Misplaced::new_foreign(device, name))
    });
    found.collect()
}

/// True for the name of a pipe directory of this device that was set aside.
fn is_pipe_dir_of(name: &OsStr, uuid: &str) -> bool {
    name.to_string_lossy()
        .strip_prefix(uuid)
        .is_some_and(|rest| rest.starts_with('.'))
}

/// True for the name of this file before it is renamed into place.
fn is_half_made_of(name: &str, file: &str) -> bool {
    let number = name.strip_suffix(&half_made(file));
    number.is_some_and(|number| number.chars().all(|c| c.is_ascii_digit() || c == '.'))
}
