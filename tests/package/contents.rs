//! The files of the packages, and what they need.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use insta::assert_snapshot;
use regex::Regex;

use crate::package::packages::{GLIBC, Kind, Packages, VERSION, has, make};
use testkit::{Ran, assert_contains, repository, write_program};

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

fn field(deb: &Path, name: &str) -> String {
    let mut command = Command::new("dpkg-deb");
    let ran = Ran::of(command.arg("--field").arg(deb).arg(name)).ended(0);
    ran.stdout.trim().to_owned()
}

fn requirements(rpm: &Path) -> Vec<String> {
    let mut command = Command::new("rpm");
    let ran = Ran::of(command.args(["-qp", "--requires"]).arg(rpm)).ended(0);
    ran.stdout.lines().map(str::to_owned).collect()
}

#[test]
fn the_programs_run_with_an_old_glibc() {
    let test = "the_programs_run_with_an_old_glibc";
    let Some(packages) = Packages::get(test).filter(|_| has(test, "readelf")) else {
        return;
    };
    for program in ["usr/bin/mig-mps", "usr/bin/mig-mps-device-plugin"] {
        let versions = glibc(&packages.files.join(program));
        assert!(versions.contains(&(2, 17)), "{program} {versions:?}");
        let newest = *versions.last().unwrap();
        assert!(newest <= version(GLIBC), "{program} {versions:?}");
    }
    // glibc's dynamic linker loads NVML; a static program has none.
    let mut readelf = Command::new("readelf");
    let program = packages.files.join("usr/bin/mig-mps");
    let ran = Ran::of(readelf.args(["--program-headers", "--wide"]).arg(program)).ended(0);
    assert_contains(&ran.stdout, "interpreter: /lib");
}

#[test]
fn what_the_packages_need() {
    let Some(packages) = Packages::get("what_the_packages_need") else {
        return;
    };
    let [deb, plugin] = packages.both(Kind::Deb);
    let libc = format!("libc6 (>= {GLIBC})");
    assert_eq!(field(&deb, "Depends"), libc);
    assert_eq!(
        field(&plugin, "Depends"),
        format!("{libc}, mig-mps (= {VERSION}-1)")
    );
    for deb in [deb, plugin] {
        assert_eq!(field(&deb, "Version"), format!("{VERSION}-1"));
    }

    let [rpm, plugin] = packages.both(Kind::Rpm);
    let glibc = Regex::new(r"^libc\.so\.6\(GLIBC_(\d+\.\d+)\)\(64bit\)$").unwrap();
    let same = format!("mig-mps = {VERSION}-1");
    for (rpm, needs_same) in [(rpm, false), (plugin, true)] {
        let needs = requirements(&rpm);
        let versions = needs.iter().filter_map(|need| glibc.captures(need));
        let newest = versions.map(|captures| version(&captures[1])).max();
        assert!(newest <= Some(version(GLIBC)), "{needs:?}");
        assert!(newest >= Some((2, 17)), "{needs:?}");
        assert_eq!(needs.contains(&same), needs_same, "{needs:?}");
    }
}

/// A release is not published with a program that fails here.
#[test]
fn a_path_of_the_builder_or_a_newer_glibc_is_found() {
    let test = "a_path_of_the_builder_or_a_newer_glibc_is_found";
    let Some(packages) = Packages::get(test).filter(|_| has(test, "strings")) else {
        return;
    };
    let program = packages.files.join("usr/bin/mig-mps");
    let check = |glibc: &str, paths: &str| {
        let mut command = Command::new(repository().join(".ci/packages/check"));
        Ran::of(command.args([glibc, paths]).arg(&program))
    };
    // This text is in the program, as paths of its builder would be.
    let held = "/proc/driver/nvidia";
    check(GLIBC, "/no/such/path:/no/other").ended(0);
    let found = check(GLIBC, &format!("/no/such/path:{held}:/no/other")).ended(1);
    assert_contains(&found.stderr, held);
    let newer = check("2.17", "/no/such/path").ended(1);
    assert_contains(&newer.stderr, " instead of 2.17");
}

