//! The variables by which Apptainer and Singularity give the programs in a container what a client needs.
//!
//! Their containers have the caller's environment, unless `--cleanenv` is given, but not the host's `/run`. Each of the
//! two engines has variables of its own; Apptainer also reads those of Singularity that it lacks, and warns if both have
//! different values.

use std::ffi::OsString;
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
        let (mut set, mut unset) = (Vec::new(), Vec::new());
        for engine in ENGINES {
            if let Some(binds) = add_bind(engine, run_dir, &caller) {
                set.push((format!("{engine}_BINDPATH"), binds.into()));
            }
            // A container has no use for the logs.
            for (name, value) in self.set.iter().filter(|(name, _)| name != LOGS) {
                set.push((format!("{engine}ENV_{name}"), value.clone()));
            }
            let names = self.unset.iter().map(|name| format!("{engine}ENV_{name}"));
            unset.extend(names.filter(|name| caller(name).is_some()));
        }
        self.set.extend(set);
        self.unset.extend(unset);
        self
    }
}

/// Returns the caller's list of directories for an engine's containers with the run directory; `None` if the list has the
/// run directory already, or cannot have it.
fn add_bind(
    engine: &str,
    run_dir: &Path,
    caller: impl Fn(&str) -> Option<OsString>,
) -> Option<String> {
    let run_dir = run_dir.to_str().filter(|path| !path.contains([',', ':']))?;
    let values = |variable: &str| {
        let of_both = ENGINES.map(|engine| caller(&format!("{engine}_{variable}")));
        let [apptainer, singularity] = of_both.map(|value| value.filter(|value| !value.is_empty()));
        match engine {
            "APPTAINER" => apptainer.or(singularity),
            _ => singularity.or(apptainer),
        }
    };
    let binds = values("BINDPATH").unwrap_or_default();
    let more = values("BIND").unwrap_or_default();
    if [&binds, &more]
        .into_iter()
        .any(|list| has_bind(&list.to_string_lossy(), run_dir))
    {
        return None;
    }
    let binds = binds.into_string().ok()?;
    let own = binds.trim_end_matches([',', ' ']);
    let separator = if own.is_empty() { "" } else { "," };
    Some(format!("{own}{separator}{run_dir}:{run_dir}:ro"))
}

/// True if a list such as `/scratch,/opt:/opt:ro` has a directory, or one above it, at the same path.
fn has_bind(list: &str, directory: &str) -> bool {
    list.split(',').any(|entry| {
        let mut parts = entry.trim().split(':');
        let source = parts.next().unwrap_or_default();
        let target = parts.next().unwrap_or(source);
        source == target && source.starts_with('/') && Path::new(directory).starts_with(source)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lists of Apptainer and Singularity with these variables of the caller.
    fn binds(caller: &[(&str, &str)]) -> [Option<String>; 2] {
        ENGINES.map(|engine| {
            add_bind(engine, Path::new("/run/mig-mps"), |name| {
                let found = caller.iter().find(|(known, _)| *known == name);
                found.map(|(_, value)| OsString::from(value))
            })
        })
    }

    #[test]
    fn the_run_directory_is_added_to_the_directories_of_the_caller() {
        let own = "/run/mig-mps:/run/mig-mps:ro";
        let both = |list: &str| [(); 2].map(|()| Some(list.to_owned()));
        let added = format!("/scratch,{own}");
        assert_eq!(binds(&[]), both(own));
        assert_eq!(binds(&[("APPTAINER_BINDPATH", "")]), both(own));
        // Apptainer drops the list of Singularity if it has one of its own.
        for (name, list) in [
            ("APPTAINER_BINDPATH", "/scratch"),
            ("SINGULARITY_BINDPATH", "/scratch"),
            ("SINGULARITY_BINDPATH", "/scratch, "),
        ] {
            assert_eq!(binds(&[(name, list)]), both(&added), "{name}={list}");
        }
        let different = binds(&[
            ("APPTAINER_BINDPATH", "/a:/b"),
            ("SINGULARITY_BINDPATH", "/s"),
        ]);
        assert_eq!(
            different,
            ["/a:/b", "/s"].map(|list| Some(format!("{list},{own}")))
        );
    }

    #[test]
    fn a_directory_that_is_bound_is_not_added() {
        for list in [
            "/run",
            "/opt:/x,/run/mig-mps",
            "/run/mig-mps:/run/mig-mps:ro",
            "/",
        ] {
            for name in ["APPTAINER_BIND", "SINGULARITY_BINDPATH"] {
                assert_eq!(binds(&[(name, list)]), [None, None], "{name}={list}");
            }
        }
        for list in [
            "/run/mig-mps-2",
            "/run/mig:/run/mig",
            "/srv:/run",
            "/run/mig-mps:/mps",
            "run",
        ] {
            let found = binds(&[("APPTAINER_BIND", list)]);
            assert!(found.iter().all(Option::is_some), "{list}");
        }
    }

    #[test]
    fn what_no_list_can_have_is_left_out() {
        let add = |run_dir: &str| add_bind("APPTAINER", Path::new(run_dir), |_| None);
        assert_eq!(add("/run/a,b"), None);
        assert_eq!(add("/run/a:b"), None);
    }
}
