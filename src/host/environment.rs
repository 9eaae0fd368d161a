//! The directories and programs that the environment names, and the caller.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{
    EnvironmentError, Host, Interrupt, MpsPrograms, NvidiaSmi, TimeForUsers, Uid, Units, caller,
};
use crate::config::{
    CONTROL, CONTROL_PROGRAM, LOG_DIR, NVIDIA_SMI, NVIDIA_SMI_PROGRAM, NVML_CALL_LIMIT,
    NVML_LIBRARY, ROOT, RUN_DIR, SERVER_PROGRAM, SYSTEM_LOG_DIR, SYSTEM_RUN_DIR, SYSTEMCTL,
    SYSTEMCTL_PROGRAM,
};

/// The environment of this program.
#[derive(Clone, Debug)]
pub struct Environment {
    /// The path of the NVML library, unless the dynamic linker finds it.
    pub nvml_library: Option<PathBuf>,
    pub host: Host,
    pub caller: Uid,
    pub interrupt: Interrupt,
    /// The time limit of one NVML call of a change.
    pub call_limit: Duration,
    /// `mig-mps` as the helper that starts daemons of other users.
    pub helper: PathBuf,
    control: Option<PathBuf>,
    nvidia_smi: Option<PathBuf>,
    systemctl: Option<PathBuf>,
    run: Option<PathBuf>,
    log: Option<PathBuf>,
    path: OsString,
}

/// The run and log directories of daemons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    pub run: PathBuf,
    pub log: PathBuf,
}

impl Environment {
    /// Reads this process's environment.
    pub fn read() -> Self {
        Self::of(|name| env::var_os(name))
    }

