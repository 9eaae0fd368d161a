//! The units by which systemd applies a profile at boot, heals daemons and writes metrics, and their files.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::config::{LOG_DIR, RUN_DIR, SYSTEM_LOG_DIR, SYSTEM_RUN_DIR};
use crate::failure::ExitStatus;
use crate::host::{Directory, FileError, FileResult, Host, OwnFile};
use crate::profile::is_of_pod;

/// The first line of a unit that mig-mps wrote.
pub const WRITTEN_MARK: &str = "# Written by mig-mps systemd, which replaces and removes it.";

/// The first line of a unit that a package installs.
pub const PACKAGED_MARK: &str =
    "# From a package of mig-mps; a unit of this name in /etc/systemd/system replaces it.";

/// The service that applies a profile at boot.
pub const SERVICE: &str = "mig-mps.service";

/// The time that clients get to exit at a shutdown of the machine, in seconds.
const DRAIN_SECONDS: u32 = 60;

/// The exit statuses of `up` that another try does not mend: wrong usage or a bad profile, a reboot that is due, and more
/// than fits.
const FINAL_STATUSES: [ExitStatus; 3] =
    [ExitStatus::Usage, ExitStatus::Drift, ExitStatus::Infeasible];

/// A unit file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitFile {
    pub name: &'static str,
    pub text: String,
}

/// A command that systemd runs again and again: a service and its timer.
struct TimedService {
    service: &'static str,
    timer: &'static str,
    description: &'static str,
    /// True if it waits while the profile is being applied.
    waits: bool,
    /// True if it starts nothing that outlives it: daemons would inherit a sandbox.
    is_sandboxed: bool,
    limit: &'static str,
    timer_description: &'static str,
    every: &'static str,
    accuracy: &'static str,
}

const HEAL: TimedService = TimedService {
    service: "mig-mps-heal.service",
    timer: "mig-mps-heal.timer",
    description: "Restart MPS daemons that died, and MPS devices that hang",
    waits: true,
    is_sandboxed: false,
    limit: "5min",
    timer_description: "Heal MPS devices every minute",
    every: "1min",
    accuracy: "5s",
};

const METRICS: TimedService = TimedService {
    service: "mig-mps-metrics.service",
    timer: "mig-mps-metrics.timer",
    description: "Write metrics of MPS devices",
    waits: false,
    is_sandboxed: true,
    limit: "1min",
    timer_description: "Write metrics of MPS devices every minute",
    every: "1min",
    accuracy: "5s",
};

/// Asks every daemon, which adds to its log: less often than the others.
const DRIFT: TimedService = TimedService {
    service: "mig-mps-drift.service",
    timer: "mig-mps-drift.timer",
    description: "Compare MIG partitions and MPS daemons with their profile",
    waits: true,
    is_sandboxed: true,
    limit: "5min",
    timer_description: "Compare MIG partitions and MPS daemons with their profile every ten minutes",
    every: "10min",
    accuracy: "1min",
};

/// The service of the device plugin of Kubernetes.
pub const PLUGIN: &str = "mig-mps-device-plugin.service";

/// The name of its program, which lies beside that of mig-mps.
pub const PLUGIN_PROGRAM: &str = "mig-mps-device-plugin";

/// The names of all units.
pub const NAMES: [&str; 8] = [
    SERVICE,
    HEAL.service,
    HEAL.timer,
    METRICS.service,
    METRICS.timer,
    DRIFT.service,
    DRIFT.timer,
    PLUGIN,
];

/// Returns the units among these that start at once where they are enabled: the timers and the plugin. `mig-mps.service`
/// starts at the next boot, and the timers start the others.
pub fn units_to_start<'a>(names: &[&'a str]) -> Vec<&'a str> {
    let is_started = |name: &&str| *name == PLUGIN || name.strip_suffix(".timer").is_some();
    names.iter().copied().filter(is_started).collect()
}

/// The program and the files that units name.
#[derive(Clone, Copy)]
pub struct Paths<'a> {
    pub program: &'a Path,
    /// The profile that is applied at boot.
    pub profile: &'a Path,
    /// The directory that metrics are written to; `None` for no metrics.
    pub metrics: Option<&'a Path>,
    pub plugin: Option<PluginUnit<'a>>,
    /// The environment of every service.
    pub environment: &'a [(&'static str, OsString)],
}

/// The device plugin as its unit starts it.
#[derive(Clone, Copy)]
pub struct PluginUnit<'a> {
    pub program: &'a Path,
    /// The directory of the kubelet, if it is not the usual one.
    pub kubelet: Option<&'a Path>,
    /// The address at which it serves metrics.
    pub metrics: Option<SocketAddr>,
}

