//! The processes of a node at one moment.
//!
//! A node may run thousands of processes that have nothing to do with a GPU. Their names are read first, which costs least;
//! everything else is read of a few processes only.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::{fs, io, thread};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::{read, retry_on_intr};

use super::process::is_process_gone;
use super::{FileResult, Host, Pid, Process, Threads};

/// Some or all of the processes that were visible at one moment.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable {
    processes: BTreeMap<Pid, Process>,
}

impl ProcessTable {
    fn from_pids(host: &Host, pids: &[Pid]) -> FileResult<Self> {
        let proc = host.root.join("proc");
        let processes = read_each(pids, |pid| {
            Ok(Process::from_proc(&proc, pid)?.map(|process| (pid, process)))
        })?;
        Ok(Self {
            processes: processes.into_iter().collect(),
        })
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

/// The longest name of a process, in bytes, with the end of its line (`TASK_COMM_LEN` of Linux).
const MAX_NAME_BYTES: usize = 16;

/// Reads the name of a process.
fn read_name(proc: &OwnedFd, pid: Pid) -> FileResult<Option<(Pid, String)>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = openat(proc, format!("{pid}/comm"), flags, Mode::empty())?;
    let mut line = [0; MAX_NAME_BYTES];
    let length = retry_on_intr(|| read(&file, &mut line))?;
    let name = String::from_utf8_lossy(&line[..length]);
    Ok(Some((pid, name.trim_end_matches('\n').to_owned())))
}

/// From this number of processes on, several threads read them. For fewer, starting threads takes longer than it saves.
const MANY_PROCESSES: usize = 512;

/// The most threads that read processes.
const MAX_READERS: usize = 8;

/// Reads something of each process. One that has exited, or that `/proc` hides, is left out.
pub(super) fn read_each<T: Send>(
    pids: &[Pid],
    read: impl Fn(Pid) -> FileResult<Option<T>> + Sync,
) -> FileResult<Vec<T>> {
    let readers = match pids.len() {
        MANY_PROCESSES.. => thread::available_parallelism().map_or(1, NonZero::get),
        _ => 1,
    };
    let readers = readers.min(MAX_READERS);
    let parts = pids.chunks(pids.len().div_ceil(readers).max(1)).collect();
    let read_part = |pids: &[Pid]| {
        let mut found = Vec::new();
        for pid in pids {
            match read(*pid) {
                Ok(one) => found.extend(one),
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) if is_process_gone(&error) => {}
                // Any other error, such as too many open files, must not make processes disappear.
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    };
    let threads = Threads::with_limit(readers - 1);
    let found: FileResult<Vec<Vec<T>>> = threads
        .map_in_parallel(parts, read_part)
        .into_iter()
        .collect();
    Ok(found?.into_iter().flatten().collect())
}

impl Host {
    /// Lists the visible processes.
    pub(super) fn list_pids(&self) -> FileResult<Vec<Pid>> {
        let mut pids = Vec::new();
        for entry in fs::read_dir(self.root.join("proc"))? {
            let name = entry?.file_name();
            pids.extend(name.to_str().and_then(|name| name.parse().ok()).map(Pid));
        }
        pids.sort_unstable();
        Ok(pids)
    }

    /// Returns the names of all visible processes, zombies included. The kernel cuts the names of programs to 15 bytes.
    pub fn read_process_names(&self) -> FileResult<BTreeMap<Pid, String>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let proc = openat(CWD, self.root.join("proc"), flags, Mode::empty())?;
        let names = read_each(&self.list_pids()?, |pid| read_name(&proc, pid))?;
        Ok(names.into_iter().collect())
    }

    /// Returns the running processes with a name, among the names that were read. The kernel cuts names to 15 bytes.
    pub fn processes_named<'n>(
        &'n self,
        names: &'n BTreeMap<Pid, String>,
        name: &'n str,
    ) -> impl Iterator<Item = Process> + 'n {
        let name = &name[..name.len().min(MAX_NAME_BYTES - 1)];
        names
            .iter()
            .filter(move |(_, known)| *known == name)
            // A zombie has a name, too.
            .filter_map(|(pid, _)| self.find_process(*pid))
    }

    /// Returns the visible processes whose names begin with `start`.
    pub fn read_processes_named(&self, start: &str) -> FileResult<ProcessTable> {
        let mut names = self.read_process_names()?;
        names.retain(|_, name| name.starts_with(start));
        ProcessTable::from_pids(self, &names.into_keys().collect::<Vec<Pid>>())
    }

    /// True if the daemon of a node of Slurm runs, as far as processes are visible.
    pub fn runs_slurmd(&self) -> bool {
        let names = self.read_process_names();
        names.is_ok_and(|names| names.values().any(|name| name == "slurmd"))
    }

    /// Returns all visible processes, which costs more than [`read_processes_named`](Self::read_processes_named).
    pub fn read_processes(&self) -> FileResult<ProcessTable> {
        ProcessTable::from_pids(self, &self.list_pids()?)
    }

    /// Returns a process and its children, as far as they are visible. Where the kernel lists children, this costs less than
    /// [`read_processes`](Self::read_processes).
    pub fn process_family(&self, pid: Pid) -> FileResult<ProcessTable> {
        let mut family = vec![pid];
        let tasks = match fs::read_dir(self.root.join(format!("proc/{pid}/task"))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(ProcessTable::default());
            }
            tasks => tasks?,
        };
        for task in tasks.flatten() {
            // Each thread has the children that it started.
            let Ok(children) = fs::read_to_string(task.path().join("children")) else {
                return self.read_processes();
            };
            family.extend(children.split_whitespace().flat_map(str::parse).map(Pid));
        }
        ProcessTable::from_pids(self, &family)
    }

    /// Returns these processes and their children, as far as they are visible.
    pub fn process_families(&self, pids: impl IntoIterator<Item = Pid>) -> ProcessTable {
        let mut families = ProcessTable::default();
        for pid in pids {
            families.add_all(self.process_family(pid).unwrap_or_default());
        }
        families
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::io::Errno;

    use super::*;

    #[test]
    fn this_process_sees_itself() {
        let table = Host::at(Path::new("/")).read_processes().unwrap();
        let me = table.get(Pid(std::process::id())).unwrap();
        assert_eq!(me.owner(), Some(super::super::caller()));
        assert!(me.age().unwrap() < std::time::Duration::from_secs(3600));
    }

    #[test]
    fn many_processes_are_read_in_order_and_errors_are_kept() {
        let pids: Vec<Pid> = (1..=2000).map(Pid).collect();
        let even = |pid: Pid| Ok(pid.0.is_multiple_of(2).then_some(pid));
        let read = read_each(&pids, even).unwrap();
        assert!(read.iter().copied().eq((2..=2000).step_by(2).map(Pid)));
        let denied = |pid: Pid| match pid.0 {
            1999 => Err(io::Error::from(io::ErrorKind::PermissionDenied).into()),
            _ => Ok(Some(pid)),
        };
        assert_eq!(read_each(&pids, denied).unwrap().len(), 1999);
        let failing = |pid: Pid| match pid.0 {
            2000 => Err(Errno::MFILE.into()),
            _ => Ok(Some(pid)),
        };
        assert!(read_each(&pids, failing).is_err());
        assert!(read_each(&[], even).unwrap().is_empty());
    }
}
