//! `mig-mps env`
//!
//! Devices in containers, for `env` and `cdi`.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::iter;

use clap::{Args, ValueEnum};

use super::cdi::remark_on_nvidias_file;
use super::{Context, no_daemon_hint, private_hint};
use crate::client::{
    ClientOptions, ContainerDevice, DeviceList, SharedMemory, Variables, another_device,
    check_user, unbound_directories, usable_gpus,
};
use crate::error::{CommandError, Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{Environment, environment_variable, quote_for_shell};
use crate::node::{Detail, Node, Served, observe, observe_records, one_device_hint};
use crate::render::json::EnvDocument;
use crate::render::{examples, note, print, print_json, warn};
use crate::settings::Serve;
use crate::state::DeviceRecord;

/// Print the environment variables of a device
///
/// Programs with these variables are clients of the device. The command does not check the device, whose daemon may be
/// dead. `mig-mps run` checks the device and sets the same variables.
#[derive(Args, Debug)]
#[command(after_help = examples(&[
    ("eval \"$(mig-mps env 0.0)\"", "Set them in this shell"),
    ("mig-mps env 0.0 | source", "The same in fish"),
    ("docker run $(mig-mps env 0.0 --format docker) IMAGE", "Run a container"),
]))]
pub struct EnvArgs {
    /// Device name, UUID, or unique prefix of either
    device: String,
    #[command(flatten)]
    options: ClientOptions,
    /// Shell syntax: sh, bash, zsh, fish or csh [default: $SHELL]
    #[arg(long, hide_possible_values = true)]
    shell: Option<ShellSyntax>,
    /// Print for another program: json, dotenv, slurm, docker, podman, k8s or compose
    #[arg(long, conflicts_with = "shell", hide_possible_values = true)]
    format: Option<EnvFormat>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShellSyntax {
    #[value(alias = "ash", alias = "dash", alias = "ksh", alias = "mksh")]
    Sh,
    Bash,
    Zsh,
    Fish,
    #[value(alias = "tcsh")]
    Csh,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EnvFormat {
    /// An object of variables to set and to unset
    Json,
    /// Lines of NAME=value
    Dotenv,
    /// Lines that Slurm takes from a task prolog
    Slurm,
    /// Options of docker run
    Docker,
    /// Options of podman run
    Podman,
    /// Part of a pod's specification, in YAML
    K8s,
    /// A file for docker compose, in YAML
    Compose,
}

/// Prints the environment of clients.
pub fn run(args: &EnvArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    let node = observe_records(environment)?;
    let served = find_served(&node, &args.device)?;
    if let Some(closed) = served.describe_closed_device() {
        let other = another_device(environment, &node, &served.record, environment.caller);
        let other = other.map_or_else(String::new, |other| format!("; device {other} is free"));
        note(&format!("{closed}{other}"));
    }
    note_outside_mps(environment, served, args.format);
    let gpus = observe_usable_gpus(environment, &served.record)?;
    if let Some(
        format @ (EnvFormat::Docker | EnvFormat::Podman | EnvFormat::K8s | EnvFormat::Compose),
    ) = args.format
    {
        let device = container_device(environment, served, &args.options, &gpus)?;
        note_unknown_driver(environment);
        if matches!(format, EnvFormat::Podman) {
            remark_on_nvidias_file(environment, device.gpus.iter().map(String::as_str));
        }
        let text = match format {
            EnvFormat::Docker => device.engine_options(&device.docker_gpus()),
            EnvFormat::Podman => device.engine_options(&device.podman_gpus()),
            EnvFormat::Compose => device.compose_file(),
            _ => device.pod_spec(),
        };
        print(&text.map_err(command_error)?)?;
        return Ok(ExitStatus::Done);
    }
    let variables = client_variables(served, environment, &args.options, &gpus)?;
    check_utf8(&variables)?;
    warn_of_unbound_directories();
    match args.format {
        Some(EnvFormat::Json) => print_json(&EnvDocument::new(&served.record.name, &variables))?,
        Some(EnvFormat::Dotenv) => print(&render_dotenv(variables)?)?,
        Some(_) => print(&slurm_lines(&variables))?,
        None => {
            let shell = args.shell.unwrap_or_else(ShellSyntax::of_caller);
            let mut values = variables
                .set
                .iter()
                .map(|(_, value)| value.to_string_lossy());
            if matches!(shell, ShellSyntax::Csh) && values.any(|value| value.contains('\n')) {
                return Err(line_break_error("a command of csh", &variables.set));
            }
            print(&render_lines(&variables, |name, value| {
                shell.render_line(name, value)
            }))?;
        }
    }
    Ok(ExitStatus::Done)
}

/// Notes that programs with the variables would run outside MPS, as far as records and processes tell: the device does not serve
/// the caller, or its daemon has died. Containers run as the user of the device.
fn note_outside_mps(environment: &Environment, served: &Served, format: Option<EnvFormat>) {
    let record = &served.record;
    let is_of_caller = matches!(
        format,
        None | Some(EnvFormat::Json | EnvFormat::Dotenv | EnvFormat::Slurm)
    );
    let why = match &record.daemon {
        Some(daemon) if daemon.has_died(&environment.host) => {
            format!("the daemon of device {} has died", record.name)
        }
        _ if !is_of_caller || environment.is_root() => return,
        _ => match check_user(served, environment.caller) {
            Err(why) => why.to_string(),
            Ok(()) => return,
        },
    };
    note(&format!(
        "{why}; programs with these variables run outside MPS"
    ));
}

/// Returns lines of `NAME=value`. Nothing is quoted: `docker run --env-file` takes quotes as a part of the value.
fn render_dotenv(variables: Variables) -> Result<String> {
    let set = variables.into_set_only();
    let mut text = String::new();
    for (name, value) in &set {
        let _ = writeln!(text, "{name}={}", value.display());
    }
    if text.lines().count() == set.len() {
        return Ok(text);
    }
    Err(line_break_error("a line of NAME=value", &set))
}

fn line_break_error(form: &str, variables: &[(String, OsString)]) -> CommandError {
    let error = command_error(format_args!("{form} cannot have a value with a line break"));
    let has_break = |(_, value): &&(String, OsString)| value.to_string_lossy().contains('\n');
    let name = variables.iter().find(has_break).map(|(name, _)| name);
    let setting = setting_of(name.map_or("", String::as_str));
    error.with_hint(format!(
        "set {setting} to a directory without a line break in its name, then apply the profile again"
    ))
}

/// Returns the variable of mig-mps that names the directory in a variable of a client.
fn setting_of(name: &str) -> &'static str {
    match name {
        "CUDA_MPS_LOG_DIRECTORY" => "MIG_MPS_LOG_DIR",
        _ => "MIG_MPS_RUN_DIR",
    }
}

/// Returns the lines by which a task prolog sets the variables.
pub fn slurm_lines(variables: &Variables) -> String {
    render_lines(variables, |name, value| {
        value.map_or_else(
            || format!("unset {name}"),
            |value| format!("export {name}={value}"),
        )
    })
}

/// Formats each variable with its value, or without one if it must not be set.
fn render_lines(variables: &Variables, line: impl Fn(&str, Option<&str>) -> String) -> String {
    let mut text = String::new();
    for (name, value) in &variables.set {
        text += &line(name, Some(&value.to_string_lossy()));
        text.push('\n');
    }
    for name in &variables.unset {
        text += &line(name, None);
        text.push('\n');
    }
    text
}

impl ShellSyntax {
    fn of_caller() -> Self {
        let shell = std::env::var("SHELL").unwrap_or_default();
        let name = shell.rsplit('/').next().unwrap_or_default();
        Self::from_str(name, false).unwrap_or(Self::Sh)
    }

