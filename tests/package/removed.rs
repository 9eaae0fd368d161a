//! A package that is replaced and removed while daemons run.

use insta::assert_snapshot;

use crate::package::packages::Packages;
use crate::package::system::{can_be_copied, in_copy_on, installed};
use testkit::{Sim, in_state, is_alive, tidy};

const DEVICES: &str =
    "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", count = 2 } ]\n";

fn packages(test: &str) -> Option<&'static Packages> {
    can_be_copied(test).then(|| Packages::get(test)).flatten()
}

#[test]
fn removing_it_stops_no_daemon_and_says_so() {
    let Some(packages) = packages("removing_it_stops_no_daemon_and_says_so") else {
        return;
    };
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(DEVICES);
    let script = format!(
        "dpkg --install $DEB >/dev/null
         mig-mps up {} --yes >/dev/null 2>&1
         mig-mps status --json >$HOME/before
         dpkg --install $DEB >/dev/null
         dpkg --remove mig-mps >/dev/null
         dpkg --purge mig-mps >/dev/null
         ls /var/log/mig-mps | wc -l
         dpkg --install $DEB >/dev/null
         mig-mps status --json",
        profile.display()
    );
    let ran = in_copy_on(&sim, packages, &script).ended(0);
    let pid = regex::Regex::new(r"(?m)  \d{2,}$").unwrap();
    assert_snapshot!(pid.replace_all(&tidy(&ran.stderr), "  N"), @"
    mig-mps: the devices stay as they are, and their daemons run on:
    NAME  PROFILE  STATE  CLIENTS  DAEMON
    0.0  3g.40gb  ready  0  N
    0.4  3g.40gb  ready  0  N
    mig-mps: to stop them, install mig-mps again before the next boot, and run mig-mps down
    ");
    let (logs, after) = ran.stdout.split_once('\n').unwrap();
    assert_eq!(logs, "2", "logs of running daemons stay");
    let after: serde_json::Value = serde_json::from_str(after).unwrap();
    let parent = sim.node.dir().parent().unwrap();
    let before = std::fs::read_to_string(parent.join("before")).unwrap();
    let before: serde_json::Value = serde_json::from_str(&before).unwrap();
    assert_eq!(in_state(&after, "ready"), ["0.0", "0.4"]);
    for (before, after) in [0, 1].map(|n| (&before["devices"][n], &after["devices"][n])) {
        assert_eq!(before["daemon_pid"], after["daemon_pid"]);
        assert!(is_alive(&after["daemon_pid"]));
    }
}

#[test]
fn without_daemons_it_goes_without_a_word() {
    let Some(packages) = packages("without_daemons_it_goes_without_a_word") else {
        return;
    };
    let script = "mkdir -p /var/log/mig-mps/x /var/lib/mig-mps
        mig-mps systemd balanced --install 2>/dev/null
        systemctl --quiet enable mig-mps.service mig-mps-heal.timer
        dpkg --remove mig-mps >/dev/null
        systemctl is-enabled mig-mps.service 2>&1 || true
        ls -d /var/log/mig-mps
        dpkg --purge mig-mps >/dev/null
        ls -d /var/log/mig-mps 2>/dev/null || echo 'no logs'
        ls /etc/mig-mps
        find /etc /run /usr /var -xdev -cnewer /tmp/began -path '*mig-mps*' -not -path '/etc/mig-mps*'";
    let ran = installed(packages, script).ended(0);
    assert_eq!(ran.stderr, "");
    assert_snapshot!(ran.stdout, @"
    Failed to get unit file state for mig-mps.service: No such file or directory
    /var/log/mig-mps
    no logs
    profile.toml
    ");
}
