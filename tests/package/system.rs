//! A copy of this system in which packages are installed. What is written there is gone with it.

use std::env;
use std::path::Path;
use std::process::Command;

use testkit::{Ran, Sim, built, can_run, is_root, shell};

use crate::package::packages::{Kind, Packages, has};

/// Makes a copy of this system in memory, without the mig-mps and the driver that it may have, enters the copy, and runs the
/// script that is the second argument. There `/tmp/began` is older than what the script writes.
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
[ ! -e "$at/root/usr/bin/mig-mps" ] ||
    chroot "$at/root" dpkg --purge mig-mps-device-plugin mig-mps >/dev/null 2>&1
for directory in /etc /run /var/lib /var/log; do
    rm -rf "$at/root$directory/mig-mps"
done
rm -f "$at/root"/usr/local/bin/mig-mps* "$at/root"/etc/systemd/system/mig-mps* \
    "$at/root"/usr/bin/nvidia-cuda-mps-* "$at/root"/usr/lib*/libnvidia-ml.so* "$at/root"/usr/lib/*/libnvidia-ml.so*
[ ! -d /proc/driver/nvidia ] || mount -t tmpfs tmpfs "$at/root/proc/driver"
printf 'force-unsafe-io\nno-triggers\n' >"$at/root/etc/dpkg/dpkg.cfg.d/fast"
touch "$at/root/tmp/began"
exec chroot "$at/root" /bin/sh -ec "$script"
"#;

/// From here on, systemd seems to run, and `systemctl` only prints what it is asked for.
pub(crate) const SYSTEMCTL_IS_SHOWN: &str = r#"
mkdir -p /run/systemd/system
rm -f /usr/bin/systemctl
printf '%s\n' '#!/bin/sh' 'echo "systemctl $*"' >/usr/bin/systemctl
chmod 755 /usr/bin/systemctl
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

/// Installs mig-mps from its .deb in a copy of this system, and runs a script there.
pub(crate) fn installed(packages: &Packages, script: &str) -> Ran {
    in_copy(
        packages,
        &format!("dpkg --install $DEB >/dev/null\n{script}"),
    )
}

/// Runs a script in a copy of this system. `$DEB`, `$RPM` and `$TARBALL` are the packages of mig-mps, `$PLUGIN_DEB` and
/// `$PLUGIN_RPM` those of the device plugin.
pub(crate) fn in_copy(packages: &Packages, script: &str) -> Ran {
    in_copy_with(packages, &[], script)
}

/// The same, with the packages of an earlier version as `$EARLIER_DEB` and so on.
pub(crate) fn in_copy_with_earlier(packages: &Packages, script: &str) -> Ran {
    in_copy_with(packages, &[Packages::earlier()], script)
}

fn in_copy_with(packages: &Packages, earlier: &[&Packages], script: &str) -> Ran {
    let mut directories = vec![packages.directory.as_path()];
    directories.extend(earlier.iter().map(|packages| packages.directory.as_path()));
    let mut command = enter(script, &directories);
    name_packages(&mut command, "", packages);
    for packages in earlier {
        name_packages(&mut command, "EARLIER_", packages);
    }
    Ran::of(&mut command)
}

fn name_packages(command: &mut Command, prefix: &str, packages: &Packages) {
    for (kind, name) in [(Kind::Deb, "DEB"), (Kind::Rpm, "RPM")] {
        let [mig_mps, plugin] = packages.both(kind);
        command.env(format!("{prefix}{name}"), mig_mps);
        command.env(format!("{prefix}PLUGIN_{name}"), plugin);
    }
    command.env(format!("{prefix}TARBALL"), packages.tarball());
}

/// Runs a script on a simulated node, whose devices and daemons are in the directories of an installed mig-mps.
pub(crate) fn in_copy_on(sim: &Sim, packages: &Packages, script: &str) -> Ran {
    let node = sim.node.dir().parent().unwrap();
    let target = built().programs.as_path();
    let mut command = enter(script, &[packages.directory.as_path(), node, target]);
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
        .env_remove("MIG_MPS_LOG_DIR");
    name_packages(&mut command, "", packages);
    Ran::of(&mut command)
}

/// The mig-mps that this system itself has.
pub(crate) fn own_mig_mps() -> String {
    let query =
        "dpkg-query --show 'mig-mps*'; ls -l /usr/bin/mig-mps* /usr/lib/systemd/system/mig-mps*";
    shell(query).stdout
}
