//! Run, pipe and log directories.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::check::{Check, Examined, Finding, Judge, Subject};
use crate::failure::Failure;
use crate::host::{
    Directories, Directory, Reader, Uid, file_system, group_named, may_write, printable,
};
use crate::mps::{LogDir, LogFile, MAX_PIPE_DIR};
use crate::node::Served;
use crate::settings::Serve;
use crate::state::RunDir;

/// A user without rights of its own.
const ANYBODY: Uid = Uid(65534);

/// With less a record or a log line may not be written; and some room for the logs of a day.
const NO_SPACE: u64 = 4 << 20;
const LITTLE_SPACE: u64 = 64 << 20;

/// Logs are rotated by `up` at an eighth of that.
const LARGE_LOG: u64 = 64 << 20;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "run-directory",
        subject: Subject::Directories,
        fault: "the run directory cannot be used",
        why: "records, locks and pipes are there; root uses none that another user can change",
        remedy: "make it, or name another one in MIG_MPS_RUN_DIR; a plain user needs XDG_RUNTIME_DIR",
        judge: Judge::Own(run_directory),
    },
    Check {
        id: "pipe-too-long",
        subject: Subject::Directories,
        fault: "the path of a pipe directory is too long for a socket",
        why: "with more than 87 bytes the daemon exits with status 1 and says nothing",
        remedy: "use a shorter run directory: MIG_MPS_RUN_DIR",
        judge: Judge::Own(pipe_length),
    },
    Check {
        id: "pipe-access",
        subject: Subject::Directories,
        fault: "users of a device may not enter its pipe directory, or one above it",
        why: "their programs run outside MPS and say nothing, and a server that runs as such a user does not start",
        remedy: "give the directory its search permission (x) again, or use another run directory",
        judge: Judge::Records(pipe_access),
    },
    Check {
        id: "pipe-writable",
        subject: Subject::Directories,
        fault: "every user may write into a pipe directory",
        why: "a user can put a socket of their own in the place of the daemon's",
        remedy: "`chmod go-w DIRECTORY`",
        judge: Judge::Records(pipe_writable),
    },
    Check {
        id: "by-name",
        subject: Subject::Directories,
        fault: "the link by which programs find a device is missing or leads elsewhere",
        why: "`env`, containers and job scripts use it: their programs run outside MPS or on another device",
        remedy: "`mig-mps restart DEVICE` makes it again",
        judge: Judge::Records(by_name),
    },
    Check {
        id: "leftover-directories",
        subject: Subject::Directories,
        fault: "the run directory has a device's directory without a record",
        why: "no command manages what is in it",
        remedy: "remove it once no daemon uses it",
        judge: Judge::Records(leftovers),
    },
    Check {
        id: "log-directory",
        subject: Subject::Directories,
        fault: "the log directory cannot be used",
        why: "a daemon then starts without logs and says nothing",
        remedy: "make it, or name another one in MIG_MPS_LOG_DIR",
        judge: Judge::Own(log_directory),
    },
    Check {
        id: "disk-space",
        subject: Subject::Directories,
        fault: "there is little space for records or logs",
        why: "a change that cannot be recorded is undone, and daemons stop logging",
        remedy: "make room",
        judge: Judge::Own(disk_space),
    },
    Check {
        id: "log-size",
        subject: Subject::Directories,
        fault: "a log of a daemon is large",
        why: "daemons never rotate their logs; something may write without pause",
        remedy: "`mig-mps up PROFILE` rotates large logs; `mig-mps logs DEVICE` shows what fills them",
        judge: Judge::Records(log_size),
    },
];

/// The directories of the caller, or those of root where the caller has none.
fn own(examined: &Examined<'_>) -> Directories {
    examined.environment.directories_or_system()
}

/// The nearest directory above a path, or itself, that exists.
fn existing(path: &Path) -> &Path {
    path.ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"))
}

/// Judges a directory that a change makes if it is missing.
fn directory(path: &Path) -> Finding {
    let shown = path.display();
    let there = existing(path);
    if !may_write(there) {
        let seen = format!("{} cannot be written to", there.display());
        return Finding::fail(seen).run(format!("ls -ld {}", there.display()));
    }
    if path.exists()
        && let Err(error) = Directory::open(path)
    {
        return Finding::fail(error.to_string()).run(format!("namei -l {shown}"));
    }
    Finding::ok(shown.to_string())
}

fn run_directory(examined: &Examined<'_>) -> Vec<Finding> {
    match examined.environment.directories() {
        Ok(directories) => vec![directory(&directories.run)],
        Err(error) => vec![Finding::fail(format!(
            "{error}: {}",
            error.hints().join("; ")
        ))],
    }
}

fn log_directory(examined: &Examined<'_>) -> Vec<Finding> {
    match examined.environment.directories() {
        Ok(directories) => vec![directory(&directories.log)],
        Err(_) => vec![Finding::unknown(
            "it belongs to the run directory, and there is none",
        )],
    }
}

fn pipe_length(examined: &Examined<'_>) -> Vec<Finding> {
    let run_dir = RunDir::at(&own(examined).run);
    let mut findings = Vec::new();
    for device in examined.devices() {
        let path = run_dir.pipe_dir(&device.uuid);
        let length = path.as_os_str().len();
        if length > MAX_PIPE_DIR {
            let seen = format!(
                "{} has {length} bytes, and {MAX_PIPE_DIR} are the most",
                path.display()
            );
            findings.push(
                Finding::fail(seen)
                    .on(&device.name)
                    .run("export MIG_MPS_RUN_DIR=/run/mig-mps"),
            );
        }
    }
    findings
}

