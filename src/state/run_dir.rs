//! The run directory: its files in JSON, and the space that root keeps free for the next change.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::leftovers::remove_half_made;
use super::record::{DeviceKey, DeviceRecord, Journal, NodeFile, PodsFile};
use crate::config::{begins_as_uuid, end_of_uuid};
use crate::host::{
    Access, Directory, EntryKind, Environment, FileError, FileResult, Fingerprint, Host, Machine,
    Uid, caller, is_terminal_control, to_printable,
};
use crate::mps::QUARANTINE;
use crate::profile::is_device_name;

pub(super) const RECORD: &str = "device.json";

/// The directory of the files that are given up on a full disk.
pub(super) const RESERVE: &str = "reserve";
pub(super) const NODE: &str = "node.json";
pub(super) const JOURNAL: &str = "journal.json";
pub(super) const PODS: &str = "pods.json";
pub(super) const BY_NAME: &str = "by-name";
/// The pipe directory in a device's directory.
pub(super) const PIPE: &str = "pipe";

/// The mode of files that every user may read, and of those that name a user's command line.
pub(super) const PUBLIC_MODE: u32 = 0o644;
pub(super) const PRIVATE_MODE: u32 = 0o600;

/// A run directory: the state of what mig-mps made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The file whose lock allows changes.
    pub const LOCK: &str = "lock";

    /// Returns the run directory at `path`, whether or not it exists.
    pub fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Returns the run directories that commands read.
    pub fn all(environment: &Environment) -> Vec<Self> {
        let paths = environment.run_dirs();
        paths.iter().map(|path| Self::at(path)).collect()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the directory if it does not exist. Refuses one of another user.
    pub fn make(&self) -> FileResult<Directory> {
        let directory = Directory::open_or_create(&self.path, 0o755)?;
        directory.check_owner_among(&[caller()])?;
        Ok(directory)
    }

    /// Returns a device's pipe directory.
    pub fn pipe_dir(&self, uuid: &str) -> PathBuf {
        self.path.join(uuid).join(PIPE)
    }

    /// True if a device has its pipe directory, and no file system is mounted there.
    pub fn has_pipe_dir(&self, uuid: &str) -> bool {
        let device = self.open().and_then(|run_dir| run_dir.open_child(uuid));
        let pipe =
            device.and_then(|device| device.map_or(Ok(None), |device| device.open_child(PIPE)));
        matches!(pipe, Ok(Some(_)))
    }

    /// Returns the link to a device's directory that jobs use: it survives a reboot that changes UUIDs.
    pub fn by_name(&self, name: &str) -> PathBuf {
        self.path.join(BY_NAME).join(name)
    }

    /// Returns its owner; `None` if it does not exist.
    pub fn owner(&self) -> Option<Uid> {
        let meta = self.open().ok()?.stat_self().ok()?;
        Some(Uid(meta.st_uid))
    }

    /// Opens the directory. Refuses one that another user could change.
    pub(super) fn open(&self) -> FileResult<Directory> {
        Directory::open(&self.path)
    }

    /// Reads a file of the directory; `None` if there is none.
    fn load_file<T: DeserializeOwned>(&self, name: &str) -> FileResult<Option<T>> {
        let directory = Directory::open_if_there(&self.path)?;
        directory.map_or(Ok(None), |directory| load_json(&directory, name))
    }

    /// Returns every device record, and the errors of those that cannot be read: a record that cannot be parsed
    /// is not a missing one. Fails if the directory exists and cannot be listed: whether daemons run there is unknown.
    pub fn load_records(&self) -> FileResult<(Vec<DeviceRecord>, Vec<String>)> {
        let (mut records, mut problems) = (Vec::new(), Vec::new());
        for (name, record) in self.load_each_record()? {
            match record {
                Ok(record) if is_record_of(&record, &name) => records.push(record),
                Ok(_) => {
                    let path = self.path.join(name);
                    let problem = format!("{}: its record is of another device", path.display());
                    problems.push(problem);
                }
                Err(error) => problems.push(error.to_string()),
            }
        }
        Ok((records, problems))
    }

    /// Returns the name of the other machine on which one of these records, which are all of this directory, or the change was
    /// begun: machines may share a file system.
    pub fn other_machine(
        &self,
        records: &[DeviceRecord],
        host: &Host,
        boot_id: &str,
    ) -> Option<String> {
        let own = host.this_machine();
        let other_of = |boot: &str, machine: Option<&Machine>| {
            let other = machine.filter(|machine| boot != boot_id && machine.is_other(&own))?;
            Some(to_printable(&other.name))
        };
        records
            .iter()
            .find_map(|record| other_of(&record.boot_id, record.machine.as_ref()))
            .or_else(|| {
                let journal = self.load_journal().ok()??;
                other_of(&journal.writer.boot_id, journal.writer.machine.as_ref())
            })
    }

    /// True if no device has a record. One that cannot be read may be of a daemon that runs.
    pub fn has_no_records(&self) -> bool {
        self.load_records()
            .is_ok_and(|(records, problems)| records.is_empty() && problems.is_empty())
    }

    /// Reads the record of every directory that has one.
    fn load_each_record(&self) -> FileResult<Vec<(String, FileResult<DeviceRecord>)>> {
        let Some(directory) = Directory::open_if_there(&self.path)? else {
            return Ok(Vec::new());
        };
        Ok(directory
            .entry_names()?
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .filter(|name| ![BY_NAME, QUARANTINE, RESERVE].contains(&name.as_str()))
            .filter_map(|name| {
                let record = load_record_in(&directory, &name).transpose()?;
                Some((name, record))
            })
            .collect())
    }

    /// Returns a record for each device whose own cannot be read, with what its directory tells: enough to end the daemon
    /// there, and to remove both.
    pub fn lost_records(&self, boot_id: &str) -> Vec<DeviceRecord> {
        let (Ok(directory), Ok(read)) = (self.open(), self.load_each_record()) else {
            return Vec::new();
        };
        read.into_iter()
            .filter(|(uuid, record)| {
                let has_record = record
                    .as_ref()
                    .is_ok_and(|record| is_record_of(record, uuid));
                is_device_uuid(uuid) && !has_record
            })
            .map(|(uuid, _)| lost_record(&directory, uuid, boot_id))
            .collect()
    }

    /// Returns a record for a device that has none, although its daemon runs; `None` if the UUID cannot be one, or the
    /// device has a record.
    pub fn lost_record(&self, uuid: &str, boot_id: &str) -> Option<DeviceRecord> {
        let directory = self.open().ok()?;
        let is_missing =
            is_device_uuid(uuid) && matches!(load_record_in(&directory, uuid), Ok(None));
        is_missing.then(|| lost_record(&directory, uuid.to_owned(), boot_id))
    }

    /// Returns the path of a device's record.
    pub fn record_path(&self, uuid: &str) -> PathBuf {
        self.path.join(uuid).join(RECORD)
    }

    /// Returns the record of one device, if it has one.
    pub fn load_record(&self, uuid: &str) -> FileResult<Option<DeviceRecord>> {
        let directory = Directory::open_if_there(&self.path)?;
        directory.map_or(Ok(None), |directory| load_record_in(&directory, uuid))
    }

    /// Returns the fingerprints of each record and of the journal.
    pub fn record_fingerprints(&self) -> Vec<Fingerprint> {
        let Ok(directory) = self.open() else {
            return Vec::new();
        };
        let mut marks: Vec<_> = directory
            .entry_names()
            .unwrap_or_default()
            .iter()
            .filter_map(|name| directory.fingerprint(&Path::new(name).join(RECORD)))
            .chain(directory.fingerprint(Path::new(JOURNAL)))
            .collect();
        marks.sort();
        marks
    }

    /// Returns the time at which a device's record was last written.
    pub fn recorded_at(&self, uuid: &str) -> Option<SystemTime> {
        let mark = self.open().ok()?.fingerprint(&Path::new(uuid).join(RECORD));
        mark.map(|mark| mark.modified)
    }

    /// Writes a device's record and its link by name, in the place of the link by an earlier name.
    pub fn write_record(&self, record: &DeviceRecord) -> FileResult<()> {
        let is_new = !self.has_record(&record.uuid);
        self.try_to_write_record(record).inspect_err(|_| {
            if is_new {
                // A full disk leaves an incomplete record that looks complete.
                let _ = self.remove_record(record);
            }
        })
    }

    fn try_to_write_record(&self, record: &DeviceRecord) -> FileResult<()> {
        let before = self.load_record(&record.uuid).ok().flatten();
        self.replace_record(record)?;
        link_by_name(&self.open()?, record)?;
        match before.filter(|before| before.name != record.name) {
            Some(renamed) => self.remove_link(&renamed),
            None => Ok(()),
        }
    }

    /// Writes a device's record only. Its link by name stays as it is.
    pub fn replace_record(&self, record: &DeviceRecord) -> FileResult<()> {
        let directory = self.open()?;
        let device = directory.make_child(&record.uuid, &Access::Everybody)?;
        write_json(&device, RECORD, record, PUBLIC_MODE)
    }

    /// Removes what [`write_record`](Self::write_record) wrote; the pipe directory must be gone. What others have made there
    /// stays, with the directory.
    pub fn remove_record(&self, record: &DeviceRecord) -> FileResult<()> {
        self.remove_link(record)?;
        let directory = self.open()?;
        if let Some(device) = directory.open_child(&record.uuid)? {
            device.remove_made(RECORD, EntryKind::File)?;
            remove_half_made(&device)?;
        }
        // A container runtime may have made a mount source in it meanwhile.
        directory.remove_if_only_directories(&record.uuid).map(drop)
    }

    /// Removes the link to a device by its name, if the name still leads to the device.
    fn remove_link(&self, record: &DeviceRecord) -> FileResult<()> {
        let target = Path::new("..").join(&record.uuid);
        // In what is no directory, there is no link.
        if let Ok(Some(by_name)) = self.open()?.open_child(BY_NAME)
            && by_name
                .read_link(&record.name)
                .is_some_and(|to| to == target)
        {
            by_name.remove_file(&record.name)?;
        }
        Ok(())
    }

    /// Fails if a newer mig-mps wrote any of the files: this program cannot know what they mean.
    pub fn check_format_versions(&self) -> FileResult<()> {
        let records = self
            .load_each_record()?
            .into_iter()
            .map(|(_, record)| record.map(drop));
        let others = [self.load_node().map(drop), self.load_journal().map(drop)];
        let unsupported = others
            .into_iter()
            .chain(records)
            .filter_map(Result::err)
            .find(|error| error.kind() == io::ErrorKind::Unsupported);
        match unsupported {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// True if a change is in progress, or was killed.
    pub fn has_journal(&self) -> bool {
        self.open()
            .is_ok_and(|directory| directory.has_entry(JOURNAL))
    }

    /// True if a device with this UUID has a record, readable or not.
    pub fn has_record(&self, uuid: &str) -> bool {
        let device = self.open().and_then(|directory| directory.open_child(uuid));
        matches!(device, Ok(Some(device)) if device.has_entry(RECORD))
    }

    /// Returns the journal of a change that is in progress or was killed.
    pub fn load_journal(&self) -> FileResult<Option<Journal>> {
        let mut journal: Option<Journal> = self.load_file(JOURNAL)?;
        // A user may choose the command line and names in it: they must not control a terminal.
        if let Some(journal) = &mut journal {
            journal.command = to_printable(&journal.command);
            let mut seen = BTreeSet::new();
            journal.units.retain(|unit| seen.insert(*unit));
            for taken in &mut journal.taken {
                taken.name = to_printable(&taken.name);
            }
        }
        Ok(journal)
    }

    /// Replaces the journal. It names a user's command line, so only its owner may read it.
    pub fn write_journal(&self, journal: &Journal) -> FileResult<()> {
        write_json(&self.open()?, JOURNAL, journal, PRIVATE_MODE)
    }

    /// Removes the journal.
    pub fn remove_journal(&self) -> FileResult<()> {
        self.open()?.remove_file(JOURNAL)
    }

    /// Returns the pods that hold shares; `None` if no device plugin has written them.
    pub fn load_pods(&self) -> FileResult<Option<PodsFile>> {
        let mut file: Option<PodsFile> = self.load_file(PODS)?;
        for share in file.iter_mut().flat_map(|file| &mut file.pods) {
            share.pod = to_printable(&share.pod);
        }
        Ok(file)
    }

    /// Replaces `pods.json`. Without a run directory there is no device.
    pub fn write_pods(&self, pods: &PodsFile) -> FileResult<()> {
        match Directory::open_if_there(&self.path)? {
            Some(directory) => write_json(&directory, PODS, pods, PUBLIC_MODE),
            None => Ok(()),
        }
    }

    /// Returns the content of `node.json`, or its default if there is none.
    pub fn load_node(&self) -> FileResult<NodeFile> {
        Ok(self.load_file(NODE)?.unwrap_or_default())
    }

    /// Replaces `node.json`, or removes it if it would be empty.
    pub fn write_node(&self, node: &NodeFile) -> FileResult<()> {
        let directory = self.open()?;
        let nothing = NodeFile {
            boot_id: node.boot_id.clone(),
            ..NodeFile::default()
        };
        if *node == nothing {
            return directory.remove_file(NODE);
        }
        write_json(&directory, NODE, node, PUBLIC_MODE)
    }
}

/// Returns the record of one device; `None` if the entry is no device directory.
pub(super) fn load_record_in(
    directory: &Directory,
    name: &str,
) -> FileResult<Option<DeviceRecord>> {
    match directory.open_child(name) {
        Ok(Some(device)) => load_json(&device, RECORD),
        Err(error) if error.kind() != io::ErrorKind::NotADirectory => Err(error),
        _ => Ok(None),
    }
}

/// Returns a record with what the directory of a device tells: its name by the link.
fn lost_record(directory: &Directory, uuid: String, boot_id: &str) -> DeviceRecord {
    let target = Path::new("..").join(&uuid);
    let by_name = directory.open_child(BY_NAME).ok().flatten();
    let name = by_name.and_then(|by_name| {
        by_name
            .entry_names()
            .ok()?
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .find(|name| is_device_name(name) && by_name.read_link(name).as_ref() == Some(&target))
    });
    DeviceRecord {
        // The part behind the kind: a UUID is no name.
        name: name.unwrap_or_else(|| end_of_uuid(&uuid).unwrap_or(&uuid).to_owned()),
        key: DeviceKey::for_whole_gpu(&uuid),
        boot_id: boot_id.to_owned(),
        leaving: true,
        uuid,
        ..DeviceRecord::default()
    }
}

/// True for the name of a device's directory.
pub(super) fn is_device_uuid(name: &str) -> bool {
    begins_as_uuid(name) && !name.contains(is_terminal_control)
}

fn is_record_of(record: &DeviceRecord, directory: &str) -> bool {
    record.uuid == directory
        && !record.uuid.contains(is_terminal_control)
        && is_device_name(&record.name)
}

/// The version of the format that this program writes, and the newest it reads. Files without a version were written
/// before there was one; they have the same format.
const FORMAT_VERSION: u64 = 1;

/// The extension of a file before it is renamed into place.
const HALF_MADE: &str = "new";

#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u64,
    #[serde(flatten)]
    content: &'a T,
}

pub(super) fn is_half_made(name: &OsStr) -> bool {
    Path::new(name)
        .extension()
        .is_some_and(|extension| extension == HALF_MADE)
}

/// Makes the link to a record by its device's name.
fn link_by_name(directory: &Directory, record: &DeviceRecord) -> FileResult<()> {
    let target = Path::new("..").join(&record.uuid);
    let by_name = directory.make_child(BY_NAME, &Access::Everybody)?;
    if by_name
        .read_link(&record.name)
        .is_some_and(|to| to == target)
    {
        return Ok(());
    }
    let half_made = half_made_link(&record.name);
    by_name.replace_link(&record.name, &half_made, &target, &leads_to_device)
}

/// True for the target of a link by name.
pub(super) fn leads_to_device(target: &Path) -> bool {
    let device = target.strip_prefix("..").ok().and_then(Path::to_str);
    device.is_some_and(|device| is_device_uuid(device) && !device.contains('/'))
}

/// Reads a file. Returns `None` if there is none. Fails with `InvalidData` if its content is unexpected, and with
/// `Unsupported` if a newer mig-mps wrote it.
pub(super) fn load_json<T: DeserializeOwned>(
    directory: &Directory,
    name: &str,
) -> FileResult<Option<T>> {
    let Some(text) = directory.read_file_in_place(name)? else {
        return Ok(None);
    };
    let path = directory.path().join(name);
    if let Ok(content) = serde_json::from_slice::<Value>(&text)
        && let Some(version) = content["version"].as_u64()
        && version > FORMAT_VERSION
    {
        let why = format!(
            "a newer mig-mps wrote it (format {version}; this version reads up to {FORMAT_VERSION})"
        );
        let error = FileError::new(io::ErrorKind::Unsupported, why);
        return Err(error.at(&path));
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let why = format!("line {line}, column {column}: unexpected content");
        FileError::new(io::ErrorKind::InvalidData, why).at(&path)
    })
}