    fn render_line(self, name: &str, value: Option<&str>) -> String {
        match (self, value) {
            (Self::Fish, Some(value)) => {
                let value = value.replace('\\', "\\\\").replace('\'', "\\'");
                format!("set -gx {name} '{value}'")
            }
            (Self::Fish, None) => format!("set -e {name}"),
            // `eval` makes one line of the output, and an exclamation mark means the history also in quotes.
            (Self::Csh, Some(value)) => {
                let value = value.replace('\'', r"'\''").replace('!', r"\!");
                format!("setenv {name} '{value}';")
            }
            (Self::Csh, None) => format!("unsetenv {name};"),
            (_, Some(value)) => format!("export {name}={}", quote_for_shell(value)),
            (_, None) => format!("unset {name}"),
        }
    }
}

/// Refuses paths that text for other programs cannot name.
pub fn check_utf8(variables: &Variables) -> Result<()> {
    let Some((name, value)) = variables
        .set
        .iter()
        .find(|(_, value)| value.to_str().is_none())
    else {
        return Ok(());
    };
    let shown = value.display();
    let what = format!("{shown} is not UTF-8 text, which other programs need");
    // The caller's own directories; the run directory is found in another variable before.
    if name.ends_with("_BIND") || name.ends_with("_BINDPATH") {
        let engines = ["APPTAINER", "SINGULARITY"].map(|engine| format!("{engine}_BINDPATH"));
        let mut inherited = iter::once(name).chain(&engines);
        let cause = inherited.find(|name| std::env::var_os(name).is_some());
        let cause = cause.unwrap_or(name);
        return Err(command_error(what).with_hint(format!(
            "remove the directory whose name is not UTF-8 text from {cause}"
        )));
    }
    Err(command_error(what).with_hint(format!(
        "set {} to a directory whose name is UTF-8 text, then apply the profile again",
        setting_of(name)
    )))
}

/// Warns of directories of the caller that no container of Apptainer gets.
pub fn warn_of_unbound_directories() {
    for unbound in unbound_directories(|name| std::env::var_os(name)) {
        warn(&format!(
            "the entry {:?} of {} is left out, because it has a control character; a container does not have this directory",
            unbound.entry, unbound.variable
        ));
    }
}

/// Finds the one device with a record that a word means.
pub fn find_served<'n>(node: &'n Node, word: &str) -> Result<&'n Served> {
    let names = node
        .resolve_words(&[word.to_owned()])
        .map_err(|error| CommandError {
            hints: private_hint(node)
                .or_else(|| error.hint_for_one())
                .into_iter()
                .collect(),
            ..error.into()
        })?;
    let [name] = names.as_slice() else {
        let what = format!("\"{word}\" matches several devices: {}", names.join(", "));
        let error = usage_error(what);
        return Err(error.with_hint(one_device_hint(word)));
    };
    node.served_named(name)
        .ok_or_else(|| match node.stopped_error(name) {
            Some(stopped) => stopped.into(),
            None => command_error(format_args!("no daemon serves device {name}"))
                .with_hint(no_daemon_hint()),
        })
}

