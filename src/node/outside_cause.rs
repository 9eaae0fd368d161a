//! The reason why a program computes on a device without being a client of its daemon, and the remedy for its owner.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Serialize, Serializer};

use super::served::{Owner, as_owner, as_seconds};
use super::{Device, Node, Served, Variable};
use crate::host::{
    Host, MountedDirectory, Pid, Process, Reader, Uid, Workload, format_gpus, quote_for_shell,
    shorten_command, stat_untrusted, user_name,
};
use crate::nvml::{EXCLUSIVE_PROCESS, GpuUsage};

/// The most likely reason why a program is not a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OutsideCause {
    NoDaemon,
    /// Records are hidden.
    MayBeServed,
    UnmanagedDaemon,
    HiddenEnvironment,
    HiddenMounts,
    NotSet {
        is_in_container: bool,
    },
    Protocol(String),
    /// The pipe directory is none of mig-mps.
    OtherDirectory(String),
    OtherDevice {
        name: String,
        is_alive: bool,
    },
    /// The mount namespace of the program has another directory at this path, or none.
    NotMounted {
        pipe: String,
        run_dir: PathBuf,
    },
    /// The program's mount namespace has the directory of an earlier daemon.
    Removed(String),
    Closed {
        user: Uid,
        directory: PathBuf,
    },
    OlderThanDaemon,
    Unknown,
}

impl fmt::Display for OutsideCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoDaemon => "no daemon serves this device",
            Self::MayBeServed => "unknown: whether a daemon serves this device cannot be seen",
            Self::UnmanagedDaemon => {
                "an unmanaged daemon serves this device, and the program is not its client"
            }
            Self::HiddenEnvironment => "unknown: its environment is hidden",
            Self::HiddenMounts => "unknown: its mount namespace is hidden",
            Self::NotSet {
                is_in_container: true,
            } => "CUDA_MPS_PIPE_DIRECTORY is not set in its container",
            Self::NotSet { .. } => "CUDA_MPS_PIPE_DIRECTORY is not set",
            Self::Protocol(version) => {
                return write!(
                    f,
                    "CUDA_MPS_PROTOCOL_VERSION is {version}, and the daemon speaks 2"
                );
            }
            Self::OtherDirectory(pipe) => return write!(f, "its pipe directory is {pipe}"),
            Self::OtherDevice { name, is_alive } => {
                let dead = if *is_alive {
                    ""
                } else {
                    ", whose daemon is dead"
                };
                return write!(f, "its pipe directory is that of {name}{dead}");
            }
            Self::NotMounted { pipe, .. } => {
                return write!(
                    f,
                    "its mount namespace (a container) does not have the directory {pipe}"
                );
            }
            Self::Removed(pipe) => {
                return write!(
                    f,
                    "its mount namespace (a container) has a removed directory as {pipe}"
                );
            }
            Self::Closed { user, directory } => {
                let user = user_name(*user);
                return write!(f, "{user} may not enter {}", directory.display());
            }
            Self::OlderThanDaemon => "it started before the daemon",
            Self::Unknown => "unknown: its pipe directory is the right one",
        })
    }
}

impl Serialize for OutsideCause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl OutsideCause {
    /// Finds the reason for a program on a served device.
    pub fn find(host: &Host, node: &Node, served: &Served, process: &Process) -> Self {
        let view = MountView::from_process(host, process);
        let environ = process.environ();
        let pipe = match Variable::from_environ(environ.as_ref(), "CUDA_MPS_PIPE_DIRECTORY") {
            Variable::Hidden => return Self::HiddenEnvironment,
            Variable::Unset => {
                let is_in_container = matches!(view, MountView::OtherMounts { .. });
                return Self::NotSet { is_in_container };
            }
            Variable::Is(pipe) => pipe,
        };
        if let Variable::Is(version) =
            Variable::from_environ(environ.as_ref(), "CUDA_MPS_PROTOCOL_VERSION")
            && version != "2"
        {
            return Self::Protocol(version);
        }
        if let Some(cause) = view.wrong_pipe_cause(node, served, &pipe) {
            return cause;
        }
        let directory = served.run_dir.pipe_dir(&served.record.uuid);
        if let Some(user) = process.owner()
            && let Some(closed) = served.find_closed_directory(&Reader::new(user, process.groups()))
            // A container has the directory without those above it.
            && (closed == directory || matches!(view, MountView::Ours))
        {
            return Self::Closed {
                user,
                directory: closed,
            };
        }
        let daemon = served
            .record
            .daemon
            .and_then(|daemon| host.find_process(daemon.pid));
        if daemon.is_some_and(|daemon| process.started.0 < daemon.started.0) {
            return Self::OlderThanDaemon;
        }
        Self::Unknown
    }

