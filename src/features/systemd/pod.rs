//! `mig-mps systemd --pod`: what the pod of Kubernetes runs on its host. It installs the programs that were put beside it,
//! and applies their profile.
//!
//! A pod takes its processes with it, so systemd starts all that stays: a transient service changes the node, and then the
//! daemons and the plugin have their units. What is installed is replaced after the profile was applied.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::units::{
    PLUGIN, PLUGIN_PROGRAM, SERVICE, UnitFile, UnitFiles, WRITTEN_MARK, unit_files, units_to_start,
};
use super::{
    Paths, PluginUnit, SystemdArgs, make_label_directory, note_written, service_environment,
};
use crate::error::{CommandError, ErrorContext as _, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{Directory, Environment, FileResult, OwnFile, Units, run};
use crate::node::observe_records;
use crate::profile::{PROFILE_MARK, Profile, is_of_pod};
use crate::render::{print, report};
use crate::state::{ProfileHistory, RunDir};

/// The directory of the host in which a pod installs the programs.
pub const DIRECTORY: &str = "/opt/mig-mps";

/// The program that `install.sh` of the tarball installs.
const TARBALL_PROGRAM: &str = "/usr/local/bin/mig-mps";

/// The file beside the installed programs that is there until the plugin was restarted with what is new.
const RESTART_MARK: &str = "restart-plugin";

/// The time that the change of the node may take, as in the unit of the boot.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// The time in which the device plugin reports which pods hold shares, and the interval between two looks.
const PODS_TIMEOUT: Duration = Duration::from_secs(8);
const PODS_INTERVAL: Duration = Duration::from_millis(500);

/// The directories of an installation by a pod.
struct Installation<'a> {
    environment: &'a Environment,
    files: UnitFiles<'a>,
    /// The directory in which the pod has put the programs.
    staged: PathBuf,
    /// The directory in which they are installed.
    programs: PathBuf,
    systemctl: Units,
}

/// Installs the programs that lie beside this one, and applies the profile.
pub fn install_from_pod(
    args: &SystemdArgs,
    profile: &Profile,
    environment: &Environment,
) -> Result<()> {
    let staged = std::env::current_exe().context("cannot find the path of this program")?;
    let staged = staged.parent().unwrap_or(Path::new("/")).to_owned();
    let installation = Installation {
        environment,
        files: UnitFiles(&environment.host),
        programs: staged.with_file_name("bin"),
        staged,
        systemctl: environment.find_systemctl()?,
    };
    let _lock = installation.lock()?;
    let text = profile.source.text();
    let end = if text.ends_with('\n') { "" } else { "\n" };
    let text = format!("{text}{end}{PROFILE_MARK}");
    let units = installation.units(args);
    installation.check_owner(&units)?;
    installation.check_pods_known(&text)?;
    installation.apply_profile(&text)?;
    installation.install(&units, &text)
}

