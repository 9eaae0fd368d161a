//! An installed package.

use std::process::Command;

use insta::assert_snapshot;
use testkit::{Ran, assert_contains, repository};

use crate::package::deb::{Package, has};
use crate::package::system::{can_be_copied, installed, is_untouched};

/// Returns the package if it and the programs that a test uses can be had.
fn package(test: &str, programs: &[&str]) -> Option<&'static Package> {
    let can = can_be_copied(test) && programs.iter().all(|program| has(test, program));
    can.then(|| Package::get(test)).flatten()
}

#[test]
fn it_is_installed_without_a_word_and_runs() {
    let Some(package) = package("it_is_installed_without_a_word_and_runs", &[]) else {
        return;
    };
    let ran = installed(
        package,
        "dpkg-query --show --showformat='${Status}\\n' mig-mps; command -v mig-mps; mig-mps --version",
    )
    .ended(0);
    assert_eq!(ran.stderr, "");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        ran.stdout,
        format!("install ok installed\n/usr/bin/mig-mps\nmig-mps {version}\n")
    );
    assert!(is_untouched());
}

#[test]
fn manual_pages_are_shown() {
    let Some(package) = package("manual_pages_are_shown", &["man"]) else {
        return;
    };
    let script = "for page in /usr/share/man/man1/mig-mps*; do man -l --warnings \"$page\" >/tmp/page; test -s /tmp/page; done
                  man mig-mps-up | cat";
    let ran = installed(package, script).ended(0);
    assert_eq!(ran.stderr, "");
    assert_contains(&ran.stdout, "NAME\n       mig-mps-up - Apply");
}

#[test]
fn shells_find_the_completions() {
    let Some(package) = package("shells_find_the_completions", &["bash", "zsh", "fish"]) else {
        return;
    };
    let ran = installed(
        package,
        "bash --norc -c 'source /usr/share/bash-completion/completions/mig-mps && complete -p mig-mps'
         zsh -f -c 'autoload -Uz compinit && compinit -u -D && echo $_comps[mig-mps]'
         export HOME=/tmp/fish; mkdir -p $HOME; fish --command 'complete --do-complete=\"mig-mps statu\"'",
    )
    .ended(0);
    assert_snapshot!(ran.stdout.replace('\t', "  "), @"
    complete -o nosort -F _mig_mps mig-mps
    _mig-mps
    status  Show MPS servers and their clients
    ");
    assert_eq!(ran.stderr, "");
}

#[test]
fn its_profiles_fit() {
    let Some(package) = package("its_profiles_fit", &[]) else {
        return;
    };
    let ran = installed(
        package,
        "mig-mps check --quiet --models /usr/share/mig-mps/profiles/*.toml",
    )
    .ended(0);
    assert_eq!(ran.stderr, "");
    assert_contains(&ran.stdout, "3g");
}

#[test]
fn systemd_takes_its_units_and_enables_none() {
    let test = "systemd_takes_its_units_and_enables_none";
    let Some(package) = package(test, &["systemctl", "systemd-analyze"]) else {
        return;
    };
    let ran = installed(
        package,
        "cd /usr/lib/systemd/system; systemd-analyze verify ./mig-mps*
         systemctl is-enabled mig-mps.service mig-mps-device-plugin.service mig-mps*.timer || true",
    )
    .ended(0);
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("disabled\n".repeat(5).as_str(), "")
    );
}

