//! Reads the run directories.

use std::io::{self, ErrorKind};

use jiff::Timestamp;

use crate::host::{Environment, file_hint, printable};
use crate::node::device_order::record_order;
use crate::node::{Clients, DaemonState, Node, Presence, Served, Unseen, UnseenRunDir};
use crate::state::{DeviceRecord, RunDir};

/// Reads the records and journals of every run directory.
pub(super) fn read_records(environment: &Environment, node: &mut Node) {
    for run_dir in RunDir::all(environment) {
        if let Err(error) = run_dir.check_seen() {
            add_unseen(run_dir, &error, node);
            continue;
        }
        let (records, problems) = run_dir.records();
        // A user chooses the names of directories in his own: they must not steer root's terminal.
        if !problems.is_empty() {
            let lost = run_dir.lost_records(&node.boot_id).into_iter();
            node.lost_records
                .extend(lost.map(|record| served(record, false, &run_dir)));
        }
        let problems = problems.iter().map(|problem| printable(problem));
        let unreadable = problems.map(|problem| (run_dir.clone(), problem));
        node.unreadable.extend(unreadable);
        read_node_file(&run_dir, node);
        let is_changing = read_journal(environment, &run_dir, node);
        // Records that were unfinished before the journal was read and still are after it: no change works on them.
        let again = if !is_changing && records.iter().any(|record| !record.finished) {
            run_dir.records().0
        } else {
            Vec::new()
        };
        for record in records {
            let is_abandoned = !record.finished && again.contains(&record);
            add(record, is_abandoned, &run_dir, node);
        }
    }
    let unreadable = node.unreadable.iter().map(|(_, problem)| problem.clone());
    node.hidden.extend(unreadable);
    node.served
        .sort_by_key(|served| record_order(&served.record));
}

/// Adds a run directory of which nothing can be read.
fn add_unseen(run_dir: RunDir, error: &io::Error, node: &mut Node) {
    let why = printable(&error.to_string());
    node.unreadable.push((run_dir.clone(), why.clone()));
    node.unseen_run_dirs.push(UnseenRunDir {
        run_dir,
        why,
        hint: file_hint(error),
    });
}

fn read_node_file(run_dir: &RunDir, node: &mut Node) {
    match run_dir.node() {
        Ok(file) if file.boot_id == node.boot_id => {
            node.created.extend(file.created);
            node.switched_on.extend(file.switched_on);
        }
        Ok(_) => {}
        Err(error) => node.hidden.push(printable(&error.to_string())),
    }
}

/// Reads the journal; returns false if no change is in progress in this run directory.
fn read_journal(environment: &Environment, run_dir: &RunDir, node: &mut Node) -> bool {
    match run_dir.journal() {
        Ok(Some(journal)) if journal.is_of_the_dead(&environment.host) => {
            // A process that exited since it was read has removed it first.
            if let Ok(Some(journal)) = run_dir.journal() {
                node.interrupted.push((run_dir.clone(), journal));
            }
            return false;
        }
        Ok(Some(journal)) => node.under_way.push(journal),
        Ok(None) => return false,
        // Only its owner may read it.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            node.may_be_changing = true;
            node.hidden.push(printable(&format!(
                "the change that is under way in {}, or was interrupted",
                run_dir.path().display()
            )));
        }
        Err(error) => node.hidden.push(printable(&error.to_string())),
    }
    true
}

/// Adds a record, unless another run directory has one of this name or device: the system's directory comes first.
fn add(record: DeviceRecord, is_abandoned: bool, run_dir: &RunDir, node: &mut Node) {
    let known = node.served.iter().find(|served| {
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
        node.hidden.push(hidden);
        return;
    }
    node.served.push(served(record, is_abandoned, run_dir));
}

/// A device with a record, of whose daemon nothing is known yet.
pub(super) fn served(record: DeviceRecord, is_abandoned: bool, run_dir: &RunDir) -> Served {
    Served {
        is_given_up: record.is_given_up(Timestamp::now()),
        record,
        run_dir: run_dir.clone(),
        presence: Presence::Unseen(Unseen::NoDriver),
        is_abandoned,
        state: DaemonState::Dead,
        problem: None,
        servers: Vec::new(),
        clients: Clients::Partial(Vec::new()),
        waiting: Vec::new(),
        client_limit: None,
        compute_mode: None,
        answered: None,
        log_growth: None,
    }
}