#[test]
fn the_same_files_give_the_same_bytes() {
    let test = "the_same_files_give_the_same_bytes";
    if !has(test, "rpmbuild") {
        return;
    }
    let temporary = tempfile::tempdir().unwrap();
    let programs = temporary.path().join("programs");
    fs::create_dir(&programs).unwrap();
    let [first, second] = [("first", 0o755), ("second", 0o700)].map(|(name, mode)| {
        // Time, modes and order of the files differ.
        for program in ["mig-mps", "mig-mps-device-plugin"] {
            let program = programs.join(program);
            let _ = fs::remove_file(&program);
            write_program(&program, "#!/bin/sh\n");
            fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        }
        let out = temporary.path().join(name);
        make(&programs, &out, "1.0.0-rc.1");
        files_of(&out)
    });
    let arch = if env::consts::ARCH == "x86_64" {
        ["amd64", "x86_64"]
    } else {
        ["arm64", "aarch64"]
    };
    let names: Vec<String> = first
        .keys()
        .map(|name| name.replace(arch[0], "ARCH").replace(arch[1], "ARCH"))
        .collect();
    assert_eq!(
        names,
        [
            "mig-mps-1.0.0-rc.1-ARCH-linux.tar.gz",
            "mig-mps-1.0.0~rc.1-1.ARCH.rpm",
            "mig-mps-device-plugin-1.0.0~rc.1-1.ARCH.rpm",
            "mig-mps-device-plugin_1.0.0~rc.1-1_ARCH.deb",
            "mig-mps_1.0.0~rc.1-1_ARCH.deb",
        ]
    );
    assert!(first.keys().eq(second.keys()));
    for (name, bytes) in &first {
        assert!(*bytes == second[name], "{name} differs");
    }
}

fn files_of(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| {
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read(entry.path()).unwrap())
        })
        .collect()
}

/// The files of a directory of the repository.
fn names(directory: &str) -> BTreeSet<String> {
    let path = repository().join(directory);
    let entries = fs::read_dir(path).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// Splits a listing, whose lines begin with the mode, into the manual pages, the profiles, and the other files with their modes.
/// All belong to root.
fn sorted(listing: &str) -> (BTreeSet<String>, BTreeSet<String>, String) {
    let (mut pages, mut profiles) = (BTreeSet::new(), BTreeSet::new());
    let mut others = Vec::new();
    for line in listing.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (mode, path) = (words[0], *words.last().unwrap());
        let path = path.trim_start_matches('.');
        let is_roots = ["0/0", "root/root"].contains(&words[1]) || words[2..4] == ["root", "root"];
        assert!(is_roots, "{line}");
        if mode.starts_with('d') {
            assert_eq!(mode, "drwxr-xr-x", "{line}");
            continue;
        }
        let mut is_one = false;
        for directory in [
            "/man/man1/",
            "/man/man5/",
            "/man/man7/",
            "/mig-mps/profiles/",
        ] {
            if let Some((_, name)) = path.split_once(directory) {
                assert_eq!(mode, "-rw-r--r--", "{line}");
                let names = if directory.starts_with("/man/") {
                    &mut pages
                } else {
                    &mut profiles
                };
                names.insert(name.to_owned());
                is_one = true;
            }
        }
        if !is_one {
            others.push(format!("{mode} {path}"));
        }
    }
    others.sort_unstable();
    (pages, profiles, others.join("\n"))
}

fn check_many(pages: &BTreeSet<String>, profiles: &BTreeSet<String>) {
    assert_eq!(*profiles, names("profiles"));
    for page in ["mig-mps", "mig-mps-up", "mig-mps-status"] {
        assert!(pages.contains(&format!("{page}.1.gz")), "{pages:?}");
    }
    for page in ["mig-mps-profile.5.gz", "mig-mps-running.7.gz"] {
        assert!(pages.contains(page), "{pages:?}");
    }
}

