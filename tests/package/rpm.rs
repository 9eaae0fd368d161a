//! The RPM packages, in a copy of this system whose rpm knows no other package. It is Debian's, so the libraries that the
//! programs need come from a package of the test.

use std::env;

use insta::assert_snapshot;

use crate::package::packages::{Packages, VERSION, has};
use crate::package::system::{
    SYSTEMCTL_IS_SHOWN, can_be_copied, in_copy, in_copy_on, in_copy_with_earlier,
};
use testkit::{Sim, tidy};

fn packages(test: &str, programs: &[&str]) -> Option<&'static Packages> {
    let can = can_be_copied(test)
        && ["rpm", "rpmbuild"]
            .iter()
            .chain(programs)
            .all(|program| has(test, program));
    can.then(|| Packages::get(test)).flatten()
}

/// Makes and installs a package that provides what this system has and mig-mps needs, as glibc's package and that of the shell do
/// where packages are RPMs.
const LIBRARIES: &str = r#"
rpm() { command rpm --force-debian "$@"; }
{
    printf '%s\n' 'Name: libraries' 'Version: 1' 'Release: 1' 'Summary: Libraries' 'License: none' 'BuildArch: noarch'
    echo 'Provides: /bin/sh'
    for rpm in $RPM $PLUGIN_RPM; do rpm -qp --requires $rpm; done | grep '^lib\|^ld-\|^rtld' | sort -u | sed 's/^/Provides: /'
    printf '%s\n' '%description' 'Libraries.' '%files'
} >/tmp/libraries.spec
rpmbuild --quiet -bb --define '_topdir /tmp/rpmbuild' /tmp/libraries.spec >/dev/null
rpm --install /tmp/rpmbuild/RPMS/noarch/libraries-1-1.noarch.rpm
"#;

fn without_version(text: &str) -> String {
    let text = text.replace(VERSION, "VERSION");
    text.replace(&format!(".{}\n", env::consts::ARCH), ".ARCH\n")
}

