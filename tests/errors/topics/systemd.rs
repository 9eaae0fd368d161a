//! `mig-mps systemd`.

use std::fs;

use crate::errors::book::Topic;
use crate::errors::stage::{Stage, WHOLE, as_nobody};

pub(crate) fn play(topic: &mut Topic) {
    let stage = Stage::with("h200", 1);
    stage.profile(WHOLE);
    let install = "mig-mps systemd profile.toml --install";
    stage.show_raw(topic, "Not root", install, as_nobody);
    let etc = stage.sim.node.dir().join("root/etc");
    fs::create_dir_all(etc.join("mig-mps")).unwrap();
    fs::write(etc.join("mig-mps/profile.toml"), "# mine\n").unwrap();
    stage.show(topic, "Another profile is installed", install);
    fs::remove_dir_all(etc.join("mig-mps")).unwrap();
    fs::write(etc.join("mig-mps"), "").unwrap();
    stage.show(topic, "The profile cannot be copied", install);
    fs::remove_file(etc.join("mig-mps")).unwrap();
    let units = etc.join("systemd/system");
    fs::create_dir_all(units.join("mig-mps.service")).unwrap();
    stage.show(topic, "The unit cannot be written", install);
    fs::remove_dir(units.join("mig-mps.service")).unwrap();
    fs::write(units.join("mig-mps.service"), "[Service]\n").unwrap();
    stage.show(topic, "A unit of somebody else", install);
    fs::remove_file(units.join("mig-mps.service")).unwrap();
    let _ = stage.run(install).ended(0);
    let uninstall = "mig-mps systemd --uninstall";
    stage.show(
        topic,
        "systemctl is not in PATH",
        &format!("unset MIG_MPS_SYSTEMCTL; PATH=${{PATH%%:*}} {uninstall}"),
    );
    let timer = units.join("mig-mps-heal.timer");
    fs::remove_file(&timer).unwrap();
    fs::create_dir(&timer).unwrap();
    stage.show(topic, "The unit cannot be removed", uninstall);
    fs::remove_dir(&timer).unwrap();
    stage.file("taken", "");
    stage.show(
        topic,
        "The directory of a package cannot be made",
        "mig-mps systemd --package taken/units",
    );
    let own = stage.sim.node.dir().join("own");
    fs::create_dir(&own).unwrap();
    let program = own.join("mig-mps");
    testkit::copy_program(stage.sim.node.mig_mps().get_program(), &program);
    std::os::unix::fs::chown(&program, Some(65534), None).unwrap();
    stage.show(
        topic,
        "A program that another user can change",
        "own/mig-mps systemd profile.toml --install",
    );
}
