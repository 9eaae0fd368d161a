//! The machine around GPUs and daemons.

use super::check::{Check, Examined, Finding, Judge, Subject};
use crate::host::open_files;

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

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "open-files",
        subject: Subject::Surroundings,
        fault: "daemons that are started from here may open few files",
        why: "a server with many clients needs 16384 and more",
        remedy: "raise the hard limit in /etc/security/limits.conf, or LimitNOFILE of the service",
        judge: Judge::Own(files),
    },
    Check {
        id: "cgroup-limits",
        subject: Subject::Surroundings,
        fault: "the control group of this process leaves few processes or little memory",
        why: "daemons that are started from here are in it: servers do not start, or the kernel ends them",
        remedy: "raise TasksMax or MemoryMax of the service or the container, or start daemons under systemd",
        judge: Judge::Own(cgroup_limits),
    },
    Check {
        id: "shared-memory",
        subject: Subject::Surroundings,
        fault: "/dev/shm is missing, read-only or full",
        why: "before driver 580 servers share memory with their clients there, and do not start without it",
        remedy: "`sudo mount -o remount,rw,size=50% /dev/shm`; in a container `--ipc=host` or `--shm-size`",
        judge: Judge::Own(shared_memory),
    },
    Check {
        id: "leftover-shared-memory",
        subject: Subject::Surroundings,
        fault: "/dev/shm has the memory of MPS servers that have ended",
        why: "it takes main memory until the next reboot",
        remedy: "remove the files",
        judge: Judge::Own(leftover_memory),
    },
    Check {
        id: "fabric-manager",
        subject: Subject::Surroundings,
        fault: "the machine has NVSwitches, and the fabric manager does not run",
        why: "CUDA does not initialise (error 802)",
        remedy: "`sudo systemctl enable --now nvidia-fabricmanager`",
        judge: Judge::Own(fabric_manager),
    },
    Check {
        id: "security-module",
        subject: Subject::Surroundings,
        fault: "SELinux or AppArmor confines this process, and daemons that it starts",
        why: "a refusal appears as a missing file or socket: programs run outside MPS and say nothing",
        remedy: "`sudo ausearch -m avc -ts recent` or `sudo dmesg | grep -i apparmor` shows refusals; label pipe directories for containers container_file_t",
        judge: Judge::Own(security_module),
    },
    Check {
        id: "container",
        subject: Subject::Surroundings,
        fault: "this is a container",
        why: "holders outside cannot be seen, MIG cannot be changed without privileges, and daemons end with the container",
        remedy: "manage the node from the host, and bring devices in: `mig-mps help running`",
        judge: Judge::Own(container),
    },
    Check {
        id: "user-mapping",
        subject: Subject::Surroundings,
        fault: "the user of this process is not mapped in its user namespace",
        why: "its cuInit hangs, and was seen to hang every later client",
        remedy: "map it, as with `unshare --map-root-user`",
        judge: Judge::Own(user_mapping),
    },
];

fn files(examined: &Examined<'_>) -> Vec<Finding> {
    let seen = match open_files() {
        (_, None) => return vec![Finding::ok("no limit")],
        (_, Some(hard)) if hard >= WANTED_FILES => {
            return vec![Finding::ok(format!("{hard} files"))];
        }
        (_, Some(hard)) => format!("the hard limit is {hard} files"),
    };
    if examined.environment.is_root() {
        // Root raises it where a daemon is started.
        return vec![Finding::ok(seen)];
    }
    vec![Finding::warn(seen).run("ulimit -Hn")]
}

fn cgroup_limits(examined: &Examined<'_>) -> Vec<Finding> {
    let room = examined.surroundings.cgroup;
    let mut findings = Vec::new();
    if let Some(few) = room.tasks.filter(|left| *left < WANTED_TASKS) {
        let seen = format!("{few} more processes and threads may be started");
        findings.push(Finding::warn(seen));
    }
    if let Some(little) = room.memory.filter(|most| *most < WANTED_MEMORY) {
        let seen = format!("all processes together may use {} MiB", little >> 20);
        findings.push(Finding::warn(seen));
    }
    let show = "systemd-cgls; cat /proc/self/cgroup";
    findings.into_iter().map(|found| found.run(show)).collect()
}

fn shared_memory(examined: &Examined<'_>) -> Vec<Finding> {
    let Some(branch) = examined.branch() else {
        return vec![Finding::unknown("the driver's version is not known")];
    };
    if branch >= ANONYMOUS_MEMORY {
        return vec![Finding::ok(format!("driver {branch} does not need it"))];
    }
    let df = "df -h /dev/shm";
    let finding = match examined.surroundings.shared_memory {
        None => Finding::fail("/dev/shm is missing").run("sudo mount -t tmpfs tmpfs /dev/shm"),
        Some(system) if system.is_read_only => Finding::fail("/dev/shm is read-only").run(df),
        Some(system) if system.free < SHARED_MEMORY => {
            Finding::fail(format!("/dev/shm has {} MiB left", system.free >> 20)).run(df)
        }
        Some(system) => Finding::ok(format!("{} MiB left", system.free >> 20)),
    };
    vec![finding]
}

fn leftover_memory(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in &examined.surroundings.leftover_memory {
        let path = path.display().to_string();
        let finding = Finding::warn(format!("{path} is of a server that has ended"));
        findings.push(finding.run_with(&path, format!("sudo rm {path}")));
    }
    findings
}

fn fabric_manager(examined: &Examined<'_>) -> Vec<Finding> {
    if !examined.surroundings.has_nvswitch {
        return vec![Finding::ok("no NVSwitch")];
    }
    if examined.runs("nv-fabricmanager") {
        return vec![Finding::ok("it runs")];
    }
    let seen = "there are NVSwitches, and nv-fabricmanager does not run";
    vec![Finding::fail(seen).run("sudo systemctl enable --now nvidia-fabricmanager")]
}

fn security_module(examined: &Examined<'_>) -> Vec<Finding> {
    let around = &examined.surroundings;
    let Some(label) = &around.label else {
        return vec![Finding::ok("none")];
    };
    // AppArmor: `docker-default (enforce)`; SELinux: `system_u:system_r:container_t:s0`.
    let domain = label.split(':').nth(2);
    let is_confined = match domain {
        Some(domain) => around.selinux_enforces && !domain.starts_with("unconfined"),
        None => label.ends_with("(enforce)"),
    };
    if !is_confined {
        return vec![Finding::ok(label.as_str())];
    }
    let (module, show) = match domain {
        Some(_) => ("SELinux", "sudo ausearch -m avc -ts recent"),
        None => ("AppArmor", "sudo dmesg | grep -i apparmor"),
    };
    vec![Finding::warn(format!("{module} confines this process: {label}")).run(show)]
}

fn container(examined: &Examined<'_>) -> Vec<Finding> {
    match examined.surroundings.container {
        None => vec![Finding::ok("no container")],
        Some(engine) => vec![Finding::warn(format!("this is a container ({engine})"))],
    }
}

fn user_mapping(examined: &Examined<'_>) -> Vec<Finding> {
    if examined.environment.host.caller_is_mapped() {
        return vec![Finding::ok("the user is mapped")];
    }
    vec![
        Finding::fail("the user or the group of this process is not mapped")
            .run("cat /proc/self/uid_map"),
    ]
}
