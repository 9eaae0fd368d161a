//! The directory of programs that follow a change of the devices.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::file_error::FileFault;
use super::program_paths::is_program;
use super::trusted_path::{GROUP_WRITE, OTHERS_WRITE};
use super::{
    Directory, Environment, FileError, FileResult, Output, RunError, check_trusted_program,
    clean_command, run,
};
use crate::config::{AFTER_CHANGE_DIR, SYSTEM_RUN_DIR, after_change_limit};
use crate::failure::Problem;

/// A directory of programs of the administrator, which root runs.
pub struct ProgramDirectory<'a> {
    environment: &'a Environment,
    pub path: PathBuf,
}

impl Environment {
    /// Returns the directory of the programs that follow a change; `None` if there is none, or root does not change the
    /// devices of the system's run directory.
    pub fn programs_after_change(&self) -> Option<ProgramDirectory<'_>> {
        let path = self.host.under_root(AFTER_CHANGE_DIR);
        if !self.is_root() || !path.exists() {
            return None;
        }
        let own = fs::canonicalize(self.roots_run_dir()).ok()?;
        let systems = fs::canonicalize(self.host.under_root(SYSTEM_RUN_DIR)).ok()?;
        (own == systems).then_some(ProgramDirectory {
            environment: self,
            path,
        })
    }
}

impl ProgramDirectory<'_> {
    /// Returns the names of the executable files, in order, without hidden ones. Fails if a user could add any.
    pub fn file_names(&self) -> FileResult<Vec<String>> {
        let directory = Directory::open(&self.path)?;
        check_only_owner_writes(&self.path)?;
        let mut names: Vec<String> = directory
            .entry_names()?
            .into_iter()
            .filter_map(|name| name.into_string().ok())
            .filter(|name| !name.starts_with('.') && is_program(&self.path.join(name)))
            .collect();
        names.sort();
        Ok(names)
    }

    /// Returns the files that never run, although their names allow it, in order, each with the reason.
    pub fn passed_over_files(&self) -> FileResult<BTreeMap<String, &'static str>> {
        let names = Directory::open(&self.path)?.entry_names()?;
        let names = names.into_iter().filter_map(|name| name.into_string().ok());
        let why = |name: &String| match fs::metadata(self.path.join(name)) {
            Err(_) => Some("it is a link to a missing file"),
            Ok(meta) => (meta.is_file() && !is_program(&self.path.join(name)))
                .then_some("it has no execute permission"),
        };
        Ok(names
            .filter(|name| Self::is_program_name(name))
            .filter_map(|name| why(&name).map(|why| (name, why)))
            .collect())
    }

    /// True for a name of letters, digits, `-` and `_`, as for `run-parts`: leftovers of editors and packages have others.
    pub fn is_program_name(name: &str) -> bool {
        name.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    }

    /// Returns the path of a program, without links. Fails if another user could replace the program.
    pub fn check_program(&self, name: &str) -> Result<PathBuf, Problem> {
        let program = self.path.join(name);
        let check = || {
            let program = fs::canonicalize(&program)?;
            check_trusted_program(&program)?;
            check_only_owner_writes(&program)?;
            Ok(program)
        };
        check().map_err(|error: FileError| {
            let part = error.path().unwrap_or(&program).display();
            let hint =
                format!("examine {part}, then run `chown root {part}` and `chmod go-w {part}`");
            Problem::new(format!("{name} was not run: {error}"), hint)
        })
    }

    /// Runs a program to its end, in an environment of the search path and the variables of mig-mps.
    pub fn run_program(&self, name: &str, input: &str) -> Result<Output, Problem> {
        let mut command = clean_command(self.check_program(name)?, &[]);
        let variables = self.environment.named_paths();
        command.env("PATH", &self.environment.path).envs(variables);
        let limit = after_change_limit();
        run(&command, input, limit).map_err(|error| {
            Problem::without_hint(match error {
                RunError::Late { .. } => {
                    let seconds = limit.as_secs();
                    format!("{name} did not exit within {seconds} s, and was ended")
                }
                error => format!("{name}: {error}"),
            })
        })
    }
}

/// The mode has the mask of an access control list in the place of the group.
fn check_only_owner_writes(path: &Path) -> FileResult<()> {
    if fs::metadata(path)?.mode() & (GROUP_WRITE | OTHERS_WRITE) == 0 {
        return Ok(());
    }
    let why = "its group can write to it";
    Err(FileError::with_fault(FileFault::OpenDirectory, why).at(path))
}
