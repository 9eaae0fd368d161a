use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{DeviceRecord, Journal, NodeFile};
use crate::host::{
    Uid, in_path, make_dir, printable, read_json, remove_if_there, steers, write_json,
    write_private_json,
};
use crate::mps::LEFT;
use crate::profile::is_device_name;

/// How often a link is tried to be made: whoever removes the last other one in between removes their directory too.
const TRIES: u32 = 20;

/// A run directory: the state of what mig-mps made (DESIGN 6).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDir {
    path: PathBuf,
}

impl RunDir {
    /// The run directory at `path`, whether or not it is there.
    pub fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
        }
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes it.
    ///
    /// # Errors
    /// The system's, or where it is somebody else's.
    pub fn make(&self) -> io::Result<()> {
        make_dir(&self.path, 0o755)
    }

    /// The file whose lock allows changes.
    pub fn lock(&self) -> PathBuf {
        self.path.join("lock")
    }

    /// A device's pipe directory.
    pub fn pipe_dir(&self, uuid: &str) -> PathBuf {
        self.path.join(uuid).join("pipe")
    }

    /// The name under which jobs find a device's directory: it survives a reboot that changes UUIDs.
    pub fn by_name(&self, name: &str) -> PathBuf {
        self.path.join("by-name").join(name)
    }

    fn record(&self, uuid: &str) -> PathBuf {
        self.path.join(uuid).join("device.json")
    }

    fn node_file(&self) -> PathBuf {
        self.path.join("node.json")
    }

    /// Whose it is.
    pub fn owner(&self) -> Option<Uid> {
        let meta = fs::symlink_metadata(&self.path).ok()?;
        Some(Uid(meta.uid()))
    }

    /// Every device record in it, and why others cannot be read: a record that says nonsense is no
    /// missing one. A user's directory may hold anything.
    pub fn records(&self) -> (Vec<DeviceRecord>, Vec<String>) {
        let mut records = Vec::new();
        let mut problems = Vec::new();
        for entry in fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let directory = entry.file_name();
            match read_json::<DeviceRecord>(&entry.path().join("device.json")) {
                Ok(Some(record))
                    if directory == record.uuid.as_str()
                        && !record.uuid.contains(steers)
                        && is_device_name(&record.name) =>
                {
                    records.push(record);
                }
                Ok(Some(_)) => problems.push(format!(
                    "{}: its record is of another device",
                    entry.path().display()
                )),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => {}
                Err(error) => problems.push(error.to_string()),
            }
        }
        (records, problems)
    }

    /// The files that say what was made, and what is being changed.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let records = entries(&self.path).map(|entry| entry.path().join("device.json"));
        records.chain([self.journal_file()]).collect()
    }

    /// Pipe directories that were put aside because of what their users had put into them.
    pub fn left(&self) -> Vec<PathBuf> {
        let mut left: Vec<PathBuf> = entries(&self.path.join(LEFT))
            .map(|entry| entry.path())
            .collect();
        left.sort();
        left
    }

    /// When a device's record was last written.
    pub(super) fn recorded_at(&self, uuid: &str) -> Option<SystemTime> {
        fs::symlink_metadata(self.record(uuid))
            .ok()?
            .modified()
            .ok()
    }

    /// Writes a device's record and its link by name.
    ///
    /// # Errors
    /// The system's.
    pub fn write_record(&self, record: &DeviceRecord) -> io::Result<()> {
        let is_new = !self.has_record(&record.uuid);
        let written = self.try_to_write_record(record);
        if written.is_err() && is_new {
            // A full disk leaves a part of it, which nobody would take for half-made.
            let _ = self.remove_record(record);
        }
        written
    }

    fn try_to_write_record(&self, record: &DeviceRecord) -> io::Result<()> {
        make_dir(&self.path.join(&record.uuid), 0o755)?;
        write_json(&self.record(&record.uuid), record)?;
        let link = self.by_name(&record.name);
        let target = Path::new("..").join(&record.uuid);
        if fs::read_link(&link).is_ok_and(|there| there == target) {
            return Ok(());
        }
        let by_name = self.path.join("by-name");
        let new = by_name.join(format!(".{}.new", record.name));
        let relink = || {
            make_dir(&by_name, 0o755)?;
            remove_if_there(&new)?;
            std::os::unix::fs::symlink(&target, &new)?;
            fs::rename(&new, &link)
        };
        let mut linked = relink();
        for _ in 1..TRIES {
            match &linked {
                Err(error) if error.kind() == io::ErrorKind::NotFound => linked = relink(),
                _ => break,
            }
        }
        linked.map_err(|error| {
            let _ = fs::remove_file(&new);
            in_path(&link, &error)
        })
    }

    /// Removes what [`write_record`](Self::write_record) wrote; the pipe directory must be gone.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_record(&self, record: &DeviceRecord) -> io::Result<()> {
        let link = self.by_name(&record.name);
        if fs::read_link(&link).is_ok_and(|to| to == Path::new("..").join(&record.uuid)) {
            fs::remove_file(&link)?;
        }
        let file = self.record(&record.uuid);
        remove_if_there(&file)?;
        // What was killed while it wrote another one has left half of it.
        remove_if_there(&file.with_extension("json.new"))?;
        remove_dir_if_there(&self.path.join(&record.uuid))?;
        remove_empty_dir(&self.path.join("by-name"))
    }

    /// Removes what a change that was killed while it wrote or removed a record has left: half-made
    /// files, links that lead nowhere, device directories without a record.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_leftovers(&self) -> io::Result<()> {
        for entry in entries(&self.path) {
            let path = entry.path();
            if is_half_made(&path) {
                remove_if_there(&path)?;
            } else if path.is_dir() {
                for file in entries(&path).filter(|file| is_half_made(&file.path())) {
                    remove_if_there(&file.path())?;
                }
                if !path.join("device.json").exists() {
                    // Whatever else lies there is not ours.
                    remove_empty_dir(&path)?;
                }
            }
        }
        let by_name = self.path.join("by-name");
        for entry in entries(&by_name) {
            let leads_nowhere = !entry.path().join("device.json").exists();
            if entry.path().is_symlink() && (leads_nowhere || is_half_made(&entry.path())) {
                remove_if_there(&entry.path())?;
            }
        }
        remove_empty_dir(&by_name)
    }

    fn journal_file(&self) -> PathBuf {
        self.path.join("journal.json")
    }

    /// Whether a change is under way, or was killed.
    pub fn has_journal(&self) -> bool {
        self.journal_file().exists()
    }

    /// Whether there is a record of a device with that UUID, whatever it says.
    pub fn has_record(&self, uuid: &str) -> bool {
        self.record(uuid).exists()
    }

    /// What a change that is under way, or was killed, says of itself.
    ///
    /// # Errors
    /// The system's, or where it cannot be understood.
    pub fn journal(&self) -> io::Result<Option<Journal>> {
        let mut journal: Option<Journal> = read_json(&self.journal_file())?;
        // A user chooses what his own says of itself: it must not steer root's terminal.
        if let Some(journal) = &mut journal {
            journal.command = printable(&journal.command);
            for taken in &mut journal.taken {
                taken.name = printable(&taken.name);
            }
        }
        Ok(journal)
    }

    /// Replaces the journal. It is nobody else's business: it names a user's command line.
    ///
    /// # Errors
    /// The system's.
    pub fn write_journal(&self, journal: &Journal) -> io::Result<()> {
        write_private_json(&self.journal_file(), journal)
    }

    /// Removes the journal.
    ///
    /// # Errors
    /// The system's.
    pub fn remove_journal(&self) -> io::Result<()> {
        remove_if_there(&self.journal_file())
    }

    /// What `node.json` says; nothing where there is none.
    ///
    /// # Errors
    /// The system's, or where it cannot be understood.
    pub fn node(&self) -> io::Result<NodeFile> {
        Ok(read_json(&self.node_file())?.unwrap_or_default())
    }

    /// Replaces `node.json`; one that says nothing any more is removed.
    ///
    /// # Errors
    /// The system's.
    pub fn write_node(&self, node: &NodeFile) -> io::Result<()> {
        if node.created.is_empty() && node.switched_on.is_empty() && node.profile.is_none() {
            return remove_if_there(&self.node_file());
        }
        write_json(&self.node_file(), node)
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = fs::DirEntry> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten()
}

/// What is written beside its place before it is put there.
fn is_half_made(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "new")
}

fn remove_dir_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(in_path(path, &error)),
        _ => Ok(()),
    }
}

fn remove_empty_dir(path: &Path) -> io::Result<()> {
    match fs::remove_dir(path) {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}
