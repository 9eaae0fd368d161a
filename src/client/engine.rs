//! The container engine that a command line starts, and what a program in its container lacks.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::apptainer::can_be_bound;
use super::container::CDI_KIND;

/// The variable without which a program in a container finds no daemon.
const PIPE_VARIABLE: &str = "CUDA_MPS_PIPE_DIRECTORY";

/// The options that pass it on, with the GPUs.
const PASSED_ON: &str = "--env CUDA_MPS_PIPE_DIRECTORY --env CUDA_VISIBLE_DEVICES";

/// Programs that start another program, with their short options that take no value.
const LAUNCHERS: [(&str, &str); 21] = [
    ("chrt", "abdfior"),
    ("env", "iv0"),
    ("ionice", "t"),
    ("mpiexec", "qv"),
    ("mpirun", "qv"),
    ("nice", ""),
    ("nohup", ""),
    ("numactl", "al"),
    ("orterun", "qv"),
    ("prun", "qv"),
    ("setsid", "cfw"),
    ("srun", SRUN_FLAGS),
    ("stdbuf", ""),
    ("strace", "cCdfFhikqrtTvVxyZ"),
    ("sudo", "AbEHiknPsS"),
    ("systemd-run", "dGPqrSt"),
    ("taskset", "acp"),
    ("time", "apqv"),
    ("timeout", "v"),
    ("tini", "gsvw"),
    ("unshare", "cCfimnpruTU"),
];

const SRUN_FLAGS: &str = "EHIKOQXZklsuv";

/// Long options of engines and launchers that take no value.
const FLAGS: [&str; 56] = [
    "allow-run-as-root",
    "cleanenv",
    "compat",
    "contain",
    "containall",
    "container-readonly",
    "container-remap-root",
    "container-writable",
    "debug",
    "detach",
    "env-host",
    "exclusive",
    "fakeroot",
    "foreground",
    "help",
    "hold",
    "ignore-environment",
    "init",
    "interactive",
    "label",
    "login",
    "multi-prog",
    "no-container-mount-home",
    "no-container-remap-root",
    "no-healthcheck",
    "no-home",
    "no-hostname",
    "no-hosts",
    "no-kill",
    "non-interactive",
    "nv",
    "nvccli",
    "oversubscribe",
    "overlap",
    "preserve-env",
    "preserve-status",
    "private-tmp",
    "privileged",
    "pty",
    "publish-all",
    "quiet",
    "read-only",
    "remote",
    "replace",
    "report-bindings",
    "rm",
    "rmi",
    "root",
    "rw",
    "scope",
    "tag-output",
    "tty",
    "unbuffered",
    "unsetenv-all",
    "userns",
    "writable-tmpfs",
];

/// What a container of an engine lacks, in which programs would run outside MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingOptions {
    pub engine: String,
    /// What is not in the container.
    pub lacks: Vec<String>,
    /// The options that bring it there.
    pub add: String,
}

/// Returns what the container lacks that a command line starts, perhaps by way of a launcher, for programs that are to find
/// their daemon in this directory; `None` if it starts no container, or one that has it. A private device has no name.
pub fn missing_engine_options(
    words: &[OsString],
    device: Option<&str>,
    directory: &Path,
) -> Option<MissingOptions> {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    let call = EngineCall::find(&words)?;
    let (lacks, add) = call.missing(device, directory)?;
    Some(MissingOptions {
        engine: call.engine.to_owned(),
        lacks,
        add,
    })
}

/// The ways in which engines take what a container gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Apptainer,
    Charliecloud,
    Compose,
    Docker,
    Enroot,
    Pyxis,
}

