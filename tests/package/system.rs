//! A copy of this system in which the package is installed. What is written there is gone with it.

use std::env;
use std::path::Path;
use std::process::Command;

use testkit::{Ran, Sim, built, can_run, is_root, shell};

use crate::package::deb::{Package, has};

/// Makes a copy of this system in memory, enters it, and runs the script that is the second argument.
///
/// Directories that the script is to see as they are, such as that of a simulated node, may be other file systems, which
/// the copy lacks. Where this system is an image of a container, dpkg may be set to leave out manual pages. Triggers of
/// other packages, such as an index of manual pages, take seconds.
const ENTER: &str = r#"
set -e
at=/mnt
mount -t tmpfs tmpfs "$at"
mkdir "$at/upper" "$at/work" "$at/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$at/upper,workdir=$at/work" "$at/root"
script=$1
shift
for directory in /proc /sys /dev "$@"; do
    mkdir -p "$at/root$directory"
    mount --rbind "$directory" "$at/root$directory"
done
rm -f "$at/root/etc/dpkg/dpkg.cfg.d/"*
printf 'force-unsafe-io\nno-triggers\n' >"$at/root/etc/dpkg/dpkg.cfg.d/fast"
exec chroot "$at/root" /bin/sh -ec "$script"
"#;

/// True if a copy of this system can be made.
pub(crate) fn can_be_copied(test: &str) -> bool {
    if !is_root(test)
        || !["dpkg", "unshare", "chroot"]
            .iter()
            .all(|tool| has(test, tool))
    {
        return false;
    }
    let works = enter("true", &[]).status().unwrap().success();
    can_run(test, works, "the kernel mounts no overlay here")
}

fn enter(script: &str, directories: &[&Path]) -> Command {
    let mut command = Command::new("unshare");
    command
        .args([
            "--mount",
            "--propagation",
            "private",
            "/bin/sh",
            "-c",
            ENTER,
            "sh",
            script,
        ])
        .args(directories)
        .current_dir("/")
        .env_clear()
        .env(
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        )
        .env("LANG", "C.UTF-8")
        .env("DEBIAN_FRONTEND", "noninteractive");
    command
}

/// Installs the package in a copy of this system, and runs a script there. `$DEB` is the package.
pub(crate) fn installed(package: &Package, script: &str) -> Ran {
    let mut command = enter(&with_package(script), &[package.deb.parent().unwrap()]);
    Ran::of(command.env("DEB", &package.deb))
}

/// The same on a simulated node, whose devices and daemons are in the directories of an installed mig-mps.
pub(crate) fn installed_on(sim: &Sim, package: &Package, script: &str) -> Ran {
    let node = sim.node.dir().parent().unwrap();
    let target = built().programs.as_path();
    let mut command = enter(
        &with_package(script),
        &[package.deb.parent().unwrap(), node, target],
    );
    // The system's systemctl, and the node's programs of NVIDIA.
    let path = env::join_paths([
        "/usr/sbin".into(),
        "/usr/bin".into(),
        sim.node.dir().join("bin"),
    ]);
    command
        .envs(sim.node.env())
        .env("PATH", path.unwrap())
        .env_remove("MIG_MPS_RUN_DIR")
        .env_remove("MIG_MPS_LOG_DIR")
        .env("DEB", &package.deb);
    Ran::of(&mut command)
}

fn with_package(script: &str) -> String {
    format!("dpkg --install $DEB >/dev/null\n{script}")
}

/// True if this system was left alone.
pub(crate) fn is_untouched() -> bool {
    let known = shell("dpkg-query --show mig-mps");
    known.status != 0 && !Path::new("/usr/lib/systemd/system/mig-mps.service").exists()
}
