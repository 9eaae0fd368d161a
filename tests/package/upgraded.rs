//! Packages of Debian that replace an earlier version.

use insta::assert_snapshot;

use crate::package::packages::{EARLIER, Packages, VERSION, has};
use crate::package::system::{SYSTEMCTL_IS_SHOWN, can_be_copied, in_copy_with_earlier};

fn packages(test: &str, programs: &[&str]) -> Option<&'static Packages> {
    let can = can_be_copied(test) && programs.iter().all(|program| has(test, program));
    can.then(|| Packages::get(test)).flatten()
}

/// The device plugin is the one of these programs that runs on.
#[test]
fn an_upgrade_restarts_the_device_plugin_and_keeps_what_is_enabled() {
    let test = "an_upgrade_restarts_the_device_plugin_and_keeps_what_is_enabled";
    let Some(packages) = packages(test, &["systemctl"]) else {
        return;
    };
    let script = format!(
        "exec 2>&1
        dpkg --install $EARLIER_DEB $EARLIER_PLUGIN_DEB >/dev/null
        mig-mps --version
        systemctl --quiet enable mig-mps.service mig-mps-device-plugin.service
        {SYSTEMCTL_IS_SHOWN}
        dpkg --install $DEB $PLUGIN_DEB | grep -v '^(Reading\\|^Preparing\\|^Unpacking\\|^Setting'
        mig-mps --version
        readlink /etc/systemd/system/multi-user.target.wants/mig-mps*"
    );
    let ran = in_copy_with_earlier(packages, &script).ended(0);
    assert_snapshot!(ran.stdout.replace(VERSION, "VERSION"), @"
    earlier
    systemctl daemon-reload
    systemctl daemon-reload
    systemctl daemon-reload
    systemctl daemon-reload
    systemctl try-restart mig-mps-device-plugin.service
    mig-mps VERSION
    /lib/systemd/system/mig-mps-device-plugin.service
    /lib/systemd/system/mig-mps.service
    ");
}

#[test]
fn the_plugin_is_of_the_same_version() {
    let test = "the_plugin_is_of_the_same_version";
    let Some(packages) = packages(test, &[]) else {
        return;
    };
    let script = "exec 2>&1
        dpkg --install $EARLIER_DEB >/dev/null
        dpkg --install $PLUGIN_DEB >/dev/null || dpkg-query --show --showformat='${Package} ${Status}\\n' 'mig-mps*'";
    let ran = in_copy_with_earlier(packages, script).ended(0);
    let said = ran
        .stdout
        .replace(VERSION, "VERSION")
        .replace(EARLIER, "EARLIER");
    assert_snapshot!(said, @"
    dpkg: dependency problems prevent configuration of mig-mps-device-plugin:
     mig-mps-device-plugin depends on mig-mps (= VERSION-1); however:
      Version of mig-mps on system is EARLIER-1.

    dpkg: error processing package mig-mps-device-plugin (--install):
     dependency problems - leaving unconfigured
    Errors were encountered while processing:
     mig-mps-device-plugin
    mig-mps install ok installed
    mig-mps-device-plugin install ok unpacked
    ");
}
