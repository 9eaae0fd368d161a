//! Reads the run directories, and finds the log directories of daemons.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::iter;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::super::device_selector::{
    Candidate, DEVICE_WITH_LOGS, Takes, known_devices_hint, name_order, part_of_joint_error,
    select_candidates,
};
use super::Detail;
use super::daemon_passive::log_path;
use crate::config::begins_as_uuid;
use crate::failure::Failure;
use crate::host::{Environment, FileError, is_terminal_control, to_printable};
use crate::mps::LogDir;
use crate::node::{Closer, Device, NoSuchDevice, Node, Served, Unseen};
use crate::state::RunDir;

/// Returns a node of which the records alone are read.
pub(super) fn node_from_records(environment: &Environment, boot_id: String) -> Node {
    let mut node = Node {
        boot_id,
        detail: Detail::CLIENTS,
        unseen: vec![Unseen::Driver(None)],
        ..Node::default()
    };
    read_records(environment, &mut node);
    node.join();
    node
}

/// Reads the records and journals of every run directory.
pub(super) fn read_records(environment: &Environment, node: &mut Node) {
    for run_dir in RunDir::all(environment) {
        let (records, problems) = match run_dir.load_records() {
            Ok(read) => read,
            Err(error) => {
                node.unseen.push(Unseen::RunDir {
                    run_dir,
                    why: to_printable(&error.to_string()),
                    hint: error.hint(),
                });
                continue;
            }
        };
        if let Some(machine) = run_dir.other_machine(&records, &environment.host, &node.boot_id) {
            let path = run_dir.path().display();
            node.unseen.push(Unseen::RunDir {
                why: format!("{path} is in use on another machine, {machine}"),
                hint: Some(format!(
                    "set MIG_MPS_RUN_DIR to a directory for this machine only; if {machine} was this machine before it was \
                     booted, remove {path}"
                )),
                run_dir,
            });
            continue;
        }
        // A user chooses the names of directories in his own: they must not steer root's terminal.
        if !problems.is_empty() {
            let lost = run_dir.lost_records(&node.boot_id).into_iter();
            node.lost_records
                .extend(lost.map(|record| Served::new(record, &run_dir)));
        }
        node.unseen
            .extend(problems.iter().map(|problem| Unseen::Record {
                run_dir: run_dir.clone(),
                why: to_printable(problem),
            }));
        read_node_file(&run_dir, node);
        let is_changing = read_journal(environment, &run_dir, node);
        // Records that were unfinished before the journal was read and still are after it: no change works on them.
        let again = if !is_changing && records.iter().any(|record| !record.finished) {
            run_dir.load_records().unwrap_or_default().0
        } else {
            Vec::new()
        };
        for mut record in records {
            // Its programs have ended with that boot.
            if record.boot_id != node.boot_id {
                record.closing = None;
            }
            let is_abandoned = !record.finished && again.contains(&record);
            let closer = Closer::find(record.closing.as_ref(), &environment.host);
            let served = Served {
                closer,
                is_abandoned,
                ..Served::new(record, &run_dir)
            };
            add_record(served, node);
        }
    }
}

/// Reads what is recorded of the node as a whole.
fn read_node_file(run_dir: &RunDir, node: &mut Node) {
    match run_dir.load_node() {
        Ok(file) if file.boot_id == node.boot_id => {
            node.created.extend(file.created);
            node.switched_on.extend(file.switched_on);
            node.missing.extend(file.missing);
            let stopped = file.stopped.into_iter();
            node.stopped
                .extend(stopped.map(|one| (run_dir.clone(), one)));
        }
        Ok(_) => {}
        Err(error) => node.unseen.push(unread_file(&error)),
    }
}

/// A file that cannot be read, as something unseen.
fn unread_file(error: &FileError) -> Unseen {
    Unseen::Other(to_printable(&error.to_string()))
}

/// Reads the journal; returns false if no change is in progress in this run directory.
fn read_journal(environment: &Environment, run_dir: &RunDir, node: &mut Node) -> bool {
    match run_dir.load_journal() {
        Ok(Some(journal)) if journal.writer.has_exited(&environment.host) => {
            // A process that exited since it was read has removed it first.
            if let Ok(Some(journal)) = run_dir.load_journal() {
                node.interrupted.push((run_dir.clone(), journal));
            }
            return false;
        }
        Ok(Some(journal)) => node.under_way.push(journal),
        Ok(None) => return false,
        // Only its owner may read it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            node.unseen.push(Unseen::Journal(run_dir.path().to_owned()));
        }
        Err(error) => node.unseen.push(unread_file(&error)),
    }
    true
}