    /// Returns the environment with these variables.
    pub fn of(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        // Daemons and control sessions run in another directory.
        let path = |name| {
            let value = variable(name).filter(|value| !value.is_empty())?;
            std::path::absolute(value).ok()
        };
        Self {
            nvml_library: path(NVML_LIBRARY),
            host: Host::at(&path(ROOT).unwrap_or_else(|| PathBuf::from("/"))),
            caller: caller(),
            interrupt: Interrupt::default(),
            call_limit: NVML_CALL_LIMIT,
            // Works even if the file was replaced meanwhile.
            helper: PathBuf::from("/proc/self/exe"),
            control: path(CONTROL),
            nvidia_smi: path(NVIDIA_SMI),
            systemctl: path(SYSTEMCTL),
            run: path(RUN_DIR),
            log: path(LOG_DIR),
            path: variable("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()),
        }
    }

    /// Returns the user of an eager server: the caller, or the user who called `sudo`. The first client
    /// of any other user waits until that server is replaced.
    pub fn server_user(&self) -> Uid {
        let behind_sudo = env::var("SUDO_UID")
            .ok()
            .and_then(|uid| uid.parse().ok())
            .map(Uid);
        behind_sudo
            .filter(|_| self.is_root())
            .unwrap_or(self.caller)
    }

    pub fn is_root(&self) -> bool {
        self.caller == Uid::ROOT
    }

    /// Returns the directories that changing commands use. Fails if a plain user's environment names none.
    pub fn directories(&self) -> Result<Directories, EnvironmentError> {
        let run = match (&self.run, self.is_root()) {
            (Some(run), _) => run.clone(),
            (None, true) => PathBuf::from(SYSTEM_RUN_DIR),
            (None, false) => env::var_os("XDG_RUNTIME_DIR")
                .filter(|value| !value.is_empty())
                .map(|runtime| Path::new(&runtime).join("mig-mps"))
                .ok_or(EnvironmentError::NoRuntimeDir)?,
        };
        let log = self.own_logs()?;
        Ok(Directories { run, log })
    }

    /// Returns the same, or the system's for a user whose environment names none. Only root can write there.
    pub fn directories_or_system(&self) -> Directories {
        self.directories().unwrap_or_else(|_| Directories {
            run: PathBuf::from(SYSTEM_RUN_DIR),
            log: PathBuf::from(SYSTEM_LOG_DIR),
        })
    }

    fn own_logs(&self) -> Result<PathBuf, EnvironmentError> {
        match (&self.log, self.is_root()) {
            (Some(log), _) => Ok(log.clone()),
            (None, true) => Ok(PathBuf::from(SYSTEM_LOG_DIR)),
            (None, false) => Ok(state_dir()?.join("mig-mps")),
        }
    }

    /// Returns the log directory that belongs to a run directory, or `None` for another user's.
    pub fn logs_of(&self, run_dir: &Path) -> Option<PathBuf> {
        let own = self.directories().ok().filter(|own| own.run == run_dir);
        let own = own.map(|own| own.log);
        own.or_else(|| {
            (run_dir == Path::new(SYSTEM_RUN_DIR)).then(|| PathBuf::from(SYSTEM_LOG_DIR))
        })
    }

    /// Returns the run directories that commands read: the system's and the caller's, or the one in `MIG_MPS_RUN_DIR`.
    /// Root reads none of a user: a user could write anything there.
    pub fn run_dirs(&self) -> Vec<PathBuf> {
        if let Some(run) = &self.run {
            return vec![run.clone()];
        }
        let mut dirs = vec![PathBuf::from(SYSTEM_RUN_DIR)];
        if !self.is_root()
            && let Ok(own) = self.directories()
        {
            dirs.push(own.run);
        }
        dirs
    }

    /// Returns the log directories that commands read: the system's and the caller's, or only the caller's if
    /// `MIG_MPS_RUN_DIR` is set.
    pub fn log_dirs(&self) -> Vec<PathBuf> {
        let system = self.run.is_none().then(|| PathBuf::from(SYSTEM_LOG_DIR));
        let mut dirs: Vec<PathBuf> = system.into_iter().chain(self.own_logs().ok()).collect();
        dirs.dedup();
        dirs
    }

    /// Finds the programs of MPS. Fails with the one that is missing.
    pub fn mps_programs(&self) -> Result<MpsPrograms, EnvironmentError> {
        let control = match &self.control {
            Some(control) if is_program(control) => control.clone(),
            Some(control) => return Err(EnvironmentError::WrongControlProgram(control.clone())),
            None => find(CONTROL_PROGRAM, &self.path).ok_or(EnvironmentError::NoControlProgram)?,
        };
        let mut path = self.path.clone();
        if find(SERVER_PROGRAM, &path).is_none() {
            let beside = control.parent().unwrap_or(Path::new("/"));
            if !is_program(&beside.join(SERVER_PROGRAM)) {
                return Err(EnvironmentError::NoServerProgram);
            }
            path.push(":");
            path.push(beside);
        }
        Ok(MpsPrograms {
            control,
            path,
            helper: self.helper.clone(),
            time_for_users: TimeForUsers::default(),
        })
    }

    /// Finds the program that resets GPUs.
    pub fn nvidia_smi(&self) -> Result<NvidiaSmi, EnvironmentError> {
        let program = match &self.nvidia_smi {
            Some(program) if is_program(program) => program.clone(),
            Some(program) => return Err(EnvironmentError::WrongNvidiaSmi(program.clone())),
            None => find(NVIDIA_SMI_PROGRAM, &self.path).ok_or(EnvironmentError::NoNvidiaSmi)?,
        };
        Ok(NvidiaSmi::at(program))
    }

    /// Finds the program that stops and starts services.
    pub fn units(&self) -> Result<Units, EnvironmentError> {
        let program = match &self.systemctl {
            Some(program) if is_program(program) => program.clone(),
            Some(program) => return Err(EnvironmentError::WrongSystemctl(program.clone())),
            None => find(SYSTEMCTL_PROGRAM, &self.path).ok_or(EnvironmentError::NoSystemctl)?,
        };
        Ok(Units::at(program))
    }
}

fn state_dir() -> Result<PathBuf, EnvironmentError> {
    let set = |name| {
        env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    set("XDG_STATE_HOME")
        .or_else(|| Some(set("HOME")?.join(".local/state")))
        .ok_or(EnvironmentError::NoStateDir)
}

fn find(program: &str, path: &OsString) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|directory| directory.join(program))
        .find(|candidate| is_program(candidate))
}

fn is_program(path: &Path) -> bool {
    let meta = std::fs::metadata(path);
    meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
