//! Finds out how each recorded daemon is: passively first, then by asking it.

use std::path::PathBuf;
use std::time::SystemTime;

use super::answers::Answers;
use super::log_growth;
use super::natural::natural;
use super::view::{Changing, View};
use super::{Life, Look, Node, Served};
use crate::host::Environment;
use crate::host::{Pool, ProcessTable, printable};
use crate::mps::LogDir;
use crate::state::RunDir;

/// Reads the records of every run directory.
pub(super) fn read_records(environment: &Environment, node: &mut Node) {
    for path in environment.run_dirs() {
        let run_dir = RunDir::at(&path);
        let (records, problems) = run_dir.records();
        // A user chooses what directories in his own are called: they must not steer root's terminal.
        let unreadable = problems
            .into_iter()
            .map(|problem| (run_dir.clone(), printable(&problem)));
        node.unreadable.extend(unreadable);
        match run_dir.node() {
            Ok(file) if file.boot_id == node.boot_id => {
                node.created.extend(file.created);
                node.switched_on.extend(file.switched_on);
            }
            Ok(_) => {}
            Err(error) => node.hidden.push(printable(&error.to_string())),
        }
        let mut is_quiet = false;
        match run_dir.journal() {
            Ok(Some(journal)) if journal.is_of_the_dead(&environment.host) => {
                // Who has ended since it was read has removed it first.
                if let Ok(Some(journal)) = run_dir.journal() {
                    node.interrupted.push((run_dir.clone(), journal));
                }
                is_quiet = true;
            }
            Ok(Some(journal)) => node.under_way.push(journal),
            Ok(None) => is_quiet = true,
            // Only its owner may read it.
            Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                node.may_be_changing = true;
                node.hidden.push(printable(&format!(
                    "the change that is under way in {}, or was interrupted",
                    path.display()
                )));
            }
            Err(error) => node.hidden.push(printable(&error.to_string())),
        }
        // Read before the journal and after it: whoever stands there both times had no change at work on it.
        let unfinished = if is_quiet && records.iter().any(|record| !record.finished) {
            let mut again = run_dir.records().0;
            again.retain(|record| !record.finished);
            again
        } else {
            Vec::new()
        };
        for record in records {
            // The system's directory comes first: its record of a name or device wins.
            let known = node.served.iter().find(|served| {
                let same = served.record.name == record.name || served.record.key == record.key;
                same && served.run_dir != run_dir
            });
            if let Some(known) = known {
                let hidden = format!(
                    "{} also has a device \"{}\": the one in {} is shown",
                    path.display(),
                    record.name,
                    known.run_dir.path().display()
                );
                node.hidden.push(hidden);
                continue;
            }
            let is_abandoned = unfinished.contains(&record);
            node.served.push(Served {
                record,
                run_dir: run_dir.clone(),
                device_is_there: false,
                is_abandoned,
                life: Life::Dead,
                is_known: false,
                problem: None,
                servers: Vec::new(),
                clients: Vec::new(),
                waiting: Vec::new(),
                client_limit: None,
                compute_mode: None,
                answered: None,
                log_growth: None,
            });
        }
    }
    let unreadable = node.unreadable.iter().map(|(_, problem)| problem.clone());
    node.hidden.extend(unreadable);
    node.served
        .sort_by_key(|served| natural(&served.record.name));
}

/// Looks at every recorded daemon; `answers` are what they said before, and become what they say now.
pub(super) fn look(
    environment: &Environment,
    table: &ProcessTable,
    look: Look,
    node: &mut Node,
    answers: &mut Answers,
) {
    let devices: Vec<_> = node
        .devices()
        .map(|device| (device.key, device.uuid))
        .collect();
    let programs = environment.mps_programs().ok();
    let program = node.control_program();
    let (boot_id, processes, gpus) = (&node.boot_id, &node.processes, &node.gpus);
    let changing = match node.under_way.as_slice() {
        [] if node.may_be_changing => Changing::Hidden,
        [] => Changing::No,
        _ => Changing::Yes,
    };
    let (mut asked, mut fresh) = (Vec::new(), Vec::new());
    for served in &mut node.served {
        served.device_is_there = devices
            .iter()
            .any(|(key, uuid)| *key == served.record.key && *uuid == served.record.uuid);
        let gpu = gpus.iter().find(|gpu| gpu.uuid == served.record.uuid);
        served.compute_mode = gpu.and_then(|gpu| gpu.compute_mode);
        let of_gpu = program
            .client_limit
            .filter(|_| served.record.key.instance.is_none());
        let meant = served.record.settings.max_clients;
        served.client_limit = of_gpu.into_iter().chain(meant).min();
        let uuid = served.record.uuid.clone();
        let mut view = View {
            changing,
            may_ask: may_ask(environment, served, look),
            program,
            host: &environment.host,
            table,
            boot_id,
            processes: processes.get(&uuid),
            programs: programs.as_ref(),
            answer: None,
            with_defaults: look != Look::Clients,
        };
        let Some(daemon) = view.liveness(served) else {
            continue;
        };
        if !look.at_processes() {
            continue;
        }
        let logs = environment.logs_of(served.run_dir.path());
        let logs = view.log_dir(daemon, logs.map(|logs| logs.join(&uuid)));
        let logs = logs.and_then(|logs| LogDir::open(&logs).ok());
        if look == Look::Status
            && let Some(written) = logs.as_ref().filter(|logs| log_growth::is_fresh(logs))
            && let Ok(logs) = LogDir::open(written.path())
        {
            fresh.push((uuid.clone(), logs));
        }
        if look == Look::Status && view.tells(served, daemon, logs.as_ref()) {
            continue;
        }
        let known = answers.get(&uuid);
        // A plan needs news, but what hangs is not waited for again.
        view.answer = known.filter(|known| look == Look::Status || known.glance.is_none());
        asked.push((uuid, served, daemon, logs, view));
    }
    // Control sessions are short-lived programs with limits of their own.
    let threads = asked.len().saturating_sub(1);
    // Each of them is a child process.
    let answered = Pool::with(threads, threads + 1, |pool| {
        pool.side_by_side(asked, |(uuid, served, daemon, logs, view), _| {
            let answer = view.ask(served, daemon, logs.as_ref());
            view.find_waiting(served, logs.as_ref());
            (uuid, answer)
        })
    });
    *answers = answered
        .into_iter()
        .filter_map(|(uuid, answer)| Some((uuid, answer?)))
        .collect();
    log_growth::measure(&fresh, &mut node.served);
}

/// Which files say what mig-mps has made and is changing, and of when they are: each is replaced when what it
/// says changes.
pub(super) fn marks(environment: &Environment) -> Vec<(PathBuf, u64, SystemTime)> {
    let run_dirs = environment.run_dirs();
    run_dirs
        .iter()
        .flat_map(|path| RunDir::at(path).marks())
        .collect()
}

/// Whether a change is under way, or was killed.
pub(super) fn has_journal(environment: &Environment) -> bool {
    let run_dirs = environment.run_dirs();
    run_dirs.iter().any(|path| RunDir::at(path).has_journal())
}

/// True if the caller may open a control session with a daemon. Root opens one with a user's daemon only to change
/// it: what answers is the user's.
fn may_ask(environment: &Environment, served: &Served, look: Look) -> bool {
    let is_a_users = environment.is_root() && served.is_a_users();
    !is_a_users || matches!(look, Look::Close | Look::Plan)
}
