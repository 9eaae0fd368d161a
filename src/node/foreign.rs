//! MPS programs of others: other tools', scripts', forgotten ones. They are shown and never touched.

use std::path::Path;
use std::time::Duration;

use super::{Node, ServerProcess};
use crate::host::Environment;
use crate::host::{Environ, Host, Pid, Process, ProcessTable, Uid, caller, claimed, user_name};
use crate::mps::{MpsProgram, is_daemon};
use crate::state::RunDir;

/// An MPS daemon that mig-mps has no record of, or a server without a daemon.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// Which of the two.
    pub program: MpsProgram,
    /// Its process id.
    pub pid: Pid,
    /// Whose it is; `None` where that is hidden.
    pub user: Option<Uid>,
    /// Its command line.
    pub command: String,
    /// For how long it has been running.
    pub age: Option<Duration>,
    /// Its `CUDA_MPS_PIPE_DIRECTORY`.
    pub pipe_directory: Variable,
    /// Whether that is gone: no program can reach it.
    pub is_orphan: bool,
    /// Its `CUDA_VISIBLE_DEVICES`.
    pub visible: Variable,
    /// The UUIDs of the devices that it serves, as far as can be told.
    pub devices: Vec<String>,
    /// Its servers.
    pub servers: Vec<ServerProcess>,
}

/// A variable in another process's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The caller may not read it.
    Hidden,
    /// It was not set.
    Unset,
    /// Its value.
    Is(String),
}

/// The pipe directories that CUDA programs use unasked: that of NVIDIA's documentation, and root's with protocol 3.
const DEFAULT_PIPE_DIRECTORIES: [&str; 2] = ["/tmp/nvidia-mps", "/run/nvidia-mps"];

impl Variable {
    pub(super) fn of(environ: Option<&Environ>, name: &str) -> Self {
        match environ.map(|environ| environ.get(name)) {
            None => Self::Hidden,
            Some(None) => Self::Unset,
            Some(Some(value)) => Self::Is(value.to_owned()),
        }
    }

    /// Its value, where it has one that can be read.
    pub fn value(&self) -> Option<&str> {
        match self {
            Self::Is(value) => Some(value),
            Self::Hidden | Self::Unset => None,
        }
    }
}

impl Foreign {
    /// Whether CUDA programs that were told nothing become its clients.
    pub fn is_at_default(&self) -> bool {
        match &self.pipe_directory {
            Variable::Hidden => false,
            Variable::Unset => true,
            Variable::Is(path) => DEFAULT_PIPE_DIRECTORIES.contains(&path.trim_end_matches('/')),
        }
    }

    /// The command by which root has its owner's mig-mps do something, where its pipe directory looks like one of
    /// that. Both are the owner's claims: nothing is printed that a shell would take apart.
    pub fn managed_by(&self, command: &str) -> Option<String> {
        let user = self.user.filter(|user| *user != caller()).map(user_name)?;
        let run_dir = Path::new(self.pipe_directory.value()?).parent()?.parent()?;
        let runtime = run_dir.parent()?.to_str()?;
        let is_plain = |text: &str| {
            let mut chars = text.chars();
            chars.all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
        };
        let is_ours = run_dir.file_name()? == "mig-mps";
        (is_ours && is_plain(runtime) && is_plain(&user)).then(|| {
            format!("runuser -u {user} -- env XDG_RUNTIME_DIR={runtime} mig-mps {command}")
        })
    }

    /// Whether it was given every GPU of the node.
    pub fn sees_everything(&self) -> bool {
        self.program == MpsProgram::Control && self.visible == Variable::Unset
    }
}

/// Finds them in the process table.
pub(super) fn find(environment: &Environment, table: &ProcessTable, node: &mut Node) {
    let host = &environment.host;
    let programs: Vec<(MpsProgram, &Process)> = table
        .iter()
        .filter_map(|process| Some((MpsProgram::of(process)?, process)))
        .collect();
    let is_daemon = |pid: Pid| {
        let mut daemons = programs
            .iter()
            .filter(|(program, _)| *program == MpsProgram::Control);
        daemons.any(|(_, daemon)| daemon.pid == pid && is_daemon(daemon))
    };
    let mut foreign = Vec::new();
    for &(program, process) in &programs {
        let stray = match program {
            // A control session comes and goes.
            MpsProgram::Control => is_daemon(process.pid),
            MpsProgram::Server => !is_daemon(process.parent),
        };
        let is_ours = is_ours(node, process)
            || node
                .strays
                .iter()
                .any(|stray| stray.server.pid == process.pid);
        if !stray || is_ours {
            continue;
        }
        let found = Foreign::look(host, table, node, program, process);
        let being_started = match &found.pipe_directory {
            Variable::Is(pipe) => may_be_started(environment, process, Path::new(pipe)),
            Variable::Hidden => may_be_recorded(environment, process),
            Variable::Unset => false,
        };
        // What went meanwhile, and the record of it before, was somebody's `down`.
        let lives = host
            .process(process.pid)
            .is_some_and(|now| now.started == process.started);
        if !being_started && lives {
            foreign.push(found);
        }
    }
    node.foreign = foreign;
}

/// Whether a record is about it, or about the daemon it is a server of.
fn is_ours(node: &Node, process: &Process) -> bool {
    let mut recorded = node.served.iter().filter_map(|served| served.record.daemon);
    recorded.any(|daemon| {
        let itself = daemon.pid == process.pid && daemon.start_time == process.started;
        itself || daemon.pid == process.parent
    })
}