#[test]
fn files_and_modes() {
    let Some(packages) = Packages::get("files_and_modes") else {
        return;
    };
    let listing = |mut command: Command, file: &Path| Ran::of(command.arg(file)).ended(0).stdout;
    let command = |program: &str, option: &str| {
        let mut command = Command::new(program);
        command.arg(option);
        command
    };
    let [deb, plugin_deb] = packages.both(Kind::Deb);
    let (pages, profiles, deb) = sorted(&listing(command("dpkg-deb", "--contents"), &deb));
    check_many(&pages, &profiles);
    assert_snapshot!(deb, @"
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
    -rw-r--r-- /usr/share/doc/mig-mps/LICENSE-MIT
    -rw-r--r-- /usr/share/doc/mig-mps/README.md
    -rw-r--r-- /usr/share/doc/mig-mps/copyright
    -rw-r--r-- /usr/share/fish/vendor_completions.d/mig-mps.fish
    -rw-r--r-- /usr/share/zsh/vendor-completions/_mig-mps
    -rwxr-xr-x /usr/bin/mig-mps
    ");
    let plugin_deb = sorted(&listing(command("dpkg-deb", "--contents"), &plugin_deb)).2;
    assert_snapshot!(plugin_deb, @"
    -rw-r--r-- /usr/lib/systemd/system/mig-mps-device-plugin.service
    -rw-r--r-- /usr/share/doc/mig-mps-device-plugin/LICENSE-APACHE
    -rw-r--r-- /usr/share/doc/mig-mps-device-plugin/LICENSE-MIT
    -rw-r--r-- /usr/share/doc/mig-mps-device-plugin/copyright
    -rwxr-xr-x /usr/bin/mig-mps-device-plugin
    ");

    // The same but for two paths, and the form of the licences.
    let [rpm, plugin_rpm] = packages.both(Kind::Rpm);
    let (pages, profiles, rpm) = sorted(&listing(command("rpm", "-qplv"), &rpm));
    check_many(&pages, &profiles);
    let plugin_rpm = sorted(&listing(command("rpm", "-qplv"), &plugin_rpm)).2;
    let as_deb = |rpm: &str, name: &str| {
        let rpm = rpm.replace("zsh/site-functions", "zsh/vendor-completions");
        let mut lines: Vec<&str> = rpm.lines().collect();
        let copyright = format!("-rw-r--r-- /usr/share/doc/{name}/copyright");
        lines.push(&copyright);
        lines.sort_unstable();
        lines.join("\n")
    };
    assert_eq!(as_deb(&rpm, "mig-mps"), deb);
    assert_eq!(as_deb(&plugin_rpm, "mig-mps-device-plugin"), plugin_deb);

    let (pages, profiles, tarball) = sorted(&listing(command("tar", "-tvzf"), &packages.tarball()));
    check_many(&pages, &profiles);
    let top = format!("mig-mps-{VERSION}-{}-linux/", env::consts::ARCH);
    assert_snapshot!(tarball.replace(&top, ""), @"
    -rw-r--r-- Containerfile
    -rw-r--r-- share/bash-completion/completions/mig-mps
    -rw-r--r-- share/doc/mig-mps/CHANGELOG.md
    -rw-r--r-- share/doc/mig-mps/LICENSE-APACHE
    -rw-r--r-- share/doc/mig-mps/LICENSE-MIT
    -rw-r--r-- share/doc/mig-mps/README.md
    -rw-r--r-- share/fish/vendor_completions.d/mig-mps.fish
    -rw-r--r-- share/zsh/site-functions/_mig-mps
    -rwxr-xr-x bin/mig-mps
    -rwxr-xr-x bin/mig-mps-device-plugin
    -rwxr-xr-x install-on-host.sh
    -rwxr-xr-x install.sh
    -rwxr-xr-x next.sh
    ");
}
