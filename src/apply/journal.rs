//! The journal of a change, the instances that mig-mps made as `node.json` has them, and picking up a change that was
//! killed.

use std::io;
use std::sync::Mutex;

use jiff::Timestamp;

use super::cause::Cause;
use super::context::ApplyContext;
use super::error::{ApplyError, FailedStep};
use crate::failure::Problem;
use crate::host::{Environment, FileError, FileResult, Unit, lock};
use crate::node::Node;
use crate::state::{
    DestroyedInstance, DeviceKey, Journal, NodeFile, Origin, RecordedInstance, RunDir,
    StoppedDevice, Writer, is_disk_full,
};

/// The journal of a running change: written before its first step, removed at the end.
pub(super) struct OpenJournal {
    run_dir: RunDir,
    journal: Mutex<Journal>,
    /// The units that could not be stopped.
    not_stopped: Mutex<Vec<Unit>>,
    /// The run may go on where the disk is full.
    may_lack: bool,
    /// A change that was killed, and that this one does not complete.
    interrupted: Option<Journal>,
}

impl OpenJournal {
    /// Writes the journal. Where the disk is full, that takes the reserve; `may_lack` is true for a run that goes on
    /// without a journal.
    pub(super) fn begin(
        context: &ApplyContext<'_>,
        run_dir: &RunDir,
        may_lack: bool,
    ) -> FileResult<Self> {
        let (host, boot_id) = (&context.environment.host, &context.node.boot_id);
        let is_resumable = context.is_resumable;
        let writer = Writer::for_this_process(host, boot_id);
        let process = host.find_process(writer.pid);
        let earlier = load_journal(run_dir)?.filter(|earlier| earlier.writer.boot_id == *boot_id);
        let is_completed_later = |earlier: &Journal| {
            earlier.is_resumable && !is_resumable && earlier.writer.has_exited(host)
        };
        let interrupted = earlier
            .clone()
            .filter(is_completed_later)
            .map(|earlier| Journal {
                units: Vec::new(),
                ..earlier
            });
        let journal = Journal {
            command: process.map_or_else(|| "mig-mps".to_owned(), |process| process.command_line()),
            since: Timestamp::now(),
            writer,
            // A killed run may have left units stopped: they are started at the end.
            units: earlier.map(|earlier| earlier.units).unwrap_or_default(),
            taken: Vec::new(),
            is_resumable,
        };
        let mut written = run_dir.write_journal(&journal);
        if written.as_ref().is_err_and(is_disk_full) && run_dir.give_up_reserve() {
            written = run_dir.write_journal(&journal);
        }
        let begun = Self {
            interrupted,
            ..Self::new(run_dir, journal, may_lack)
        };
        begun.tolerate_full_disk(written)?;
        Ok(begun)
    }

    fn new(run_dir: &RunDir, journal: Journal, may_lack: bool) -> Self {
        Self {
            run_dir: run_dir.clone(),
            journal: Mutex::new(journal),
            not_stopped: Mutex::new(Vec::new()),
            may_lack,
            interrupted: None,
        }
    }

    /// Without a journal, a run that is killed is not picked up, and a full disk stays one that nothing can end.
    fn tolerate_full_disk(&self, written: FileResult<()>) -> FileResult<()> {
        match written {
            Err(error) if self.may_lack && is_disk_full(&error) => Ok(()),
            written => written,
        }
    }

    /// Records that a GPU instance is about to be destroyed.
    pub(super) fn record_destruction(&self, destroyed: DestroyedInstance) -> FileResult<()> {
        let mut journal = lock(&self.journal);
        journal.taken.push(destroyed);
        self.tolerate_full_disk(self.run_dir.write_journal(&journal))
    }

    /// Records that units are about to be stopped.
    pub(super) fn record_unit_stops(&self, units: &[Unit]) -> FileResult<()> {
        let mut journal = lock(&self.journal);
        for unit in units {
            if !journal.units.contains(unit) {
                journal.units.push(*unit);
            }
        }
        self.tolerate_full_disk(self.run_dir.write_journal(&journal))
    }

