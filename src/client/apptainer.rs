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
            let earlier = format!("{engine}_BIND");
            let list = caller(&earlier);
            if let Some(binds) = list.and_then(|list| without_target(&list, run_dir)) {
                set.push((earlier, binds));
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

/// A directory of the caller that no container gets: a control character is in its entry, which no format of `env` can have.
pub struct UnboundDirectory {
    pub variable: String,
    pub entry: String,
}

/// Returns the directories in the caller's lists that [`Variables::with_apptainer`] leaves out.
pub fn unbound_directories(
    caller: impl Fn(&str) -> Option<OsString>,
) -> impl Iterator<Item = UnboundDirectory> {
    ENGINES
        .iter()
        .flat_map(|engine| list_names(engine))
        .flat_map(move |variable| {
            let list = caller(&variable).unwrap_or_default();
            let mut entries = split_entries(list.as_bytes());
            entries.retain(|entry| !is_plain(entry));
            entries.into_iter().map(move |entry| UnboundDirectory {
                variable: variable.clone(),
                entry: String::from_utf8_lossy(&entry).into_owned(),
            })
        })
}

/// The lists of an engine, in the order in which it reads them.
fn list_names(engine: &str) -> [String; 2] {
    [format!("{engine}_BIND"), format!("{engine}_BINDPATH")]
}

fn is_plain(entry: &[u8]) -> bool {
    !entry.iter().any(u8::is_ascii_control)
}

/// Returns the list that an engine reads first, without entries that take the place of the run directory; `None` if it has none.
fn without_target(list: &OsStr, run_dir: &Path) -> Option<OsString> {
    if !can_be_bound(run_dir) {
        return None;
    }
    let all = split_entries(list.as_bytes());
    let mut entries = all.clone();
    entries.retain(|entry| is_plain(entry) && paths_of(entry)[1] != run_dir);
    (entries != all).then(|| OsString::from_vec(entries.join(&b',')))
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
    let mut entries = split_entries(list.as_bytes());
    entries.retain(|entry| is_plain(entry));
    let is_plain_list = is_plain(list.as_bytes());
    let [last_source, last_target] = entries
        .last()
        .map_or([Path::new(""); 2], |last| paths_of(last));
    if last_source == run_dir && last_target == run_dir {
        let is_needed = own.is_none() || !is_plain_list;
        return is_needed.then(|| OsString::from_vec(entries.join(&b',')));
    }
    // Of two entries with one target, the engines mount the first.
    entries.retain(|entry| paths_of(entry)[1] != run_dir);
    let run_dir = run_dir.as_os_str().as_bytes();
    entries.push([run_dir, b":", run_dir, b":ro"].concat());
    Some(OsString::from_vec(entries.join(&b',')))
}

/// Returns the entries `SOURCE[:TARGET[:OPTION[,OPTION]…]]` of a list of directories, without empty ones. The engines drop white
/// space around each part.
fn split_entries(list: &[u8]) -> Vec<Vec<u8>> {
    let mut entries: Vec<Vec<u8>> = Vec::new();
    for word in list.split(|byte| *byte == b',') {
        let parts: Vec<&[u8]> = word
            .split(|byte| *byte == b':')
            .map(<[u8]>::trim_ascii)
            .collect();
        let word = parts.join(&b':');
        let name = word.split(|byte| *byte == b'=').next();
        let is_option = name.is_some_and(|name| OPTIONS.contains(&name));
        match entries.last_mut() {
            Some(entry) if is_option && entry.contains(&b':') => {
                entry.push(b',');
                entry.extend_from_slice(&word);
            }
            _ if word.is_empty() => {}
            _ => entries.push(word),
        }
    }
    entries
}

/// The options of an entry, also behind a comma.
const OPTIONS: [&[u8]; 4] = [b"ro", b"rw", b"id", b"image-src"];

/// Returns the source and the target of an entry. Paths are equal with more slashes, and with parts that are `.`.
fn paths_of(entry: &[u8]) -> [&Path; 2] {
    let mut paths = entry
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
                "/s:/var/run:ro,id=2,",
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
            let copied = list.replace(", ", ",");
            let copied = Some(copied.trim_end_matches(',').to_owned());
            assert_eq!(lists, [None, copied], "{list}");
        }
    }

    #[test]
    fn what_no_list_can_have_is_left_out() {
        let add = |run_dir: &str| add_bind("APPTAINER", Path::new(run_dir), |_| None);
        assert_eq!(add("/run/a,b"), None);
        assert_eq!(add("/run/a:b"), None);
        let latin = OsStr::from_bytes(b"/d\xe9").to_owned();
        let added = add_bind("APPTAINER", Path::new("/run/x"), |_| Some(latin.clone()));
        assert_eq!(added.unwrap().as_bytes(), b"/d\xe9,/run/x:/run/x:ro");
    }

    #[test]
    fn white_space_around_an_entry_is_dropped() {
        for (list, rest) in [
            ("/scratch,\n/data", "/scratch,/data,"),
            ("\t/a : /b\r\n: ro,\n rw ,", "/a:/b:ro,rw,"),
            ("/data\n", "/data,"),
            ("/x:/run/mig-mps\n,/s", "/s,"),
            // With its options.
            ("/a,/d\nX=1:/b:ro,rw,/c", "/a,/c,"),
            ("/d\u{b}", ""),
        ] {
            let lists = binds(&[("SINGULARITY_BINDPATH", list)]);
            assert_eq!(lists, both(&format!("{rest}{OWN}")), "{list:?}");
        }
        let lists = binds(&[("APPTAINER_BINDPATH", "/a\n,/run/mig-mps")]);
        assert_eq!(lists, both("/a,/run/mig-mps"));
    }

    #[test]
    fn what_is_left_out_is_known() {
        let unbound = |name: &str, list: &str| {
            let caller = |wanted: &str| (wanted == name).then(|| OsString::from(list));
            unbound_directories(caller)
                .map(|unbound| (unbound.variable, unbound.entry))
                .collect::<Vec<_>>()
        };
        for name in ENGINES.iter().flat_map(|engine| list_names(engine)) {
            let found = [(name.clone(), "/d\u{1}e:/f".to_owned())];
            assert_eq!(unbound(&name, "/a,\n/d\u{1}e:/f ,/b"), found, "{name}");
            assert_eq!(unbound(&name, "/a,\n/b\t"), [], "{name}");
        }
    }

    /// Entries of the list that is read first have their targets first.
    #[test]
    fn no_earlier_list_has_the_place_of_the_run_directory() {
        let without = |list: &str| {
            without_target(OsStr::new(list), Path::new("/run/mig-mps"))
                .map(|list| list.into_string().unwrap())
        };
        for (list, rest) in [
            ("/x:/run/mig-mps", ""),
            ("/a,/x:/run//mig-mps/:ro,rw,/b", "/a,/b"),
            ("/run/mig-mps", ""),
            ("/a, /d\u{1},/b", "/a,/b"),
        ] {
            assert_eq!(without(list).as_deref(), Some(rest), "{list:?}");
        }
        for list in ["", "/a, /b", "/run", "/run/mig-mps:/mps", "/x:/run"] {
            assert_eq!(without(list), None, "{list}");
        }
    }
}
