//! The variables by which Apptainer and Singularity give the programs in a container what a client needs.
//!
//! Their containers have the caller's environment, unless `--cleanenv` is given, but not the host's `/run`. Each of the
//! two engines has variables of its own. Apptainer also reads those of Singularity that it lacks, and warns if both have
//! different values.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
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

/// Returns the list of directories of an engine's containers, with the run directory at its end, so that no other entry hides
/// it; `None` if the list is so already, or cannot have it.
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
    let list = own.clone().or_else(other).unwrap_or_default();
    // No format of `env` has such a value.
    if list.as_bytes().iter().any(u8::is_ascii_control) {
        return None;
    }
    let mut entries = split_entries(list.as_bytes());
    let [last_source, last_target] = entries
        .last()
        .map_or([Path::new(""); 2], |last| paths_of(last));
    if last_source == run_dir && last_target == run_dir {
        return own.is_none().then_some(list);
    }
    // Of two entries with one target, the engines mount the first.
    entries.retain(|entry| paths_of(entry)[1] != run_dir);
    let run_dir = run_dir.as_os_str().as_bytes();
    entries.push([run_dir, b":", run_dir, b":ro"].concat());
    Some(OsString::from_vec(entries.join(&b',')))
}

/// Returns the entries `SOURCE[:TARGET[:OPTION[,OPTION]…]]` of a list of directories, without empty ones.
fn split_entries(list: &[u8]) -> Vec<Vec<u8>> {
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for word in list.split(|byte| *byte == b',') {
        let name = word.trim_ascii().split(|byte| *byte == b'=').next();
        let is_option = name.is_some_and(|name| OPTIONS.contains(&name));
        match entries.last_mut() {
            Some(entry) if is_option && entry.contains(&b':') => {
                entry.push(b',');
                entry.extend_from_slice(word);
            }
            _ if word.trim_ascii().is_empty() => {}
            _ => entries.push(word.to_owned()),
        }
    }
    entries
}

/// The options of an entry, also behind a comma.
const OPTIONS: [&[u8]; 4] = [b"ro", b"rw", b"id", b"image-src"];

/// Returns the source and the target of an entry. Paths are equal with more slashes, and with parts that are `.`.
fn paths_of(entry: &[u8]) -> [&Path; 2] {
    let mut paths = entry
        .trim_ascii()
        .split(|byte| *byte == b':')
        .map(|path| Path::new(OsStr::from_bytes(path)));
    let source = paths.next().unwrap_or(Path::new(""));
    [source, paths.next().unwrap_or(source)]
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
    }

    #[test]
    fn the_run_directory_is_the_last_and_no_other_has_its_place() {
        for (list, rest) in [
            ("/run", "/run,"),
            ("/run/mig-mps-2", "/run/mig-mps-2,"),
            ("/run/mig-mps:/mps", "/run/mig-mps:/mps,"),
            // Of two entries with one target, the engines mount the first.
            ("/x:/run/mig-mps", ""),
            ("/x:/run//./mig-mps/:ro,image-src=/a,/opt", "/opt,"),
            // These hide the run directory.
            ("/run/mig-mps,/scratch:/run", "/scratch:/run,"),
            ("/run/mig-mps:/run/mig-mps:ro,/run", "/run,"),
            ("/run/mig-mps,/tmp:/run/mig-mps", ""),
            (
                "/run/mig-mps:/run/mig-mps:rw, /s:/var/run:ro,id=2,",
                " /s:/var/run:ro,id=2,",
            ),
            ("/run/mig-mps,/s:/", "/s:/,"),
            ("ro,/opt", "ro,/opt,"),
        ] {
            assert_eq!(
                binds(&[("APPTAINER_BINDPATH", list)]),
                both(&format!("{rest}{OWN}")),
                "{list}"
            );
        }
    }

    #[test]
    fn a_directory_that_is_bound_last_is_not_added() {
        for list in [
            OWN,
            "/opt:/x,/run/mig-mps",
            "/opt, /run//mig-mps/:/run/./mig-mps:rw,ro",
            "/run,/run/mig-mps:/run/mig-mps/,",
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