    /// Returns the command of this change.
    pub(super) fn origin(&self, environment: &Environment) -> Origin {
        let journal = lock(&self.journal);
        Origin {
            command: journal.command.clone(),
            by: environment.caller_name(),
            since: journal.since,
        }
    }

    /// Notes that a unit could not be stopped.
    pub(super) fn record_failed_stop(&self, unit: Unit) {
        lock(&self.not_stopped).push(unit);
    }

    /// Starts the stopped units again, and removes the journal, or leaves that of a killed change. A unit that does not start
    /// stays in it for the next run; with `is_done` false, all of it stays. Returns the units that run again.
    pub(super) fn restart_units_and_close(
        &self,
        environment: &Environment,
        is_done: bool,
        failures: &mut Vec<FailedStep>,
    ) -> Vec<Unit> {
        let mut journal = lock(&self.journal);
        let mut restarted = Vec::new();
        // In reverse order.
        for unit in std::mem::take(&mut journal.units).into_iter().rev() {
            let started = environment
                .find_systemctl()
                .map_err(Cause::from)
                .and_then(|units| Ok(units.start(unit)?));
            match started {
                Ok(()) if lock(&self.not_stopped).contains(&unit) => {}
                Ok(()) => restarted.push(unit),
                Err(cause) => {
                    journal.units.insert(0, unit);
                    failures.push(FailedStep::new(format!("cannot start {unit} again"), cause));
                }
            }
        }
        let left = if is_done && journal.units.is_empty() {
            self.interrupted.as_ref()
        } else {
            Some(&*journal)
        };
        let closed = match left {
            Some(journal) => self.run_dir.write_journal(journal),
            None => self.run_dir.remove_journal(),
        };
        if let Err(error) = closed {
            failures.push(FailedStep::new("cannot close the journal", error));
        }
        restarted
    }
}

/// Reads the journal of a change that is running, or was killed.
pub fn load_journal(run_dir: &RunDir) -> FileResult<Option<Journal>> {
    let advice = "remove the file, and check that the monitoring services in it are running";
    run_dir
        .load_journal()
        .map_err(|error| with_advice(error, advice))
}

/// Says of a file that cannot be understood what to do with it.
fn with_advice(error: FileError, advice: &str) -> FileError {
    if error.kind() != io::ErrorKind::InvalidData {
        return error;
    }
    FileError::new(error.kind(), format!("{error}; {advice}"))
}

/// Cleans up after a killed change: starts the units that it had stopped, removes vanished instances
/// from the record, and removes unfinished files. The journal stays unless another change `completes` the
/// killed one. Returns a description of that change. The caller holds the node's lock.
///
/// # Errors
/// A unit did not start: the next change tries again.
pub fn pick_up(
    environment: &Environment,
    run_dir: &RunDir,
    node: &Node,
    completes: bool,
) -> Result<Option<String>, ApplyError> {
    let Some(mut journal) = load_journal(run_dir).map_err(ApplyError::at_start)? else {
        return Ok(None);
    };
    let mut said = format!("an earlier run was interrupted: {journal}");
    let missing = node.missing_after(&journal);
    if !missing.is_empty() {
        said = format!("{said}; it had destroyed {}", missing.join(", "));
    }
    if journal.writer.boot_id != node.boot_id {
        // The reboot has started them.
        journal.units.clear();
    }
    if !journal.units.is_empty() {
        let names: Vec<&str> = journal.units.iter().map(|unit| unit.name()).collect();
        said = format!("{said}; it had stopped {}", names.join(", "));
    }
    run_dir.remove_leftovers().map_err(ApplyError::at_start)?;
    let mut forgotten = forget_vanished_instances(run_dir, node);
    if forgotten.as_ref().is_err_and(is_disk_full) && run_dir.give_up_reserve() {
        forgotten = forget_vanished_instances(run_dir, node);
    }
    match forgotten {
        // The journal stays: a later run forgets them.
        Err(error) if is_disk_full(&error) => return Ok(Some(said)),
        forgotten => forgotten.map_err(ApplyError::at_start)?,
    }
    let mut failures = Vec::new();
    OpenJournal::new(run_dir, journal, false).restart_units_and_close(
        environment,
        completes,
        &mut failures,
    );
    if failures.is_empty() {
        return Ok(Some(said));
    }
    Err(ApplyError {
        failures,
        ..ApplyError::default()
    })
}