impl PluginUnit<'_> {
    fn command_line(&self) -> String {
        let mut command = quote_path(self.program);
        if let Some(kubelet) = self.kubelet {
            let _ = write!(command, " --kubelet {}", quote_path(kubelet));
        }
        if let Some(address) = self.metrics {
            let _ = write!(command, " --metrics {address}");
        }
        command
    }
}

impl Paths<'_> {
    /// Returns the lines that set the environment.
    fn environment_lines(&self) -> String {
        let lines = self.environment.iter().map(|(name, value)| {
            let assignment = format!("{name}={}", value.display());
            format!("Environment={}\n", quote_text(&assignment, &['%']))
        });
        lines.collect()
    }

    fn directory_from<'a>(&'a self, variable: &str, default: &'a str) -> &'a Path {
        let set = self.environment.iter().find(|(name, _)| *name == variable);
        set.map_or(Path::new(default), |(_, value)| Path::new(value))
    }
}

/// The sandbox of a service that starts nothing. It lacks the settings that would hide GPUs (`PrivateDevices`, `ProtectClock`),
/// the processes of others (`ProtectProc`), or where programs keep pipe directories (`PrivateTmp`).
const SANDBOX: &str = "\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
CapabilityBoundingSet=~CAP_AUDIT_CONTROL CAP_MAC_ADMIN CAP_MAC_OVERRIDE CAP_NET_ADMIN CAP_NET_RAW CAP_SYS_BOOT \
CAP_SYS_RAWIO CAP_SYS_TIME CAP_SYSLOG CAP_WAKE_ALARM
";

/// Returns the units, with `mark` as their first line, in groups that are installed as a whole: the profile's, those of the
/// metrics, and that of the device plugin.
pub fn unit_files(mark: &str, paths: Paths<'_>) -> Vec<Vec<UnitFile>> {
    let (program, profile) = (quote_path(paths.program), quote_path(paths.profile));
    let mut groups = vec![vec![(SERVICE, boot_service(&paths))]];
    groups[0].extend(HEAL.unit_texts(&format!("{program} heal"), &paths));
    if let Some(directory) = paths.metrics {
        let [metrics, drift] =
            ["mig-mps.prom", "mig-mps-drift.prom"].map(|file| quote_path(&directory.join(file)));
        let metrics = format!("{program} metrics --output {metrics}");
        let drift = format!("{program} metrics --drift {profile} --output {drift}");
        groups.push(
            [
                METRICS.unit_texts(&metrics, &paths),
                DRIFT.unit_texts(&drift, &paths),
            ]
            .concat(),
        );
    }
    if let Some(plugin) = paths.plugin {
        groups.push(vec![(PLUGIN, plugin_service(&plugin, &paths))]);
    }
    groups
        .into_iter()
        .map(|units| {
            units
                .into_iter()
                .map(|(name, text)| UnitFile {
                    name,
                    text: format!("{mark}\n{text}"),
                })
                .collect()
        })
        .collect()
}

impl TimedService {
    /// Returns the names and texts of its units.
    fn unit_texts(&self, command: &str, paths: &Paths<'_>) -> [(&'static str, String); 2] {
        let environment = paths.environment_lines();
        let sandbox = match paths.metrics {
            Some(metrics) if self.is_sandboxed => {
                let run = paths.directory_from(RUN_DIR, SYSTEM_RUN_DIR);
                let log = paths.directory_from(LOG_DIR, SYSTEM_LOG_DIR);
                sandbox_lines(&[metrics, run, log])
            }
            _ => String::new(),
        };
        let after = if self.waits {
            format!("After={SERVICE}\n")
        } else {
            String::new()
        };
        let service = format!(
            "\
[Unit]
Description={}
{after}
[Service]
Type=oneshot
{environment}ExecStart={command}
TimeoutStartSec={}
LimitNOFILE=524288
{sandbox}",
            self.description, self.limit
        );
        let (every, accuracy) = (self.every, self.accuracy);
        let timer = format!(
            "\
[Unit]
Description={}

[Timer]
OnBootSec={every}
OnUnitInactiveSec={every}
AccuracySec={accuracy}

[Install]
WantedBy=timers.target
",
            self.timer_description
        );
        [(self.service, service), (self.timer, timer)]
    }
}