    /// Returns advice for a user who has started the program with `mig-mps run` or `mig-mps compare`.
    pub fn hint_for_run(&self, device: &str) -> String {
        let variable = match self {
            Self::Protocol(_) => "CUDA_MPS_PROTOCOL_VERSION",
            Self::NotSet {
                is_in_container: false,
            }
            | Self::OtherDirectory(_)
            | Self::OtherDevice { .. } => "CUDA_MPS_PIPE_DIRECTORY",
            _ => return format!("{}; {self}", self.remedy(device)),
        };
        format!("check that the program does not change {variable} or start programs that do")
    }

    /// Returns what the owner of the program can do, for a device that serves her.
    pub fn remedy(&self, device: &str) -> String {
        match self {
            Self::NotMounted { run_dir, .. } => format!(
                "bind {0} into the container (`apptainer exec --bind {0}`); `mig-mps help containers` shows it for other engines",
                run_dir.display()
            ),
            Self::NotSet {
                is_in_container: true,
            } => format!(
                "give the container the options of `mig-mps env {device} --format docker`, or `--format podman`; `mig-mps help containers` shows it for other engines"
            ),
            Self::Removed(_) => {
                "start the container again, since the directory was made again with the device"
                    .to_owned()
            }
            Self::Unknown => {
                format!(
                    "run `mig-mps verify {device}` to check whether a program becomes a client now"
                )
            }
            _ => format!("start it with `mig-mps run {device} -- PROGRAM`"),
        }
    }
}

/// A program that computes on a device without being a client of a daemon.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct OutsideMps {
    /// The process id.
    pub pid: Pid,
    /// Its user; `None` if hidden.
    #[serde(flatten, serialize_with = "as_owner")]
    #[schemars(with = "Owner")]
    pub user: Option<Uid>,
    /// The command line.
    pub command: String,
    /// The Slurm job, pod or container that it belongs to; null if that cannot be seen.
    pub workload: Option<Workload>,
    /// The systemd service that it belongs to; null if there is none, or it cannot be seen.
    pub unit: Option<String>,
    /// True if it is the only process of its service that systemd has started itself.
    #[serde(skip)]
    pub is_main: bool,
    /// Device memory in use; null if the driver does not report it.
    #[serde(rename = "memory_used_bytes")]
    pub memory: Option<u64>,
    /// The GPUs of a joint device that it uses; empty on another device.
    pub gpus: Vec<GpuUsage>,
    /// Time since its start.
    #[serde(rename = "running_seconds", serialize_with = "as_seconds")]
    #[schemars(with = "Option<u64>")]
    pub age: Option<Duration>,
    /// True if a daemon serves the device; the program is then one of the problems.
    pub is_served: bool,
    /// The likely cause.
    #[schemars(with = "String")]
    pub cause: OutsideCause,
}

impl OutsideMps {
    /// `pid 4711 (alice, python train.py, 6147 MiB, slurm 7.0) computes outside MPS: …`
    pub(super) fn describe(&self) -> String {
        let mut facts = vec![
            self.user
                .map_or_else(|| "user hidden".to_owned(), user_name),
            shorten_command(&self.command).into_owned(),
        ];
        facts.push(match self.memory {
            Some(bytes) => format!("{} MiB", bytes >> 20),
            None => "memory hidden".to_owned(),
        });
        let gpus: Vec<u32> = self.gpus.iter().map(|gpu| gpu.index).collect();
        facts.extend((!gpus.is_empty()).then(|| format_gpus(&gpus)));
        let workload = self.workload.as_ref().filter(|workload| workload.is_any());
        facts.extend(workload.map(Workload::to_string));
        if workload.is_none() {
            facts.extend(self.unit.clone());
        }
        let (pid, facts, cause) = (self.pid, facts.join(", "), &self.cause);
        format!("pid {pid} ({facts}) computes outside MPS: {cause}")
    }

    /// Returns what this user can do about the program.
    pub(super) fn remedy(&self, device: &Device, reader: Uid) -> String {
        let name = &device.name;
        if self.user == Some(reader) {
            let is_for_reader = device
                .serving_daemon()
                .is_none_or(|served| served.is_for_user(reader));
            let remedy = if is_for_reader {
                self.cause.remedy(name)
            } else {
                format!(
                    "use another device, because {name} does not serve {}",
                    user_name(reader)
                )
            };
            return match reader {
                Uid::ROOT => format!("{remedy}; {} to end it", self.way_to_end()),
                _ => remedy,
            };
        }
        if reader != Uid::ROOT {
            return match self.user {
                Some(Uid::ROOT) => "only root can end it".to_owned(),
                Some(user) => format!("only {} or root can end it", user_name(user)),
                None => "only its owner or root can end it".to_owned(),
            };
        }
        let is_shared = |served: &Served| served.compute_mode != Some(EXCLUSIVE_PROCESS);
        let prevented = if device.is_whole() && device.serving_daemon().is_some_and(is_shared) {
            "; to prevent it, use compute-mode = \"exclusive-process\" in the profile"
        } else {
            ""
        };
        format!("{} to end it{prevented}", self.way_to_end())
    }

