//! The units by which systemd applies a profile at boot and heals daemons, and their files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::host::{Directory, Host, OwnFile, in_path};

/// The first line of a unit that mig-mps wrote.
pub const WRITTEN: &str = "# Written by mig-mps systemd, which replaces and removes it.";

/// The first line of a unit that a package installs.
pub const PACKAGED: &str =
    "# From the package mig-mps; a unit of this name in /etc/systemd/system replaces it.";

/// The service that applies a profile at boot.
pub const SERVICE: &str = "mig-mps.service";
/// The timer of `heal`.
pub const HEAL_TIMER: &str = "mig-mps-heal.timer";
/// The service that the timer starts.
const HEAL_SERVICE: &str = "mig-mps-heal.service";

/// The time that clients get to exit when the service stops, in seconds.
const DRAIN: u32 = 60;

/// A unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitFile {
    pub name: &'static str,
    pub text: String,
}

/// Returns the units that run `program` with `profile`, with `mark` as their first line.
pub fn unit_files(mark: &str, program: &Path, profile: &Path) -> [UnitFile; 3] {
    let heal = format!(
        "\
[Unit]
Description=Start MPS daemons that died, and cure devices that hang
After={SERVICE}

[Service]
Type=oneshot
ExecStart={program} heal
TimeoutStartSec=5min
LimitNOFILE=524288
",
        program = word(program)
    );
    [
        (SERVICE, service(program, profile)),
        (HEAL_SERVICE, heal),
        (HEAL_TIMER, TIMER.to_owned()),
    ]
    .map(|(name, text)| UnitFile {
        name,
        text: format!("{mark}\n{text}"),
    })
}

/// The service needs its drain to stop, and the time that a node full of daemons takes.
fn service(program: &Path, profile: &Path) -> String {
    format!(
        "\
[Unit]
Description=MIG partitions and MPS daemons
ConditionPathExists={condition}
After=nvidia-persistenced.service nvidia-fabricmanager.service
Before=slurmd.service docker.service containerd.service kubelet.service nvidia-dcgm.service

# Without a sandbox: the daemons would inherit it.
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={program} up {profile} --yes --stop-holders --reset
ExecReload={program} up {profile} --yes
ExecStop={program} down --yes --drain {DRAIN} --force
TimeoutStartSec=15min
TimeoutStopSec={stop_limit}
LimitNOFILE=524288

[Install]
WantedBy=multi-user.target
",
        condition = profile.display().to_string().replace('%', "%%"),
        program = word(program),
        profile = word(profile),
        stop_limit = DRAIN + 120,
    )
}

const TIMER: &str = "\
[Unit]
Description=Heal MPS daemons every minute

[Timer]
OnBootSec=1min
OnUnitInactiveSec=1min
AccuracySec=5s

[Install]
WantedBy=timers.target
";

/// Quotes a path for a command line of systemd, which has variables and specifiers.
fn word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._+-".contains(c));
    if is_plain {
        return text;
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                let _ = write!(quoted, "\\{c}");
            }
            '%' | '$' => {
                let _ = write!(quoted, "{c}{c}");
            }
            _ => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// The files of an installation, in two directories of the administrator, and the units of a package.
pub struct UnitFiles<'a>(pub &'a Host);

impl UnitFiles<'_> {
    /// Returns the unit of this name.
    pub fn unit(&self, name: &'static str) -> OwnFile {
        OwnFile {
            directory: self.0.below("/etc/systemd/system"),
            name,
            is_ours: |text| text.starts_with(WRITTEN),
        }
    }

    /// Returns the path of the unit of that name that a package has installed.
    pub fn packaged(&self, name: &str) -> Option<PathBuf> {
        let path = self.0.below("/usr/lib/systemd/system").join(name);
        path.exists().then_some(path)
    }

    /// Returns the path of a package's unit if it does the same and is in force.
    pub fn same_packaged(&self, unit: &UnitFile) -> Option<PathBuf> {
        let path = self.packaged(unit.name)?;
        let theirs = fs::read_to_string(&path).ok()?;
        let is_same = after_mark(&theirs) == after_mark(&unit.text);
        (is_same && !self.unit(unit.name).path().exists()).then_some(path)
    }

    /// Returns the profile that is applied at boot.
    pub fn profile(&self) -> OwnFile {
        OwnFile {
            directory: self.0.below("/etc/mig-mps"),
            name: "profile.toml",
            is_ours: |_| true,
        }
    }

    /// Fails if a file of an installation is not one of mig-mps, or is another profile. Changes nothing.
    pub fn check(&self, units: &[UnitFile], profile: &str) -> io::Result<()> {
        self.check_profile(profile)?;
        units
            .iter()
            .try_for_each(|unit| self.unit(unit.name).check())
    }

    /// Writes the profile; returns false if it was there already. Refuses to replace another one, which is the
    /// administrator's.
    pub fn write_profile(&self, text: &str) -> io::Result<bool> {
        self.check_profile(text)?;
        self.profile().write(text)
    }

    /// Removes the profile if it is this one, and the directory if that is then empty; returns true if it did, false if
    /// another profile stays, and `None` if there is none.
    pub fn remove_profile(&self, text: Option<&str>) -> io::Result<Option<bool>> {
        let Some(before) = self.profile().read()? else {
            return Ok(None);
        };
        if text != Some(before.as_str()) {
            return Ok(Some(false));
        }
        self.profile().remove()?;
        let directory = self.0.below("/etc/mig-mps");
        if let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) {
            Directory::open(parent)?.remove_dir_if_empty(name)?;
        }
        Ok(Some(true))
    }

    /// Fails if there is another profile.
    fn check_profile(&self, text: &str) -> io::Result<()> {
        match self.profile().read()? {
            Some(before) if before != text => {
                let error = io::Error::new(io::ErrorKind::AlreadyExists, "it is another profile");
                Err(in_path(&self.profile().path(), &error))
            }
            _ => Ok(()),
        }
    }
}

/// The text of a unit after its first line, which says where it is from.
fn after_mark(text: &str) -> Option<&str> {
    Some(text.split_once('\n')?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_blanks_and_specifiers_is_quoted() {
        assert_eq!(word(Path::new("/usr/bin/mig-mps")), "/usr/bin/mig-mps");
        assert_eq!(word(Path::new("/a b/100%$\"")), r#""/a b/100%%$$\"""#);
    }
}
