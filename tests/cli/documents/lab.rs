//! Alice, bob and carol, who have accounts only where a command of these tests looks for them.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::{Sim, in_mount_namespace, under};

/// The users of the lab, with their uids.
const USERS: [(&str, u32); 3] = [("alice", 61001), ("bob", 61002), ("carol", 61003)];

/// The group of alice and carol.
const STUDENTS: &str = "students:x:61100:alice,carol\n";

/// The accounts of the lab, as files that take the place of the machine's.
pub(crate) struct Lab {
    dir: PathBuf,
}

impl Lab {
    pub(crate) fn of(sim: &Sim) -> Self {
        let dir = sim.node.dir().join("lab");
        fs::create_dir(&dir).unwrap();
        let (mut passwd, mut group) = (String::new(), STUDENTS.to_owned());
        for (name, uid) in USERS {
            let home = dir.join(name);
            fs::create_dir(&home).unwrap();
            chown(&home, Some(uid), Some(uid)).unwrap();
            let _ = writeln!(passwd, "{name}:x:{uid}:{uid}::{}:/bin/sh", home.display());
            let _ = writeln!(group, "{name}:x:{uid}:");
        }
        // The first of two accounts with a name is the one that programs find.
        for (file, text) in [("passwd", passwd), ("group", group)] {
            let machines = fs::read_to_string(Path::new("/etc").join(file)).unwrap();
            fs::write(dir.join(file), text + &machines).unwrap();
        }
        let services = "passwd: files\ngroup: files\ninitgroups: files\n";
        fs::write(dir.join("nsswitch.conf"), services).unwrap();
        Self { dir }
    }

    /// The home directory of a user.
    pub(crate) fn home(&self, user: &str) -> PathBuf {
        self.dir.join(user)
    }

    /// Writes a file in the home directory of a user.
    pub(crate) fn prepare(&self, user: &str, name: &str, text: &str) {
        let path = self.home(user).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Writes a file that takes the place of one in `/etc`.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).unwrap();
    }

    /// The command with the files of the lab in a mount namespace.
    pub(crate) fn inside(&self, command: &Command) -> Command {
        let script = format!(
            "cd {}; for file in *; do [ -d $file ] || mount --bind $file /etc/$file; done",
            self.dir.display()
        );
        in_mount_namespace(&script, command)
    }

    /// The command by a user of the lab; or by root, as a member of the group.
    pub(crate) fn by(&self, user: &str, command: &Command) -> Command {
        if user == "root" {
            let students = ["setpriv", "--groups", "61100", "--"];
            return self.inside(&under(&students, command));
        }
        let (_, uid) = USERS.iter().find(|(name, _)| *name == user).unwrap();
        let uid = uid.to_string();
        let becomes = [
            "setpriv",
            "--reuid",
            &uid,
            "--regid",
            &uid,
            "--init-groups",
            "--",
        ];
        self.inside(&under(&becomes, command))
    }
}
