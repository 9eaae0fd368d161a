use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use signal_hook::consts::{SIGCHLD, SIGXFSZ};
use signal_hook::flag;

use super::files::field;
use super::{Pid, Process, ProcessTable};

/// The system below one root directory.
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) root: PathBuf,
}

impl Host {
    /// Returns the system whose `/proc` is below `root`.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// Returns the id of this boot, which identifies state of an earlier boot.
    pub fn boot_id(&self) -> io::Result<String> {
        let id = std::fs::read_to_string(self.root.join("proc/sys/kernel/random/boot_id"))?;
        Ok(id.trim().to_owned())
    }

    /// Returns all visible processes.
    pub fn processes(&self) -> io::Result<ProcessTable> {
        ProcessTable::read(&self.root.join("proc"))
    }

    /// True if `/proc` has an entry for a process, even for a zombie.
    pub(super) fn shows(&self, pid: Pid) -> bool {
        std::fs::read(self.root.join(format!("proc/{pid}/stat"))).is_ok()
    }

    /// Returns a process if it is visible.
    pub fn process(&self, pid: Pid) -> Option<Process> {
        Process::read(&self.root.join("proc"), pid).ok().flatten()
    }

    /// Returns a process and its children, if it is visible. Cheaper than [`processes`](Self::processes) where the kernel
    /// lists children.
    pub fn family(&self, pid: Pid) -> io::Result<ProcessTable> {
        let proc = self.root.join("proc");
        let mut family = vec![pid];
        for task in std::fs::read_dir(proc.join(format!("{pid}/task")))?.flatten() {
            // Each thread has the children that it started.
            let Ok(children) = std::fs::read_to_string(task.path().join("children")) else {
                return self.processes();
            };
            family.extend(children.split_whitespace().flat_map(str::parse).map(Pid));
        }
        ProcessTable::of(&proc, family.into_iter())
    }

    /// Returns the version of the kernel's part of the driver, such as `580.159.04`; `None` if it is hidden.
    pub fn driver_version(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join("proc/driver/nvidia/version")).ok()?;
        let is_version = |word: &&str| {
            let mut parts = word.split('.');
            word.contains('.') && parts.all(|part| part.parse::<u32>().is_ok())
        };
        text.split_whitespace().find(is_version).map(str::to_owned)
    }

    /// True if systemd is the first process, as seen from here.
    pub(super) fn is_run_by_systemd(&self) -> bool {
        let first = std::fs::read_to_string(self.root.join("proc/1/comm"));
        // A container may show the directory of its host, and has another first process.
        first.is_ok_and(|first| first.trim() == "systemd")
            && self.root.join("run/systemd/system").is_dir()
    }

    /// Returns the directory of the administrator's systemd units.
    pub fn units_dir(&self) -> PathBuf {
        self.root.join("etc/systemd/system")
    }

    /// Returns the directory of the systemd units that packages install.
    pub fn packaged_units_dir(&self) -> PathBuf {
        self.root.join("usr/lib/systemd/system")
    }

    /// Returns the directory of the administrator's settings of mig-mps.
    pub fn settings_dir(&self) -> PathBuf {
        self.root.join("etc/mig-mps")
    }

    /// Returns the directory in which container engines find the devices of running programs.
    pub fn cdi_dir(&self) -> PathBuf {
        self.root.join("var/run/cdi")
    }

    /// True if the uid and gid of this process are mapped in its user namespace. `cuInit` of a client without a user
    /// hangs, and was seen to keep every later client waiting (measured on an H200).
    pub fn caller_is_mapped(&self) -> bool {
        let is_in = |file: &str, id: u32| {
            // Without user namespaces there is no map.
            let map = std::fs::read_to_string(self.root.join("proc/self").join(file));
            map.is_err() || map.is_ok_and(|map| is_mapped(&map, id))
        };
        is_in("uid_map", rustix::process::geteuid().as_raw())
            && is_in("gid_map", rustix::process::getegid().as_raw())
    }

    /// Handles SIGCHLD if it is ignored: a process that ignores it loses the exit status of its children. Handles SIGXFSZ,
    /// so that writing too large a file fails and the change is rolled back.
    ///
    /// The handlers do nothing. Programs that this process starts or becomes have the default actions again.
    pub fn reset_signals(&self) -> io::Result<()> {
        // Only if needed: a handler interrupts calls of the driver.
        if self.ignores(SIGCHLD) {
            flag::register(SIGCHLD, Arc::default())?;
        }
        flag::register(SIGXFSZ, Arc::default())?;
        Ok(())
    }

    /// True if this process ignores a signal, according to `/proc/self/status`.
    pub(super) fn ignores(&self, signal: i32) -> bool {
        let mask = field(self.root.join("proc/self/status"), "SigIgn:")
            .and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        // Bit 0 is signal 1.
        mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
    }
}

/// Each line of a map is the first id inside, the first outside, and their number.
fn is_mapped(map: &str, id: u32) -> bool {
    map.lines().any(|line| {
        let numbers: Vec<u32> = line.split_whitespace().flat_map(str::parse).collect();
        matches!(numbers[..], [first, _, count] if id.checked_sub(first).is_some_and(|at| at < count))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_mapped_by_the_line_that_holds_it() {
        assert!(is_mapped("         0          0 4294967295\n", 1000));
        let container = "0 1000 1\n1 100000 65536\n";
        assert!(is_mapped(container, 0) && is_mapped(container, 65536));
        assert!(!is_mapped(container, 65537) && !is_mapped("", 65534));
    }

    #[test]
    fn this_process_is_in_its_family() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let own = Pid(std::process::id());
        let family = Host::at(Path::new("/")).family(own).unwrap();
        assert!(family.get(own).is_some());
        assert!(
            family
                .children(own)
                .any(|process| process.pid.0 == child.id())
        );
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
