//! The variables by which Apptainer and Singularity give the programs in a container what a client needs.
//!
//! Their containers have the caller's environment, unless `--cleanenv` is given, but not the host's `/run`. Each of the
//! two engines has variables of its own. Apptainer also reads those of Singularity that it lacks, and warns if both have
//! different values.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::variables::{LOGS, Variables};

const ENGINES: [&str; 2] = ["APPTAINER", "SINGULARITY"];

impl Variables {
    /// Adds the variables by which the containers that a program starts have the run directory, and their programs are
    /// clients of the device. `caller` returns a variable that the program inherits.
    pub fn with_apptainer(
        mut self,
        run_dir: &Path,
        caller: impl Fn(&str) -> Option<OsString>,
    ) -> Self {
        let in_container = self.clone().into_set_only();
        let mut set = Vec::new();
        for engine in ENGINES {
            if let Some(binds) = add_bind(engine, run_dir, &caller) {
                set.push((format!("{engine}_BINDPATH"), binds));
            }
            // A container has no use for the logs.
            for (name, value) in in_container.iter().filter(|(name, _)| name != LOGS) {
                set.push((format!("{engine}ENV_{name}"), value.clone()));
            }
            let inherited = self.unset.iter().map(|name| format!("{engine}ENV_{name}"));
            let is_set = |name: &String| set.iter().any(|(known, _)| known == name);
            let unset: Vec<String> = inherited
                .filter(|name| caller(name).is_some() && !is_set(name))
                .collect();
            self.unset.extend(unset);
        }
        self.set.extend(set);
        self
    }
}

/// True if a list of directories for a container can have this one.
pub(super) fn can_be_bound(directory: &Path) -> bool {
    let bytes = directory.as_os_str().as_bytes();
    !bytes
        .iter()
        .any(|byte| b":,".contains(byte) || byte.is_ascii_control())
}

/// Returns the list of directories of an engine's containers, with the run directory at its end; `None` if the list has it
/// already, or cannot have it.
fn add_bind(
    engine: &str,
    run_dir: &Path,
    caller: impl Fn(&str) -> Option<OsString>,
) -> Option<OsString> {
    if !can_be_bound(run_dir) {
        return None;
    }
    let own = caller(&format!("{engine}_BINDPATH"));
    // Apptainer reads Singularity's list if it has none, and two equal lists make no warning.
    let other = || {
        ENGINES
            .iter()
            .find_map(|engine| caller(&format!("{engine}_BINDPATH")))
    };
    let mut list = own.clone().or_else(other).unwrap_or_default();
    let run_dir = run_dir.as_os_str();
    let has_it = list.as_bytes().split(|byte| *byte == b',').any(|entry| {
        // The source, and the target if the entry has one.
        entry
            .trim_ascii()
            .split(|byte| *byte == b':')
            .take(2)
            .all(|path| path == run_dir.as_bytes())
    });
    // No format of `env` has such a value.
    if list.as_bytes().iter().any(u8::is_ascii_control) || has_it && own.is_some() {
        return None;
    }
    if !has_it {
        if !list.is_empty() {
            list.push(",");
        }
        for part in [run_dir, OsStr::new(":"), run_dir, OsStr::new(":ro")] {
            list.push(part);
        }
    }
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lists of Apptainer and Singularity with these variables of the caller.
    fn binds(caller: &[(&str, &str)]) -> [Option<String>; 2] {
        ENGINES.map(|engine| {
            let list = add_bind(engine, Path::new("/run/mig-mps"), |name| {
                let found = caller.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            });
            list.map(|list| list.into_string().unwrap())
        })
    }

    const OWN: &str = "/run/mig-mps:/run/mig-mps:ro";

    fn both(list: &str) -> [Option<String>; 2] {
        [(); 2].map(|()| Some(list.to_owned()))
    }

    #[test]
    fn the_run_directory_is_added_to_the_directories_of_the_caller() {
        let added = format!("/scratch,{OWN}");
        assert_eq!(binds(&[]), both(OWN));
        for name in ["APPTAINER_BINDPATH", "SINGULARITY_BINDPATH"] {
            assert_eq!(binds(&[(name, "/scratch")]), both(&added), "{name}");
            assert_eq!(binds(&[(name, "")]), both(OWN), "{name}");
        }
        let different = binds(&[
            ("APPTAINER_BINDPATH", ""),
            ("SINGULARITY_BINDPATH", "/s:/t"),
        ]);
        assert_eq!(
            different,
            [OWN.to_owned(), format!("/s:/t,{OWN}")].map(Some)
        );
        // The run directory is the last, so that no other directory hides it.
        for list in [
            "/run",
            "/run/mig-mps-2",
            "/x:/run/mig-mps",
            "/run/mig-mps:/mps",
        ] {
            let added = format!("{list},{OWN}");
            assert_eq!(
                binds(&[("APPTAINER_BINDPATH", list)]),
                both(&added),
                "{list}"
            );
        }
    }

    #[test]
    fn a_directory_that_is_bound_is_not_added() {
        for list in [
            OWN,
            "/opt:/x,/run/mig-mps",
            "/run/mig-mps:/run/mig-mps, /opt",
        ] {
            let lists = binds(&[("APPTAINER_BINDPATH", list), ("SINGULARITY_BINDPATH", list)]);
            assert_eq!(lists, [None, None], "{list}");
            // Singularity does not read the variable of Apptainer.
            let lists = binds(&[("APPTAINER_BINDPATH", list)]);
            assert_eq!(lists, [None, Some(list.to_owned())], "{list}");
        }
    }

    #[test]
    fn what_no_list_can_have_is_left_out() {
        let add = |run_dir: &str| add_bind("APPTAINER", Path::new(run_dir), |_| None);
        assert_eq!(add("/run/a,b"), None);
        assert_eq!(add("/run/a:b"), None);
        let broken = add_bind("APPTAINER", Path::new("/run/x"), |_| Some("/a\nX=1".into()));
        assert_eq!(broken, None);
        let latin = OsStr::from_bytes(b"/d\xe9").to_owned();
        let added = add_bind("APPTAINER", Path::new("/run/x"), |_| Some(latin.clone()));
        assert_eq!(added.unwrap().as_bytes(), b"/d\xe9,/run/x:/run/x:ro");
    }
}
