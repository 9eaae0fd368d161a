//! Programs that a command line starts in a container that exists already, and those that the daemon of an engine starts.

use std::borrow::Cow;

use super::engine::{EngineCall, EngineKind, PIPE_VARIABLE};
use super::engine_words::{DOCKER, DOCKER_RUN, split_options, values_of};
use super::launch::WantedInContainer;

/// A start of programs in a container that exists already, or in one that only a file describes.
pub(super) struct ExistingContainer<'a> {
    /// The command, such as `docker exec`.
    command: String,
    /// The engine, and the options behind the verb.
    pub call: EngineCall<'a>,
}

impl<'a> ExistingContainer<'a> {
    /// Finds it on a command line.
    pub fn of(words: &'a [Cow<'a, str>]) -> Option<Self> {
        let (program, rest) = words.split_first()?;
        let engine = program.rsplit('/').next()?;
        if !["docker", "nerdctl", "podman", "podman-remote"].contains(&engine) {
            return None;
        }
        let (_, mut rest) = split_options(rest, DOCKER);
        let mut command = vec![engine];
        if let Some((group, after)) = rest.split_first()
            && ["container", "kube", "play", "pod"].contains(&&**group)
        {
            command.push(group);
            rest = after;
        }
        let (verb, rest) = rest.split_first()?;
        command.push(verb);
        let is_start = ["exec", "kube", "play", "restart", "start"].contains(&&**verb);
        is_start.then(|| Self {
            command: command.join(" "),
            call: EngineCall::new(engine, EngineKind::Docker, rest, DOCKER_RUN),
        })
    }

    /// Says what the programs do not get of the device that they are to use.
    pub fn describe_lost(&self, wanted: WantedInContainer<'_>) -> Option<String> {
        if self.call.lacks(PIPE_VARIABLE) {
            return Some(format!(
                "{} does not pass on {PIPE_VARIABLE}, and without it the programs run outside MPS, unless the container has \
                 a device; create the container with a device (`mig-mps help containers`)",
                self.command
            ));
        }
        let missing = self.call.missing_limits(wanted)?;
        Some(missing.describe(self.call.engine))
    }
}

/// Returns the engine whose daemon starts the programs that a command line is for.
pub(super) fn daemon_of<'a>(words: &'a [Cow<'a, str>]) -> Option<&'a str> {
    let (program, rest) = words.split_first()?;
    let engine = program.rsplit('/').next()?;
    let (options, _) = split_options(rest, DOCKER);
    let remote = ["r", "remote", "c", "connection", "url"];
    let has_daemon = match engine {
        "docker" | "docker-compose" | "nerdctl" | "podman-remote" | "srun" => true,
        "podman" => values_of(&options, &remote).next().is_some(),
        _ => false,
    };
    let is_start = EngineCall::of(words, None).is_some() || ExistingContainer::of(words).is_some();
    (has_daemon && is_start).then_some(engine)
}