/// Replaces a file atomically.
pub(super) fn write_json(
    directory: &Directory,
    name: &str,
    content: &impl Serialize,
    mode: u32,
) -> FileResult<()> {
    let mut text = serde_json::to_vec_pretty(&Versioned {
        version: FORMAT_VERSION,
        content,
    })
    .map_err(io::Error::from)?;
    text.push(b'\n');
    directory.replace_file(name, &half_made(name), &text, mode)
}

/// Returns the name of a file before it is renamed into place.
pub(super) fn half_made(name: &str) -> String {
    format!("{name}.{HALF_MADE}")
}

/// Returns the name of the link to a device before it is renamed into place.
pub(super) fn half_made_link(device: &str) -> String {
    format!(".{device}.{HALF_MADE}")
}

/// The number of files, since a file system limits that as well, and the bytes of each: together a journal, and a record
/// for each of 56 devices.
const RESERVE_FILES: u32 = 16;
const RESERVE_FILE_BYTES: u64 = 16 << 10;

/// True for the error of a write for which there is no room.
pub fn is_disk_full(error: &FileError) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

impl RunDir {
    /// Keeps the reserve while there are devices, and removes it after the last one. A full disk has no reserve.
    pub fn keep_reserve(&self) {
        let Ok(directory) = self.open() else { return };
        if self.has_no_records() || (caller() == Uid::ROOT && make_reserve(&directory).is_err()) {
            let _ = remove_reserve(&directory);
        }
    }

