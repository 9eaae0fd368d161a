//! Finds the log directories of daemons.

use std::io::ErrorKind;
use std::path::Path;

use super::liveness::configured_logs;
use super::records::read_records;
use crate::host::{Environment, steers};
use crate::node::{DeviceLogs, Logs, Node};

impl Logs {
    /// Finds the logs of every run and log directory of the environment. This needs no driver: logs are read when
    /// something is wrong.
    pub fn read(environment: &Environment) -> Self {
        let mut node = Node {
            // If it is hidden, so are the daemons.
            boot_id: environment.host.boot_id().unwrap_or_default(),
            ..Node::default()
        };
        read_records(environment, &mut node);
        let recorded = node.served.iter().map(|served| {
            let record = &served.record;
            let default = environment.logs_of(served.run_dir.path());
            let default = default.map(|logs| logs.join(&record.uuid));
            let daemon = record
                .daemon
                .filter(|_| record.boot_id == node.boot_id)
                .and_then(|daemon| daemon.running(&environment.host));
            let configured = daemon.as_ref().and_then(configured_logs);
            DeviceLogs {
                name: Some(record.name.clone()),
                uuid: record.uuid.clone(),
                path: configured.or(default),
            }
        });
        let mut logs = Self {
            all: recorded.collect(),
            hidden: node.hidden,
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
}