/// Removes instances and GPUs from the record that a killed change had recorded but not made, or destroyed
/// but not removed.
fn forget_vanished_instances(run_dir: &RunDir, node: &Node) -> FileResult<()> {
    let mut file: NodeFile = run_dir.load_node()?;
    let before = file.clone();
    file.switched_on.retain(|uuid| {
        let mode = node.gpu_with_uuid(uuid).and_then(|gpu| gpu.mig);
        mode.is_none_or(|mode| mode.current || mode.pending)
    });
    file.created.retain(|created| may_exist(created, node));
    if file == before {
        return Ok(());
    }
    run_dir.write_node(&file)
}

/// True if the node has the instance, or does not show it.
fn may_exist(created: &RecordedInstance, node: &Node) -> bool {
    let gpu = node.gpu_with_uuid(&created.gpu);
    gpu.is_none_or(|gpu| gpu.hidden.is_some() || created.is_among(&gpu.instances))
}

/// The instances that mig-mps made, kept in `node.json` so that `down --destroy-mig` destroys no others.
///
/// An instance is recorded before it is made: what a crash leaves behind is then known as ours. What is gone may stay
/// recorded on a full disk until the end of the run, which writes the rest once everything has ended.
pub(super) struct NodeRecord {
    run_dir: RunDir,
    /// The content before the run.
    before: NodeFile,
    files: Mutex<Files>,
}

struct Files {
    /// Everything that the run has made and left.
    now: NodeFile,
    /// The content of the file.
    written: NodeFile,
}

impl Files {
    /// Writes the file, if it says something else.
    fn write_if_changed(&mut self, run_dir: &RunDir) -> FileResult<()> {
        if self.now != self.written {
            run_dir.write_node(&self.now)?;
            self.written.clone_from(&self.now);
        }
        Ok(())
    }
}

impl NodeRecord {
    pub(super) fn open(run_dir: &RunDir, boot_id: &str) -> FileResult<Self> {
        // The daemons' own records do not depend on it; only the ownership of instances is lost.
        let advice = "remove the file; mig-mps then no longer knows which instances it created";
        let file = run_dir.load_node();
        let mut file = file.map_err(|error| with_advice(error, advice))?;
        let written = file.clone();
        if file.boot_id != boot_id {
            // Instances do not survive a reboot, and anybody may have switched the mode on since.
            file.created.clear();
            file.switched_on.clear();
            file.missing.clear();
            file.stopped.clear();
        }
        boot_id.clone_into(&mut file.boot_id);
        Ok(Self {
            run_dir: run_dir.clone(),
            before: file.clone(),
            files: Mutex::new(Files { now: file, written }),
        })
    }

    /// True if mig-mps had made it before the run.
    pub(super) fn had_created(&self, created: &RecordedInstance) -> bool {
        self.before.created.contains(created)
    }

    /// True if mig-mps had switched that GPU's MIG mode on before the run.
    pub(super) fn had_switched_on(&self, gpu: &str) -> bool {
        has_switched_on(&self.before, gpu)
    }

    /// True if mig-mps switched that GPU's MIG mode on.
    pub(super) fn has_switched_on(&self, gpu: &str) -> bool {
        has_switched_on(&lock(&self.files).now, gpu)
    }

    /// Records whether mig-mps switched that GPU's MIG mode on.
    pub(super) fn record_switched_on(&self, gpu: &str, is_ours: bool) -> FileResult<()> {
        let mut files = lock(&self.files);
        if has_switched_on(&files.now, gpu) == is_ours {
            return Ok(());
        }
        files.now.switched_on.retain(|uuid| uuid != gpu);
        if is_ours {
            files.now.switched_on.push(gpu.to_owned());
        }
        let written = files.write_if_changed(&self.run_dir);
        if !is_ours || has_switched_on(&files.written, gpu) {
            return Ok(());
        }
        written.inspect_err(|_| files.now.switched_on.retain(|uuid| uuid != gpu))
    }

