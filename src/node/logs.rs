//! Where the logs of daemons lie: of those that run, and of those that ran.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{NoSuchDevice, Node, daemons};
use crate::host::Environment;
use crate::host::{Uid, steers};
use crate::state::DeviceRecord;

/// The logs that there are.
#[derive(Debug, Default)]
pub struct Logs {
    all: Vec<DeviceLogs>,
    /// What could not be seen, in words.
    pub hidden: Vec<String>,
}

/// A device that has, or had, a daemon, and the directory of its logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLogs {
    /// Its name; `None` where no record gives it one.
    pub name: Option<String>,
    /// Its UUID, or the name of a directory with what a daemon of another user wrote: `<UUID>.of-1000.1`.
    pub uuid: String,
    /// The directory; `None` where that is not known: another user's dead daemon alone knew it.
    pub path: Option<PathBuf>,
}

impl Logs {
    /// Looks for them in every run and log directory that the caller's environment names. This needs no driver: a
    /// log is read when something is wrong.
    pub fn read(environment: &Environment) -> Self {
        let mut node = Node {
            // Where it is hidden, so are the daemons.
            boot_id: environment.host.boot_id().unwrap_or_default(),
            ..Node::default()
        };
        daemons::read_records(environment, &mut node);
        let recorded = node.served.iter().map(|served| {
            let record = &served.record;
            let home = environment.logs_of(served.run_dir.path());
            let home = home.map(|home| home.join(&record.uuid));
            let told = told(environment, &node.boot_id, record);
            DeviceLogs {
                name: Some(record.name.clone()),
                uuid: record.uuid.clone(),
                path: told.or(home),
            }
        });
        let mut logs = Self {
            all: recorded.collect(),
            hidden: std::mem::take(&mut node.hidden),
        };
        for dir in environment.log_dirs() {
            logs.add_unrecorded(&dir);
        }
        logs
    }

    /// Adds what lies in a log directory and belongs to no record.
    fn add_unrecorded(&mut self, dir: &Path) {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => {
                let hidden = format!("cannot read {}: {error}", dir.display());
                return self.hidden.push(hidden);
            }
        };
        let mut found: Vec<DeviceLogs> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
            .filter(|(name, _)| name.starts_with("GPU-") || name.starts_with("MIG-"))
            .filter(|(name, _)| !name.contains(steers))
            .filter(|(name, _)| !self.all.iter().any(|known| known.uuid == *name))
            .map(|(uuid, path)| DeviceLogs {
                name: None,
                uuid,
                path: Some(path),
            })
            .collect();
        found.sort_by(|a, b| a.uuid.cmp(&b.uuid));
        self.all.append(&mut found);
    }

    /// The logs that a word on the command line means: a name, a UUID, or the unique beginning of one.
    ///
    /// # Errors
    /// [`NoSuchDevice`], with what there is.
    pub fn of(&self, word: &str) -> Result<&DeviceLogs, NoSuchDevice> {
        let is_called =
            |logs: &&DeviceLogs| logs.name.as_deref() == Some(word) || logs.uuid == word;
        // A prefix must say more than what every UUID begins with. What was put aside is not meant by its device's.
        let is_prefix = word.len() > "MIG-".len();
        let begins = |logs: &&DeviceLogs| {
            let put_aside = logs.uuid.contains(".of-") && !word.contains(".of-");
            is_prefix && logs.uuid.starts_with(word) && !put_aside
        };
        let called: Vec<&DeviceLogs> = self.all.iter().filter(is_called).collect();
        let fits = if called.is_empty() {
            self.all.iter().filter(begins).collect()
        } else {
            called
        };
        match fits.as_slice() {
            [logs] => Ok(logs),
            [] => Err(NoSuchDevice::Unknown {
                wanted: word.to_owned(),
                known: self
                    .all
                    .iter()
                    .map(|logs| logs.title().to_owned())
                    .collect(),
            }),
            _ => Err(NoSuchDevice::Ambiguous {
                wanted: word.to_owned(),
                uuids: fits.iter().map(|logs| logs.uuid.clone()).collect(),
            }),
        }
    }
}

impl DeviceLogs {
    /// What it is called.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.uuid)
    }
}

/// Where a living daemon was told to write. A user's daemon may claim anything.
fn told(environment: &Environment, boot_id: &str, record: &DeviceRecord) -> Option<PathBuf> {
    let id = record.daemon.filter(|_| record.boot_id == boot_id)?;
    let process = id.running(&environment.host)?;
    let is_trusted = [Some(Uid::ROOT), Some(environment.caller)].contains(&process.owner());
    let told = process.environment("CUDA_MPS_LOG_DIRECTORY");
    told.filter(|_| is_trusted).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(all: &[(Option<&str>, &str)]) -> Logs {
        let one = |(name, uuid): &(Option<&str>, &str)| DeviceLogs {
            name: name.map(str::to_owned),
            uuid: (*uuid).to_owned(),
            path: None,
        };
        Logs {
            all: all.iter().map(one).collect(),
            hidden: Vec::new(),
        }
    }

    #[test]
    fn a_name_a_uuid_or_its_beginning_means_a_device() {
        let logs = logs(&[
            (Some("0.0"), "MIG-11"),
            (None, "MIG-11.of-1000.1"),
            (None, "MIG-22"),
            (None, "MIG-23"),
        ]);
        let uuid = |word| logs.of(word).map(|logs| logs.uuid.as_str());
        assert_eq!(uuid("0.0"), Ok("MIG-11"));
        assert_eq!(uuid("MIG-11"), Ok("MIG-11"));
        assert_eq!(uuid("MIG-1"), Ok("MIG-11"));
        assert_eq!(uuid("MIG-11.of-"), Ok("MIG-11.of-1000.1"));
        let unknown = uuid("MIG-").unwrap_err().to_string();
        assert_eq!(
            unknown,
            "no device is called \"MIG-\"; there are 0.0, MIG-11.of-1000.1, MIG-22, MIG-23"
        );
        let ambiguous = uuid("MIG-2").unwrap_err().to_string();
        assert_eq!(ambiguous, "\"MIG-2\" can mean MIG-22 and MIG-23");
    }
}