/// Adds a record, unless another run directory has one of this name or device: the system's directory comes first.
fn add_record(served: Served, node: &mut Node) {
    let (record, run_dir) = (&served.record, &served.run_dir);
    let known = node.served().find(|served| {
        let same = served.record.name == record.name || served.record.key == record.key;
        same && served.run_dir != *run_dir
    });
    if let Some(known) = known {
        let hidden = format!(
            "{} also has a device \"{}\": the one in {} is shown",
            run_dir.path().display(),
            record.name,
            known.run_dir.path().display()
        );
        node.unseen.push(Unseen::Other(hidden));
        return;
    }
    node.devices.push(Device::recorded(served));
}

/// The log directories of all daemons that run or ran.
#[derive(Debug, Default)]
pub struct Logs {
    all: Vec<DeviceLogs>,
    /// Descriptions of what could not be read.
    pub hidden: Vec<String>,
}

/// A device that has or had a daemon, and its log directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceLogs {
    /// Its name; `None` if that is not known, or another device has it now.
    pub name: Option<String>,
    /// Its UUID, or `<UUID>.of-1000.1` for a directory of another user's logs that was set aside.
    pub uuid: String,
    /// The indices of its GPUs; none if that is not recorded.
    pub gpus: Vec<u32>,
    /// The directory; `None` if unknown: a dead daemon of another user had one of its own.
    pub path: Option<PathBuf>,
    /// True if its daemon has died since the boot.
    pub is_dead: bool,
}

impl Logs {
    /// Finds the logs of every run and log directory of the environment. This needs no driver: logs are read when
    /// something is wrong.
    pub fn find_all(environment: &Environment) -> Self {
        // If the boot's id is hidden, so are the daemons.
        let node = node_from_records(environment, environment.host.boot_id().unwrap_or_default());
        let recorded = node.served().map(|served| {
            let record = &served.record;
            let is_of_this_boot = record.boot_id == node.boot_id;
            let recorded = if is_of_this_boot { record.daemon } else { None };
            let daemon = recorded.and_then(|daemon| daemon.find_process(&environment.host));
            DeviceLogs {
                name: Some(record.name.clone()),
                uuid: record.uuid.clone(),
                gpus: record.gpu_indices().to_vec(),
                path: log_path(environment, daemon.as_ref(), served),
                is_dead: daemon.is_none()
                    && recorded.is_some_and(|daemon| !daemon.is_hidden(&environment.host)),
            }
        });
        let mut logs = Self {
            all: recorded.collect(),
            hidden: node
                .unseen
                .iter()
                .filter(|unseen| !matches!(unseen, Unseen::Driver(_)))
                .map(Unseen::to_string)
                .collect(),
        };
        for dir in environment.log_dirs() {
            logs.add_unrecorded(&dir);
        }
        logs
    }

    /// Adds the logs in this directory that belong to no record.
    fn add_unrecorded(&mut self, dir: &Path) {
        let entries = match std::fs::read_dir(dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return,
            Err(error) => {
                let error = FileError::from(error);
                let hidden = format!("cannot read {}: {error}", dir.display());
                return self.hidden.push(hidden);
            }
        };
        let mut found: Vec<(Option<SystemTime>, String, PathBuf)> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
            .filter(|(name, _)| begins_as_uuid(name))
            .filter(|(name, _)| !name.contains(is_terminal_control))
            .filter(|(name, _)| !self.all.iter().any(|known| known.uuid == *name))
            .map(|(uuid, path)| {
                let log = std::fs::metadata(path.join("control.log"));
                (log.and_then(|log| log.modified()).ok(), uuid, path)
            })
            .collect();
        // A name means the device that had it last.
        found.sort_by(|a, b| (&b.0, &a.1).cmp(&(&a.0, &b.1)));
        for (_, uuid, path) in found {
            let name = LogDir::open(&path).ok().and_then(|logs| logs.device_name());
            let name = name.filter(|name| {
                let is_taken = self
                    .all
                    .iter()
                    .any(|known| known.name.as_ref() == Some(name));
                !is_taken && !name.is_empty() && !name.contains(is_terminal_control)
            });
            self.all.push(DeviceLogs {
                name,
                uuid,
                gpus: Vec::new(),
                path: Some(path),
                is_dead: false,
            });
        }
    }

