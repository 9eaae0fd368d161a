//! Run, pipe and log directories.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::check::{Examined, Judge};
use crate::failure::Failure;
use crate::host::{
    Directories, Directory, Reader, Uid, file_system, group_named, may_write, printable,
};
use crate::mps::{LogDir, LogFile, MAX_PIPE_DIR};
use crate::node::{Finding, Served};
use crate::settings::Serve;
use crate::state::RunDir;

/// A user without rights of its own.
const ANYBODY: Uid = Uid(65534);

/// With less a record or a log line may not be written; and some room for the logs of a day.
const NO_SPACE: u64 = 4 << 20;
const LITTLE_SPACE: u64 = 64 << 20;

/// Logs are rotated by `up` at an eighth of that.
const LARGE_LOG: u64 = 64 << 20;

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("run-directory", run_directory),
    ("pipe-too-long", pipe_length),
    ("pipe-access", pipe_access),
    ("pipe-writable", pipe_writable),
    ("by-name", by_name),
    ("leftover-directories", leftovers),
    ("log-directory", log_directory),
    ("disk-space", disk_space),
    ("log-size", log_size),
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
fn directory(id: &'static str, path: &Path) -> Finding {
    let shown = path.display();
    let there = existing(path);
    if !may_write(there) {
        let seen = format!("{} cannot be written to", there.display());
        return Finding::fail(id, seen).run(format!("ls -ld {}", there.display()));
    }
    if path.exists()
        && let Err(error) = Directory::open(path)
    {
        return Finding::fail(id, error.to_string()).run(format!("namei -l {shown}"));
    }
    Finding::ok(id, shown.to_string())
}

fn run_directory(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    match examined.environment.directories() {
        Ok(directories) => vec![directory(id, &directories.run)],
        Err(error) => vec![Finding::fail(
            id,
            format!("{error}: {}", error.hints().join("; ")),
        )],
    }
}

fn log_directory(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    match examined.environment.directories() {
        Ok(directories) => vec![directory(id, &directories.log)],
        Err(_) => vec![Finding::unknown(
            id,
            "it belongs to the run directory, and there is none",
        )],
    }
}

fn pipe_length(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
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
                Finding::fail(id, seen)
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
        Some(Serve::User(_) | Serve::Own) => Some(Reader::of(served.record.only_user()?)),
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

fn pipe_access(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let found = pipes(examined).filter_map(|(served, pipe)| {
        let name = &served.record.name;
        let Some(users) = users_of(served) else {
            return Some(Finding::unknown(id, "its users are not known").on(name));
        };
        let closed = users.is_kept_out_of(&pipe.join("control"))?;
        let closed = closed.display();
        let seen = format!("its users may not enter {closed}");
        Some(
            Finding::fail(id, seen)
                .on(name)
                .run(format!("ls -ld {closed}")),
        )
    });
    found.collect()
}

fn pipe_writable(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (served, pipe) in pipes(examined) {
        let Ok(meta) = fs::metadata(&pipe) else {
            continue;
        };
        let mode = meta.mode() & 0o7777;
        if mode & 0o002 != 0 {
            let shown = pipe.display();
            findings.push(
                Finding::fail(id, format!("{shown} has mode {mode:04o}"))
                    .on(&served.record.name)
                    .run(format!("chmod go-w {shown}")),
            );
        }
    }
    findings
}

fn by_name(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for served in examined.served() {
        let (record, run_dir) = (&served.record, &served.run_dir);
        let link = run_dir.by_name(&record.name);
        let target = fs::read_link(&link);
        let is_right = target.is_ok_and(|target| target == Path::new("..").join(&record.uuid));
        if !is_right {
            let seen = format!("{} does not lead to {}", link.display(), record.uuid);
            let restart = format!("mig-mps restart {}", record.name);
            findings.push(Finding::fail(id, seen).on(&record.name).run(restart));
        }
    }
    if examined.devices.is_empty() {
        findings.extend(dangling(id, examined));
    }
    findings
}

/// Finds the links of devices that have no record.
fn dangling(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let links = own(examined).run.join("by-name");
    let entries = fs::read_dir(&links).into_iter().flatten().flatten();
    let mut findings = Vec::new();
    for entry in entries.filter(|entry| !entry.path().exists()) {
        let path = printable(&entry.path().display().to_string());
        let finding = Finding::warn(id, format!("{path} leads nowhere"));
        findings.push(finding.run_with(&path, format!("rm {path}")));
    }
    findings
}

fn leftovers(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
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
            let finding = Finding::warn(id, format!("{path} has no record"));
            findings.push(finding.run_with(&path, format!("ls -lA {path}")));
        }
    }
    findings
}

fn disk_space(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let directories = own(examined);
    let mut findings = Vec::new();
    for path in [directories.run, directories.log] {
        let there = existing(&path);
        let (shown, df) = (path.display(), format!("df -h {}", there.display()));
        findings.push(match file_system(there) {
            Err(error) => Finding::unknown(id, format!("{shown}: {error}")),
            Ok(system) if system.is_read_only => {
                Finding::fail(id, format!("{shown} is on a read-only file system")).run(df)
            }
            Ok(system) => {
                let seen = format!("{shown} has {} MiB left", system.free >> 20);
                match system.free {
                    free if free < NO_SPACE => Finding::fail(id, seen).run(df),
                    free if free < LITTLE_SPACE => Finding::warn(id, seen).run(df),
                    _ => Finding::ok(id, seen),
                }
            }
        });
    }
    findings
}

fn log_size(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
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
                findings.push(Finding::warn(id, seen).on(&record.name).run(show));
            }
        }
    }
    findings
}