/// The service needs its drain to stop, and the time that a node full of daemons takes. A stop that is refused leaves the
/// daemons alone, also those without a scope. Tries that fail at once end after the fifth; one that reached its limit of
/// time is made again as long as the machine runs.
fn boot_service(paths: &Paths<'_>) -> String {
    let consumers: Vec<String> = CONSUMERS
        .iter()
        .map(|units| format!("Before={units}"))
        .collect();
    let last = FINAL_STATUSES
        .map(|status| (status as u8).to_string())
        .join(" ");
    format!(
        "\
[Unit]
Description=MIG partitions and MPS daemons
ConditionPathExists={condition}
After=nvidia-persistenced.service nvidia-fabricmanager.service nss-user-lookup.target
{consumers}
StartLimitIntervalSec=30min
StartLimitBurst=5

# Without a sandbox: the daemons would inherit it. Not oneshot: systemd before 244 starts no such service again.
[Service]
Type=notify
RemainAfterExit=yes
{environment}ExecStart={program} up {profile} --yes --stop-holders --reset --keep-going
Restart=on-failure
RestartSec=1min
RestartPreventExitStatus={last}
ExecReload={program} up {profile} --yes
ExecStop={program} down --yes --at-shutdown {DRAIN_SECONDS}
KillMode=process
TimeoutStartSec=15min
TimeoutStopSec={stop_limit}
LimitNOFILE=524288

[Install]
WantedBy=multi-user.target
",
        condition = paths.profile.display().to_string().replace('%', "%%"),
        consumers = consumers.join("\n"),
        environment = paths.environment_lines(),
        program = quote_path(paths.program),
        profile = quote_path(paths.profile),
        stop_limit = DRAIN_SECONDS + 120,
    )
}

/// The services that give devices to programs, or open GPUs: the devices are there before. systemd ignores units that do not
/// exist.
const CONSUMERS: [&str; 6] = [
    "slurmd.service pbs.service pbs_mom.service torque-mom.service condor.service lsfd.service sge_execd.service \
     gridengine-exec.service flux.service oar-node.service nomad.service",
    "docker.service containerd.service crio.service podman.service podman-restart.service incus.service lxd.service \
     lxc.service snap.lxd.daemon.service libvirtd.service virtqemud.service",
    KUBELETS,
    "nvidia-dcgm.service dcgm-exporter.service nvidia-dcgm-exporter.service nvidia-cdi-refresh.service",
    "jupyterhub.service gitlab-runner.service ollama.service",
    "cron.service crond.service atd.service",
];

/// The units whose service is the kubelet, also of k3s, RKE2, k0s and `MicroK8s`. systemd ignores units that do not exist.
const KUBELETS: &str = "kubelet.service k3s.service k3s-agent.service rke2-server.service rke2-agent.service \
                        k0scontroller.service k0sworker.service snap.microk8s.daemon-kubelite.service";

/// A kubelet that starts judges its pods a second after it has opened its socket, and ends those whose device is not offered by
/// then: the plugin is ready before. It waits for the kubelet by itself. A second one of it on this node, and a mistake on its
/// command line, are final.
///
/// Its sandbox begins before the kubelet makes its directory, and the profile the run directory: the directories above are
/// writable. If the kubelet of `--kubelet` makes its directory later, the plugin fails there, and systemd starts it again.
fn plugin_service(plugin: &PluginUnit<'_>, paths: &Paths<'_>) -> String {
    let last = [ExitStatus::Usage, ExitStatus::Refused].map(|status| (status as u8).to_string());
    format!(
        "\
[Unit]
Description=Offer MPS devices to the kubelet
After={SERVICE}
Before={KUBELETS}
StartLimitIntervalSec=0

[Service]
Type=notify
{environment}ExecStart={command}
Restart=always
RestartSec=5s
RestartPreventExitStatus={last}
LimitNOFILE=524288
{sandbox}
[Install]
WantedBy=multi-user.target
",
        environment = paths.environment_lines(),
        sandbox = sandbox_lines(&plugin_writes(plugin, paths)),
        command = plugin.command_line(),
        last = last.join(" "),
    )
}

/// Returns the sandbox of a service that writes to these directories, if they exist. Sessions with daemons may write to
/// theirs.
fn sandbox_lines(writes: &[&Path]) -> String {
    let writes = writes.iter().map(|directory| {
        let directory = format!("-{}", directory.display());
        quote_text(&directory, &['%'])
    });
    let writes: Vec<String> = writes.collect();
    format!("{SANDBOX}ReadWritePaths={}\n", writes.join(" "))
}

fn plugin_writes<'a>(plugin: &PluginUnit<'a>, paths: &'a Paths<'_>) -> Vec<&'a Path> {
    // Labels are written for Node Feature Discovery.
    let usual = [
        "/run",
        "/var/lib",
        "/var/snap",
        "/etc/kubernetes/node-feature-discovery",
    ];
    let mut directories: Vec<&Path> = usual.map(Path::new).to_vec();
    directories.extend(plugin.kubelet);
    let own = paths
        .environment
        .iter()
        .filter(|(name, _)| [RUN_DIR, LOG_DIR].contains(name));
    directories.extend(own.map(|(_, value)| Path::new(value)));
    directories
}