/// Returns the positions of the GPUs of a device that the caller's programs may use. Observes the node if that is needed.
pub fn observe_usable_gpus(environment: &Environment, record: &DeviceRecord) -> Result<Vec<usize>> {
    // Only such a list needs the driver.
    if !record.key.is_joint() || DeviceList::of_caller(environment_variable).is_none() {
        return Ok(record.gpu_positions());
    }
    let node = observe(environment, Detail::GEOMETRY)?;
    Ok(usable_gpus(&node, record, environment_variable)?)
}

/// Returns the environment of a device's clients, also of those in Apptainer's containers. Refuses limits above those of the
/// device.
pub fn client_variables(
    served: &Served,
    environment: &Environment,
    options: &ClientOptions,
    gpus: &[usize],
) -> Result<Variables> {
    options.check_against(&served.record)?;
    let variables = Variables::for_gpus(environment, served, options, gpus);
    Ok(variables.with_apptainer(served.run_dir.path(), |name| std::env::var_os(name)))
}

/// Returns a device as containers use it, with these options of their programs and the GPUs at these positions.
pub fn container_device(
    environment: &Environment,
    served: &Served,
    options: &ClientOptions,
    gpus: &[usize],
) -> Result<ContainerDevice> {
    let record = &served.record;
    options.check_against(record)?;
    let variables = Variables::for_gpus(environment, served, options, gpus);
    check_utf8(&variables)?;
    let mut pipe = None;
    let mut set = Vec::new();
    for (name, value) in variables.into_set_only() {
        let value = value.to_string_lossy().into_owned();
        match name.as_str() {
            // A container has no use for the logs.
            "CUDA_MPS_LOG_DIRECTORY" => continue,
            "CUDA_MPS_PIPE_DIRECTORY" => pipe = Some(value.clone()),
            _ => {}
        }
        set.push((name, value));
    }
    let (mut user, mut group) = (None, None);
    match &record.settings.serve {
        Some(Serve::User(_)) => user = record.only_user().map(|user| user.0),
        Some(Serve::Group(name)) => {
            // Without the group a container's programs would run outside MPS.
            let id = record.only_group()?.ok_or_else(|| {
                command_error(format_args!(
                    "device {} serves the group {name}, which does not exist on this machine",
                    record.name
                ))
                .with_hint("create the group, or change the profile and apply it")
            })?;
            group = Some(id);
        }
        _ => {}
    }
    let driver = environment.host.driver_version();
    let uuids = record.driver_uuids();
    Ok(ContainerDevice {
        name: record.name.clone(),
        uuid: record.uuid.clone(),
        gpus: gpus.iter().map(|gpu| uuids[*gpu].clone()).collect(),
        run_dir: served.run_dir.path().to_owned(),
        pipe: pipe.unwrap_or_default(),
        variables: set,
        user,
        group,
        shares_files: SharedMemory::of_driver(driver.as_deref()) == SharedMemory::Files,
    })
}

/// Says what the text for containers cannot know.
pub(super) fn note_unknown_driver(environment: &Environment) {
    let driver = environment.host.driver_version();
    if SharedMemory::of_driver(driver.as_deref()) == SharedMemory::Unknown {
        warn(
            "the version of the driver cannot be read. Before driver 580, a container must share /dev/shm with the \
             host (--ipc host).",
        );
    }
}
