//! The container engine that a command line starts, and what a program in its container lacks.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use super::apptainer::can_be_bound;
use super::compose::{compose_files, has_device};
use super::engine_words::{
    APPTAINER, CHARLIECLOUD, COMPOSE, DOCKER, DOCKER_RUN, ENROOT, Flags, SRUN, flags_of_launcher,
    mounts_of, split_options, values_of,
};

/// The variable without which a program in a container finds no daemon.
pub(super) const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The options that pass it on, with the GPUs.
const PASSED_ON: &str = "--env CUDA_MPS_PIPE_DIRECTORY --env CUDA_VISIBLE_DEVICES";

/// The device that the programs in a container are to use.
#[derive(Clone, Copy, Debug)]
pub struct WantedInContainer<'a> {
    /// Its name; none for a private device.
    pub device: Option<&'a str>,
    pub uuid: &'a str,
    /// The directory to mount, below which the pipe directory is.
    pub directory: &'a Path,
    /// The pipe directory by the path in the variable, and by the UUID.
    pub pipes: &'a [PathBuf; 2],
}

impl WantedInContainer<'_> {
    /// True for the pipe directory.
    pub(super) fn has_pipe(&self, path: &Path) -> bool {
        self.pipes.iter().any(|pipe| pipe == path)
    }
}

/// What a container of an engine lacks, in which programs would run outside MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingOptions {
    pub engine: String,
    /// What is not in the container.
    pub lacks: Vec<String>,
    /// The options that bring it there.
    pub add: String,
}

/// Returns what the container lacks that a command line starts, perhaps by way of a launcher, for programs on a device; `None`
/// if it starts no container, or one that has all. `variable` returns a variable of the engine.
pub fn missing_engine_options(
    words: &[OsString],
    wanted: WantedInContainer<'_>,
    variable: impl Fn(&str) -> Option<String>,
) -> Option<MissingOptions> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let call = EngineCall::find(&words)?;
    let (lacks, add) = if call.kind == EngineKind::Compose {
        let files = compose_files(&call.options, variable);
        missing_in_compose(&files, wanted)?
    } else {
        call.missing(wanted)?
    };
    Some(MissingOptions {
        engine: call.engine.to_owned(),
        lacks,
        add,
    })
}

/// The ways in which engines take what a container gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EngineKind {
    Apptainer,
    Charliecloud,
    Compose,
    Docker,
    Enroot,
    Pyxis,
}

/// The value of the variable in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PipeVariable {
    /// That of the caller.
    PassedOn,
    Set(String),
    Unset,
}