impl Installation<'_> {
    fn program(&self) -> PathBuf {
        self.programs.join("mig-mps")
    }

    /// True for the installed program, also by a link that makes users find it in PATH.
    fn is_own_program(&self, path: &Path) -> bool {
        let file_at = |path: &Path| {
            let file = fs::metadata(path).ok()?;
            Some((file.dev(), file.ino()))
        };
        let own = self.program();
        path == own || file_at(path).is_some_and(|file| file_at(&own) == Some(file))
    }

    fn plugin(&self) -> PathBuf {
        self.programs.join(PLUGIN_PROGRAM)
    }

    /// Keeps other pods from installing at the same time.
    fn lock(&self) -> Result<File> {
        let directory = File::open(self.programs.parent().unwrap_or(&self.programs))?;
        directory.try_lock().map_err(|_| {
            let error = "another pod is installing mig-mps on this host";
            CommandError::new(ExitStatus::Refused, error)
                .with_hint("wait until that pod has finished")
        })?;
        Ok(directory)
    }

    /// Refuses a host on which mig-mps was installed, or a profile was applied, in another way.
    fn check_owner(&self, units: &[UnitFile]) -> Result<()> {
        if self.files.packaged_path(SERVICE).is_some() {
            return Err(owned_error(
                "a package of mig-mps is installed on this host",
                "remove the package (`apt purge mig-mps`, or `dnf remove mig-mps`), or delete the DaemonSet of this pod",
            ));
        }
        for unit in units {
            let unit = self.files.unit(unit.name);
            unit.check_place().map_err(|error| {
                let path = unit.path();
                let path = path.display();
                owned_error(
                    &error.to_string(),
                    &format!("disable and remove {path}, or delete the DaemonSet of this pod"),
                )
            })?;
        }
        if let Some(other) = self
            .files
            .installed_program()
            .filter(|program| !self.is_own_program(program))
        {
            let shown = other.display();
            let remedy = if other.exists() {
                format!("run `{shown} systemd --uninstall` to remove them")
            } else {
                "run `rm /etc/systemd/system/mig-mps*; systemctl daemon-reload`".to_owned()
            };
            return Err(owned_error(
                &format!("units on this host run {shown}"),
                &format!("{remedy}; or delete the DaemonSet of this pod"),
            ));
        }
        let of_tarball = self.environment.host.under_root(TARBALL_PROGRAM);
        if of_tarball.exists() && !self.is_own_program(&of_tarball) {
            return Err(owned_error(
                &format!("the tarball of mig-mps has installed {TARBALL_PROGRAM} on this host"),
                "run `install.sh --uninstall` of the tarball, or delete the DaemonSet of this pod",
            ));
        }
        let boot = self.files.profile();
        let path = boot.path();
        let path = path.display();
        match boot.read().context("cannot read the installed profile")? {
            Some(text) if is_of_pod(&text) => Ok(()),
            Some(_) => Err(owned_error(
                &format!("{path} is not from a pod"),
                &format!("move {path} away, or delete the DaemonSet of this pod"),
            )),
            None => self.check_not_applied_by_hand(),
        }
    }

    /// Refuses a node with devices of another profile.
    fn check_not_applied_by_hand(&self) -> Result<()> {
        let history = ProfileHistory::load_for_changes(self.environment)?;
        let node = observe_records(self.environment)?;
        let of_pods = [self.staged_profile().path(), self.files.profile().path()];
        let Some(applied) = history.last_applied().filter(|applied| {
            history.is_in_force()
                && node.served().next().is_some()
                && !of_pods.iter().any(|path| *path == Path::new(&applied.path))
        }) else {
            return Ok(());
        };
        Err(owned_error(
            &format!(
                "this host has devices of the profile {}, which {} applied",
                applied.path, applied.by
            ),
            "stop them with `mig-mps down`, or delete the DaemonSet of this pod",
        ))
    }

    /// Refuses another profile than the applied one while it is not known which pods hold shares of devices: `up` would take
    /// devices away from them.
    fn check_pods_known(&self, text: &str) -> Result<()> {
        let history = ProfileHistory::load_for_changes(self.environment)?;
        let applied = history.last_applied();
        let is_applied = applied.is_none_or(|applied| applied.text == text);
        let run_dir = RunDir::at(&self.environment.roots_run_dir());
        let boot_id = self.environment.host.boot_id()?;
        let host = &self.environment.host;
        let is_unknown = || match run_dir.load_pods() {
            Ok(Some(pods)) => pods.is_stale(&boot_id, Timestamp::now()),
            // The plugin writes nothing without a run directory, and then there is no device.
            Ok(None) => host.starts_device_plugin() && run_dir.path().exists(),
            Err(_) => true,
        };
        if is_applied || !is_unknown() {
            return Ok(());
        }
        // A plugin that was stopped writes them again.
        let _ = self.systemctl.change_active("restart", PLUGIN);
        let until = Instant::now() + PODS_TIMEOUT;
        while Instant::now() < until {
            if !is_unknown() {
                return Ok(());
            }
            std::thread::sleep(PODS_INTERVAL);
        }
        Err(CommandError::new(
            ExitStatus::Refused,
            "the device plugin does not report which pods hold shares of this host's devices",
        )
        .with_hint("run `journalctl -u mig-mps-device-plugin` on this host to see why"))
    }

    /// Applies the profile, by a service of systemd.
    fn apply_profile(&self, text: &str) -> Result<()> {
        let Some(services) = self.environment.systemd_scopes() else {
            let error = command_error("this host does not run systemd, or systemd-run is missing");
            return Err(error.with_hint(
                "select nodes with systemd: `mig-mps-device-plugin --manifest PROFILE \
             --node-selector LABEL=VALUE`",
            ));
        };
        // Outside the pod's directory, which is removed with the pod: the path is recorded with the profile.
        let file = self.staged_profile();
        file.write(text).context("cannot write the profile")?;
        let mut up = Command::new(self.staged.join("mig-mps"));
        up.arg("up").arg(file.path());
        up.args(["--quiet", "--yes", "--stop-holders", "--reset"]);
        up.envs(service_environment(self.environment));
        let ran = run(&services.wrap_service(&up), "", CHANGE_TIMEOUT)?;
        print(&ran.stdout)?;
        // Programs and pods in the way are named; nobody can add the options that the hint about them has.
        let is_about_programs =
            |line: &&str| line.starts_with("hint: ") && line.contains("--drain");
        let is_in_use = ran.stderr.lines().any(|line| is_about_programs(&line));
        ran.stderr
            .lines()
            .filter(|line| !is_about_programs(line))
            .for_each(report);
        if ran.status.success() {
            return Ok(());
        }
        let error = "the profile was not applied, and nothing was installed";
        let hint = if is_in_use {
            "end the programs or delete the pods in the lines above; the kubelet starts this pod again"
        } else {
            "see the lines above; the kubelet starts this pod again"
        };
        Err(CommandError::new(ExitStatus::Refused, error).with_hint(hint))
    }

    fn staged_profile(&self) -> OwnFile {
        OwnFile {
            directory: self.staged.parent().unwrap_or(&self.staged).to_owned(),
            name: "profile.toml",
            is_mounted: false,
            mode: 0o644,
            is_ours: |_| true,
        }
    }

    /// Installs programs, profile and units, and has systemd start what they run.
    fn install(&self, units: &[UnitFile], text: &str) -> Result<()> {
        for program in [self.program(), self.plugin()] {
            let is_new = self
                .install_program(&program)
                .context("cannot install the programs")?;
            note_written(is_new, &program);
        }
        let boot = self.files.profile();
        let is_new = boot.write(text).context("cannot copy the profile")?;
        note_written(is_new, &boot.path());
        for unit in units {
            let file = self.files.unit(unit.name);
            if unit.name == PLUGIN && file.read()?.as_ref() != Some(&unit.text) {
                self.request_restart()?;
            }
            let is_new = file.write(&unit.text).context("cannot write the unit")?;
            note_written(is_new, &file.path());
        }
        make_label_directory(self.environment);
        let names: Vec<&str> = units.iter().map(|unit| unit.name).collect();
        let started = units_to_start(&names);
        let all = [&[SERVICE], started.as_slice()].concat();
        self.systemctl.reload_unit_files()?;
        let was_active = self.systemctl.is_active(SERVICE)?;
        let is_restarted = self.restart_mark().exists() && self.systemctl.is_active(PLUGIN)?;
        self.systemctl.enable(&all, &all)?;
        if was_active {
            // The installed program applies the profile once more: its path is in the CDI file.
            self.systemctl.change_active("reload", SERVICE)?;
        }
        if is_restarted {
            self.systemctl.change_active("restart", PLUGIN)?;
        }
        match fs::remove_file(self.restart_mark()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let version = env!("CARGO_PKG_VERSION");
        report(&format!(
            "mig-mps {version} is installed in {}",
            self.programs.display()
        ));
        Ok(())
    }

    fn restart_mark(&self) -> PathBuf {
        self.programs.join(RESTART_MARK)
    }

    /// Has the plugin restarted by this pod, or by the next one if this one is ended before.
    fn request_restart(&self) -> FileResult<()> {
        Directory::open_or_create(&self.programs, 0o755)?;
        Ok(fs::write(self.restart_mark(), "")?)
    }

    /// Moves a program to its place; returns false if it was there already. A program that runs is not written to.
    fn install_program(&self, to: &Path) -> FileResult<bool> {
        let name = to.file_name().unwrap_or_default();
        let is_same = match fs::read(to) {
            Ok(installed) => installed == fs::read(self.staged.join(name))?,
            Err(_) => false,
        };
        let staged = Directory::open(&self.staged)?;
        if is_same {
            // A CDI file names the program that wrote it as long as that exists.
            staged.remove_file(name)?;
        } else {
            self.request_restart()?;
            let programs = Directory::open(&self.programs)?;
            staged.rename(name, &programs, name)?;
        }
        Ok(!is_same)
    }

    fn units(&self, args: &SystemdArgs) -> Vec<UnitFile> {
        let environment: Vec<(&'static str, OsString)> = service_environment(self.environment);
        let (program, plugin) = (self.program(), self.plugin());
        let paths = Paths {
            environment: &environment,
            program: &program,
            profile: &self.files.profile().path(),
            metrics: None,
            plugin: Some(PluginUnit {
                program: &plugin,
                kubelet: args.kubelet.as_deref(),
                metrics: args.plugin_metrics,
            }),
        };
        unit_files(WRITTEN_MARK, paths).concat()
    }
}

fn owned_error(what: &str, hint: &str) -> CommandError {
    CommandError::new(ExitStatus::Refused, what).with_hint(hint)
}

/// Refuses an installation by hand, and its end, on a host where a pod has installed mig-mps.
pub fn check_not_owned_by_pod(files: &UnitFiles<'_>, program: &Path) -> Result<()> {
    let profile = files.profile().read().ok().flatten();
    if !profile.is_some_and(|text| is_of_pod(&text)) {
        return Ok(());
    }
    let pods = files
        .installed_program()
        .unwrap_or_else(|| Path::new(DIRECTORY).join("bin/mig-mps"));
    if program == pods {
        return Ok(());
    }
    Err(owned_error(
        "a pod of Kubernetes has installed mig-mps on this host",
        &format!(
            "delete its DaemonSet (`kubectl delete namespace mig-mps`), then run `{} systemd --uninstall`",
            pods.display()
        ),
    ))
}
