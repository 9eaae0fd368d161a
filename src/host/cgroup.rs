//! Limits of the control group that daemons would be started in.

use std::fs;
use std::path::Path;

/// The room that the control group of this process and the groups above it leave. Only version 2 of control groups is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupRoom {
    /// The number of processes and threads that may still be started; `None` without a limit.
    pub tasks: Option<u64>,
    /// The most main memory in bytes, used or not; `None` without a limit.
    pub memory: Option<u64>,
}

impl CgroupRoom {
    pub(super) fn read(root: &Path) -> Self {
        let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
        let tree = root.join("sys/fs/cgroup");
        let mut left = Self::default();
        for group in Path::new(path.unwrap_or_default()).ancestors() {
            let number = |file: &str| {
                let text = fs::read_to_string(tree.join(group).join(file)).ok()?;
                text.trim().parse::<u64>().ok()
            };
            let tasks = number("pids.max").map(|most| {
                let used = number("pids.current").unwrap_or(0);
                most.saturating_sub(used)
            });
            let memory = number("memory.max");
            left.tasks = [left.tasks, tasks].into_iter().flatten().min();
            left.memory = [left.memory, memory].into_iter().flatten().min();
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_narrowest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert_eq!(CgroupRoom::read(root.path()), CgroupRoom::default());
        write("proc/self/cgroup", "0::/a.slice/b.scope\n");
        assert_eq!(CgroupRoom::read(root.path()), CgroupRoom::default());
        write("sys/fs/cgroup/a.slice/pids.max", "100\n");
        write("sys/fs/cgroup/a.slice/pids.current", "90\n");
        write("sys/fs/cgroup/a.slice/b.scope/pids.max", "max\n");
        write("sys/fs/cgroup/a.slice/b.scope/memory.max", "4096\n");
        let left = CgroupRoom {
            tasks: Some(10),
            memory: Some(4096),
        };
        assert_eq!(CgroupRoom::read(root.path()), left);
    }
}
