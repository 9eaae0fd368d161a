//! The machine around GPUs and daemons.

use super::check::{Examined, Judge};
use super::machine::{CgroupRoom, file_system};
use crate::client::CdiFiles;
use crate::commands::after_change::pending_programs;
use crate::config::AFTER_CHANGE_DIR;
use crate::host::{FileResult, ProgramDirectory, format_count, open_file_limits};
use crate::node::{Device, Finding, NO_DRIVER};
use crate::state::{AfterChange, RunDir};

/// The first driver whose servers share memory without `/dev/shm`.
const FIRST_BRANCH_WITHOUT_SHM: u32 = 580;

/// NVIDIA's advice for servers with many clients.
const WANTED_FILES: u64 = 16384;

/// The fewest processes and threads that are to be left. Measured on an H200: a daemon has 2 threads, a server with one
/// client 5.
const WANTED_TASKS: u64 = 128;

/// The least main memory for daemons and servers. Measured on an H200: a server with one client takes 64 MiB.
const WANTED_MEMORY_BYTES: u64 = 1 << 30;

/// The least space in `/dev/shm` for servers of older drivers.
const MIN_SHARED_MEMORY_BYTES: u64 = 64 << 20;

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("open-files", Judge::Always(open_file_limit)),
    ("cgroup-limits", Judge::Node(cgroup_limits)),
    ("shared-memory", Judge::Always(shared_memory)),
    ("leftover-shared-memory", Judge::Node(leftover_memory)),
    ("fabric-manager", Judge::Always(fabric_manager)),
    ("security-module", Judge::Always(security_module)),
    ("container", Judge::Always(container)),
    ("user-mapping", Judge::Always(user_mapping)),
    ("cdi-stale", Judge::Node(cdi_stale)),
    ("after-change", Judge::Node(after_change)),
];

fn cdi_stale(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let host = &examined.environment.host;
    let uuids = examined
        .present_devices()
        .flat_map(Device::driver_uuids)
        .map(String::as_str);
    let Some(stale) = CdiFiles::load(host).find_stale(uuids) else {
        return Vec::new();
    };
    let (path, devices) = (stale.path.display(), format_count(stale.devices, "device"));
    vec![
        Finding::warn(id, format!("{path} lacks {devices}"))
            .with_command(stale.refresh_command(host)),
    ]
}

fn after_change(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let environment = examined.environment;
    let Some(programs) = environment.programs_after_change() else {
        let is_there = environment.host.under_root(AFTER_CHANGE_DIR).exists();
        let is_hidden = is_there && !environment.is_root();
        let why = "only root can read which programs have run";
        return is_hidden
            .then(|| Finding::hidden(id, why))
            .into_iter()
            .collect();
    };
    let run_dir = RunDir::at(&environment.roots_run_dir());
    let examine = || -> FileResult<Vec<Finding>> {
        let mut findings = Vec::new();
        if let Some(after) = AfterChange::open_if_there(&run_dir)? {
            for (_, problem) in pending_programs(&programs, &after)? {
                let finding = Finding::fail(id, problem.to_string());
                findings.push(finding.with_command("sudo mig-mps heal"));
            }
        }
        let never_run =
            |name: &str, why: &str| Finding::warn(id, format!("{name} never runs: {why}"));
        for name in programs.file_names()? {
            if !ProgramDirectory::is_program_name(&name) {
                let why = "names have only letters, digits, - and _";
                findings.push(never_run(&name, why));
            }
        }
        for (name, why) in programs.passed_over_files()? {
            findings.push(never_run(&name, why));
        }
        Ok(findings)
    };
    examine().unwrap_or_else(|error| vec![Finding::fail(id, error.to_string())])
}

fn open_file_limit(id: &'static str, examined: &Examined<'_>) -> Finding {
    let seen = match open_file_limits() {
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
    Finding::warn(id, seen).with_command("ulimit -Hn")
}

fn cgroup_limits(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let room = CgroupRoom::read_from(&examined.environment.host.under_root("/"));
    let mut findings = Vec::new();
    if let Some(few) = room.tasks.filter(|left| *left < WANTED_TASKS) {
        let seen = format!("{few} more processes and threads may be started");
        findings.push(Finding::warn(id, seen));
    }
    if let Some(little) = room.memory.filter(|most| *most < WANTED_MEMORY_BYTES) {
        let seen = format!("all processes together may use {} MiB", little >> 20);
        findings.push(Finding::warn(id, seen));
    }
    let show = "systemd-cgls; cat /proc/self/cgroup";
    findings
        .into_iter()
        .map(|found| found.with_command(show))
        .collect()
}

fn shared_memory(id: &'static str, examined: &Examined<'_>) -> Finding {
    let Some(branch) = examined.driver_branch() else {
        return Finding::unknown(id, NO_DRIVER);
    };
    if branch >= FIRST_BRANCH_WITHOUT_SHM {
        return Finding::ok(id, format!("driver {branch} does not need it"));
    }
    let df = "df -h /dev/shm";
    let host = &examined.environment.host;
    match file_system(&host.under_root("/dev/shm")) {
        Err(_) => Finding::fail(id, "/dev/shm is missing")
            .with_command("sudo mount -t tmpfs tmpfs /dev/shm"),
        Ok(system) if system.is_read_only => {
            Finding::fail(id, "/dev/shm is read-only").with_command(df)
        }
        Ok(system) if system.free < MIN_SHARED_MEMORY_BYTES => {
            Finding::fail(id, format!("/dev/shm has {} MiB left", system.free >> 20))
                .with_command(df)
        }
        Ok(system) => Finding::ok(id, format!("{} MiB left", system.free >> 20)),
    }
}

fn leftover_memory(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for path in examined.environment.host.leftover_memory() {
        let path = path.display().to_string();
        let finding = Finding::warn(id, format!("{path} belongs to a server that has exited"));
        findings.push(finding.with_path_command(&path, format!("sudo rm {path}")));
    }
    findings
}

fn fabric_manager(id: &'static str, examined: &Examined<'_>) -> Finding {
    if !examined.environment.host.has_nvswitch() {
        return Finding::ok(id, "no NVSwitch");
    }
    if examined.runs_program("nv-fabricmanager") {
        return Finding::ok(id, "it runs");
    }
    let seen = "there are NVSwitches, and nv-fabricmanager does not run";
    Finding::fail(id, seen).with_command("sudo systemctl enable --now nvidia-fabricmanager")
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
    Finding::warn(id, format!("{module} confines this process: {label}")).with_command(show)
}

fn container(id: &'static str, examined: &Examined<'_>) -> Finding {
    match examined.environment.host.container_engine() {
        None => Finding::ok(id, "no container"),
        Some(engine) => Finding::warn(id, format!("this is a container ({engine})")),
    }
}

fn user_mapping(id: &'static str, examined: &Examined<'_>) -> Finding {
    if examined.environment.host.caller_is_mapped() {
        return Finding::ok(id, "the user is mapped");
    }
    Finding::fail(id, "the user or the group of this process is not mapped")
        .with_command("cat /proc/self/uid_map")
}
