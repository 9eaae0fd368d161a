//! Run, pipe and log directories.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::check::{Examined, Judge};
use super::machine::file_system;
use crate::config::begins_as_uuid;
use crate::failure::Failure;
use crate::host::{Directories, Directory, may_write, to_printable};
use crate::mps::{LogDir, LogFile, MAX_PIPE_DIR};
use crate::node::{Device, Finding, Served};
use crate::state::{Misplaced, RunDir};

/// With less a record or a log line may not be written; and some room for the logs of a day.
const MIN_FREE_BYTES: u64 = 4 << 20;
const LOW_FREE_BYTES: u64 = 64 << 20;

/// Logs are rotated by `up` at an eighth of that.
const LARGE_LOG_BYTES: u64 = 64 << 20;

pub(super) const CHECKS: &[(&str, Judge)] = &[
    ("run-directory", Judge::Always(run_directory)),
    ("pipe-too-long", Judge::Device(pipe_length)),
    ("pipe-access", Judge::Served(pipe_access)),
    ("pipe-writable", Judge::Served(pipe_writable)),
    ("by-name", Judge::Node(by_name)),
    ("leftover-directories", Judge::Node(leftover_directories)),
    ("log-directory", Judge::Always(log_directory)),
    ("disk-space", Judge::Node(disk_space)),
    ("log-size", Judge::Served(log_size)),
    ("logs-gone", Judge::Served(logs_gone)),
];

/// The directories of the caller, or those of root where the caller has none.
fn own_directories(examined: &Examined<'_>) -> Directories {
    examined.environment.directories_or_system()
}

/// The nearest directory above a path, or itself, that exists.
fn existing_ancestor(path: &Path) -> &Path {
    path.ancestors()
        .find(|path| path.is_dir())
        .unwrap_or(Path::new("/"))
}

/// Judges a directory that a change makes if it is missing.
fn judge_directory(id: &'static str, path: &Path) -> Finding {
    let shown = path.display();
    let there = existing_ancestor(path);
    if !may_write(there) {
        let seen = format!("{} cannot be written to", there.display());
        return Finding::fail(id, seen).with_command(format!("ls -ld {}", there.display()));
    }
    // In a sticky directory, such as /tmp, nobody can replace what is made there.
    let is_sticky = fs::metadata(there).is_ok_and(|meta| meta.mode() & 0o1000 != 0);
    if (path.exists() || !is_sticky)
        && let Err(error) = Directory::open(there)
    {
        return Finding::fail(id, error.to_string()).with_command(format!("namei -l {shown}"));
    }
    Finding::ok(id, shown.to_string())
}

fn run_directory(id: &'static str, examined: &Examined<'_>) -> Finding {
    match examined.environment.directories() {
        Ok(directories) => judge_directory(id, &directories.run),
        Err(error) => Finding::fail(id, format!("{error}; {}", error.hints().join("; "))),
    }
}

fn log_directory(id: &'static str, examined: &Examined<'_>) -> Finding {
    match examined.environment.directories() {
        Ok(directories) => judge_directory(id, &directories.log),
        Err(_) => Finding::unknown(id, "it belongs to the run directory, which does not exist"),
    }
}

fn pipe_length(id: &'static str, examined: &Examined<'_>, device: &Device) -> Vec<Finding> {
    let path = RunDir::at(&own_directories(examined).run).pipe_dir(&device.uuid);
    let length = path.as_os_str().len();
    if length <= MAX_PIPE_DIR {
        return Vec::new();
    }
    let seen = format!(
        "{} has {length} bytes, and {MAX_PIPE_DIR} are the most",
        path.display()
    );
    vec![Finding::fail(id, seen).with_command("export MIG_MPS_RUN_DIR=/run/mig-mps")]
}

fn pipe_access(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    if !served.is_alive() {
        return Vec::new();
    }
    let mut reported = examined.status_findings(id);
    reported.retain(|finding| finding.device.as_ref() == Some(&served.record.name));
    if !reported.is_empty() {
        return reported;
    }
    let Some(users) = served.served_users() else {
        return vec![Finding::unknown(id, "its users are not known")];
    };
    let Some(closed) = served.find_closed_directory(&users) else {
        return Vec::new();
    };
    let shown = closed.display();
    let remedy = if closed.ends_with("pipe") {
        // Its mode, or its list, is made from the device's setting.
        format!("mig-mps restart {}", served.record.name)
    } else {
        format!("chmod o+x {shown}")
    };
    let seen = format!("the users of the device may not enter {shown}");
    vec![Finding::fail(id, seen).with_command(remedy)]
}

fn pipe_writable(id: &'static str, _: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let pipe = served.run_dir.pipe_dir(&served.record.uuid);
    // Whoever can write into the one above can put another directory in its place.
    let directories = [Some(pipe.as_path()), pipe.parent()];
    let directories = directories.into_iter().flatten();
    let findings = directories.filter_map(|directory| {
        let mode = fs::metadata(directory).ok()?.mode() & 0o7777;
        let shown = directory.display();
        let seen = format!("{shown} has mode {mode:04o}");
        let is_open = served.is_alive() && mode & 0o002 != 0;
        is_open.then(|| Finding::fail(id, seen).with_command(format!("chmod go-w {shown}")))
    });
    findings.collect()
}

