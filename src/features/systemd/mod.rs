//! `mig-mps systemd`

mod pod;
mod units;

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::commands::args::{ProfileSource, socket_address};
use crate::commands::{Context, untrusted_program_error};
use crate::config::{
    CONTROL, CONTROL_PROGRAM, CUDA_LIBRARY, LOG, NODE_FEATURES, NVIDIA_SMI, NVIDIA_SMI_PROGRAM,
    NVML_LIBRARY, ROOT, SERVER_PROGRAM, SYSTEMCTL, SYSTEMCTL_PROGRAM, SYSTEMD_RUN,
    SYSTEMD_RUN_PROGRAM,
};
use crate::error::{ErrorContext as _, Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{
    Directory, Environment, OwnFile, ToolError, check_trusted_program, is_terminal_control,
    join_words, root_hint, strip_needless_sudo, write_files_into,
};
use crate::profile::Profile;
use crate::render::{examples, note, print, report, warn};

use pod::{check_not_owned_by_pod, install_from_pod};
use units::{
    NAMES, PACKAGED_MARK, PLUGIN, PLUGIN_PROGRAM, Paths, PluginUnit, SERVICE, UnitFile, UnitFiles,
    WRITTEN_MARK, unit_files, units_to_start,
};

/// The programs of a package, and the directory of Debian's node exporter.
const PACKAGED_PROGRAM: &str = "/usr/bin/mig-mps";
const PACKAGED_PLUGIN: &str = "/usr/bin/mig-mps-device-plugin";
const PACKAGED_METRICS: &str = "/var/lib/prometheus/node-exporter";

/// Apply a profile at boot, and restart daemons that die
///
/// Prints systemd units, and writes them with --install. At boot, mig-mps.service applies the profile before Slurm,
/// container engines and DCGM start. At shutdown, it stops the daemons. Every minute, mig-mps-heal.timer runs `heal`. Only
/// the device plugin of Kubernetes keeps running.
#[derive(Args, Debug)]
#[command(
    override_usage = "mig-mps systemd [OPTIONS] [PROFILE]\n       mig-mps systemd [OPTIONS] --uninstall [PROFILE]",
    after_help = examples(&[
        ("mig-mps systemd profile.toml", "Print the units"),
        ("sudo mig-mps systemd profile.toml --install --enable", "Install them"),
        ("sudo mig-mps systemd --uninstall", "Remove the units"),
    ])
)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
pub struct SystemdArgs {
    /// TOML file, built-in profile, or - for standard input [default: /etc/mig-mps/profile.toml]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    profile: Option<ProfileSource>,
    /// Write the units, and the profile if none is installed
    #[arg(long, help_heading = "Installation")]
    install: bool,
    /// Also enable the units (applies the profile at the next boot)
    #[arg(
        long,
        requires = "install",
        conflicts_with = "uninstall",
        help_heading = "Installation"
    )]
    enable: bool,
    /// Also write metrics to DIR, for a node exporter
    #[arg(long, help_heading = "Integration", value_name = "DIR", value_parser = directory, value_hint = clap::ValueHint::DirPath, conflicts_with = "uninstall")]
    metrics: Option<PathBuf>,
    /// Also offer devices to the kubelet
    #[arg(long, conflicts_with = "uninstall", help_heading = "Integration")]
    kubernetes: bool,
    /// Directory of the kubelet [default: /var/lib/kubelet]
    #[arg(long, help_heading = "Integration", value_name = "DIR", value_parser = directory, value_hint = clap::ValueHint::DirPath, requires = "kubernetes", conflicts_with = "uninstall")]
    kubelet: Option<PathBuf>,
    /// Serve plugin metrics at ADDR, such as 0.0.0.0:19835
    #[arg(long, help_heading = "Integration", value_name = "ADDR", value_parser = socket_address, requires = "kubernetes", conflicts_with = "uninstall")]
    plugin_metrics: Option<SocketAddr>,
    /// Install the programs beside this one, and apply the profile: for the pod of Kubernetes
    #[arg(long, hide = true, requires_all = ["profile", "kubernetes"], conflicts_with_all = ["install", "metrics", "uninstall"])]
    pod: bool,
    /// Disable and remove the units, and PROFILE if it is installed
    #[arg(long, conflicts_with = "install", help_heading = "Installation")]
    uninstall: bool,
    /// Write the units of a package with the program in /usr/bin to DIR
    #[arg(long, value_name = "DIR", hide = true, conflicts_with_all = ["profile", "install", "metrics", "kubernetes", "uninstall"])]
    package: Option<PathBuf>,
}

