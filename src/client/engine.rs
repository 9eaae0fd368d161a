//! The container engine that a command line starts, and what a program in its container lacks.

use std::borrow::Cow;
use std::fs;
use std::path::{Path, PathBuf};

use super::apptainer::can_be_bound;
use super::compose::{
    Given, cdi_devices, compose_files, compose_text, given_by_compose, missing_in_compose,
    names_device,
};
use super::engine_words::{
    APPTAINER, APPTAINER_RUN, CHARLIECLOUD, COMPOSE, DOCKER, DOCKER_RUN, ENROOT, ENV_FILES, Flags,
    SLURM_LIST, SRUN, is_container_option, mounts_of, split_options, values_of,
};
use super::launch::{Missing, OUTSIDE, WantedInContainer};
use super::variables::LIMITS_WITHOUT_EFFECT;
use crate::host::join_words;

/// The variable without which a program in a container finds no daemon.
pub(super) const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The option that passes it on.
pub(super) const PASSED_ON: &str = "--env CUDA_MPS_PIPE_DIRECTORY";

/// The end of the advice where the CDI file would have the last word about a limit.
const IN_PLACE_OF_CDI: &str = ", in the place of the CDI device";

/// The ways in which engines take what a container gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EngineKind {
    Apptainer,
    Charliecloud,
    Compose,
    Docker,
    Enroot,
    Pyxis,
}

/// The value of the variable in a container.
#[derive(Clone, Debug, PartialEq, Eq)]
enum PassedVariable {
    /// That of the caller.
    PassedOn,
    Set(String),
    Unset,
}

/// The start of a container: the engine, and its options up to the image.
pub(super) struct EngineCall<'a> {
    pub engine: &'a str,
    pub kind: EngineKind,
    options: Vec<(&'a str, &'a str)>,
}

