//! The packages under test.

use std::env;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use tempfile::TempDir;
use testkit::{Ran, built, can_run, judges, repository, shell, write_program};

/// The glibc of RHEL 8 and Debian 10.
pub(crate) const GLIBC: &str = "2.28";

/// The variable that names a directory with packages of a release, which are then tested instead of those of this build.
const GIVEN: &str = "MIG_MPS_PACKAGES";

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
pub(crate) const EARLIER: &str = "0.1.9";

/// The packages of one version: a .deb and an .rpm of mig-mps and of the device plugin, and a tarball of both.
pub(crate) struct Packages {
    pub(crate) directory: PathBuf,
    /// The files of both .deb, below a directory.
    pub(crate) files: PathBuf,
    _temporary: TempDir,
}

/// The kinds of packages.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Deb,
    Rpm,
}

impl Packages {
    /// Returns the packages of this version, which are made once; `None` if they cannot be made here.
    pub(crate) fn get(test: &str) -> Option<&'static Self> {
        static PACKAGES: OnceLock<Packages> = OnceLock::new();
        let is_given = env::var_os(GIVEN).is_some();
        let tools: &[&str] = if is_given {
            &["dpkg-deb", "rpm"]
        } else {
            &["dpkg-deb", "rpmbuild", "cargo-zigbuild", "readelf"]
        };
        tools
            .iter()
            .all(|tool| has(test, tool))
            .then(|| PACKAGES.get_or_init(Self::newest))
    }

    /// The same of an earlier version, whose programs only print that.
    pub(crate) fn earlier() -> &'static Self {
        static PACKAGES: OnceLock<Packages> = OnceLock::new();
        PACKAGES.get_or_init(|| {
            Self::in_directory(|at| {
                let programs = at.join("programs");
                fs::create_dir(&programs).unwrap();
                for program in ["mig-mps", "mig-mps-device-plugin"] {
                    write_program(programs.join(program), "#!/bin/sh\necho earlier\n");
                }
                make(&programs, &at.join("out"), EARLIER);
            })
        })
    }

    fn newest() -> Self {
        Self::in_directory(|at| {
            if let Some(given) = env::var_os(GIVEN) {
                symlink(fs::canonicalize(given).unwrap(), at.join("out")).unwrap();
                return;
            }
            let programs = at.join("programs");
            fs::create_dir(&programs).unwrap();
            link("main.rs", &programs.join("mig-mps"));
            link("device_plugin.rs", &programs.join("mig-mps-device-plugin"));
            make(&programs, &at.join("out"), VERSION);
        })
    }

    fn in_directory(fill: impl FnOnce(&Path)) -> Self {
        let temporary = tempfile::Builder::new()
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let at = temporary.path();
        fill(at);
        let packages = Self {
            directory: fs::canonicalize(at.join("out")).unwrap(),
            files: at.join("files"),
            _temporary: temporary,
        };
        for deb in packages.both(Kind::Deb) {
            let mut command = Command::new("dpkg-deb");
            Ran::of(command.arg("--extract").arg(deb).arg(&packages.files)).ended(0);
        }
        packages
    }

    /// mig-mps and the device plugin, as packages of a kind.
    pub(crate) fn both(&self, kind: Kind) -> [PathBuf; 2] {
        let arch = env::consts::ARCH;
        let ends = match kind {
            Kind::Deb if arch == "x86_64" => ["_", "-1_amd64.deb"],
            Kind::Deb => ["_", "-1_arm64.deb"],
            Kind::Rpm if arch == "x86_64" => ["-", "-1.x86_64.rpm"],
            Kind::Rpm => ["-", "-1.aarch64.rpm"],
        };
        ["mig-mps", "mig-mps-device-plugin"].map(|name| {
            let start = format!("{name}{}", ends[0]);
            self.file(|file| {
                let version = file.strip_prefix(&start).unwrap_or_default();
                version.starts_with(|c: char| c.is_ascii_digit()) && file.ends_with(ends[1])
            })
        })
    }

    pub(crate) fn tarball(&self) -> PathBuf {
        let end = format!("-{}-linux.tar.gz", env::consts::ARCH);
        self.file(|file| file.ends_with(&end))
    }

    fn file(&self, is_it: impl Fn(&str) -> bool) -> PathBuf {
        let files = fs::read_dir(&self.directory).unwrap();
        let mut files = files.map(|file| file.unwrap().path());
        files
            .find(|file| is_it(file.file_name().unwrap().to_str().unwrap()))
            .expect("a package of that kind")
    }
}

/// Makes packages of the programs in a directory.
pub(crate) fn make(programs: &Path, out: &Path, version: &str) {
    let mut command = tool(".ci/packages/make");
    command
        .arg(env::consts::ARCH)
        .args([programs, &built().mig_mps, out])
        .current_dir(repository())
        .envs([("FAST", "1"), ("VERSION", version)]);
    Ran::of(&mut command).ended(0);
}

/// The directories of programs: those in `PATH`, and those where `.ci/run` installs the tools that make a package.
fn path() -> Vec<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = judges().join("bin");
    env::split_paths(&path).chain([own]).collect()
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

/// The crate of `mig-mps` that the tests were built with. `cargo build` makes one without the device plugin beside it.
fn newest_library() -> PathBuf {
    let deps = built().programs.join("deps");
    let crates = format!(
        "cd {} && grep -l 3cli13device_plugin libmig_mps-*.rlib",
        deps.display()
    );
    let crates = shell(crates).ended(0).stdout;
    crates
        .lines()
        .map(|name| deps.join(name))
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
        .arg("-Cstrip=symbols")
        .arg(format!("--extern=mig_mps={}", library.display()))
        .arg("-o")
        .arg(program)
        .arg(repository().join("src").join(source));
    Ran::of(&mut rustc).ended(0);
    fs::remove_file(linker).unwrap();
}
