//! The package under test.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use testkit::{Ran, built, can_run, judges, shell, write_program};

/// The glibc of RHEL 8 and Debian 10.
pub(crate) const GLIBC: &str = "2.28";

/// The package, and a copy of its files.
pub(crate) struct Package {
    pub(crate) deb: PathBuf,
    /// Its files, below a directory.
    pub(crate) files: PathBuf,
    _directory: TempDir,
}

impl Package {
    /// Returns the package, which is built once; `None` if it cannot be built here.
    pub(crate) fn get(test: &str) -> Option<&'static Self> {
        static PACKAGE: OnceLock<Package> = OnceLock::new();
        let is_given = env::var_os("MIG_MPS_DEB").is_some();
        let tools: &[&str] = if is_given {
            &["dpkg-deb"]
        } else {
            &["dpkg-deb", "cargo-deb", "cargo-zigbuild"]
        };
        tools
            .iter()
            .all(|tool| has(test, tool))
            .then(|| PACKAGE.get_or_init(Self::make))
    }

    /// A field of its control file.
    pub(crate) fn field(&self, name: &str) -> String {
        let mut command = Command::new("dpkg-deb");
        let ran = Ran::of(command.arg("--field").arg(&self.deb).arg(name)).ended(0);
        ran.stdout.trim().to_owned()
    }

    fn make() -> Self {
        let directory = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let at = directory.path();
        let deb = match env::var_os("MIG_MPS_DEB") {
            Some(given) => fs::canonicalize(given).unwrap(),
            None => build(at),
        };
        let files = at.join("files");
        let mut command = Command::new("dpkg-deb");
        Ran::of(command.arg("--extract").arg(&deb).arg(&files)).ended(0);
        Self {
            deb,
            files,
            _directory: directory,
        }
    }
}

/// The directories of programs: those in `PATH`, and those where `.ci/run` installs the tools that make a package.
fn path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = [judges().join("cargo/bin"), judges().join("bin")];
    env::split_paths(&path).chain(own).collect()
}

/// True if a program is installed; in CI it must be.
pub(crate) fn has(test: &str, program: &str) -> bool {
    let is_here = path().iter().any(|dir| dir.join(program).is_file());
    can_run(test, is_here, &format!("{program} is not installed"))
}

/// A tool that makes a package. It finds the others.
fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("PATH", env::join_paths(path()).unwrap());
    let zig = judges().join("bin/python-zig");
    if zig.exists() {
        command.env("CARGO_ZIGBUILD_ZIG_PATH", zig);
    }
    command
}

/// Builds the package below a directory, as CONTRIBUTING.md says, with a program that is not optimised.
fn build(at: &Path) -> PathBuf {
    // cargo-deb reads the target directory of the repository.
    let tree = at.join("tree");
    let target = tree.join("target");
    fs::create_dir_all(target.join("release")).unwrap();
    for entry in fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "target" {
            symlink(entry.path(), tree.join(entry.file_name())).unwrap();
        }
    }
    let program = target.join("release/mig-mps");
    link("main.rs", &program);
    link(
        "device_plugin.rs",
        &target.join("release/mig-mps-device-plugin"),
    );
    let (program, made) = (program.display(), target.join("package"));
    shell(format!("{program} man --dir {}/man", made.display())).ended(0);
    shell(format!(
        "{program} systemd --package {}/units",
        made.display()
    ))
    .ended(0);
    let deb = at.join("mig-mps.deb");
    let mut command = tool("cargo-deb");
    command
        .args(["deb", "--no-build", "--fast", "--locked", "--output"])
        .arg(&deb)
        .current_dir(&tree)
        .env_remove("CARGO_TARGET_DIR");
    Ran::of(&mut command).ended(0);
    deb
}

/// The crate of `mig-mps` that the tests were built with.
fn newest_library() -> PathBuf {
    let crates = fs::read_dir(built().programs.join("deps")).unwrap();
    crates
        .map(|file| file.unwrap().path())
        .filter(|file| {
            let stem = file.file_stem().unwrap().to_str().unwrap();
            stem.starts_with("libmig_mps-") && file.extension().unwrap_or_default() == "rlib"
        })
        .max_by_key(|file| fs::metadata(file).unwrap().modified().unwrap())
        .expect("cargo built the crate")
}

/// Links a program for the old glibc from the crates of this build, which cargo would build once more.
fn link(source: &str, program: &Path) {
    let arch = env::consts::ARCH;
    let linker = program.with_file_name("linker");
    let script = format!(
        "#!/bin/sh\nexec cargo-zigbuild zig cc -- -fno-sanitize=all -target {arch}-linux-gnu.{GLIBC} \"$@\"\n"
    );
    write_program(&linker, script);
    let library = newest_library();
    let mut rustc = tool("rustc");
    rustc
        .args(["--edition=2024", "--crate-type=bin", "--crate-name=main"])
        .arg(format!("-Clinker={}", linker.display()))
        .arg(format!(
            "-Ldependency={}",
            library.parent().unwrap().display()
        ))
        .arg("-Cstrip=debuginfo")
        .arg(format!("--extern=mig_mps={}", library.display()))
        .arg("-o")
        .arg(program)
        .arg(format!("{}/src/{source}", env!("CARGO_MANIFEST_DIR")));
    Ran::of(&mut rustc).ended(0);
    fs::remove_file(linker).unwrap();
}
