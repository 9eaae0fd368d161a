//! The units by which systemd applies a profile at boot and heals daemons, and their files.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::host::{Directory, Host, in_path, in_the_way};

/// The first line of a unit that mig-mps wrote.
pub const WRITTEN: &str = "# Written by mig-mps systemd, which replaces and removes it.";

/// The first line of a unit that a package installs.
const PACKAGED: &str =
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

impl UnitFile {
    fn written(name: &'static str, text: &str) -> Self {
        Self {
            name,
            text: format!("{WRITTEN}\n{text}"),
        }
    }

    /// Returns the same unit for a package.
    pub fn packaged(&self) -> Self {
        Self {
            name: self.name,
            text: self.text.replacen(WRITTEN, PACKAGED, 1),
        }
    }
}

/// Returns the units that run `program` with `profile`.
pub fn unit_files(program: &Path, profile: &Path) -> [UnitFile; 3] {
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
        UnitFile::written(SERVICE, &service(program, profile)),
        UnitFile::written(HEAL_SERVICE, &heal),
        UnitFile::written(HEAL_TIMER, TIMER),
    ]
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

const PROFILE: &str = "profile.toml";
const PUBLIC: u32 = 0o644;

/// The files of an installation, in two directories of the administrator, and the units of a package.
#[derive(Debug)]
pub struct UnitFiles {
    units: PathBuf,
    packaged: PathBuf,
    settings: PathBuf,
    /// The first line of our units, by which they are recognised.
    mark: &'static str,
}

impl UnitFiles {
    /// Returns the files of units that begin with this line.
    pub fn of(host: &Host, mark: &'static str) -> Self {
        Self {
            units: host.units_dir(),
            packaged: host.packaged_units_dir(),
            settings: host.settings_dir(),
            mark,
        }
    }

    /// Returns the path of a unit.
    pub fn unit(&self, name: &str) -> PathBuf {
        self.units.join(name)
    }

    /// Returns the path of the unit of that name that a package has installed.
    pub fn packaged(&self, name: &str) -> Option<PathBuf> {
        let path = self.packaged.join(name);
        path.exists().then_some(path)
    }

    /// Returns the path of a package's unit if it does the same and is in force.
    pub fn same_packaged(&self, name: &str, text: &str) -> Option<PathBuf> {
        let path = self.packaged(name)?;
        let theirs = fs::read_to_string(&path).ok()?;
        let is_same = after_mark(&theirs) == after_mark(text);
        (is_same && !self.unit(name).exists()).then_some(path)
    }

    /// Returns the path of the profile that is applied at boot.
    pub fn profile(&self) -> PathBuf {
        self.settings.join(PROFILE)
    }

    /// Fails if a file of an installation is not one of mig-mps, or is another profile. Changes nothing.
    pub fn check(&self, units: &[&str], profile: &str) -> io::Result<()> {
        if let Some(directory) = open(&self.settings)? {
            self.has_profile(&directory, profile)?;
        }
        if let Some(directory) = open(&self.units)? {
            for name in units {
                self.read_ours(&directory, name)?;
            }
        }
        Ok(())
    }

    /// Writes a unit; returns false if it was there already. Refuses to replace one that mig-mps did not write.
    pub fn write_unit(&self, name: &str, text: &str) -> io::Result<bool> {
        let directory = Directory::make(&self.units, 0o755)?;
        let before = self.read_ours(&directory, name)?;
        if before.as_deref() == Some(text) {
            return Ok(false);
        }
        directory.replace_file(name, &half_made(name), text.as_bytes(), PUBLIC)?;
        Ok(true)
    }

    /// Removes a unit; returns false if there is none. Refuses to remove one that mig-mps did not write.
    pub fn remove_unit(&self, name: &str) -> io::Result<bool> {
        let Some(directory) = open(&self.units)? else {
            return Ok(false);
        };
        let is_there = self.read_ours(&directory, name)?.is_some();
        directory.remove_file(name)?;
        Ok(is_there)
    }

    /// Writes the profile; returns false if it was there already. Refuses to replace another one, which is the
    /// administrator's.
    pub fn write_profile(&self, text: &str) -> io::Result<bool> {
        let directory = Directory::make(&self.settings, 0o755)?;
        if self.has_profile(&directory, text)? {
            return Ok(false);
        }
        directory.replace_file(PROFILE, &half_made(PROFILE), text.as_bytes(), PUBLIC)?;
        Ok(true)
    }

    /// Removes the profile if it is this one, and the directory if that is then empty; returns true if it did, false if
    /// another profile stays, and `None` if there is none.
    pub fn remove_profile(&self, text: Option<&str>) -> io::Result<Option<bool>> {
        let Some(directory) = open(&self.settings)? else {
            return Ok(None);
        };
        let Some(before) = directory.read_file(PROFILE)? else {
            return Ok(None);
        };
        if text.is_none_or(|text| text.as_bytes() != before) {
            return Ok(Some(false));
        }
        directory.remove_file(PROFILE)?;
        if let (Some(parent), Some(name)) = (self.settings.parent(), self.settings.file_name()) {
            Directory::open(parent)?.remove_dir_if_empty(name)?;
        }
        Ok(Some(true))
    }

    /// True if this profile is there already. Fails if another one is.
    fn has_profile(&self, directory: &Directory, text: &str) -> io::Result<bool> {
        match directory.read_file(PROFILE)? {
            Some(before) if before == text.as_bytes() => Ok(true),
            Some(_) => {
                let error = io::Error::new(io::ErrorKind::AlreadyExists, "it is another profile");
                Err(in_path(&self.profile(), &error))
            }
            None => Ok(false),
        }
    }

    /// Reads a unit; `None` if there is none.
    fn read_ours(&self, directory: &Directory, name: &str) -> io::Result<Option<String>> {
        let Some(bytes) = directory.read_file(name)? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if text.starts_with(self.mark) {
            return Ok(Some(text));
        }
        let why = "mig-mps did not write it, and leaves it as it is";
        Err(in_the_way(&self.unit(name), why))
    }
}

fn open(path: &Path) -> io::Result<Option<Directory>> {
    match Directory::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// The text of a unit after its first line, which says where it is from.
fn after_mark(text: &str) -> Option<&str> {
    Some(text.split_once('\n')?.1)
}

fn half_made(name: &str) -> String {
    format!(".{name}.new")
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