    pub(super) fn add_created(&self, created: &RecordedInstance) -> FileResult<()> {
        let mut files = lock(&self.files);
        if files.now.created.contains(created) {
            return Ok(());
        }
        files.now.created.push(created.clone());
        let written = files.write_if_changed(&self.run_dir);
        if files.written.created.contains(created) {
            return Ok(());
        }
        if written.is_err() {
            // An instance that is not recorded is not made.
            files.now.created.pop();
        }
        written
    }

    /// Forgets what is gone. What cannot be written now is written at the end of the run.
    pub(super) fn forget_created(&self, gone: impl Fn(&RecordedInstance) -> bool) {
        let mut files = lock(&self.files);
        files.now.created.retain(|created| !gone(created));
        let _ = files.write_if_changed(&self.run_dir);
    }

    /// Records what was made instead of what was expected.
    pub(super) fn replace_created(
        &self,
        expected: Option<&RecordedInstance>,
        actual: Option<&RecordedInstance>,
    ) -> FileResult<()> {
        if expected == actual {
            return Ok(());
        }
        self.forget_created(|other| Some(other) == expected);
        actual.map_or(Ok(()), |created| self.add_created(created))
    }

    /// Restores the ownership of a GPU's instances after a rollback: those from before keep their owner, and every other
    /// that still exists is ours.
    pub(super) fn restore_owners(
        &self,
        gpu: &str,
        was_there: impl Fn(&RecordedInstance) -> bool,
        stands: impl Fn(&RecordedInstance) -> bool,
    ) {
        let mut files = lock(&self.files);
        let created = &mut files.now.created;
        created.retain(|created| {
            let is_made = stands(created) && !was_there(created);
            created.gpu != gpu || is_made || self.had_created(created)
        });
        for earlier in &self.before.created {
            if earlier.gpu == gpu && stands(earlier) && !created.contains(earlier) {
                created.push(earlier.clone());
            }
        }
        let _ = files.write_if_changed(&self.run_dir);
    }

    /// Records that a device is about to be stopped by name. On a full disk it is stopped all the same.
    pub(super) fn add_stopped(&self, stopped: StoppedDevice) -> FileResult<()> {
        self.forget_stopped(&stopped.record.key);
        let mut files = lock(&self.files);
        files.now.stopped.push(stopped);
        match files.write_if_changed(&self.run_dir) {
            Err(error) if is_disk_full(&error) => Ok(()),
            written => written,
        }
    }

    /// Records that a device is not stopped.
    pub(super) fn forget_stopped(&self, key: &DeviceKey) {
        let mut files = lock(&self.files);
        files
            .now
            .stopped
            .retain(|stopped| !stopped.record.key.excludes(key));
        let _ = files.write_if_changed(&self.run_dir);
    }

    /// Writes what could not be written before.
    pub(super) fn write_rest(&self) -> FileResult<()> {
        lock(&self.files).write_if_changed(&self.run_dir)
    }
}

fn has_switched_on(file: &NodeFile, gpu: &str) -> bool {
    file.switched_on.iter().any(|uuid| uuid == gpu)
}

/// Records in `node.json` the parts of the applied profile that were left out, and that on the GPUs of these UUIDs nothing
/// else is stopped.
pub fn record_missing(
    run_dir: &RunDir,
    boot_id: &str,
    missing: &[Problem],
    is_applied_to: impl Fn(&str) -> bool,
) -> FileResult<()> {
    let mut file = run_dir.load_node()?;
    if file.boot_id != boot_id {
        file = NodeFile {
            boot_id: boot_id.to_owned(),
            ..NodeFile::default()
        };
    }
    let before = file.clone();
    file.missing = missing.to_vec();
    file.stopped.retain(|stopped| {
        let gpus = stopped.record.key.gpus();
        !gpus.iter().any(|gpu| is_applied_to(gpu))
    });
    if file == before {
        return Ok(());
    }
    run_dir.write_node(&file)
}
