//! The processes of a node at one moment.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use super::process::is_process_gone;
use super::{FileResult, Host, Pid, Process};

/// All processes that were visible at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable {
    processes: BTreeMap<Pid, Process>,
}

impl ProcessTable {
    pub(super) fn from_proc(proc: &Path) -> FileResult<Self> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(proc)? {
            let name = entry?.file_name();
            pids.extend(name.to_str().and_then(|name| name.parse().ok()).map(Pid));
        }
        Self::from_pids(proc, pids.into_iter())
    }

    pub(super) fn from_pids(proc: &Path, pids: impl Iterator<Item = Pid>) -> FileResult<Self> {
        let mut processes = BTreeMap::new();
        for pid in pids {
            match Process::from_proc(proc, pid) {
                Ok(process) => processes.extend(process.map(|process| (pid, process))),
                // It has exited, or `/proc` hides it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) if is_process_gone(&error) => {}
                // Any other error, such as too many open files, must not make processes disappear.
                Err(error) => return Err(error),
            }
        }
        Ok(Self { processes })
    }

    /// Adds the processes of another table.
    pub(super) fn add_all(&mut self, other: Self) {
        self.processes.extend(other.processes);
    }

    pub fn get(&self, pid: Pid) -> Option<&Process> {
        self.processes.get(&pid)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// Returns the children of a process, and theirs, and so on.
    pub fn descendants(&self, parent: Pid) -> BTreeSet<Pid> {
        let mut found = BTreeSet::new();
        let mut parents = vec![parent];
        while let Some(parent) = parents.pop() {
            for child in self.children(parent) {
                if found.insert(child.pid) {
                    parents.push(child.pid);
                }
            }
        }
        found
    }

    /// Returns the live children of a process.
    pub fn children(&self, parent: Pid) -> impl Iterator<Item = &Process> {
        self.processes
            .values()
            .filter(move |process| process.parent == parent)
    }
}

impl Host {
    /// Returns all visible processes.
    pub fn read_processes(&self) -> FileResult<ProcessTable> {
        ProcessTable::from_proc(&self.root.join("proc"))
    }

    /// Returns a process and its children, if it is visible. Cheaper than [`read_processes`](Self::read_processes) where the kernel
    /// lists children.
    fn process_family(&self, pid: Pid) -> FileResult<ProcessTable> {
        let proc = self.root.join("proc");
        let mut family = vec![pid];
        for task in fs::read_dir(proc.join(format!("{pid}/task")))?.flatten() {
            // Each thread has the children that it started.
            let Ok(children) = fs::read_to_string(task.path().join("children")) else {
                return self.read_processes();
            };
            family.extend(children.split_whitespace().flat_map(str::parse).map(Pid));
        }
        ProcessTable::from_pids(&proc, family.into_iter())
    }

    /// Returns these processes and their children, as far as they are visible.
    pub fn process_families(&self, pids: impl IntoIterator<Item = Pid>) -> ProcessTable {
        let mut families = ProcessTable::default();
        for pid in pids {
            // A process that has exited has no family.
            families.add_all(self.process_family(pid).unwrap_or_default());
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_sees_itself() {
        let table = ProcessTable::from_proc(Path::new("/proc")).unwrap();
        let me = table.get(Pid(std::process::id())).unwrap();
        assert_eq!(me.owner(), Some(super::super::caller()));
        assert!(me.age().unwrap() < std::time::Duration::from_secs(3600));
    }
}