    /// Returns the logs that a word of the command line means. A device's prefix means no logs that were set aside.
    pub fn find_by_word(&self, word: &str) -> Result<Vec<&DeviceLogs>, NoSuchDevice> {
        let is_meant = |logs: &&DeviceLogs| word.contains(".of-") || !logs.uuid.contains(".of-");
        let candidates = self.all.iter().filter(is_meant).map(|logs| Candidate {
            value: logs,
            name: logs.name.as_deref(),
            uuids: vec![&logs.uuid],
        });
        let gpus_of = |logs: &DeviceLogs| (logs.title().to_owned(), logs.gpus.clone());
        select_candidates(word, candidates.collect()).map_err(|error| {
            part_of_joint_error(word, self.all.iter().map(gpus_of)).unwrap_or(error)
        })
    }

    /// Returns the logs of devices that this node no longer has.
    pub fn of_deleted_devices(&self, node: &Node) -> Vec<&DeviceLogs> {
        let uuids: BTreeSet<&String> = node
            .devices
            .iter()
            .flat_map(|device| {
                let recorded = device.served.as_ref().map(|served| &served.record.uuid);
                iter::once(&device.uuid).chain(recorded)
            })
            .collect();
        let logs = self.all.iter();
        let mut deleted: Vec<&DeviceLogs> =
            logs.filter(|logs| !uuids.contains(&logs.uuid)).collect();
        deleted.sort_by_cached_key(|logs| name_order(logs.title()));
        deleted
    }

    /// Names the devices with logs, for a word that means none; `None` if there are none.
    pub fn hint_for(&self, word: &str) -> Option<String> {
        let mut titles: Vec<String> = self
            .all
            .iter()
            .map(|logs| logs.title().to_owned())
            .collect();
        titles.sort_by_cached_key(|title| name_order(title));
        (!titles.is_empty())
            .then(|| known_devices_hint(word, &titles, DEVICE_WITH_LOGS, Takes::Several))
    }

    /// Returns the logs of the GPU's devices, as far as they are recorded; never none.
    pub fn on_gpu(&self, gpu: u32) -> Result<Vec<&DeviceLogs>, NoSuchDevice> {
        let on_it: Vec<&DeviceLogs> = self
            .all
            .iter()
            .filter(|logs| logs.gpus.contains(&gpu))
            .collect();
        if on_it.is_empty() {
            let gpus: BTreeSet<u32> = self.all.iter().flat_map(|logs| logs.gpus.clone()).collect();
            return Err(NoSuchDevice::OfGpu {
                index: gpu,
                gpus: gpus.into_iter().collect(),
            });
        }
        Ok(on_it)
    }
}

impl DeviceLogs {
    /// Returns its name, or its UUID.
    pub fn title(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.uuid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(all: &[(Option<&str>, &str)]) -> Logs {
        let one = |(name, uuid): &(Option<&str>, &str)| DeviceLogs {
            name: name.map(str::to_owned),
            uuid: (*uuid).to_owned(),
            gpus: Vec::new(),
            path: None,
            is_dead: false,
        };
        Logs {
            all: all.iter().map(one).collect(),
            hidden: Vec::new(),
        }
    }

    #[test]
    fn a_name_a_uuid_or_its_prefix_selects_logs() {
        let logs = logs(&[
            (Some("0.0"), "MIG-11"),
            (None, "MIG-11.of-1000.1"),
            (None, "MIG-22"),
            (None, "MIG-23"),
        ]);
        let uuid = |word| logs.find_by_word(word).map(|found| found[0].uuid.as_str());
        assert_eq!(uuid("0.0"), Ok("MIG-11"));
        assert_eq!(uuid("MIG-11"), Ok("MIG-11"));
        assert_eq!(uuid("MIG-1"), Ok("MIG-11"));
        assert_eq!(uuid("MIG-11.of-"), Ok("MIG-11.of-1000.1"));
        let ambiguous = uuid("MIG-").unwrap_err().to_string();
        assert_eq!(ambiguous, "\"MIG-\" is ambiguous: 0.0, MIG-22 or MIG-23");
        let ambiguous = uuid("MIG-2").unwrap_err().to_string();
        assert_eq!(ambiguous, "\"MIG-2\" is ambiguous: MIG-22 or MIG-23");
    }
}
