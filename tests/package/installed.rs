//! Installed packages of Debian.

use insta::assert_snapshot;
use testkit::assert_contains;

use crate::package::packages::{Packages, VERSION, has};
use crate::package::system::{SYSTEMCTL_IS_SHOWN, can_be_copied, in_copy, installed, own_mig_mps};

/// Returns the packages if they and the programs that a test uses can be had.
fn packages(test: &str, programs: &[&str]) -> Option<&'static Packages> {
    let can = can_be_copied(test) && programs.iter().all(|program| has(test, program));
    can.then(|| Packages::get(test)).flatten()
}

#[test]
fn a_first_installation_says_what_comes_next() {
    let Some(packages) = packages("a_first_installation_says_what_comes_next", &[]) else {
        return;
    };
    let before = own_mig_mps();
    let script = "exec 2>&1
        dpkg --install $DEB $PLUGIN_DEB | grep mig-mps:
        dpkg-query --show --showformat='${Package} ${Status}\\n' 'mig-mps*'
        ls /usr/bin/mig-mps*
        mig-mps --version
        mount -t tmpfs tmpfs /proc/driver; mkdir /proc/driver/nvidia; touch /proc/driver/nvidia/version
        dpkg --purge mig-mps-device-plugin mig-mps >/dev/null
        dpkg --install $DEB | grep mig-mps:";
    let ran = in_copy(packages, script).ended(0);
    assert_snapshot!(ran.stdout.replace(VERSION, "VERSION"), @r#"
    mig-mps: no NVIDIA driver is loaded: install one, then run "sudo mig-mps doctor"; "mig-mps check balanced" needs no GPU
    mig-mps install ok installed
    mig-mps-device-plugin install ok installed
    /usr/bin/mig-mps
    /usr/bin/mig-mps-device-plugin
    mig-mps VERSION
    mig-mps: "sudo mig-mps doctor" checks driver, MIG and MPS, and "mig-mps init" writes a first profile
    "#);
    assert_eq!(own_mig_mps(), before);
}

/// As in a rescue shell, or in a root whose /run is the machine's.
#[test]
fn it_is_installed_where_systemd_does_not_answer() {
    let Some(packages) = packages("it_is_installed_where_systemd_does_not_answer", &[]) else {
        return;
    };
    let script = format!(
        "{SYSTEMCTL_IS_SHOWN}
        echo 'exit 1' >>/usr/bin/systemctl
        dpkg --install $DEB $PLUGIN_DEB >/dev/null
        dpkg-query --show --showformat='${{Package}} ${{Status}}\\n' 'mig-mps*'
        dpkg --remove mig-mps-device-plugin mig-mps >/dev/null"
    );
    let ran = in_copy(packages, &script).ended(0);
    assert_snapshot!(ran.stdout, @"
    mig-mps install ok installed
    mig-mps-device-plugin install ok installed
    ");
}

#[test]
fn manual_pages_are_shown() {
    let Some(packages) = packages("manual_pages_are_shown", &["man"]) else {
        return;
    };
    let script = "for page in /usr/share/man/man[157]/mig-mps*; do man -l --warnings \"$page\" >/tmp/page; test -s /tmp/page; done
                  man mig-mps-up | cat";
    let ran = installed(packages, script).ended(0);
    assert_eq!(ran.stderr, "");
    assert_contains(&ran.stdout, "NAME\n       mig-mps-up - Apply");
}

#[test]
fn shells_find_the_completions() {
    let Some(packages) = packages("shells_find_the_completions", &["bash", "zsh", "fish"]) else {
        return;
    };
    let ran = installed(
        packages,
        "bash --norc -c 'source /usr/share/bash-completion/completions/mig-mps && complete -p mig-mps'
         zsh -f -c 'autoload -Uz compinit && compinit -u -D && echo $_comps[mig-mps]'
         export HOME=/tmp/fish; mkdir -p $HOME; fish --command 'complete --do-complete=\"mig-mps statu\"'",
    )
    .ended(0);
    assert_snapshot!(ran.stdout.replace('\t', "  "), @"
    complete -o nosort -F _mig_mps mig-mps
    _mig-mps
    status  Show devices, their MPS servers and clients, and problems
    ");
    assert_eq!(ran.stderr, "");
}

#[test]
fn its_profiles_fit() {
    let Some(packages) = packages("its_profiles_fit", &[]) else {
        return;
    };
    let ran = installed(
        packages,
        "mig-mps check --quiet --models /usr/share/mig-mps/profiles/*.toml",
    )
    .ended(0);
    // It prints what does not fit.
    assert_eq!((ran.stdout.as_str(), ran.stderr.as_str()), ("", ""));
}

#[test]
fn systemd_takes_its_units_and_enables_none() {
    let test = "systemd_takes_its_units_and_enables_none";
    let Some(packages) = packages(test, &["systemctl", "systemd-analyze"]) else {
        return;
    };
    let ran = installed(
        packages,
        "dpkg --install $PLUGIN_DEB >/dev/null
         cd /usr/lib/systemd/system; systemd-analyze verify ./mig-mps*
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
    let Some(packages) = packages("the_units_of_the_package_are_used", &["systemctl"]) else {
        return;
    };
    let script = "exec 2>&1
        mig-mps systemd balanced --install --enable
        readlink -f /etc/systemd/system/multi-user.target.wants/mig-mps.service
        ls /etc/systemd/system | grep '^mig-mps' || echo 'no unit in /etc'
        mig-mps systemd balanced --uninstall
        systemctl is-enabled mig-mps.service || true
        ls /etc/mig-mps 2>/dev/null || echo 'no profile'";
    let ran = installed(packages, script).ended(0);
    assert_snapshot!(ran.stdout, @"
    warning: nvidia-cuda-mps-control is not in PATH; systemd looks for it in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
    wrote /etc/mig-mps/profile.toml
    /usr/lib/systemd/system/mig-mps.service is up to date
    /usr/lib/systemd/system/mig-mps-heal.service is up to date
    /usr/lib/systemd/system/mig-mps-heal.timer is up to date
    enabled mig-mps.service and mig-mps-heal.timer
    note: run `systemctl start mig-mps` to apply the profile now, without a reboot
    /usr/lib/systemd/system/mig-mps.service
    no unit in /etc
    /usr/lib/systemd/system/mig-mps.service remains, because it belongs to a package
    /usr/lib/systemd/system/mig-mps-heal.service remains, because it belongs to a package
    /usr/lib/systemd/system/mig-mps-heal.timer remains, because it belongs to a package
    /usr/lib/systemd/system/mig-mps-metrics.service remains, because it belongs to a package
    /usr/lib/systemd/system/mig-mps-metrics.timer remains, because it belongs to a package
    /usr/lib/systemd/system/mig-mps-drift.service remains, because it belongs to a package
    /usr/lib/systemd/system/mig-mps-drift.timer remains, because it belongs to a package
    removed /etc/mig-mps/profile.toml
    disabled
    no profile
    ");
}

#[test]
fn the_units_of_metrics_and_plugin_are_used_and_go_with_it() {
    let test = "the_units_of_metrics_and_plugin_are_used_and_go_with_it";
    let Some(packages) = packages(test, &["systemctl"]) else {
        return;
    };
    let script = "exec 2>&1
        mig-mps systemd balanced --install --kubernetes || true
        dpkg --install $PLUGIN_DEB >/dev/null
        mig-mps systemd balanced --install --enable --kubernetes --metrics /var/lib/prometheus/node-exporter 2>&1 | grep -v profile
        ls /etc/systemd/system | grep '^mig-mps' || echo 'no unit in /etc'
        systemctl is-enabled mig-mps-metrics.timer mig-mps-drift.timer mig-mps-device-plugin.service
        mig-mps-device-plugin --list
        dpkg --remove mig-mps-device-plugin >/dev/null
        ls /etc/systemd/system/multi-user.target.wants | grep mig-mps
        systemctl is-enabled mig-mps-drift.timer
        dpkg --remove mig-mps >/dev/null
        ls /etc/systemd/system/*.wants 2>/dev/null | grep '^mig-mps' || echo 'no unit'";
    let ran = installed(packages, script).ended(0);
    assert_snapshot!(ran.stdout, @"
    error: /usr/bin/mig-mps-device-plugin does not exist
    hint: install the package mig-mps-device-plugin of the same version
    warning: nvidia-cuda-mps-control is not in PATH; systemd looks for it in /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
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
    mig-mps.service
    enabled
    no unit
    ");
}

#[test]
fn units_of_an_earlier_installation_stay_in_force() {
    let test = "units_of_an_earlier_installation_stay_in_force";
    let Some(packages) = packages(test, &["systemctl", "systemd-analyze"]) else {
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
    let ran = installed(packages, script).ended(0);
    assert_snapshot!(ran.stdout, @"
    enabled
    /etc/systemd/system/mig-mps-heal.service:ExecStart=/usr/local/bin/mig-mps heal
    /etc/systemd/system/mig-mps.service:ExecStart=/usr/local/bin/mig-mps up /etc/mig-mps/profile.toml --yes --stop-holders --reset --keep-going
    ");
}