impl<'a> EngineCall<'a> {
    pub fn new(engine: &'a str, kind: EngineKind, words: &'a [Cow<'a, str>], flags: Flags) -> Self {
        let (options, _) = split_options(words, flags);
        Self {
            engine,
            kind,
            options,
        }
    }

    /// Finds the engine that a command line starts. `own` is the variable that stands for an option.
    pub fn of(words: &'a [Cow<'a, str>], own: Option<&'a (&'static str, String)>) -> Option<Self> {
        let (program, rest) = words.split_first()?;
        let mut call = Self::of_engine(program.rsplit('/').next()?, rest)?;
        if let Some((name, value)) = own {
            call.options.insert(0, (name, value));
        }
        Some(call)
    }

    fn of_engine(engine: &'a str, words: &'a [Cow<'a, str>]) -> Option<Self> {
        let call = |kind, words, flags| Some(Self::new(engine, kind, words, flags));
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
                    call(EngineKind::Apptainer, rest, APPTAINER_RUN)
                }
                _ => None,
            },
            "ch-run" => call(EngineKind::Charliecloud, words, CHARLIECLOUD),
            "docker-compose" | "podman-compose" if starts_services(words) => {
                call(EngineKind::Compose, words, COMPOSE)
            }
            "docker" | "nerdctl" | "podman" | "podman-remote" => match after_verb(DOCKER)? {
                ("compose", rest) if starts_services(rest) => {
                    call(EngineKind::Compose, rest, COMPOSE)
                }
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
                    .any(|(name, _)| is_container_option(name))
            }),
            _ => None,
        }
    }

    /// Returns what the container lacks, or says which other device it has.
    pub fn missing_or_other(
        &self,
        wanted: WantedInContainer<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<Result<String, Missing>> {
        let texts = self.texts(wanted, &variable)?;
        let missing = if self.kind == EngineKind::Compose {
            let missing = missing_in_compose(&self.listed_files(&variable), wanted);
            if given_by_compose(&texts, wanted).is_some() {
                let is_cdi = names_device(&texts, wanted);
                let mut lost = wanted.limit_variables.to_vec();
                lost.retain(|name| is_cdi && is_set_by_cdi(name) || !texts.contains(name));
                let place = if is_cdi { IN_PLACE_OF_CDI } else { "" };
                return Missing::limits(&lost, missing.remedy + place, wanted).map(Err);
            }
            missing
        } else {
            match self.missing(wanted) {
                Some(missing) => missing,
                None => return self.missing_limits(wanted).map(Err),
            }
        };
        let engine = self.engine;
        let Some(other) = cdi_devices(&texts).first().copied() else {
            return Some(Err(missing));
        };
        let clients =
            format!("the programs in a container of {engine} are clients of device {other}");
        Some(Ok(match wanted.fixed_device() {
            Some(device) => format!(
                "{clients} instead of device {device}; use mig-mps/device={device} in the place of mig-mps/device={other}"
            ),
            None => format!(
                "{clients} instead of the device of `mig-mps run`; omit mig-mps/device={other}"
            ),
        }))
    }

    /// Returns the texts that may name devices: those of the files of Compose, or of options. `None` if they are not all known.
    fn texts(
        &self,
        wanted: WantedInContainer<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<String> {
        if self.kind == EngineKind::Compose {
            return compose_text(&self.options, wanted, variable);
        }
        let devices: Vec<&str> = match self.kind {
            EngineKind::Docker | EngineKind::Enroot => {
                values_of(&self.options, &["device"]).collect()
            }
            _ => Vec::new(),
        };
        Some(devices.join("\n"))
    }

    /// Returns the files of Compose that the command line does not name, and that `-f` would replace.
    fn listed_files(&self, variable: impl Fn(&str) -> Option<String>) -> Vec<PathBuf> {
        if values_of(&self.options, &["f", "file"]).next().is_some() {
            return Vec::new();
        }
        compose_files(&self.options, variable)
    }

    /// True if the container gets a value from the environment of the engine.
    pub fn needs_caller(
        &self,
        wanted: WantedInContainer<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> bool {
        if self.kind == EngineKind::Compose {
            let texts = self.texts(wanted, variable).unwrap_or_default();
            return given_by_compose(&texts, wanted) == Some(Given::ByCaller);
        }
        let is_passed_on = self.passes_on(PIPE_VARIABLE);
        let lacks_bind =
            self.kind == EngineKind::Apptainer && self.host_path(&wanted.pipes[0]).is_none();
        !self.has_cdi_device(wanted) && (is_passed_on || lacks_bind)
    }

    /// Returns the limits that are asked for and that the container lacks, where it has the device.
    pub fn missing_limits(&self, wanted: WantedInContainer<'_>) -> Option<Missing> {
        let is_cdi = self.has_cdi_device(wanted);
        let has_none = |name: &&str| match self.variable(name) {
            _ if is_cdi && is_set_by_cdi(name) => true,
            PassedVariable::PassedOn => false,
            PassedVariable::Set(value) => value.is_empty(),
            PassedVariable::Unset => true,
        };
        let mut lost = wanted.limit_variables.to_vec();
        lost.retain(has_none);
        let remedy = if is_cdi {
            self.options_of_env(wanted)? + IN_PLACE_OF_CDI
        } else {
            self.remedy(None, &lost)
        };
        Missing::limits(&lost, remedy, wanted)
    }

    /// Returns the advice to add a mount, and to have the programs get these variables, or what an option has changed.
    fn remedy(&self, mount: Option<String>, names: &[&str]) -> String {
        let mut added: Vec<String> = mount.into_iter().collect();
        let mut changed = None;
        match self.kind {
            _ if names.is_empty() => {}
            EngineKind::Docker | EngineKind::Enroot => {
                added.extend(names.iter().map(|name| format!("--env {name}")));
            }
            EngineKind::Pyxis => added.push("--export=ALL".to_owned()),
            // They pass all on by themselves.
            _ => changed = Some(join_words(names, "and")),
        }
        let between = self.bundle().map_or(" ", |_| " and ");
        let add = (!added.is_empty()).then(|| format!("add {}", added.join(between)));
        let own_file = self
            .options
            .iter()
            .find(|(name, _)| ENV_FILES.contains(name));
        let lines = own_file.map_or_else(String::new, |(name, _)| {
            format!(", or the lines of the file in {name},")
        });
        let omit = changed.map(|names| format!("omit the options{lines} that change {names}"));
        [add, omit]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" and ")
    }

    /// Returns the advice to use the options that `env` prints.
    fn options_of_env(&self, wanted: WantedInContainer<'_>) -> Option<String> {
        let (engine, limits) = (self.engine, wanted.limits);
        let format = if engine.starts_with("podman") {
            "podman"
        } else {
            "docker"
        };
        let device = wanted.fixed_device()?;
        Some(format!(
            "add these options: {engine} run $(mig-mps env {device}{limits} --format {format}) …"
        ))
    }

    /// Says what happens with this value. Another pipe directory of mig-mps is that of another device.
    fn effect(value: &PassedVariable, lacks_mount: bool, wanted: WantedInContainer<'_>) -> String {
        let devices = wanted.directory.join("by-name");
        match value {
            PassedVariable::Set(path) if !lacks_mount => Path::new(path).strip_prefix(devices).ok(),
            _ => None,
        }
        .and_then(|inner| inner.iter().next())
        .map_or_else(
            || OUTSIDE.to_owned(),
            |other| format!("the programs are clients of device {}", other.display()),
        )
    }

    /// Returns the mount of the directory as an option.
    fn mount_option(&self, shown: &str, lacks_variable: bool) -> String {
        match self.kind {
            EngineKind::Charliecloud => format!("--bind={shown}:{shown}"),
            EngineKind::Pyxis => match self.bundle() {
                Some(bundle) => format!("a bind mount of {shown} to {bundle}/config.json"),
                None => format!("--container-mounts={shown}:{shown}"),
            },
            EngineKind::Enroot => format!("--mount {shown}:{shown}"),
            EngineKind::Docker if lacks_variable => format!("--volume {shown}:{shown}"),
            _ => format!("--mount type=bind,src={shown},dst={shown}"),
        }
    }

    /// Returns what the container lacks, and the options for that.
    fn missing(&self, wanted: WantedInContainer<'_>) -> Option<Missing> {
        if self.has_cdi_device(wanted) {
            return None;
        }
        let variable = self.variable(PIPE_VARIABLE);
        let is_of_device = match &variable {
            PassedVariable::PassedOn => true,
            PassedVariable::Set(path) => self.has_pipe_at(Path::new(path), wanted),
            PassedVariable::Unset => false,
        };
        let is_elsewhere = is_of_device && variable != PassedVariable::PassedOn;
        let lacks_mount = !is_elsewhere && !self.has_directory(wanted);
        if is_of_device && !lacks_mount {
            return None;
        }
        let shown = wanted.directory.display().to_string();
        let is_replaced = lacks_mount && self.binds_by_itself(wanted);
        let mount = (lacks_mount && !is_replaced).then(|| self.mount_option(&shown, !is_of_device));
        let mut names = Vec::new();
        if is_replaced {
            names.push(&*shown);
        }
        if !is_of_device {
            names.push(PIPE_VARIABLE);
            if matches!(self.kind, EngineKind::Docker | EngineKind::Enroot) {
                names.push("CUDA_VISIBLE_DEVICES");
                names.extend(wanted.limit_variables);
            }
        }
        let options = match self.kind {
            EngineKind::Docker if lacks_mount && !is_of_device => self.options_of_env(wanted),
            _ => None,
        };
        let remedy = options.unwrap_or_else(|| self.remedy(mount, &names));
        let effect = Self::effect(&variable, lacks_mount, wanted);
        let lacked_variable = match (variable, wanted.fixed_device()) {
            _ if is_of_device => None,
            (PassedVariable::Set(_), Some(_)) => {
                Some(format!("{PIPE_VARIABLE}={}", wanted.pipes[0].display()))
            }
            _ => Some(PIPE_VARIABLE.to_owned()),
        };
        let lacks = [lacks_mount.then_some(shown.clone()), lacked_variable];
        Some(Missing {
            lacks: lacks.into_iter().flatten().collect(),
            remedy,
            effect,
        })
    }

    /// True for an engine that has the directory by its variables.
    fn binds_by_itself(&self, wanted: WantedInContainer<'_>) -> bool {
        self.kind == EngineKind::Apptainer && can_be_bound(wanted.directory)
    }

    /// Returns the directory of a container of Slurm itself, whose file has the mounts.
    fn bundle(&self) -> Option<&str> {
        let is_slurm = self.kind == EngineKind::Pyxis;
        let bundle = values_of(&self.options, &["container"]).next_back();
        bundle.filter(|_| is_slurm)
    }

    /// True if the container has the directory in which its programs look for the daemon.
    fn has_directory(&self, wanted: WantedInContainer<'_>) -> bool {
        if self.binds_by_itself(wanted) {
            // Of two entries with one target, the engines mount the first, and --bind comes before the variables.
            let mut binds =
                values_of(&self.options, &["B", "bind"]).flat_map(|value| mounts_of(value, true));
            let at_place = binds.find(|(_, target)| Path::new(target) == wanted.directory);
            return wanted.device.is_none()
                || at_place.is_none_or(|(source, _)| Path::new(source) == wanted.directory);
        }
        if let Some(bundle) = self.bundle() {
            let text = fs::read_to_string(Path::new(bundle).join("config.json"));
            return text.is_ok_and(|text| text.contains(&*wanted.directory.to_string_lossy()));
        }
        // What another container has is not known.
        if values_of(&self.options, &["volumes-from"]).next().is_some() {
            return true;
        }
        match wanted.fixed_device() {
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

    /// Returns the value of a variable that reaches the program.
    fn variable(&self, name: &str) -> PassedVariable {
        let mut found = match self.kind {
            EngineKind::Docker | EngineKind::Enroot => PassedVariable::Unset,
            _ => PassedVariable::PassedOn,
        };
        let values_of = |names: &'static [&'static str]| values_of(&self.options, names);
        if values_of(&["env-host"]).next().is_some() {
            found = PassedVariable::PassedOn;
        }
        if values_of(&["unsetenv", "unset-env"]).any(|word| is_variable(word, name)) {
            found = PassedVariable::Unset;
        }
        // Options of one variable are stronger than those of files, and the option for files than its variable.
        let has_files = values_of(&["env-file"]).next().is_some();
        let files: &'static [&'static str] = if has_files { &["env-file"] } else { &ENV_FILES };
        for file in values_of(files).filter(|file| !file.is_empty()) {
            match fs::read_to_string(file) {
                Ok(text) => text.lines().for_each(|line| found.read(line, name)),
                Err(_) => return PassedVariable::PassedOn,
            }
        }
        match self.kind {
            EngineKind::Apptainer => values_of(&["env"])
                .flat_map(|list| list.split(','))
                .filter(|word| word.contains('='))
                .for_each(|word| found.read(word, name)),
            EngineKind::Charliecloud => {
                values_of(&["set-env"]).for_each(|word| found.read(word, name));
            }
            EngineKind::Pyxis => {
                if let Some(list) = values_of(&[SLURM_LIST, "export"]).next_back() {
                    let is_all = list.split(',').any(|word| word == "ALL");
                    found = if is_all {
                        PassedVariable::PassedOn
                    } else {
                        PassedVariable::Unset
                    };
                    list.split(',').for_each(|word| found.read(word, name));
                }
            }
            _ => values_of(&["e", "env"]).for_each(|word| found.read(word, name)),
        }
        found
    }

    /// True for this device of the CDI file, which has all.
    fn has_cdi_device(&self, wanted: WantedInContainer<'_>) -> bool {
        let mut options = values_of(&self.options, &["device"]);
        matches!(self.kind, EngineKind::Docker | EngineKind::Enroot)
            && options.any(|text| names_device(text, wanted))
    }

    /// True if the container has the caller's value of a variable.
    pub fn passes_on(&self, name: &str) -> bool {
        self.variable(name) == PassedVariable::PassedOn
    }

    /// True if the container has no value of a variable.
    pub fn lacks(&self, name: &str) -> bool {
        self.variable(name) == PassedVariable::Unset
    }
}

/// True for a limit of which the CDI file has a value of its own.
fn is_set_by_cdi(name: &str) -> bool {
    LIMITS_WITHOUT_EFFECT.iter().any(|(own, _)| *own == name)
}

impl PassedVariable {
    /// Reads `NAME`, which passes the variable on, or `NAME=VALUE`, as files for shells have it as well.
    fn read(&mut self, word: &str, name: &str) {
        let word = word.trim();
        let word = word.strip_prefix("export ").unwrap_or(word);
        match word.split_once('=') {
            Some((found, value)) if found == name => {
                *self = Self::Set(value.trim_matches(['"', '\'']).to_owned());
            }
            None if is_variable(word, name) => *self = Self::PassedOn,
            _ => {}
        }
    }
}

/// True for the name of the variable, or a pattern such as `CUDA_*`.
fn is_variable(word: &str, name: &str) -> bool {
    word == name
        || word
            .strip_suffix('*')
            .is_some_and(|start| name.starts_with(start))
}

/// True for the commands of Compose that start containers.
fn starts_services(words: &[Cow<'_, str>]) -> bool {
    let (_, rest) = split_options(words, COMPOSE);
    let verb = rest.first().map_or("", |verb| &**verb);
    [
        "create", "exec", "restart", "run", "scale", "start", "up", "watch",
    ]
    .contains(&verb)
}