/// Reads a directory that means the same to systemd, in a unit of whole lines.
fn directory(text: &str) -> std::result::Result<PathBuf, &'static str> {
    if text.contains(is_terminal_control) {
        return Err("expected the path of a directory without control characters");
    }
    std::path::absolute(text).map_err(|_| "expected the path of a directory")
}

/// Prints, installs or removes the units.
pub fn run(args: &SystemdArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let files = UnitFiles(&environment.host);
    let profile = load_profile(args, &files)?;
    if let Some(directory) = &args.package {
        write_packaged(directory, &files)?;
        return Ok(ExitStatus::Done);
    }
    let program = std::env::current_exe().context("cannot find the path of this program")?;
    let plugin = program.with_file_name(PLUGIN_PROGRAM);
    if args.kubernetes {
        check_plugin_exists(&program, &plugin)?;
    }
    let carried = service_environment(environment);
    let paths = Paths {
        environment: &carried,
        program: &program,
        profile: &files.profile().path(),
        metrics: args.metrics.as_deref(),
        plugin: args.kubernetes.then_some(PluginUnit {
            program: &plugin,
            kubelet: args.kubelet.as_deref(),
            metrics: args.plugin_metrics,
        }),
    };
    let units = unit_files(WRITTEN_MARK, paths);
    if !args.install && !args.uninstall && !args.pod {
        print_units(&units, &files)?;
        return Ok(ExitStatus::Done);
    }
    if !environment.is_root() {
        return Err(command_error("only root can install units").with_hint(root_hint()));
    }
    if args.uninstall {
        // If the pod's program is lost, another one may remove its units.
        if files.installed_program().is_none_or(|pods| pods.exists()) {
            check_not_owned_by_pod(&files, &program)?;
        }
        uninstall_units(&files, profile.as_ref(), environment)?;
        return Ok(ExitStatus::Done);
    }
    if let Some(profile) = &profile {
        check_program(&program)?;
        paths
            .plugin
            .map_or(Ok(()), |plugin| check_program(plugin.program))?;
        check_called_programs(environment, &carried)?;
        if args.pod {
            install_from_pod(args, profile, environment)?;
            return Ok(ExitStatus::Done);
        }
        check_not_owned_by_pod(&files, &program)?;
        install_units(&units, &files, profile, args.enable, environment)?;
        note_missing_directory(args.metrics.as_deref());
    }
    Ok(ExitStatus::Done)
}

fn check_plugin_exists(program: &Path, plugin: &Path) -> Result<()> {
    if plugin.exists() {
        return Ok(());
    }
    let hint = if program == Path::new(PACKAGED_PROGRAM) {
        "install the package mig-mps-device-plugin of the same version"
    } else {
        "run `cargo install --locked --path . --features kubernetes` to build it, and put it into the directory of \
         mig-mps"
    };
    Err(command_error(format_args!("{} does not exist", plugin.display())).with_hint(hint))
}

fn print_units(units: &[Vec<UnitFile>], files: &UnitFiles<'_>) -> Result<()> {
    let texts = units.iter().flatten().map(|unit| {
        let path = files.unit(unit.name).path();
        format!("# {}\n{}", path.display(), unit.text)
    });
    Ok(print(&texts.collect::<Vec<_>>().join("\n"))?)
}

fn note_missing_directory(metrics: Option<&Path>) {
    if let Some(directory) = metrics.filter(|directory| !directory.is_dir()) {
        let directory = directory.display();
        warn(&format!(
            "there is no directory {directory}, so no metrics are written; to create it, run `mkdir -p {directory}`"
        ));
    }
}

