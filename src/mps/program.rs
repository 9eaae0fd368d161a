use crate::host::{Process, ProcessTable};

/// NVIDIA's two MPS programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpsProgram {
    /// The control daemon, and control sessions.
    Control,
    /// A server.
    Server,
}

impl MpsProgram {
    /// True if a process runs one of them, also if it is about to end and no longer says which.
    pub fn is_one(process: &Process) -> bool {
        process.name.starts_with("nvidia-cuda-mps")
    }

    /// Which of them a process runs, if any. The kernel cuts both names to the same 15 bytes.
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

/// True if a control program was started to stay, unlike a session, which reads commands and ends.
pub fn is_daemon(process: &Process) -> bool {
    let arguments = process.arguments();
    let mut options = arguments
        .iter()
        .filter(|argument| argument.starts_with('-'))
        .map(|argument| argument.trim_start_matches('-'));
    MpsProgram::of(process) == Some(MpsProgram::Control)
        && options.any(|option| {
            let begins = |name: &str| !option.is_empty() && name.starts_with(option);
            begins("daemon") || begins("foreground") || begins("forground")
        })
}

/// The servers of a daemon.
pub fn servers_of<'t>(
    table: &'t ProcessTable,
    daemon: &Process,
) -> impl Iterator<Item = &'t Process> + use<'t> {
    table
        .children(daemon.pid)
        .filter(|child| MpsProgram::of(child) == Some(MpsProgram::Server))
}