#[test]
fn it_is_installed_used_and_removed() {
    let test = "it_is_installed_used_and_removed";
    let Some(packages) = packages(test, &["systemctl", "systemd-analyze", "man"]) else {
        return;
    };
    let script = format!(
        "exec 2>&1
        rpm --force-debian --install $RPM 2>&1 | grep -o 'libc.so.6(GLIBC_2.17)'
        {LIBRARIES}
        rpm --install $PLUGIN_RPM || true
        rpm --install $RPM $PLUGIN_RPM
        rpm --verify mig-mps mig-mps-device-plugin
        mig-mps --version
        man mig-mps-up | grep -c 'mig-mps-up - Apply'
        zsh -f -c 'fpath+=/usr/share/zsh/site-functions; autoload -Uz compinit && compinit -u -D && echo $_comps[mig-mps]'
        (cd /usr/lib/systemd/system; systemd-analyze verify ./mig-mps*)
        mig-mps systemd balanced --install --enable --kubernetes 2>&1 | tail -n 2
        mkdir -p /var/log/mig-mps/x
        rpm --erase mig-mps || true
        rpm --erase mig-mps-device-plugin
        systemctl is-enabled mig-mps.service
        rpm --erase mig-mps
        find /etc /run /usr /var/lib /var/log -xdev -cnewer /tmp/began -path '*mig-mps*'"
    );
    let ran = in_copy(packages, &script).ended(0);
    assert_snapshot!(without_version(&ran.stdout), @r#"
    libc.so.6(GLIBC_2.17)
    error: Failed dependencies:
    	mig-mps = VERSION-1 is needed by mig-mps-device-plugin-VERSION-1.ARCH
    mig-mps: no NVIDIA driver is loaded: install one, then run "sudo mig-mps doctor"; "mig-mps check balanced" needs no GPU
    mig-mps VERSION
    1
    _mig-mps
    enabled mig-mps.service, mig-mps-heal.timer and mig-mps-device-plugin.service
    note: run `systemctl start mig-mps` to apply the profile now, without a reboot
    error: Failed dependencies:
    	mig-mps = VERSION-1 is needed by (installed) mig-mps-device-plugin-VERSION-1.ARCH
    enabled
    /etc/mig-mps
    /etc/mig-mps/profile.toml
    /var/log/mig-mps
    /var/log/mig-mps/x
    "#);
}

#[test]
fn an_upgrade_restarts_the_device_plugin_and_keeps_what_is_enabled() {
    let test = "rpm::an_upgrade_restarts_the_device_plugin_and_keeps_what_is_enabled";
    let Some(packages) = packages(test, &["systemctl"]) else {
        return;
    };
    let script = format!(
        "exec 2>&1
        {LIBRARIES}
        rpm --install $EARLIER_RPM $EARLIER_PLUGIN_RPM
        mig-mps --version
        systemctl --quiet enable mig-mps.service mig-mps-device-plugin.service
        {SYSTEMCTL_IS_SHOWN}
        rpm --upgrade $RPM || true
        rpm --upgrade $RPM $PLUGIN_RPM
        mig-mps --version
        readlink /etc/systemd/system/multi-user.target.wants/mig-mps*"
    );
    let ran = in_copy_with_earlier(packages, &script).ended(0);
    assert_snapshot!(without_version(&ran.stdout), @r#"
    mig-mps: no NVIDIA driver is loaded: install one, then run "sudo mig-mps doctor"; "mig-mps check balanced" needs no GPU
    earlier
    error: Failed dependencies:
    	mig-mps = 0.1.9-1 is needed by (installed) mig-mps-device-plugin-0.1.9-1.ARCH
    systemctl daemon-reload
    systemctl daemon-reload
    systemctl try-restart mig-mps-device-plugin.service
    systemctl daemon-reload
    systemctl daemon-reload
    mig-mps VERSION
    /lib/systemd/system/mig-mps-device-plugin.service
    /lib/systemd/system/mig-mps.service
    "#);
}

#[test]
fn removing_it_stops_no_daemon_and_says_so() {
    let Some(packages) = packages("rpm::removing_it_stops_no_daemon_and_says_so", &[]) else {
        return;
    };
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n",
    );
    let script = format!(
        "{LIBRARIES}
         rpm --install $RPM >/dev/null
         mig-mps up {} --yes >/dev/null 2>&1
         rpm --erase mig-mps
         rpm --install $RPM >/dev/null
         mig-mps status --columns name,state,daemon",
        profile.display()
    );
    let ran = in_copy_on(&sim, packages, &script).ended(0);
    let pid = regex::Regex::new(r"(?m)  \d{2,}$").unwrap();
    let said = format!("{}---\n{}", tidy(&ran.stderr), tidy(&ran.stdout));
    assert_snapshot!(pid.replace_all(&said, "  N"), @"
    mig-mps: the devices stay as they are, and their daemons run on:
    NAME  PROFILE  STATE  CLIENTS  DAEMON
    0.0  3g.40gb  ready  0  N
    0.4  3g.40gb  ready  0  N
    mig-mps: to stop them, install mig-mps again before the next boot, and run mig-mps down
    ---
    NAME  STATE  DAEMON
    0.0  ready  N
    0.4  ready  N
    ");
}

/// The same by the package of Debian and by the tarball's script.
#[test]
fn a_host_of_a_pod_refuses_another_mig_mps() {
    let test = "a_host_of_a_pod_refuses_another_mig_mps";
    let Some(packages) = packages(test, &["systemctl"]) else {
        return;
    };
    let script = format!(
        "exec 2>&1
        {LIBRARIES}
        mkdir -p /etc/mig-mps
        echo \"# Written by the pod of mig-mps on this node, which replaces it: change the pod's profile.\" >/etc/mig-mps/profile.toml
        rpm --install $RPM || echo $?
        dpkg --install $DEB | grep -v '^(\\|Selecting\\|Preparing\\|Unpacking' || true
        tar -xzf $TARBALL -C /tmp; /tmp/mig-mps-*/install.sh || echo $?
        ls /usr/bin/mig-mps /usr/local/bin/mig-mps 2>/dev/null || rm /etc/mig-mps/profile.toml
        rpm --install $RPM && mig-mps --version"
    );
    let ran = in_copy(packages, &script).ended(0);
    let said = ran.stdout.lines().filter(|line| {
        line.contains("mig-mps: ") || line.contains(": a pod") || line.starts_with("hint")
    });
    let said: Vec<&str> = said.collect();
    assert_snapshot!(said.join("\n"), @r#"
    mig-mps: a pod of Kubernetes has installed mig-mps on this host, in /opt/mig-mps. To install the package, delete
    mig-mps: the DaemonSet (kubectl delete namespace mig-mps), then run /opt/mig-mps/bin/mig-mps systemd --uninstall
    mig-mps: a pod of Kubernetes has installed mig-mps on this host, in /opt/mig-mps. To install the package, delete
    mig-mps: the DaemonSet (kubectl delete namespace mig-mps), then run /opt/mig-mps/bin/mig-mps systemd --uninstall
    error: a pod of Kubernetes has installed mig-mps on this host, in /opt/mig-mps
    hint: delete its DaemonSet (`kubectl delete namespace mig-mps`), then run `/opt/mig-mps/bin/mig-mps systemd --uninstall`
    mig-mps: no NVIDIA driver is loaded: install one, then run "sudo mig-mps doctor"; "mig-mps check balanced" needs no GPU
    "#);
}