    /// Frees the reserve; returns true if there was one.
    pub fn give_up_reserve(&self) -> bool {
        self.open().is_ok_and(|directory| {
            directory.has_entry(RESERVE) && remove_reserve(&directory).is_ok()
        })
    }
}

fn make_reserve(directory: &Directory) -> FileResult<()> {
    let is_new = directory.stat(RESERVE)?.is_none();
    let room = fstatvfs(directory.fd())?;
    let bytes = room.f_bavail.saturating_mul(room.f_frsize);
    // Some file systems do not count files.
    let has_few_files = room.f_files != 0 && room.f_favail < 2 * u64::from(RESERVE_FILES);
    if is_new && (bytes < 2 * u64::from(RESERVE_FILES) * RESERVE_FILE_BYTES || has_few_files) {
        // It is not to take the last room.
        return Err(ErrorKind::StorageFull.into());
    }
    let reserve = directory.make_child(RESERVE, &Access::Owner)?;
    for number in 0..RESERVE_FILES {
        let name = number.to_string();
        // One that was cut short by a kill has no size.
        let meta = reserve.stat(&name)?;
        if meta.is_some_and(|meta| u64::try_from(meta.st_size) == Ok(RESERVE_FILE_BYTES)) {
            continue;
        }
        reserve.remove_file(&name)?;
        let file = reserve.create_file(&name, 0o600)?;
        fallocate(&file, FallocateFlags::empty(), 0, RESERVE_FILE_BYTES)?;
    }
    Ok(())
}

/// Removes the files of the reserve, and its directory if no other files are in it.
fn remove_reserve(directory: &Directory) -> FileResult<()> {
    let Some(reserve) = directory.open_child(RESERVE)? else {
        return Ok(());
    };
    for number in 0..RESERVE_FILES {
        reserve.remove_made(number.to_string(), EntryKind::File)?;
    }
    directory.remove_dir_if_empty(RESERVE)
}