/// Loads the profile of the command line, or the one that a boot applies already; `None` if the command needs none.
fn load_profile(args: &SystemdArgs, files: &UnitFiles<'_>) -> Result<Option<Profile>> {
    if let Some(named) = &args.profile {
        return Ok(Some(named.load()?));
    }
    if args.uninstall || args.package.is_some() {
        return Ok(None);
    }
    let boot = files.profile().path();
    if matches!(boot.try_exists(), Ok(false)) {
        let what = format_args!(
            "no profile is selected, and {} does not exist",
            boot.display()
        );
        let hint = if args.install {
            strip_needless_sudo("give a profile: `sudo mig-mps systemd PROFILE --install`")
        } else {
            "give a profile: `mig-mps systemd PROFILE`".to_owned()
        };
        return Err(usage_error(what).with_hint(hint));
    }
    Ok(Some(ProfileSource::from(&*boot.to_string_lossy()).load()?))
}

/// The path in which systemd finds the programs of its services.
const SYSTEMS_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables of mig-mps that are about one call, and not about the machine.
const CALL_VARIABLES: [&str; 2] = [LOG, ROOT];

/// Returns what this command had in its environment and systemd has not: the variables of mig-mps, and a path that leads to
/// the same programs.
fn service_environment(environment: &Environment) -> Vec<(&'static str, OsString)> {
    let mut carried: Vec<(&'static str, OsString)> = environment
        .named_paths()
        .iter()
        .filter(|(name, _)| !CALL_VARIABLES.contains(name))
        .map(|(name, path)| (*name, path.clone().into_os_string()))
        .collect();
    let mut path: Vec<PathBuf> = Vec::new();
    for program in called_programs(environment) {
        let directory = program.parent().unwrap_or(&program).to_owned();
        let is_systems = std::env::split_paths(SYSTEMS_PATH).any(|systems| systems == directory);
        if !is_systems && !path.contains(&directory) {
            path.push(directory);
        }
    }
    if !path.is_empty() {
        path.extend(std::env::split_paths(SYSTEMS_PATH));
        carried.extend(std::env::join_paths(path).map(|path| ("PATH", path)));
    }
    carried
}

/// The programs of others that the services run, as far as this command finds them.
fn called_programs(environment: &Environment) -> impl Iterator<Item = PathBuf> {
    let names = [
        CONTROL_PROGRAM,
        SERVER_PROGRAM,
        NVIDIA_SMI_PROGRAM,
        SYSTEMCTL_PROGRAM,
        SYSTEMD_RUN_PROGRAM,
    ];
    names
        .into_iter()
        .filter_map(|name| environment.find_in_path(name))
}

/// Refuses programs and libraries that another user could replace. Remarks on programs of MPS that are not there yet.
fn check_called_programs(
    environment: &Environment,
    carried: &[(&'static str, OsString)],
) -> Result<()> {
    let is_run = |name| {
        let programs = [CONTROL, NVIDIA_SMI, SYSTEMCTL, SYSTEMD_RUN];
        [NVML_LIBRARY, CUDA_LIBRARY].contains(name) || programs.contains(name)
    };
    for (_, program) in carried.iter().filter(|(name, _)| is_run(name)) {
        check_program(Path::new(program))?;
    }
    for program in called_programs(environment) {
        check_program(&program)?;
    }
    if let Err(error) = environment.mps_programs() {
        warn(&format!("{error}; systemd looks for it in {SYSTEMS_PATH}"));
    }
    Ok(())
}

/// Writes the units of a package into a directory.
fn write_packaged(directory: &Path, files: &UnitFiles<'_>) -> Result<()> {
    let paths = Paths {
        environment: &[],
        program: Path::new(PACKAGED_PROGRAM),
        profile: &files.profile().path(),
        metrics: Some(Path::new(PACKAGED_METRICS)),
        plugin: Some(PluginUnit {
            program: Path::new(PACKAGED_PLUGIN),
            kubelet: None,
            metrics: None,
        }),
    };
    let units: Vec<(String, Vec<u8>)> = unit_files(PACKAGED_MARK, paths)
        .into_iter()
        .flatten()
        .map(|unit| (unit.name.to_owned(), unit.text.into_bytes()))
        .collect();
    let unwritable = format!("cannot write units to {}", directory.display());
    write_files_into(directory, &units).context(unwritable)
}

/// Refuses a program that another user could replace: systemd runs it as root.
fn check_program(program: &Path) -> Result<()> {
    check_trusted_program(program).map_err(|error| {
        let hint = "install the program where only root can change it, such as /usr/local/bin";
        untrusted_program_error("systemd", program, &error).with_hint(hint)
    })
}

fn install_units(
    groups: &[Vec<UnitFile>],
    files: &UnitFiles<'_>,
    profile: &Profile,
    enable: bool,
    environment: &Environment,
) -> Result<()> {
    let text = profile.source.text();
    match files.check_files(groups.iter().flatten(), text) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(command_error(format_args!("{error}; mig-mps does not replace it")).with_hint(
                "edit that file and run `systemctl reload mig-mps`; or remove the file, and run this command again",
            ));
        }
        checked => checked.context("cannot install the units")?,
    }
    let is_new = files
        .write_profile(text)
        .context("cannot copy the profile")?;
    note_written(is_new, &files.profile().path());
    for units in groups {
        // All or none: a part of a package would go with it.
        let same: Option<Vec<PathBuf>> =
            units.iter().map(|unit| files.same_packaged(unit)).collect();
        if let Some(same) = same {
            for path in &same {
                note_written(false, path);
            }
            continue;
        }
        for unit in units {
            let file = files.unit(unit.name);
            let is_new = file.write(&unit.text).context("cannot write the unit")?;
            note_written(is_new, &file.path());
        }
    }
    let names: Vec<&str> = groups.iter().flatten().map(|unit| unit.name).collect();
    if names.contains(&PLUGIN) {
        make_label_directory(environment);
    }
    let systemctl = environment.find_systemctl()?;
    ignore_missing_systemd(systemctl.reload_unit_files())?;
    let started = units_to_start(&names);
    let enabled = [&[SERVICE], started.as_slice()].concat();
    if enable {
        systemctl.enable(&enabled, &started)?;
        report(&format!("enabled {}", join_words(&enabled, "and")));
        note("run `systemctl start mig-mps` to apply the profile now, without a reboot");
    } else {
        note(&format!(
            "run `systemctl enable {}` to enable the units",
            enabled.join(" ")
        ));
    }
    Ok(())
}

fn uninstall_units(
    files: &UnitFiles<'_>,
    profile: Option<&Profile>,
    environment: &Environment,
) -> Result<()> {
    let own: Vec<OwnFile> = NAMES.into_iter().map(|name| files.unit(name)).collect();
    let packaged: Vec<PathBuf> = NAMES
        .into_iter()
        .filter_map(|name| files.packaged_path(name))
        .collect();
    let is_installed = !packaged.is_empty() || own.iter().any(|file| file.path().exists());
    let systemctl = environment.find_systemctl()?;
    if is_installed {
        let started = units_to_start(&NAMES);
        ignore_missing_systemd(
            systemctl.disable(&[&[SERVICE], started.as_slice()].concat(), &started),
        )?;
    }
    for file in own {
        if file.remove().context("cannot remove the unit")? {
            report(&format!("removed {}", file.path().display()));
        }
    }
    for path in packaged {
        report(&format!(
            "{} remains, because it belongs to a package",
            path.display()
        ));
    }
    if is_installed {
        ignore_missing_systemd(systemctl.reload_unit_files())?;
    } else {
        report("No unit of mig-mps is installed.");
    }
    let text = profile.map(|profile| profile.source.text());
    let path = files.profile().path();
    match files
        .remove_profile(text)
        .context("cannot remove the profile")?
    {
        Some(true) => report(&format!("removed {}", path.display())),
        Some(false) => report(&format!("{} remains", path.display())),
        None => {}
    }
    Ok(())
}

/// Makes the directory in which the plugin writes labels of the node. Its sandbox leaves only directories writable that exist
/// when it starts, and Node Feature Discovery may come later.
fn make_label_directory(environment: &Environment) {
    let directory = environment.host.under_root(NODE_FEATURES);
    if let Err(error) = Directory::open_or_create(&directory, 0o755) {
        warn(&format!(
            "cannot create the directory for node labels: {error}"
        ));
    }
}

fn note_written(is_new: bool, path: &Path) {
    if is_new {
        report(&format!("wrote {}", path.display()));
    } else {
        report(&format!("{} is up to date", path.display()));
    }
}

/// Without systemd, as while the image of a machine is made, no program has to read the files again.
fn ignore_missing_systemd(result: Result<(), ToolError>) -> Result<()> {
    match result {
        Err(ToolError::NoSystemd(_)) => Ok(()),
        other => Ok(other?),
    }
}