/// The start of a container: the engine, and its options up to the image.
struct EngineCall<'a> {
    engine: &'a str,
    kind: EngineKind,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> EngineCall<'a> {
    /// Finds the engine, which the command line or one of its launchers starts.
    fn find(mut words: &'a [Cow<'a, str>]) -> Option<Self> {
        loop {
            let (program, rest) = words.split_first()?;
            let name = program.rsplit('/').next()?;
            if let Some(call) = Self::of_engine(name, rest) {
                return Some(call);
            }
            let (_, rest) = split_options(rest, flags_of_launcher(name)?);
            // The variables of env, and the times and CPUs of others.
            let is_argument =
                |word: &str| word.contains('=') || word.starts_with(|c: char| c.is_ascii_digit());
            let arguments = rest.iter().take_while(|word| is_argument(word)).count();
            words = &rest[arguments..];
        }
    }

    fn of_engine(engine: &'a str, words: &'a [Cow<'a, str>]) -> Option<Self> {
        let call = |kind, words, flags: Flags| {
            let (options, _) = split_options(words, flags);
            Some(Self {
                engine,
                kind,
                options,
            })
        };
        let after_verb = |flags| {
            let (_, words) = split_options(words, flags);
            let (verb, rest) = words.split_first()?;
            // Both forms of a command: `docker container run` is `docker run`.
            match (&**verb, rest.split_first()) {
                ("container" | "instance", Some((verb, rest))) => Some((&**verb, rest)),
                (verb, _) => Some((verb, rest)),
            }
        };
        match engine {
            "apptainer" | "singularity" => match after_verb(APPTAINER)? {
                ("exec" | "run" | "shell" | "start", rest) => {
                    call(EngineKind::Apptainer, rest, APPTAINER)
                }
                _ => None,
            },
            "ch-run" => call(EngineKind::Charliecloud, words, CHARLIECLOUD),
            "docker-compose" | "podman-compose" => call(EngineKind::Compose, words, COMPOSE),
            "docker" | "nerdctl" | "podman" | "podman-remote" => match after_verb(DOCKER)? {
                ("compose", rest) => call(EngineKind::Compose, rest, COMPOSE),
                ("run" | "create", rest) => call(EngineKind::Docker, rest, DOCKER_RUN),
                _ => None,
            },
            "enroot" => match after_verb(ENROOT)? {
                ("start", rest) => call(EngineKind::Enroot, rest, ENROOT),
                _ => None,
            },
            "srun" => call(EngineKind::Pyxis, words, SRUN).filter(|call| {
                call.options
                    .iter()
                    .any(|(name, _)| name.starts_with("container-"))
            }),
            _ => None,
        }
    }

    /// Returns what the container lacks, and the options for that.
    fn missing(&self, wanted: WantedInContainer<'_>) -> Option<(Vec<String>, String)> {
        let WantedInContainer {
            device, directory, ..
        } = wanted;
        if self.has_cdi_device(wanted) {
            return None;
        }
        let variable = self.pipe_variable();
        let is_of_device = match &variable {
            PipeVariable::PassedOn => true,
            PipeVariable::Set(path) => self.has_pipe_at(Path::new(path), wanted),
            PipeVariable::Unset => false,
        };
        let is_elsewhere = is_of_device && variable != PipeVariable::PassedOn;
        let lacks_mount = !is_elsewhere && !self.has_directory(wanted);
        if is_of_device && !lacks_mount {
            return None;
        }
        let shown = directory.display();
        let mount = match self.kind {
            EngineKind::Charliecloud => format!("--bind={shown}:{shown}"),
            EngineKind::Pyxis => format!("--container-mounts={shown}:{shown}"),
            EngineKind::Enroot => format!("--mount {shown}:{shown}"),
            EngineKind::Docker if !is_of_device => format!("--volume {shown}:{shown}"),
            _ => format!("--mount type=bind,src={shown},dst={shown}"),
        };
        // The pipe directory of a private device has another name each time.
        let pipe = device.map(|_| format!("{PIPE_VARIABLE}={}", wanted.pipes[0].display()));
        let pass_on = match (self.kind, &pipe) {
            _ if is_of_device => None,
            (EngineKind::Docker | EngineKind::Enroot, _) => Some(PASSED_ON.to_owned()),
            (EngineKind::Pyxis, _) => Some("--export=ALL".to_owned()),
            (EngineKind::Charliecloud, Some(pipe)) => Some(format!("--set-env={pipe}")),
            (_, pipe) => Some(format!("--env {}", pipe.as_ref()?)),
        };
        let add = match (self.kind, device) {
            (EngineKind::Docker, Some(device)) if lacks_mount && !is_of_device => {
                let engine = self.engine;
                let format = if engine.starts_with("podman") {
                    "podman"
                } else {
                    "docker"
                };
                format!("these options: {engine} run $(mig-mps env {device} --format {format}) …")
            }
            _ => {
                let options = [lacks_mount.then_some(mount), pass_on];
                options.into_iter().flatten().collect::<Vec<_>>().join(" ")
            }
        };
        let lacked_variable = match (variable, pipe) {
            _ if is_of_device => None,
            (PipeVariable::Set(_), Some(pipe)) => Some(pipe),
            _ => Some(PIPE_VARIABLE.to_owned()),
        };
        let lacks = [lacks_mount.then(|| shown.to_string()), lacked_variable];
        Some((lacks.into_iter().flatten().collect(), add))
    }

    /// True if the container has the directory in which its programs look for the daemon. Apptainer has it by its variables.
    fn has_directory(&self, wanted: WantedInContainer<'_>) -> bool {
        if self.kind == EngineKind::Apptainer && can_be_bound(wanted.directory) {
            return true;
        }
        match wanted.device {
            Some(_) => self.has_pipe_at(&wanted.pipes[0], wanted),
            None => self.host_path(wanted.directory).as_deref() == Some(wanted.directory),
        }
    }

    /// True if the pipe directory is at this path of the container.
    fn has_pipe_at(&self, path: &Path, wanted: WantedInContainer<'_>) -> bool {
        if let Some(host) = self.host_path(path) {
            return wanted.has_pipe(&host);
        }
        let has_all = self.kind == EngineKind::Apptainer && can_be_bound(wanted.directory);
        has_all && wanted.has_pipe(path)
    }

    /// Returns the path of the host that a path of the container is by a mount.
    fn host_path(&self, path: &Path) -> Option<PathBuf> {
        let names: &[&str] = match self.kind {
            EngineKind::Apptainer => &["B", "bind", "mount"],
            EngineKind::Charliecloud => &["b", "bind"],
            EngineKind::Docker => &["v", "volume", "mount"],
            EngineKind::Enroot => &["m", "mount"],
            EngineKind::Pyxis => &["container-mounts"],
            EngineKind::Compose => &[],
        };
        let is_docker = self.kind == EngineKind::Docker;
        let mut covering: Vec<(&str, &Path)> = values_of(&self.options, names)
            .flat_map(|value| mounts_of(value, !is_docker))
            .map(|(source, target)| (source, Path::new(target)))
            .filter(|(source, target)| {
                source.starts_with('/') && target.parent().is_some() && path.starts_with(target)
            })
            .collect();
        // Docker mounts what is inside another mount after that.
        if is_docker {
            covering.sort_by_key(|(_, target)| target.components().count());
        }
        let (source, target) = covering.pop()?;
        let inner = path.strip_prefix(target).ok()?;
        Some(
            Path::new(source)
                .components()
                .chain(inner.components())
                .collect(),
        )
    }

    /// Returns the value of the variable that reaches the program.
    fn pipe_variable(&self) -> PipeVariable {
        let mut found = match self.kind {
            EngineKind::Docker | EngineKind::Enroot => PipeVariable::Unset,
            _ => PipeVariable::PassedOn,
        };
        let values_of = |names: &'static [&'static str]| values_of(&self.options, names);
        if values_of(&["env-host"]).next().is_some() {
            found = PipeVariable::PassedOn;
        }
        if values_of(&["unsetenv", "unset-env"]).any(is_variable) {
            found = PipeVariable::Unset;
        }
        // Options of one variable are stronger than those of files.
        for file in values_of(&["env-file"]) {
            match fs::read_to_string(file) {
                Ok(text) => text.lines().for_each(|line| found.read(line)),
                Err(_) => return PipeVariable::PassedOn,
            }
        }
        match self.kind {
            EngineKind::Apptainer => values_of(&["env"])
                .flat_map(|list| list.split(','))
                .filter(|word| word.contains('='))
                .for_each(|word| found.read(word)),
            EngineKind::Charliecloud => values_of(&["set-env"]).for_each(|word| found.read(word)),
            EngineKind::Pyxis => {
                if let Some(list) = values_of(&["export"]).next_back() {
                    let is_all = list.split(',').any(|word| word == "ALL");
                    found = if is_all {
                        PipeVariable::PassedOn
                    } else {
                        PipeVariable::Unset
                    };
                    list.split(',').for_each(|word| found.read(word));
                }
            }
            _ => values_of(&["e", "env"]).for_each(|word| found.read(word)),
        }
        found
    }

    /// True for this device of the CDI file, which has all.
    fn has_cdi_device(&self, wanted: WantedInContainer<'_>) -> bool {
        let mut options = self.options.iter();
        matches!(self.kind, EngineKind::Docker | EngineKind::Enroot)
            && options.any(|(name, value)| *name == "device" && has_device(value, wanted))
    }
}

