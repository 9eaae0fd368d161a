//! `mig-mps systemd --pod`: what the pod of Kubernetes runs on its host. It installs the programs that were put beside it,
//! and applies their profile.
//!
//! A pod takes its processes with it, so systemd starts all that stays: a transient service changes the node, and then the
//! daemons and the plugin have their units. What is installed is replaced after the profile was applied.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::units::{
    PLUGIN, PLUGIN_PROGRAM, SERVICE, UnitFile, UnitFiles, WRITTEN_MARK, unit_files, units_to_start,
};
use super::{
    Paths, PluginUnit, SystemdArgs, make_label_directory, note_written, service_environment,
};
use crate::error::{CommandError, ErrorContext as _, Result, command_error};
use crate::failure::ExitStatus;
use crate::host::{Directory, Environment, FileResult, OwnFile, Units, run};
use crate::profile::Profile;
use crate::render::{note, print};

/// The directory of the host in which a pod installs the programs.
pub const DIRECTORY: &str = "/opt/mig-mps";

/// The first line of a profile that a pod has installed.
pub const PROFILE_MARK: &str =
    "# Written by the pod of mig-mps on this node, which replaces it: change the pod's profile.\n";

/// The time that the change of the node may take, as in the unit of the boot.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(15 * 60);

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
    let staged = std::env::current_exe().context("cannot tell the path of this program")?;
    let staged = staged.parent().unwrap_or(Path::new("/")).to_owned();
    let installation = Installation {
        environment,
        files: UnitFiles(&environment.host),
        programs: staged.with_file_name("bin"),
        staged,
        systemctl: environment.find_systemctl()?,
    };
    let text = format!("{PROFILE_MARK}{}", profile.source.text());
    installation.check_owner()?;
    let is_changed = installation.apply_profile(&text)?;
    installation.install(args, &text, is_changed)
}

impl Installation<'_> {
    fn program(&self) -> PathBuf {
        self.programs.join("mig-mps")
    }

    fn plugin(&self) -> PathBuf {
        self.programs.join(PLUGIN_PROGRAM)
    }

    /// Refuses a host on which mig-mps was installed in another way.
    fn check_owner(&self) -> Result<()> {
        if self.files.packaged_path(SERVICE).is_some() {
            return Err(owned_error(
                "a package of mig-mps is installed on this host",
                "remove it (apt purge mig-mps, or dnf remove mig-mps), or delete this pod's DaemonSet",
            ));
        }
        if let Some(other) = self
            .files
            .installed_program()
            .filter(|program| *program != self.program())
        {
            let other = other.display();
            return Err(owned_error(
                &format!("units on this host run {other}"),
                &format!(
                    "{other} systemd --uninstall removes them; or delete this pod's DaemonSet"
                ),
            ));
        }
        let boot = self.files.profile();
        let before = boot.read().context("cannot read the installed profile")?;
        if before.is_some_and(|text| !text.starts_with(PROFILE_MARK)) {
            let path = boot.path();
            let path = path.display();
            return Err(owned_error(
                &format!("no pod has written {path}, and it is not replaced"),
                &format!("move {path} away, or delete this pod's DaemonSet"),
            ));
        }
        Ok(())
    }

    /// Applies the profile, by a service of systemd. Returns false if it is the installed one and its service is up.
    fn apply_profile(&self, text: &str) -> Result<bool> {
        let Some(services) = self.environment.systemd_scopes() else {
            let error = command_error("systemd does not run this host, or systemd-run is missing");
            return Err(error.with_hint("choose nodes that systemd runs: mig-mps-device-plugin --manifest PROFILE --node-selector LABEL=VALUE"));
        };
        let installed = self.files.profile().read();
        let is_installed = installed
            .context("cannot read the installed profile")?
            .as_deref()
            == Some(text);
        if is_installed && self.systemctl.is_active(SERVICE)? {
            return Ok(false);
        }
        // Beside the directory that is emptied when the pod starts again: the path is recorded with the profile.
        let file = self.staged_profile();
        file.write(text).context("cannot write the profile")?;
        let mut up = Command::new(self.staged.join("mig-mps"));
        up.arg("up").arg(file.path());
        up.args(["--quiet", "--yes", "--stop-holders", "--reset"]);
        up.envs(service_environment(self.environment));
        let ran = run(&services.wrap_service(&up), "", CHANGE_TIMEOUT)?;
        print(&ran.stdout)?;
        ran.stderr.lines().for_each(note);
        if ran.status.success() {
            return Ok(true);
        }
        let error = CommandError::new(
            ExitStatus::Refused,
            "the profile was not applied, and nothing was installed",
        );
        Err(error.with_hint("the lines above have the reason; the kubelet tries again"))
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
    fn install(&self, args: &SystemdArgs, text: &str, is_changed: bool) -> Result<()> {
        let mut has_new_plugin = false;
        for program in [self.program(), self.plugin()] {
            let is_new = self
                .install_program(&program)
                .context("cannot install the programs")?;
            note_written(is_new, &program);
            has_new_plugin |= is_new;
        }
        let boot = self.files.profile();
        let is_new = boot.write(text).context("cannot copy the profile")?;
        note_written(is_new, &boot.path());
        let units = self.units(args);
        for unit in &units {
            let file = self.files.unit(unit.name);
            let is_new = file.write(&unit.text).context("cannot write the unit")?;
            note_written(is_new, &file.path());
            has_new_plugin |= is_new && unit.name == PLUGIN;
        }
        make_label_directory(self.environment);
        let names: Vec<&str> = units.iter().map(|unit| unit.name).collect();
        let started = units_to_start(&names);
        let all = [&[SERVICE], started.as_slice()].concat();
        self.systemctl.reload_unit_files()?;
        // Applied once more by the installed program, whose path is in the CDI file.
        let is_reloaded = is_changed && self.systemctl.is_active(SERVICE)?;
        let is_restarted = has_new_plugin && self.systemctl.is_active(PLUGIN)?;
        self.systemctl.enable(&all, &all)?;
        if is_reloaded {
            self.systemctl.change_active("reload", SERVICE)?;
        }
        if is_restarted {
            self.systemctl.change_active("restart", PLUGIN)?;
        }
        let version = env!("CARGO_PKG_VERSION");
        note(&format!(
            "mig-mps {version} is installed in {}",
            self.programs.display()
        ));
        Ok(())
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
            let programs = Directory::open_or_create(&self.programs, 0o755)?;
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

/// Refuses an installation by hand on a host where a pod has installed mig-mps.
pub fn check_not_owned_by_pod(files: &UnitFiles<'_>, program: &Path) -> Result<()> {
    let pods = Path::new(DIRECTORY).join("bin/mig-mps");
    if program == pods || files.installed_program().as_ref() != Some(&pods) {
        return Ok(());
    }
    Err(owned_error(
        "a pod of Kubernetes has installed mig-mps on this host",
        &format!(
            "delete its DaemonSet (kubectl delete namespace mig-mps), then run {} systemd --uninstall",
            pods.display()
        ),
    ))
}