/// The start of a container: the engine, and its options up to the image.
struct EngineCall<'a> {
    engine: &'a str,
    kind: Kind,
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
            let (_, flags) = LAUNCHERS.iter().find(|(launcher, _)| *launcher == name)?;
            let (_, rest) = split_options(rest, flags);
            // The variables of env, and the times and CPUs of others.
            let is_argument =
                |word: &str| word.contains('=') || word.starts_with(|c: char| c.is_ascii_digit());
            let arguments = rest.iter().take_while(|word| is_argument(word)).count();
            words = &rest[arguments..];
        }
    }

    fn of_engine(engine: &'a str, words: &'a [Cow<'a, str>]) -> Option<Self> {
        let call = |kind, options| {
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
            "apptainer" | "singularity" => {
                let flags = "cCdefipqsuvwx";
                let (verb, rest) = after_verb(flags)?;
                let starts = ["exec", "run", "shell", "start"].contains(&verb);
                starts.then(|| call(Kind::Apptainer, split_options(rest, flags).0))?
            }
            "ch-run" => call(Kind::Charliecloud, split_options(words, "jqtvwW").0),
            "docker-compose" | "podman-compose" => call(Kind::Compose, split_options(words, "").0),
            "docker" | "nerdctl" | "podman" | "podman-remote" => {
                let (verb, rest) = after_verb("Dr")?;
                match verb {
                    "compose" => call(Kind::Compose, split_options(rest, "").0),
                    "run" | "create" => call(Kind::Docker, split_options(rest, "dhiPqt").0),
                    _ => None,
                }
            }
            "enroot" => {
                let (verb, rest) = after_verb("")?;
                (verb == "start").then(|| call(Kind::Enroot, split_options(rest, "hrw").0))?
            }
            "srun" => {
                let (options, _) = split_options(words, SRUN_FLAGS);
                let has_container = options
                    .iter()
                    .any(|(name, _)| name.starts_with("container-"));
                has_container.then(|| call(Kind::Pyxis, options))?
            }
            _ => None,
        }
    }

    /// Returns what the container lacks, and the options for that.
    fn missing(&self, device: Option<&str>, directory: &Path) -> Option<(Vec<String>, String)> {
        let shown = directory.display();
        let lacks_mount = !self.has_directory(directory);
        let (mount, variables) = (
            format!("--mount type=bind,src={shown},dst={shown}"),
            !self.has_variables(),
        );
        let add = match (self.kind, lacks_mount, variables) {
            (Kind::Apptainer, true, _) if !can_be_bound(directory) => mount,
            (Kind::Charliecloud, true, _) => format!("--bind={shown}:{shown}"),
            (Kind::Pyxis, true, _) => format!("--container-mounts={shown}:{shown}"),
            (Kind::Compose, ..) if !self.has_device_file() => {
                format!(
                    "-f device.yaml, which mig-mps env {} --format compose writes",
                    device?
                )
            }
            (Kind::Docker | Kind::Enroot, ..) if self.has_cdi_device() => return None,
            (Kind::Docker, true, true) => match device {
                Some(device) => {
                    let engine = self.engine;
                    let format = if engine.starts_with("podman") {
                        "podman"
                    } else {
                        "docker"
                    };
                    format!(
                        "these options: {engine} run $(mig-mps env {device} --format {format}) …"
                    )
                }
                None => format!("--volume {shown}:{shown} {PASSED_ON}"),
            },
            (Kind::Docker, true, false) => mount,
            (Kind::Enroot, true, true) => format!("--mount {shown}:{shown} {PASSED_ON}"),
            (Kind::Enroot, true, false) => format!("--mount {shown}:{shown}"),
            (Kind::Docker | Kind::Enroot, false, true) => PASSED_ON.to_owned(),
            _ => return None,
        };
        let lacks_variables = variables && matches!(self.kind, Kind::Docker | Kind::Enroot);
        let lacks = [
            (lacks_mount || self.kind == Kind::Compose).then(|| shown.to_string()),
            lacks_variables.then(|| PIPE_VARIABLE.to_owned()),
        ];
        Some((lacks.into_iter().flatten().collect(), add))
    }

    /// True if a mount has the directory, a directory in it, or one above it at the same path.
    fn has_directory(&self, directory: &Path) -> bool {
        let names: &[&str] = match self.kind {
            Kind::Apptainer => &["B", "bind", "mount"],
            Kind::Charliecloud => &["b", "bind"],
            Kind::Docker => &["v", "volume", "mount"],
            Kind::Enroot => &["m", "mount"],
            Kind::Pyxis => &["container-mounts"],
            Kind::Compose => &[],
        };
        let has_place = self.kind != Kind::Docker;
        self.options
            .iter()
            .filter(|(name, _)| names.contains(name))
            .flat_map(|(_, value)| mounts_of(value, has_place))
            .any(|(source, target)| {
                let target = Path::new(target);
                let is_same = Path::new(source) == target;
                source.starts_with('/')
                    && target.parent().is_some()
                    && (target.starts_with(directory) || is_same && directory.starts_with(target))
            })
    }

    /// True if the variables of a client are passed on.
    fn has_variables(&self) -> bool {
        let is_variable = |value: &str| {
            let name = value.split('=').next().unwrap_or_default();
            name == PIPE_VARIABLE
                || name
                    .strip_suffix('*')
                    .is_some_and(|start| PIPE_VARIABLE.starts_with(start))
        };
        self.options.iter().any(|(name, value)| match *name {
            "e" | "env" => is_variable(value),
            "env-file" | "env-host" => true,
            _ => false,
        })
    }

    /// True for a device of the CDI file, which has all.
    fn has_cdi_device(&self) -> bool {
        let mut options = self.options.iter();
        options.any(|(name, value)| *name == "device" && value.contains(CDI_KIND))
    }

    /// True if one of the files of compose has the variables of a client, or cannot be read.
    fn has_device_file(&self) -> bool {
        let files = self
            .options
            .iter()
            .filter(|(name, _)| ["f", "file"].contains(name));
        files
            .map(|(_, file)| fs::read_to_string(file))
            .any(|text| text.map_or(true, |text| text.contains(PIPE_VARIABLE)))
    }
}

