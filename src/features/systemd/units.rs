//! The units by which systemd applies a profile at boot and heals daemons.

use std::fmt::Write as _;
use std::path::Path;

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
    let unit = |name, text: &str| UnitFile {
        name,
        text: format!("{WRITTEN}\n{text}"),
    };
    [
        unit(SERVICE, &service(program, profile)),
        unit(HEAL_SERVICE, &heal),
        unit(HEAL_TIMER, TIMER),
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
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    if text.chars().all(is_plain) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_blanks_and_specifiers_is_quoted() {
        assert_eq!(word(Path::new("/usr/bin/mig-mps")), "/usr/bin/mig-mps");
        assert_eq!(word(Path::new("/a b/100%$\"")), r#""/a b/100%%$$\"""#);
    }
}