impl PipeVariable {
    /// Reads `NAME`, which passes the variable on, or `NAME=VALUE`, as files for shells have it as well.
    fn read(&mut self, word: &str) {
        let word = word.trim();
        let word = word.strip_prefix("export ").unwrap_or(word);
        match word.split_once('=') {
            Some((PIPE_VARIABLE, value)) => {
                *self = Self::Set(value.trim_matches(['"', '\'']).to_owned());
            }
            None if is_variable(word) => *self = Self::PassedOn,
            _ => {}
        }
    }
}

/// True for the name of the variable, or a pattern such as `CUDA_*`.
fn is_variable(name: &str) -> bool {
    let is_start = |start: &str| PIPE_VARIABLE.starts_with(start);
    name == PIPE_VARIABLE || name.strip_suffix('*').is_some_and(is_start)
}

/// Returns what the services of compose lack, and what to add for that.
fn missing_in_compose(
    files: &[PathBuf],
    wanted: WantedInContainer<'_>,
) -> Option<(Vec<String>, String)> {
    // A file that cannot be read may have it.
    let mut texts = files.iter().map(fs::read_to_string);
    if texts.any(|text| text.map_or(true, |text| has_device(&text, wanted))) {
        return None;
    }
    let shown = wanted.directory.display().to_string();
    if let Some(device) = wanted.device {
        let add = format!("-f device.yaml, which mig-mps env {device} --format compose writes");
        return Some((vec![shown], add));
    }
    let add = format!(
        "to the service: volumes: [\"{shown}:{shown}\"], environment: [{PIPE_VARIABLE}, CUDA_VISIBLE_DEVICES]"
    );
    Some((vec![shown, PIPE_VARIABLE.to_owned()], add))
}
