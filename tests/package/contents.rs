//! The files of the package, and what it needs.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use regex::Regex;

use crate::package::deb::{GLIBC, Package, has};
use testkit::{Ran, assert_contains};

/// A version such as 2.28, in an order in which 2.9 is older.
type Version = (u32, u32);

fn version(text: &str) -> Version {
    let (major, minor) = text.split_once('.').unwrap();
    (major.parse().unwrap(), minor.parse().unwrap())
}

/// The versions of glibc that symbols of a program ask for.
fn glibc(program: &Path) -> BTreeSet<Version> {
    let mut readelf = Command::new("readelf");
    let ran = Ran::of(readelf.args(["--version-info", "--wide"]).arg(program)).ended(0);
    let name = Regex::new(r"Name: GLIBC_(\d+\.\d+)").unwrap();
    let found = name.captures_iter(&ran.stdout);
    found.map(|captures| version(&captures[1])).collect()
}

#[test]
fn the_programs_run_with_an_old_glibc() {
    let test = "the_programs_run_with_an_old_glibc";
    let Some(package) = Package::get(test).filter(|_| has(test, "readelf")) else {
        return;
    };
    for program in ["usr/bin/mig-mps", "usr/bin/mig-mps-device-plugin"] {
        let versions = glibc(&package.files.join(program));
        assert!(versions.contains(&(2, 17)), "{program} {versions:?}");
        let newest = *versions.last().unwrap();
        assert!(newest <= version(GLIBC), "{program} {versions:?}");
    }
    // glibc's dynamic linker loads NVML; a static program has none.
    let mut readelf = Command::new("readelf");
    let program = package.files.join("usr/bin/mig-mps");
    let ran = Ran::of(readelf.args(["--program-headers", "--wide"]).arg(program)).ended(0);
    assert_contains(&ran.stdout, "interpreter: /lib");
    assert_eq!(package.field("Depends"), format!("libc6 (>= {GLIBC})"));
    assert_eq!(
        package.field("Version"),
        concat!(env!("CARGO_PKG_VERSION"), "-1")
    );
}

/// The files of a directory of the repository.
fn names(directory: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    let entries = fs::read_dir(path).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn files_and_modes() {
    let Some(package) = Package::get("files_and_modes") else {
        return;
    };
    let mut command = Command::new("dpkg-deb");
    let ran = Ran::of(command.arg("--contents").arg(&package.deb)).ended(0);
    let (mut pages, mut profiles) = (BTreeSet::new(), BTreeSet::new());
    let mut others = Vec::new();
    for line in ran.stdout.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (mode, owner, path) = (words[0], words[1], words[5].trim_start_matches('.'));
        assert_eq!(owner, "0/0", "{line}");
        if mode.starts_with('d') {
            assert_eq!(mode, "drwxr-xr-x", "{line}");
            continue;
        }
        let many = [
            ("/usr/share/man/man1/", &mut pages),
            ("/usr/share/mig-mps/profiles/", &mut profiles),
        ];
        let mut is_one = false;
        for (directory, names) in many {
            if let Some(name) = path.strip_prefix(directory) {
                assert_eq!(mode, "-rw-r--r--", "{line}");
                names.insert(name.to_owned());
                is_one = true;
            }
        }
        if !is_one {
            others.push(format!("{mode} {path}"));
        }
    }
    others.sort_unstable();
    assert_snapshot!(others.join("\n"), @"
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-device-plugin.service
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-drift.service
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-drift.timer
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-heal.service
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-heal.timer
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-metrics.service
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-metrics.timer
    -rw-r--r-- /usr/lib/systemd/system/mig-mps.service
    -rw-r--r-- /usr/share/bash-completion/completions/mig-mps
    -rw-r--r-- /usr/share/doc/mig-mps/CHANGELOG.md
    -rw-r--r-- /usr/share/doc/mig-mps/LICENSE-APACHE
    -rw-r--r-- /usr/share/doc/mig-mps/README.md
    -rw-r--r-- /usr/share/doc/mig-mps/copyright
    -rw-r--r-- /usr/share/fish/vendor_completions.d/mig-mps.fish
    -rw-r--r-- /usr/share/zsh/vendor-completions/_mig-mps
    -rwxr-xr-x /usr/bin/mig-mps
    -rwxr-xr-x /usr/bin/mig-mps-device-plugin
    ");
    assert_eq!(profiles, names("profiles"));
    for page in ["mig-mps", "mig-mps-up", "mig-mps-status"] {
        assert!(pages.contains(&format!("{page}.1.gz")), "{pages:?}");
    }
}
