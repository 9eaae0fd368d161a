use crate::host::{Process, ProcessTable};

/// The two programs of NVIDIA's MPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpsProgram {
    /// A control daemon or a control session.
    Control,
    Server,
}

impl MpsProgram {
    /// True if a process runs one of the programs, even if it is exiting and no longer shows which one.
    pub fn is_one(process: &Process) -> bool {
        process.name.starts_with("nvidia-cuda-mps")
    }

    /// Returns the program that a process runs. The kernel cuts both names to the same 15 bytes.
    pub fn of(process: &Process) -> Option<Self> {
        if !Self::is_one(process) {
            return None;
        }
        match process.program().as_str() {
            "nvidia-cuda-mps-control" => Some(Self::Control),
            "nvidia-cuda-mps-server" => Some(Self::Server),
            _ => None,
        }
    }
}

/// True if a process is a control daemon and not a session, which reads commands and exits.
pub fn is_daemon(process: &Process) -> bool {
    let makes_daemon = |argument: &String| {
        let option = argument.trim_start_matches('-');
        let begins = |name: &str| name.starts_with(option);
        let is_option = argument.starts_with('-') && !option.is_empty();
        is_option && (begins("daemon") || begins("foreground") || begins("forground"))
    };
    let is_control = MpsProgram::of(process) == Some(MpsProgram::Control);
    is_control && process.arguments().iter().any(makes_daemon)
}

pub(super) fn is_server(process: &Process) -> bool {
    MpsProgram::of(process) == Some(MpsProgram::Server)
}

/// Returns the servers of a daemon.
pub fn servers_of<'t>(
    table: &'t ProcessTable,
    daemon: &Process,
) -> impl Iterator<Item = &'t Process> + use<'t> {
    table.children(daemon.pid).filter(|child| is_server(child))
}