#[test]
fn the_units_of_the_package_are_used() {
    let Some(package) = package("the_units_of_the_package_are_used", &["systemctl"]) else {
        return;
    };
    let script = "exec 2>&1
        mig-mps systemd balanced --install --enable
        readlink -f /etc/systemd/system/multi-user.target.wants/mig-mps.service
        ls /etc/systemd/system | grep '^mig-mps' || echo 'no unit in /etc'
        mig-mps systemd balanced --uninstall
        systemctl is-enabled mig-mps.service || true
        ls /etc/mig-mps 2>/dev/null || echo 'no profile'";
    let ran = installed(package, script).ended(0);
    assert_snapshot!(ran.stdout, @"
    nvidia-cuda-mps-control is not in PATH: systemd looks for it in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    wrote /etc/mig-mps/profile.toml
    /usr/lib/systemd/system/mig-mps.service is up to date
    /usr/lib/systemd/system/mig-mps-heal.service is up to date
    /usr/lib/systemd/system/mig-mps-heal.timer is up to date
    enabled mig-mps.service and mig-mps-heal.timer
    systemctl start mig-mps applies the profile now, without a reboot
    /usr/lib/systemd/system/mig-mps.service
    no unit in /etc
    /usr/lib/systemd/system/mig-mps.service stays: a package has it
    /usr/lib/systemd/system/mig-mps-heal.service stays: a package has it
    /usr/lib/systemd/system/mig-mps-heal.timer stays: a package has it
    /usr/lib/systemd/system/mig-mps-metrics.service stays: a package has it
    /usr/lib/systemd/system/mig-mps-metrics.timer stays: a package has it
    /usr/lib/systemd/system/mig-mps-drift.service stays: a package has it
    /usr/lib/systemd/system/mig-mps-drift.timer stays: a package has it
    /usr/lib/systemd/system/mig-mps-device-plugin.service stays: a package has it
    removed /etc/mig-mps/profile.toml
    disabled
    no profile
    ");
}

#[test]
fn the_units_of_metrics_and_plugin_are_used_and_go_with_it() {
    let test = "the_units_of_metrics_and_plugin_are_used_and_go_with_it";
    let Some(package) = package(test, &["systemctl"]) else {
        return;
    };
    let script = "exec 2>&1
        mig-mps systemd balanced --install --enable --kubernetes --metrics /var/lib/prometheus/node-exporter 2>&1 | grep -v profile
        ls /etc/systemd/system | grep '^mig-mps' || echo 'no unit in /etc'
        systemctl is-enabled mig-mps-metrics.timer mig-mps-drift.timer mig-mps-device-plugin.service
        mig-mps-device-plugin --list
        dpkg --remove mig-mps >/dev/null
        ls /etc/systemd/system/*.wants 2>/dev/null | grep '^mig-mps' || echo 'no unit'";
    let ran = installed(package, script).ended(0);
    assert_snapshot!(ran.stdout, @"
    nvidia-cuda-mps-control is not in PATH: systemd looks for it in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    /usr/lib/systemd/system/mig-mps.service is up to date
    /usr/lib/systemd/system/mig-mps-heal.service is up to date
    /usr/lib/systemd/system/mig-mps-heal.timer is up to date
    /usr/lib/systemd/system/mig-mps-metrics.service is up to date
    /usr/lib/systemd/system/mig-mps-metrics.timer is up to date
    /usr/lib/systemd/system/mig-mps-drift.service is up to date
    /usr/lib/systemd/system/mig-mps-drift.timer is up to date
    /usr/lib/systemd/system/mig-mps-device-plugin.service is up to date
    enabled mig-mps.service, mig-mps-heal.timer, mig-mps-metrics.timer, mig-mps-drift.timer and mig-mps-device-plugin.service
    no unit in /etc
    enabled
    enabled
    enabled
    RESOURCE  DEVICE  SHARES  HEALTH
    no unit
    ");
}

#[test]
fn units_of_an_earlier_installation_stay_in_force() {
    let test = "units_of_an_earlier_installation_stay_in_force";
    let Some(package) = package(test, &["systemctl", "systemd-analyze"]) else {
        return;
    };
    // mig-mps was in /usr/local before.
    let script = "exec 2>&1
        cp /usr/bin/mig-mps /usr/local/bin/
        /usr/local/bin/mig-mps systemd balanced --install 2>/dev/null
        systemctl --quiet enable mig-mps.service
        dpkg --remove mig-mps >/dev/null
        systemctl is-enabled mig-mps.service
        cd /etc/systemd/system; systemd-analyze verify ./mig-mps.service
        grep ^ExecStart $PWD/mig-mps*.service";
    let ran = installed(package, script).ended(0);
    assert_snapshot!(ran.stdout, @"
    enabled
    /etc/systemd/system/mig-mps-heal.service:ExecStart=/usr/local/bin/mig-mps heal
    /etc/systemd/system/mig-mps.service:ExecStart=/usr/local/bin/mig-mps up /etc/mig-mps/profile.toml --yes --stop-holders --reset --keep-going
    ");
}

/// An upgrade replaces the program of a device plugin that runs on.
#[test]
fn an_upgrade_restarts_the_device_plugin() {
    let test = "an_upgrade_restarts_the_device_plugin";
    if !can_be_copied(test) {
        return;
    }
    let postinst = repository().join("src/features/systemd/deb/postinst");
    let calls = |version: &str| {
        let script = format!(
            "mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system /run/bin
             printf '#!/bin/sh\\necho \"$@\"\\n' >/run/bin/systemctl && chmod +x /run/bin/systemctl
             PATH=/run/bin:$PATH sh {} configure {version}",
            postinst.display()
        );
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        Ran::of(&mut command).ended(0).stdout
    };
    assert_eq!(calls(""), "daemon-reload\n");
    assert_eq!(
        calls("0.2.0-1"),
        "daemon-reload\ntry-restart mig-mps-device-plugin.service\n"
    );
}
