//! The machine around GPUs and daemons.

use super::check::{Examined, Judge};
use super::machine::{CgroupRoom, file_system};
use crate::client::CdiFiles;
use crate::host::{count, open_files};
use crate::node::Finding;

/// The first driver whose servers share memory without `/dev/shm`.
const ANONYMOUS_MEMORY: u32 = 580;

/// NVIDIA's advice for servers with many clients.
const WANTED_FILES: u64 = 16384;

/// The fewest processes and threads that are to be left. Measured on an H200: a daemon has 2 threads, a server with one
/// client 5.
const WANTED_TASKS: u64 = 128;

/// The least main memory for daemons and servers. Measured on an H200: a server with one client takes 64 MiB.
const WANTED_MEMORY: u64 = 1 << 30;

/// The least space in `/dev/shm` for servers of older drivers.
const SHARED_MEMORY: u64 = 64 << 20;

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("open-files", Judge::Always(files)),
    ("cgroup-limits", Judge::Node(cgroup_limits)),
    ("shared-memory", Judge::Always(shared_memory)),
    ("leftover-shared-memory", Judge::Node(leftover_memory)),
    ("fabric-manager", Judge::Always(fabric_manager)),
    ("security-module", Judge::Always(security_module)),
    ("container", Judge::Always(container)),
    ("user-mapping", Judge::Always(user_mapping)),
    ("cdi-stale", Judge::Node(cdi_stale)),
];

fn cdi_stale(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let host = &examined.environment.host;
    let uuids = examined.devices().map(|device| device.uuid.as_str());
    let Some(stale) = CdiFiles::read(host).without(uuids) else {
        return Vec::new();
    };
    let (path, devices) = (stale.path.display(), count(stale.devices, "device"));
    vec![Finding::warn(id, format!("{path} lacks {devices}")).run(stale.renewal(host))]
}

fn files(id: &'static str, examined: &Examined<'_>) -> Finding {
    let seen = match open_files() {
        (_, None) => return Finding::ok(id, "no limit"),
        (_, Some(hard)) if hard >= WANTED_FILES => {
            return Finding::ok(id, format!("{hard} files"));
        }
        (_, Some(hard)) => format!("the hard limit is {hard} files"),
    };
    if examined.environment.is_root() {
        // Root raises it where a daemon is started.
        return Finding::ok(id, seen);
    }
    Finding::warn(id, seen).run("ulimit -Hn")
}

fn cgroup_limits(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let room = CgroupRoom::read(&examined.environment.host.below("/"));
    let mut findings = Vec::new();
    if let Some(few) = room.tasks.filter(|left| *left < WANTED_TASKS) {
        let seen = format!("{few} more processes and threads may be started");
        findings.push(Finding::warn(id, seen));
    }
    if let Some(little) = room.memory.filter(|most| *most < WANTED_MEMORY) {
        let seen = format!("all processes together may use {} MiB", little >> 20);
        findings.push(Finding::warn(id, seen));
    }
    let show = "systemd-cgls; cat /proc/self/cgroup";
    findings.into_iter().map(|found| found.run(show)).collect()
}

fn shared_memory(id: &'static str, examined: &Examined<'_>) -> Finding {
    let Some(branch) = examined.branch() else {
        return Finding::unknown(id, "the driver's version is not known");
    };
    if branch >= ANONYMOUS_MEMORY {
        return Finding::ok(id, format!("driver {branch} does not need it"));
    }
    let df = "df -h /dev/shm";
    let host = &examined.environment.host;
    match file_system(&host.below("/dev/shm")) {
        Err(_) => {
            Finding::fail(id, "/dev/shm is missing").run("sudo mount -t tmpfs tmpfs /dev/shm")
        }
        Ok(system) if system.is_read_only => Finding::fail(id, "/dev/shm is read-only").run(df),
        Ok(system) if system.free < SHARED_MEMORY => {
            Finding::fail(id, format!("/dev/shm has {} MiB left", system.free >> 20)).run(df)
        }
        Ok(system) => Finding::ok(id, format!("{} MiB left", system.free >> 20)),
    }
}

fn leftover_memory(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in examined.environment.host.leftover_memory() {
        let path = path.display().to_string();
        let finding = Finding::warn(id, format!("{path} is of a server that has ended"));
        findings.push(finding.run_with(&path, format!("sudo rm {path}")));
    }
    findings
}

fn fabric_manager(id: &'static str, examined: &Examined<'_>) -> Finding {
    if !examined.environment.host.has_nvswitch() {
        return Finding::ok(id, "no NVSwitch");
    }
    if examined.runs("nv-fabricmanager") {
        return Finding::ok(id, "it runs");
    }
    let seen = "there are NVSwitches, and nv-fabricmanager does not run";
    Finding::fail(id, seen).run("sudo systemctl enable --now nvidia-fabricmanager")
}

fn security_module(id: &'static str, examined: &Examined<'_>) -> Finding {
    let host = &examined.environment.host;
    let Some(label) = host.security_label() else {
        return Finding::ok(id, "none");
    };
    // AppArmor: `docker-default (enforce)`; SELinux: `system_u:system_r:container_t:s0`.
    let domain = label.split(':').nth(2);
    let is_confined = match domain {
        Some(domain) => host.selinux_enforces() && !domain.starts_with("unconfined"),
        None => label.ends_with("(enforce)"),
    };
    if !is_confined {
        return Finding::ok(id, label.as_str());
    }
    let (module, show) = match domain {
        Some(_) => ("SELinux", "sudo ausearch -m avc -ts recent"),
        None => ("AppArmor", "sudo dmesg | grep -i apparmor"),
    };
    Finding::warn(id, format!("{module} confines this process: {label}")).run(show)
}

fn container(id: &'static str, examined: &Examined<'_>) -> Finding {
    match examined.environment.host.container() {
        None => Finding::ok(id, "no container"),
        Some(engine) => Finding::warn(id, format!("this is a container ({engine})")),
    }
}

fn user_mapping(id: &'static str, examined: &Examined<'_>) -> Finding {
    if examined.environment.host.caller_is_mapped() {
        return Finding::ok(id, "the user is mapped");
    }
    Finding::fail(id, "the user or the group of this process is not mapped")
        .run("cat /proc/self/uid_map")
}