    /// Returns how root ends the program: by whatever would start it again.
    fn way_to_end(&self) -> String {
        let workload = self.workload.clone().unwrap_or_default();
        match (workload.slurm_job, workload.pod_uid, workload.container_id) {
            (Some(job), ..) => format!("run `scancel {job}`"),
            (None, Some(uid), _) => match workload
                .pod_name
                .as_deref()
                .and_then(|name| name.split_once('/'))
            {
                Some((namespace, pod)) => {
                    format!("run `kubectl delete pod {pod} --namespace {namespace}`")
                }
                None => format!("delete the pod {uid}"),
            },
            (None, None, Some(id)) => format!("stop the container {id:.12}"),
            (None, None, None) => match &self.unit {
                Some(unit) if self.is_main => {
                    format!("run `systemctl stop {}`", quote_for_shell(unit))
                }
                _ => format!("run `kill {}`", self.pid),
            },
        }
    }
}

/// The file system as a process sees it.
enum MountView<'p> {
    Ours,
    /// The same mounts below another root directory.
    OtherRoot(PathBuf),
    OtherMounts {
        process: &'p Process,
        /// This process.
        own: Process,
    },
    Hidden,
}

impl<'p> MountView<'p> {
    fn from_process(host: &Host, process: &'p Process) -> Self {
        let own = host.find_process(Pid(std::process::id()));
        let Some(own) = own else { return Self::Hidden };
        match (own.root_directory(), process.root_directory()) {
            (Some(ours), Some(theirs)) if ours == theirs => Self::Ours,
            (Some((ours, _)), Some((theirs, root))) if ours == theirs => Self::OtherRoot(root),
            (Some(_), Some(_)) => Self::OtherMounts { process, own },
            _ => Self::Hidden,
        }
    }

    /// Describes a pipe directory that is not the one of the device's daemon.
    fn wrong_pipe_cause(&self, node: &Node, served: &Served, pipe: &str) -> Option<OutsideCause> {
        let given = Path::new(pipe);
        let is_pipe_of: Box<dyn Fn(&Served) -> bool> = match self {
            Self::Hidden => return Some(OutsideCause::HiddenMounts),
            Self::Ours | Self::OtherRoot(_) => {
                let root = match self {
                    Self::OtherRoot(root) => root.as_path(),
                    _ => Path::new("/"),
                };
                let seen = root.join(given.strip_prefix("/").unwrap_or(given));
                let real = stat_untrusted(&seen);
                Box::new(move |served| {
                    let directory = served.run_dir.pipe_dir(&served.record.uuid);
                    seen == directory
                        || matches!((&real, stat_untrusted(&directory)), (Ok(Some(real)), Ok(Some(directory))) if *real == directory)
                })
            }
            Self::OtherMounts { process, own } => {
                let seen: Option<Vec<MountedDirectory>> = possible_paths(node, given)
                    .iter()
                    .map(|path| process.directory_at(path))
                    .collect();
                let Some(seen) = seen else {
                    return Some(OutsideCause::HiddenMounts);
                };
                if seen.iter().any(MountedDirectory::is_removed) {
                    return Some(OutsideCause::Removed(pipe.to_owned()));
                }
                Box::new(move |served| {
                    let mut directories = pipe_dir_paths(served).into_iter().map(|form| {
                        let real = real_path(served, &form);
                        own.directory_at(&real)
                    });
                    directories.any(|directory| directory.is_some_and(|own| seen.contains(&own)))
                })
            }
        };
        if is_pipe_of(served) {
            return None;
        }
        if let Some(other) = node.served().find(|other| is_pipe_of(other)) {
            return Some(OutsideCause::OtherDevice {
                name: other.record.name.clone(),
                is_alive: other.is_alive(),
            });
        }
        let pipe = pipe.to_owned();
        let mut all = node.served();
        let named = all.find(|served| pipe_dir_paths(served).iter().any(|form| form == given));
        Some(match (self, named) {
            (Self::Ours, _) | (_, None) => OutsideCause::OtherDirectory(pipe),
            (_, Some(served)) => OutsideCause::NotMounted {
                pipe,
                run_dir: served.run_dir.path().to_owned(),
            },
        })
    }
}

/// Returns the paths by which programs name the pipe directory of a device.
fn pipe_dir_paths(served: &Served) -> [PathBuf; 2] {
    let (run_dir, record) = (&served.run_dir, &served.record);
    [
        run_dir.pipe_dir(&record.uuid),
        run_dir.by_name(&record.name).join("pipe"),
    ]
}

/// Returns a path in the run directory of a device without the links that lead to that directory.
fn real_path(served: &Served, path: &Path) -> PathBuf {
    let run_dir = served.run_dir.path();
    match (std::fs::canonicalize(run_dir), path.strip_prefix(run_dir)) {
        (Ok(real), Ok(rest)) => real.join(rest),
        _ => path.to_owned(),
    }
}

/// Returns a path as it was given, and as it is below the real run directory.
fn possible_paths(node: &Node, given: &Path) -> Vec<PathBuf> {
    let real = node.served().map(|served| real_path(served, given));
    let mut all = vec![given.to_owned()];
    all.extend(real.filter(|real| real != given));
    all.dedup();
    all
}