/// Returns the users of a device.
fn users_of(served: &Served) -> Option<Reader> {
    let anybody = Reader::User(ANYBODY, vec![ANYBODY.0]);
    match &served.record.settings.serve {
        Some(Serve::User(_) | Serve::Own) => {
            let owner = served.record.daemon?.user?;
            Some(Reader::of(owner))
        }
        Some(Serve::Group(group)) => Some(Reader::Group(group_named(group).ok()??)),
        Some(Serve::All | Serve::OneAtATime) | None => Some(anybody),
    }
}

/// Returns the daemons that run, and their pipe directories.
fn pipes<'a>(examined: &Examined<'a>) -> impl Iterator<Item = (&'a Served, PathBuf)> {
    examined
        .served()
        .filter(|served| served.is_alive())
        .map(|served| (served, served.run_dir.pipe_dir(&served.record.uuid)))
}

fn pipe_access(examined: &Examined<'_>) -> Vec<Finding> {
    let found = pipes(examined).filter_map(|(served, pipe)| {
        let name = &served.record.name;
        let Some(users) = users_of(served) else {
            return Some(Finding::unknown("its users are not known").on(name));
        };
        let closed = users.is_kept_out_of(&pipe.join("control"))?;
        let closed = closed.display();
        let seen = format!("its users may not enter {closed}");
        Some(Finding::fail(seen).on(name).run(format!("ls -ld {closed}")))
    });
    found.collect()
}

fn pipe_writable(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (served, pipe) in pipes(examined) {
        let Ok(meta) = fs::metadata(&pipe) else {
            continue;
        };
        let mode = meta.mode() & 0o7777;
        if mode & 0o002 != 0 {
            let shown = pipe.display();
            findings.push(
                Finding::fail(format!("{shown} has mode {mode:04o}"))
                    .on(&served.record.name)
                    .run(format!("chmod go-w {shown}")),
            );
        }
    }
    findings
}

fn by_name(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for served in examined.served() {
        let (record, run_dir) = (&served.record, &served.run_dir);
        let link = run_dir.by_name(&record.name);
        let target = fs::read_link(&link);
        let is_right = target.is_ok_and(|target| target == Path::new("..").join(&record.uuid));
        if !is_right {
            let seen = format!("{} does not lead to {}", link.display(), record.uuid);
            let restart = format!("mig-mps restart {}", record.name);
            findings.push(Finding::fail(seen).on(&record.name).run(restart));
        }
    }
    if examined.devices.is_empty() {
        findings.extend(dangling(examined));
    }
    findings
}

/// Finds the links of devices that have no record.
fn dangling(examined: &Examined<'_>) -> Vec<Finding> {
    let links = own(examined).run.join("by-name");
    let entries = fs::read_dir(&links).into_iter().flatten().flatten();
    let mut findings = Vec::new();
    for entry in entries.filter(|entry| !entry.path().exists()) {
        let path = printable(&entry.path().display().to_string());
        let finding = Finding::warn(format!("{path} leads nowhere"));
        findings.push(finding.run_with(&path, format!("rm {path}")));
    }
    findings
}

fn leftovers(examined: &Examined<'_>) -> Vec<Finding> {
    if !examined.devices.is_empty() || examined.node.is_changing() {
        return Vec::new();
    }
    let run = own(examined).run;
    let entries = fs::read_dir(&run).into_iter().flatten().flatten();
    let mut findings = Vec::new();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_device = name.starts_with("MIG-") || name.starts_with("GPU-");
        if is_device && !entry.path().join("device.json").exists() {
            let path = printable(&entry.path().display().to_string());
            let finding = Finding::warn(format!("{path} has no record"));
            findings.push(finding.run_with(&path, format!("ls -lA {path}")));
        }
    }
    findings
}

fn disk_space(examined: &Examined<'_>) -> Vec<Finding> {
    let directories = own(examined);
    let mut findings = Vec::new();
    for path in [directories.run, directories.log] {
        let there = existing(&path);
        let (shown, df) = (path.display(), format!("df -h {}", there.display()));
        findings.push(match file_system(there) {
            Err(error) => Finding::unknown(format!("{shown}: {error}")),
            Ok(system) if system.is_read_only => {
                Finding::fail(format!("{shown} is on a read-only file system")).run(df)
            }
            Ok(system) => {
                let seen = format!("{shown} has {} MiB left", system.free >> 20);
                match system.free {
                    free if free < NO_SPACE => Finding::fail(seen).run(df),
                    free if free < LITTLE_SPACE => Finding::warn(seen).run(df),
                    _ => Finding::ok(seen),
                }
            }
        });
    }
    findings
}

fn log_size(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for served in examined.served() {
        let (record, run_dir) = (&served.record, served.run_dir.path());
        let Some(logs) = examined.environment.logs_of(run_dir) else {
            continue;
        };
        let Ok(logs) = LogDir::open(&logs.join(&record.uuid)) else {
            continue;
        };
        for log in LogFile::ALL {
            let length = logs.length(log);
            if length >= LARGE_LOG {
                let path = logs.path().join(log.name());
                let seen = format!("{} has {} MiB", path.display(), length >> 20);
                let show = format!("mig-mps logs {}", record.name);
                findings.push(Finding::warn(seen).on(&record.name).run(show));
            }
        }
    }
    findings
}