/// Splits words into options with their values, and the words after them. An unknown option has a value.
fn split_options<'a>(
    words: &'a [Cow<'a, str>],
    short_flags: &str,
) -> (Vec<(&'a str, &'a str)>, &'a [Cow<'a, str>]) {
    let mut options = Vec::new();
    let mut rest = words;
    while let Some((word, after)) = rest.split_first() {
        let Some(option) = word.strip_prefix('-').filter(|option| !option.is_empty()) else {
            break;
        };
        rest = after;
        if option == "-" {
            break;
        }
        let (name, value, is_flag) = match option.strip_prefix('-') {
            Some(long) => match long.split_once('=') {
                Some((name, value)) => (name, Some(value), false),
                None => (long, None, FLAGS.contains(&long)),
            },
            // Those without a value may be together, and a value behind the last one.
            None => match option.find(|c| !short_flags.contains(c)) {
                Some(at) => {
                    let end = at + option[at..].chars().next().map_or(1, char::len_utf8);
                    let value = option[end..].trim_start_matches('=');
                    (
                        &option[at..end],
                        (!value.is_empty()).then_some(value),
                        false,
                    )
                }
                None => (option, None, true),
            },
        };
        let value = match (value, rest.split_first()) {
            (Some(value), _) => value,
            (None, Some((next, after))) if !is_flag => {
                rest = after;
                next
            }
            _ => "",
        };
        options.push((name, value));
    }
    (options, rest)
}

/// Returns sources and targets: of `type=bind,src=A,dst=B`, and of `A:B:ro,C:D`. `A` is `A:A` if the engine takes it for one.
fn mounts_of(value: &str, has_place: bool) -> Vec<(&str, &str)> {
    if value.split(',').any(|part| part.starts_with("type=")) {
        let of = |keys: &[&str]| {
            value.split(',').find_map(|part| {
                let (key, path) = part.split_once('=')?;
                keys.contains(&key).then_some(path.trim_end_matches('/'))
            })
        };
        let found = of(&["src", "source"]).zip(of(&["dst", "target", "destination"]));
        return found.into_iter().collect();
    }
    value
        .split(',')
        .filter_map(|mount| {
            let mut parts = mount.split(':');
            let source = parts.next()?.trim_end_matches('/');
            let target = match parts.next() {
                Some(target) => target.trim_end_matches('/'),
                None if has_place => source,
                None => return None,
            };
            Some((source, target))
        })
        .collect()
}
