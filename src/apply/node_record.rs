//! The instances that mig-mps made, kept up to date in `node.json`.

use std::io;
use std::sync::Mutex;

use super::mutex::lock;
use crate::state::{Created, NodeFile, RunDir};

/// The instances that mig-mps made, kept in `node.json` so that `down --destroy-mig` destroys no others.
///
/// An instance is recorded before it is made: what a crash leaves behind is then known as ours.
pub(super) struct NodeRecord {
    run_dir: RunDir,
    file: Mutex<NodeFile>,
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
            file: Mutex::new(file),
        })
    }

    /// True if mig-mps made it.
    pub(super) fn has(&self, created: &Created) -> bool {
        lock(&self.file).created.contains(created)
    }

    /// True if mig-mps switched that GPU's MIG mode on.
    pub(super) fn has_switched_on(&self, gpu: &str) -> bool {
        lock(&self.file).switched_on.iter().any(|uuid| uuid == gpu)
    }

    /// Records whether mig-mps switched that GPU's MIG mode on.
    pub(super) fn switched_on(&self, gpu: &str, is_ours: bool) -> io::Result<()> {
        let mut file = lock(&self.file);
        if file.switched_on.iter().any(|uuid| uuid == gpu) == is_ours {
            return Ok(());
        }
        let before = file.switched_on.clone();
        file.switched_on.retain(|uuid| uuid != gpu);
        if is_ours {
            file.switched_on.push(gpu.to_owned());
        }
        let written = self.run_dir.write_node(&file);
        written.inspect_err(|_| file.switched_on = before)
    }

    pub(super) fn add(&self, created: Created) -> io::Result<()> {
        let mut file = lock(&self.file);
        if !file.created.contains(&created) {
            file.created.push(created);
            // An instance that is not recorded is not made.
            let written = self.run_dir.write_node(&file);
            written.inspect_err(|_| drop(file.created.pop()))?;
        }
        Ok(())
    }

    pub(super) fn remove(&self, gone: impl Fn(&Created) -> bool) -> io::Result<()> {
        let mut file = lock(&self.file);
        let before = file.created.len();
        file.created.retain(|created| !gone(created));
        if file.created.len() != before {
            self.run_dir.write_node(&file)?;
        }
        Ok(())
    }
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
