//! The tarball and its script.

use insta::assert_snapshot;

use crate::package::packages::{EARLIER, Packages, VERSION, has};
use crate::package::system::{SYSTEMCTL_IS_SHOWN, can_be_copied, in_copy_with_earlier};

fn packages(test: &str, programs: &[&str]) -> Option<&'static Packages> {
    let can = can_be_copied(test) && programs.iter().all(|program| has(test, program));
    can.then(|| Packages::get(test)).flatten()
}

#[test]
fn it_is_installed_upgraded_and_removed() {
    let test = "it_is_installed_upgraded_and_removed";
    let Some(packages) = packages(test, &["systemctl", "man", "zsh"]) else {
        return;
    };
    let script = format!(
        "exec 2>&1 </dev/null
        cd /tmp; tar -xzf $EARLIER_TARBALL; tar -xzf $TARBALL
        find /usr/local -type f -o -type l | sort >before
        umask 077
        mig-mps-{EARLIER}*/install.sh
        find /usr/local/share/mig-mps -type d ! -perm 755
        mig-mps --version
        {SYSTEMCTL_IS_SHOWN}
        mig-mps-{VERSION}*/install.sh
        mig-mps --version
        mig-mps-device-plugin --list
        man mig-mps-up | grep -c 'mig-mps-up - Apply'
        zsh -f -c 'autoload -Uz compinit && compinit -u -D && echo $_comps[mig-mps]'
        mig-mps systemd balanced --install 2>&1 | tail -n 1
        mig-mps-{VERSION}*/install.sh --uninstall || true
        mig-mps systemd --uninstall >/dev/null 2>&1
        mig-mps-{VERSION}*/install.sh --uninstall
        find /usr/local -type f -o -type l | sort | diff before -
        find /etc /run /usr /var/lib /var/log -xdev -cnewer /tmp/began -path '*mig-mps*'"
    );
    let ran = in_copy_with_earlier(packages, &script).ended(0);
    assert_snapshot!(ran.stdout.replace(VERSION, "VERSION"), @r#"
    mig-mps: no NVIDIA driver is loaded: install one, then run "sudo mig-mps doctor"; "mig-mps check balanced" needs no GPU
    earlier
    systemctl try-restart mig-mps-device-plugin.service
    mig-mps VERSION
    RESOURCE  DEVICE  SHARES  HEALTH
    1
    _mig-mps
    note: run `systemctl enable mig-mps.service mig-mps-heal.timer` to enable the units
    error: units in /etc/systemd/system run /usr/local/bin/mig-mps
    hint: run /usr/local/bin/mig-mps systemd --uninstall first
    /etc/mig-mps
    /etc/mig-mps/profile.toml
    "#);
}

#[test]
fn a_plain_user_installs_in_her_own_directory() {
    let Some(packages) = packages("a_plain_user_installs_in_her_own_directory", &["setpriv"])
    else {
        return;
    };
    let script = format!(
        "exec 2>&1 </dev/null
        cd /tmp; tar -xzf $TARBALL
        mkdir own; chown nobody own
        as='setpriv --reuid nobody --regid nogroup --clear-groups'
        {SYSTEMCTL_IS_SHOWN}
        $as mig-mps-{VERSION}*/install.sh /tmp/own/a/b
        /tmp/own/a/b/bin/mig-mps --version
        $as mig-mps-{VERSION}*/install.sh --uninstall /tmp/own/a/b
        find own -type f
        chmod a-x mig-mps-{VERSION}*/bin/*
        sh mig-mps-{VERSION}*/install.sh /tmp/own/c >/dev/null; /tmp/own/c/bin/mig-mps --version
        $as mig-mps-{VERSION}*/install.sh || true
        mig-mps-{VERSION}*/install.sh here || true
        mig-mps-{VERSION}*/install.sh /a /b || true"
    );
    let ran = in_copy_with_earlier(packages, &script).ended(0);
    assert_snapshot!(ran.stdout.replace(VERSION, "VERSION"), @r#"
    mig-mps: no NVIDIA driver is loaded: install one, then run "sudo mig-mps doctor"; "mig-mps check balanced" needs no GPU
    mig-mps VERSION
    mig-mps VERSION
    error: cannot write to /usr/local
    hint: run the command as root, or name a directory of yours
    error: expected the absolute path of a directory instead of here
    hint: ./install.sh [--uninstall] [PREFIX]
    error: expected the absolute path of a directory instead of /a /b
    hint: ./install.sh [--uninstall] [PREFIX]
    "#);
}