/// True if its pipe directory is that of a device whose record names it by now, or names nobody while a change is under
/// way: its start has not recorded it yet. Anybody can claim the directory of a device that another process serves.
fn may_be_started(environment: &Environment, process: &Process, pipe: &Path) -> bool {
    let device = || pipe.parent()?.file_name()?.to_str();
    let Some(uuid) = device() else { return false };
    environment.run_dirs().iter().any(|path| {
        let run_dir = RunDir::at(path);
        run_dir.pipe_dir(uuid) == pipe
            && match run_dir.record(uuid) {
                Ok(Some(record)) => match record.daemon {
                    Some(daemon) => {
                        let is_recorded = daemon.is(process) || daemon.pid == process.parent;
                        is_recorded || daemon.is_hidden(&environment.host)
                    }
                    None => run_dir.has_journal(),
                },
                Ok(None) | Err(_) => false,
            }
    })
}

/// True if a process whose environment is hidden is recorded by now, or may be a daemon whose start has not recorded
/// it yet.
fn may_be_recorded(environment: &Environment, process: &Process) -> bool {
    environment.run_dirs().iter().any(|path| {
        let (records, _) = RunDir::at(path).records();
        let mut daemons = records.iter().map(|record| record.daemon);
        daemons.any(|daemon| {
            daemon.is_none_or(|daemon| daemon.is(process) || daemon.pid == process.parent)
        })
    })
}

impl Foreign {
    fn look(
        host: &Host,
        table: &ProcessTable,
        node: &Node,
        program: MpsProgram,
        process: &Process,
    ) -> Self {
        let environ = process.environ();
        let variable = |name| Variable::of(environ.as_ref(), name);
        let pipe_directory = variable("CUDA_MPS_PIPE_DIRECTORY");
        let visible = variable("CUDA_VISIBLE_DEVICES");
        let servers: Vec<ServerProcess> = match program {
            MpsProgram::Control => table
                .children(process.pid)
                .filter(|child| MpsProgram::of(child) == Some(MpsProgram::Server))
                .map(|child| ServerProcess {
                    pid: child.pid,
                    user: child.owner(),
                })
                .collect(),
            MpsProgram::Server => Vec::new(),
        };
        let pids: Vec<u32> = std::iter::once(process.pid.0)
            .chain(servers.iter().map(|server| server.pid.0))
            .collect();
        let is_orphan = environ.is_some() && {
            let path = pipe_directory
                .value()
                .unwrap_or(DEFAULT_PIPE_DIRECTORIES[0]);
            // Of this machine's root and not of a container's, which may have another one there.
            is_of_this_root(host, process) && matches!(claimed(Path::new(path)), Ok(None))
        };
        Self {
            program,
            pid: process.pid,
            user: process.owner(),
            command: process.command(),
            age: process.age(),
            is_orphan,
            devices: devices(node, &visible, &pids),
            pipe_directory,
            visible,
            servers,
        }
    }
}

/// Whether it sees the files that this process sees.
fn is_of_this_root(host: &Host, process: &Process) -> bool {
    let own = host.process(Pid(std::process::id()));
    let root = process.root();
    root.is_some() && root == own.and_then(|own| own.root())
}

/// The devices that it says it serves, and those on which NVML sees it.
fn devices(node: &Node, visible: &Variable, pids: &[u32]) -> Vec<String> {
    let named = |uuid: &str, gpu: u32, is_whole: bool| match visible {
        Variable::Hidden => false,
        Variable::Unset => true,
        Variable::Is(list) => list.split(',').map(str::trim).any(|word| {
            let by_index = is_whole && word.parse() == Ok(gpu);
            by_index || word.len() > "MIG-".len() && uuid.starts_with(word)
        }),
    };
    let computes = |uuid: &str| {
        let processes = node.processes.get(uuid).into_iter();
        let mut usages = processes.flat_map(|processes| &processes.compute);
        usages.any(|usage| pids.contains(&usage.pid))
    };
    node.devices()
        .filter(|device| {
            named(&device.uuid, device.gpu, device.part.is_none()) || computes(&device.uuid)
        })
        .map(|device| device.uuid)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn daemon(pipe_directory: Variable, visible: Variable) -> Foreign {
        Foreign {
            program: MpsProgram::Control,
            pid: Pid(1),
            user: None,
            command: String::new(),
            age: None,
            pipe_directory,
            is_orphan: false,
            visible,
            devices: Vec::new(),
            servers: Vec::new(),
        }
    }

    #[test]
    fn the_default_directories_are_known_and_what_is_hidden_is_not_guessed() {
        let is_at_default = |pipe: Variable| daemon(pipe, Variable::Unset).is_at_default();
        let at = |path: &str| is_at_default(Variable::Is(path.to_owned()));
        assert!(is_at_default(Variable::Unset));
        assert!(at("/tmp/nvidia-mps") && at("/tmp/nvidia-mps/") && at("/run/nvidia-mps"));
        assert!(!at("/tmp/nvidia-mps-0"));
        assert!(!is_at_default(Variable::Hidden));
        assert!(daemon(Variable::Unset, Variable::Unset).sees_everything());
        assert!(!daemon(Variable::Unset, Variable::Hidden).sees_everything());
    }
}