/// Quotes a path for a command line of systemd, which has variables and specifiers.
fn quote_path(path: &Path) -> String {
    quote_text(&path.display().to_string(), &['%', '$'])
}

/// Quotes a text for a unit file, in which these characters have a meaning and stand for themselves when doubled.
fn quote_text(text: &str, doubled: &[char]) -> String {
    let is_plain = text
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "/._+-=:,".contains(c));
    if is_plain {
        return text.to_owned();
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => {
                let _ = write!(quoted, "\\{c}");
            }
            c if doubled.contains(&c) => {
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
            directory: self.0.under_root("/etc/systemd/system"),
            name,
            is_mounted: false,
            mode: 0o644,
            is_ours: |text| text.starts_with(WRITTEN_MARK),
        }
    }

    /// Returns the path of the unit of that name that a package has installed.
    pub fn packaged_path(&self, name: &str) -> Option<PathBuf> {
        let path = self.0.under_root("/usr/lib/systemd/system").join(name);
        path.exists().then_some(path)
    }

    /// Returns the path of a package's unit if it does the same and is in force.
    pub fn same_packaged(&self, unit: &UnitFile) -> Option<PathBuf> {
        let path = self.packaged_path(unit.name)?;
        let theirs = fs::read_to_string(&path).ok()?;
        let is_same = after_mark(&theirs) == after_mark(&unit.text);
        (is_same && !self.unit(unit.name).path().exists()).then_some(path)
    }

    /// Returns the program that the installed service of the boot runs; `None` if there is no such unit.
    pub fn installed_program(&self) -> Option<PathBuf> {
        let text = fs::read_to_string(self.unit(SERVICE).path()).ok()?;
        let command = text
            .lines()
            .find_map(|line| line.strip_prefix("ExecStart="))?;
        let (program, _) = command.split_once(" up ")?;
        Some(PathBuf::from(program.trim_matches('"')))
    }

    /// Returns the profile that is applied at boot.
    pub fn profile(&self) -> OwnFile {
        self.0.boot_profile()
    }

    /// Fails if a file of an installation is not one of mig-mps, or is another profile. Changes nothing.
    pub fn check_files<'u>(
        &self,
        mut units: impl Iterator<Item = &'u UnitFile>,
        profile: &str,
    ) -> FileResult<()> {
        self.check_profile(profile)?;
        units.try_for_each(|unit| self.unit(unit.name).check_place())
    }

    /// Writes the profile; returns false if it was there already. Refuses to replace another one, which is the
    /// administrator's.
    pub fn write_profile(&self, text: &str) -> FileResult<bool> {
        self.check_profile(text)?;
        self.profile().write(text)
    }

    /// Removes the profile if it is this one or a pod's, and the directory if that is then empty; returns true if it did, false if
    /// another profile stays, and `None` if there is none.
    pub fn remove_profile(&self, text: Option<&str>) -> FileResult<Option<bool>> {
        let Some(before) = self.profile().read()? else {
            return Ok(None);
        };
        if text != Some(before.as_str()) && !is_of_pod(&before) {
            return Ok(Some(false));
        }
        self.profile().remove()?;
        let directory = self.0.under_root("/etc/mig-mps");
        if let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) {
            Directory::open(parent)?.remove_dir_if_empty(name)?;
        }
        Ok(Some(true))
    }

    /// Fails if there is another profile.
    fn check_profile(&self, text: &str) -> FileResult<()> {
        match self.profile().read()? {
            Some(before) if before != text => {
                let error = FileError::new(io::ErrorKind::AlreadyExists, "it is another profile");
                Err(error.at(&self.profile().path()))
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
        assert_eq!(
            quote_path(Path::new("/usr/bin/mig-mps")),
            "/usr/bin/mig-mps"
        );
        assert_eq!(quote_path(Path::new("/a b/100%$\"")), r#""/a b/100%%$$\"""#);
    }

    /// systemd expands no variables there.
    #[test]
    fn a_variable_with_blanks_and_specifiers_is_quoted() {
        let path = OsString::from("/usr/bin:/a b/100%$");
        let paths = Paths {
            program: Path::new("/usr/bin/mig-mps"),
            profile: Path::new("/etc/mig-mps/profile.toml"),
            metrics: None,
            plugin: None,
            environment: &[("PATH", path)],
        };
        let line = "Environment=\"PATH=/usr/bin:/a b/100%%$\"\n";
        assert_eq!(paths.environment_lines(), line);
    }
}
