//! The instances that mig-mps made, kept up to date in `node.json`.

use std::io;
use std::sync::Mutex;

use super::mutex::lock;
use crate::state::{Created, NodeFile, RunDir};

/// The instances that mig-mps made, kept in `node.json` so that `down --destroy-mig` destroys no others.
///
/// An instance is recorded before it is made: what a crash leaves behind is then known as ours. What is gone may stay
/// recorded on a full disk until the end of the run, which writes the rest once everything has ended.
pub(super) struct NodeRecord {
    run_dir: RunDir,
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
    fn write(&mut self, run_dir: &RunDir) -> io::Result<()> {
        if self.now != self.written {
            run_dir.write_node(&self.now)?;
            self.written.clone_from(&self.now);
        }
        Ok(())
    }
}

impl NodeRecord {
    pub(super) fn open(run_dir: &RunDir, boot_id: &str) -> io::Result<Self> {
        let mut file = run_dir.node().map_err(|error| {
            if error.kind() != io::ErrorKind::InvalidData {
                return error;
            }
            // The daemons' own records do not depend on it; only the ownership of instances is lost.
            let advice = "remove it, and mig-mps forgets which instances it made";
            io::Error::new(error.kind(), format!("{error}: {advice}"))
        })?;
        if file.boot_id != boot_id {
            // Instances do not survive a reboot, and anybody may have switched the mode on since.
            file.created.clear();
            file.switched_on.clear();
        }
        boot_id.clone_into(&mut file.boot_id);
        Ok(Self {
            run_dir: run_dir.clone(),
            files: Mutex::new(Files {
                written: file.clone(),
                now: file,
            }),
        })
    }

    /// True if mig-mps made it.
    pub(super) fn has(&self, created: &Created) -> bool {
        lock(&self.files).now.created.contains(created)
    }

    /// True if mig-mps switched that GPU's MIG mode on.
    pub(super) fn has_switched_on(&self, gpu: &str) -> bool {
        has_switched_on(&lock(&self.files).now, gpu)
    }

    /// Records whether mig-mps switched that GPU's MIG mode on.
    pub(super) fn switched_on(&self, gpu: &str, is_ours: bool) -> io::Result<()> {
        let mut files = lock(&self.files);
        if has_switched_on(&files.now, gpu) == is_ours {
            return Ok(());
        }
        files.now.switched_on.retain(|uuid| uuid != gpu);
        if is_ours {
            files.now.switched_on.push(gpu.to_owned());
        }
        let written = files.write(&self.run_dir);
        if !is_ours || has_switched_on(&files.written, gpu) {
            return Ok(());
        }
        written.inspect_err(|_| files.now.switched_on.retain(|uuid| uuid != gpu))
    }

    pub(super) fn add(&self, created: &Created) -> io::Result<()> {
        let mut files = lock(&self.files);
        if files.now.created.contains(created) {
            return Ok(());
        }
        files.now.created.push(created.clone());
        let written = files.write(&self.run_dir);
        if files.written.created.contains(created) {
            return Ok(());
        }
        // An instance that is not recorded is not made.
        written.inspect_err(|_| drop(files.now.created.pop()))
    }

    /// Forgets what is gone. What cannot be written now is written at the end of the run.
    pub(super) fn remove(&self, gone: impl Fn(&Created) -> bool) {
        let mut files = lock(&self.files);
        files.now.created.retain(|created| !gone(created));
        let _ = files.write(&self.run_dir);
    }

    /// Writes what could not be written before.
    pub(super) fn write_rest(&self) -> io::Result<()> {
        lock(&self.files).write(&self.run_dir)
    }
}

fn has_switched_on(file: &NodeFile, gpu: &str) -> bool {
    file.switched_on.iter().any(|uuid| uuid == gpu)
}

/// Records the applied profile in `node.json`.
pub fn record_profile(
    run_dir: &RunDir,
    boot_id: &str,
    profile: Option<String>,
) -> std::io::Result<()> {
    let mut file = run_dir.node()?;
    if file.boot_id != boot_id {
        file = NodeFile::default();
    }
    boot_id.clone_into(&mut file.boot_id);
    file.profile = profile;
    run_dir.write_node(&file)
}