fn by_name(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for served in examined.recorded_devices() {
        let (record, run_dir) = (&served.record, &served.run_dir);
        let link = run_dir.by_name(&record.name);
        let target = fs::read_link(&link);
        let is_right = target.is_ok_and(|target| target == Path::new("..").join(&record.uuid));
        if !is_right {
            let seen = format!("{} does not lead to {}", link.display(), record.uuid);
            let restart = format!("mig-mps restart {}", record.name);
            findings.push(
                Finding::fail(id, seen)
                    .on_device(&record.name)
                    .with_command(restart),
            );
        }
    }
    let run_dir = RunDir::at(&own_directories(examined).run);
    let links = run_dir.by_name("");
    for found in run_dir.find_misplaced() {
        let name = found.path.strip_prefix(&links).ok();
        let name = name.map(|name| name.to_string_lossy().into_owned());
        let is_meant = |name| {
            let is_served = examined
                .recorded_devices()
                .any(|served| served.record.name == name);
            let is_asked = examined.devices.is_empty() || examined.devices.contains(&name);
            // A restart makes the link of a device that has a record.
            is_asked && !(is_served && found.is_removed)
        };
        if !name.is_some_and(is_meant) {
            continue;
        }
        findings.push(misplaced_finding(id, found));
    }
    if !examined.devices.is_empty() {
        return findings;
    }
    // The links of devices that have no record.
    let entries = fs::read_dir(&links).into_iter().flatten().flatten();
    let is_broken = |path: &Path| path.is_symlink() && !path.exists();
    for entry in entries.filter(|entry| is_broken(&entry.path())) {
        let path = to_printable(&entry.path().display().to_string());
        let finding = Finding::warn(id, format!("{path} is a broken link"));
        findings.push(finding.with_path_command(&path, format!("rm {path}")));
    }
    findings
}

fn misplaced_finding(id: &'static str, found: Misplaced) -> Finding {
    let path = to_printable(&found.path.display().to_string());
    if found.is_removed {
        Finding::warn(id, found.why).with_path_command(&path, format!("rm -r {path}"))
    } else {
        Finding::fail(id, found.why).with_path_command(&path, format!("mv {path} ~/"))
    }
}

fn leftover_directories(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    if !examined.devices.is_empty() || examined.node.is_changing() {
        return Vec::new();
    }
    let run = own_directories(examined).run;
    let run_dir = RunDir::at(&run);
    let mut misplaced = run_dir.find_misplaced();
    misplaced.retain(|found| !found.path.starts_with(run_dir.by_name("")));
    let entries = fs::read_dir(&run).into_iter().flatten().flatten();
    let mut findings = Vec::new();
    for entry in entries {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let is_device = begins_as_uuid(&name);
        let is_misplaced = misplaced
            .iter()
            .any(|found| found.path.starts_with(entry.path()));
        if is_device && !is_misplaced && !entry.path().join("device.json").exists() {
            let path = to_printable(&entry.path().display().to_string());
            let finding = Finding::warn(id, format!("{path} has no record"));
            findings.push(finding.with_path_command(&path, format!("ls -lA {path}")));
        }
    }
    findings.extend(
        misplaced
            .into_iter()
            .map(|found| misplaced_finding(id, found)),
    );
    findings
}

fn disk_space(id: &'static str, examined: &Examined<'_>) -> Vec<Finding> {
    let directories = own_directories(examined);
    let mut findings = Vec::new();
    for path in [directories.run, directories.log] {
        let there = existing_ancestor(&path);
        let (shown, df) = (path.display(), format!("df -h {}", there.display()));
        findings.push(match file_system(there) {
            Err(error) => Finding::unknown(id, format!("{shown}: {error}")),
            Ok(system) if system.is_read_only => {
                Finding::fail(id, format!("{shown} is on a read-only file system")).with_command(df)
            }
            Ok(system) => {
                let seen = format!("{shown} has {} MiB left", system.free >> 20);
                match system.free {
                    free if free < MIN_FREE_BYTES => Finding::fail(id, seen).with_command(df),
                    free if free < LOW_FREE_BYTES => Finding::warn(id, seen).with_command(df),
                    _ => Finding::ok(id, seen),
                }
            }
        });
    }
    findings
}

fn logs_gone(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let record = &served.record;
    let Some(logs) = examined.environment.logs_of(served.run_dir.path()) else {
        return Vec::new();
    };
    let file = logs.join(&record.uuid).join(LogFile::Control.name());
    let is_gone = fs::metadata(&file).is_err_and(|error| error.kind() == ErrorKind::NotFound);
    if !served.is_alive() || !record.finished || !is_gone {
        return Vec::new();
    }
    let seen = format!(
        "{} was removed, so the messages of the daemon are lost",
        file.display()
    );
    vec![Finding::warn(id, seen).with_command(format!("mig-mps restart {}", record.name))]
}

fn log_size(id: &'static str, examined: &Examined<'_>, served: &Served) -> Vec<Finding> {
    let record = &served.record;
    let logs = examined.environment.logs_of(served.run_dir.path());
    let Some(Ok(logs)) = logs.map(|logs| LogDir::open(&logs.join(&record.uuid))) else {
        return Vec::new();
    };
    LogFile::ALL
        .into_iter()
        .map(|log| (log, logs.log_length(log)))
        .filter(|(_, length)| *length >= LARGE_LOG_BYTES)
        .map(|(log, length)| {
            let path = logs.path().join(log.name());
            let seen = format!("{} has {} MiB", path.display(), length >> 20);
            Finding::warn(id, seen).with_command(format!("mig-mps logs {}", record.name))
        })
        .collect()
}
