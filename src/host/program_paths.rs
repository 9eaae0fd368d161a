//! The programs of NVIDIA, systemd and Slurm: by a variable, or in the caller's path.

use std::env;
use std::ffi::OsString;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::environment::{DEFAULT_PATH, EnvironmentError};
use super::files::directory_of;
use super::trusted_path::check_trusted_program;
use super::{Directory, Environment, FileError, NvidiaSmi, Scopes, Slurm, Units};
use crate::config::{
    CONTROL, CONTROL_PROGRAM, NVIDIA_SMI, NVIDIA_SMI_PROGRAM, SCONTROL_PROGRAM, SERVER_PROGRAM,
    SYSTEMCTL, SYSTEMCTL_PROGRAM, SYSTEMD_RUN, SYSTEMD_RUN_PROGRAM,
};

/// The programs that root runs, each with the variable that may give its path.
const ROOT_PROGRAMS: [(Option<&str>, &str); 6] = [
    (Some(CONTROL), CONTROL_PROGRAM),
    (None, SERVER_PROGRAM),
    (Some(NVIDIA_SMI), NVIDIA_SMI_PROGRAM),
    (Some(SYSTEMCTL), SYSTEMCTL_PROGRAM),
    (Some(SYSTEMD_RUN), SYSTEMD_RUN_PROGRAM),
    (None, SCONTROL_PROGRAM),
];

/// The programs of MPS, and the search path by which they find each other.
#[derive(Clone, Debug, Default)]
pub struct MpsPrograms {
    pub control: PathBuf,
    /// The daemon's `PATH`, in which it finds the server program.
    pub path: OsString,
    /// `mig-mps` as the helper that takes limits and becomes the control program.
    pub helper: PathBuf,
    /// The scopes of daemons, if systemd runs this machine.
    pub scopes: Option<Scopes>,
}

impl Environment {
    /// Finds the programs of MPS. Fails with the one that is missing.
    pub fn mps_programs(&self) -> Result<MpsPrograms, EnvironmentError> {
        let missing = EnvironmentError::NoControlProgram;
        let control = self.find_program(CONTROL, CONTROL_PROGRAM, missing)?;
        let mut path = self.path.clone();
        if find_executable(SERVER_PROGRAM, &path).is_none() {
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
            scopes: self.systemd_scopes(),
        })
    }

    /// Returns the program of that name in the caller's path.
    pub fn find_in_path(&self, program: &str) -> Option<PathBuf> {
        find_executable(program, &self.path)
    }

    /// Returns the scopes of root's daemons; `None` where systemd does not run the machine.
    pub fn systemd_scopes(&self) -> Option<Scopes> {
        if !self.is_root() || !self.host.is_run_by_systemd() {
            return None;
        }
        let set = self.set.get(SYSTEMD_RUN).cloned();
        set.or_else(|| find_executable(SYSTEMD_RUN_PROGRAM, &self.path))
            .map(Scopes)
    }

    /// Finds the server program, as the daemon does.
    pub fn server_program(&self) -> Option<PathBuf> {
        let programs = self.mps_programs().ok()?;
        find_executable(SERVER_PROGRAM, &programs.path)
    }

    /// Finds the program that resets GPUs.
    pub fn find_nvidia_smi(&self) -> Result<NvidiaSmi, EnvironmentError> {
        let missing = EnvironmentError::NoNvidiaSmi;
        self.find_program(NVIDIA_SMI, NVIDIA_SMI_PROGRAM, missing)
            .map(NvidiaSmi::at)
    }

    /// Finds the program that stops and starts services.
    pub fn find_systemctl(&self) -> Result<Units, EnvironmentError> {
        let missing = EnvironmentError::NoSystemctl;
        self.find_program(SYSTEMCTL, SYSTEMCTL_PROGRAM, missing)
            .map(Units::at)
    }

    /// Finds the program that speaks to Slurm's controller.
    pub fn find_slurm(&self) -> Result<Slurm, EnvironmentError> {
        let program = find_executable(SCONTROL_PROGRAM, &self.path);
        program.map(Slurm::at).ok_or(EnvironmentError::NoScontrol)
    }

    /// Returns the directories of `PATH` with programs of MPS and Slurm, but for those in which programs without `PATH`
    /// search. Only root can change these programs, and the directories: a user's may have a link to such a program.
    pub fn unusual_program_directories(&self) -> Vec<PathBuf> {
        let programs = [CONTROL_PROGRAM, SERVER_PROGRAM, SCONTROL_PROGRAM];
        let mut directories: Vec<PathBuf> = programs
            .iter()
            .filter_map(|name| find_executable(name, &self.path))
            .filter(|program| program.is_absolute() && check_trusted_program(program).is_ok())
            .map(|program| directory_of(&program).to_owned())
            .filter(|directory| Directory::open(directory).is_ok())
            .filter(|directory| {
                !DEFAULT_PATH
                    .split(':')
                    .any(|usual| directory == Path::new(usual))
            })
            .collect();
        directories.sort();
        directories.dedup();
        directories
    }

    /// Returns the programs that root finds in `PATH` and that another user can change, each with the reason.
    pub fn changeable_programs(&self) -> Vec<(PathBuf, FileError)> {
        let is_used = |(variable, _): &&(Option<&str>, _)| {
            self.is_root() && !variable.is_some_and(|variable| self.set.contains_key(variable))
        };
        let changeable = ROOT_PROGRAMS
            .iter()
            .filter(is_used)
            .filter_map(|(_, name)| find_executable(name, &self.path))
            .filter_map(|program| {
                let checked = check_trusted_program(&program);
                // A user's directory may have a link to a program of root's.
                let checked =
                    checked.and_then(|()| Directory::open(directory_of(&program)).map(drop));
                Some((program, checked.err().filter(FileError::has_fault)?))
            });
        changeable.collect()
    }

    /// Returns the program that a variable was set to, or the one with this name in `PATH`.
    fn find_program(
        &self,
        variable: &'static str,
        name: &str,
        missing: EnvironmentError,
    ) -> Result<PathBuf, EnvironmentError> {
        match self.set.get(variable) {
            Some(path) if is_program(path) => Ok(path.clone()),
            Some(path) => Err(EnvironmentError::WrongProgram {
                variable,
                path: path.clone(),
                missing: Box::new(missing),
            }),
            None => find_executable(name, &self.path).ok_or(missing),
        }
    }
}

fn find_executable(program: &str, path: &OsString) -> Option<PathBuf> {
    env::split_paths(path)
        .map(|directory| directory.join(program))
        .find(|candidate| is_program(candidate))
}

pub(super) fn is_program(path: &Path) -> bool {
    let meta = std::fs::metadata(path);
    meta.is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}
