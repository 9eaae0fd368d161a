//! The launchers on a command line: what they do not pass on, and the programs that they start elsewhere.

use std::borrow::Cow;

use super::engine_words::{
    Flags, flags_of_launcher, is_container_option, split_options, values_of,
};
use super::launch::{OUTSIDE, WantedInContainer};
use crate::config::RUN_DIR;
use crate::host::{join_words, quote_for_shell};

/// A command line of launchers and their program.
pub(super) struct CommandLine<'a> {
    words: &'a [Cow<'a, str>],
    launchers: Vec<Launcher<'a>>,
    /// The program, with its arguments.
    pub program: &'a [Cow<'a, str>],
}

struct Launcher<'a> {
    name: &'a str,
    options: Vec<(&'a str, &'a str)>,
    /// The words between its options and its program.
    arguments: &'a [Cow<'a, str>],
    /// The position of its program on the command line.
    end: usize,
}

impl<'a> CommandLine<'a> {
    pub fn of(words: &'a [Cow<'a, str>]) -> Self {
        let mut launch = Self {
            words,
            launchers: Vec::new(),
            program: words,
        };
        while let Some((name, rest)) = launch.program.split_first()
            && let name = base_name(name)
            && let Some(flags) = flags_of_launcher(name)
            && let Some(launcher) = Launcher::of(name, rest, flags, words.len())
        {
            launch.program = &words[launcher.end..];
            launch.launchers.push(launcher);
        }
        launch
    }

    /// True if mig-mps is behind the launchers, so that they need not pass anything on.
    pub fn starts_mig_mps(&self) -> bool {
        self.program
            .first()
            .is_some_and(|name| base_name(name) == "mig-mps")
    }

    /// True for an engine whose containers do not have the environment of its caller.
    pub fn starts_only_client_of_daemon(&self) -> bool {
        let engines = ["docker", "docker-compose", "nerdctl", "podman-remote"];
        self.program
            .first()
            .is_some_and(|name| engines.contains(&base_name(name)))
    }

    /// Says which launcher does not pass these variables on.
    pub fn describe_lost(
        &self,
        needed: &[String],
        wanted: WantedInContainer<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<String> {
        self.launchers.iter().rev().find_map(|launcher| {
            let is_lost = |name: &&String| !launcher.passes_on(name, &variable);
            let lost: Vec<&str> = needed.iter().filter(is_lost).map(String::as_str).collect();
            let it = match lost.len() {
                0 => return None,
                1 => "it",
                _ => "them",
            };
            let are_limits = lost
                .iter()
                .all(|name| wanted.limit_variables.contains(name));
            let effect = if are_limits {
                wanted.effect_of_lost_limits()
            } else {
                OUTSIDE.to_owned()
            };
            Some(format!(
                "{} does not pass on {}, and without {it} {effect}; {}",
                launcher.name,
                join_words(&lost, "and"),
                self.remedy(launcher, wanted, &variable)
            ))
        })
    }

    /// Says which launcher has its programs started by a service, where `--require-mps` does not see them.
    pub fn describe_unseen(
        &self,
        wanted: WantedInContainer<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Option<String> {
        let mut launchers = self.launchers.iter().rev();
        let launcher = launchers.find(|launcher| launcher.starts_elsewhere())?;
        Some(format!(
            "--require-mps does not see the programs that {} has its service start; {}",
            launcher.name,
            self.remedy(launcher, wanted, &variable)
        ))
    }

    /// Returns the advice to start mig-mps behind a launcher, as it was started here.
    fn remedy(
        &self,
        launcher: &Launcher<'_>,
        wanted: WantedInContainer<'_>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> String {
        let name = launcher.name;
        if wanted.is_rank && name != "srun" {
            return format!("start mig-mps behind {name}, with the variables of the rank");
        }
        let mut words: Vec<String> = self.words[..launcher.end]
            .iter()
            .map(|word| quote_for_shell(word))
            .collect();
        // Slurm chooses the GPUs of each step.
        let choosing: &[&str] = if name == "srun" { &[] } else { wanted.choosing };
        let lost: Vec<String> = [&RUN_DIR]
            .into_iter()
            .chain(choosing)
            .filter(|name| !launcher.passes_on(name, &variable))
            .filter_map(|name| Some(format!("{name}={}", quote_for_shell(&variable(name)?))))
            .collect();
        if !lost.is_empty() {
            words.push("env".to_owned());
        }
        words.extend(lost);
        let program = match std::env::current_exe() {
            Ok(path) if name == "env" && !launcher.passes_on("PATH", &variable) => {
                quote_for_shell(&path.to_string_lossy())
            }
            _ => "mig-mps".to_owned(),
        };
        format!("write `{} {program} {} …`", words.join(" "), wanted.command)
    }
}

fn base_name(program: &str) -> &str {
    program.rsplit('/').next().unwrap_or(program)
}

impl<'a> Launcher<'a> {
    /// `all` is the number of words of the whole command line, at whose end the rest is.
    fn of(name: &'a str, rest: &'a [Cow<'a, str>], flags: Flags, all: usize) -> Option<Self> {
        let (options, rest) = split_options(rest, flags);
        // Slurm is then the engine of a container, and env splits a text into words.
        let is_other = |(option, _): &(&str, &str)| {
            is_container_option(option) || (name == "env" && ["S", "split-string"].contains(option))
        };
        if options.iter().any(is_other) {
            return None;
        }
        let is_number = |word: &Cow<'_, str>| word.starts_with(|c: char| c.is_ascii_digit());
        let count = match name {
            // A lone - of env is its -i.
            "env" | "sudo" => rest
                .iter()
                .take_while(|word| word.contains('=') || *word == "-")
                .count(),
            "chrt" => rest.iter().take(1).filter(|word| is_number(word)).count(),
            "taskset" | "timeout" => rest.len().min(1),
            _ => 0,
        };
        // Without a program it starts nothing.
        (count < rest.len()).then(|| Self {
            name,
            options,
            arguments: &rest[..count],
            end: all - rest.len() + count,
        })
    }

    fn has(&self, names: &[&str]) -> bool {
        values_of(&self.options, names).next().is_some()
    }

    /// True if a list of an option has the variable, alone or with a value.
    fn lists(&self, names: &[&str], wanted: &str) -> bool {
        values_of(&self.options, names).any(|list| has_name(list, wanted))
    }

    /// True if the program has the variable of the caller, or its own value that the command line gives it.
    fn passes_on(&self, name: &str, variable: impl Fn(&str) -> Option<String>) -> bool {
        let is_assigned = |word: &str| word.split_once('=').is_some_and(|(own, _)| own == name);
        if self.arguments.iter().any(|word| is_assigned(word)) {
            // A caller may want to leave MPS, but not to lose the run directory by a list of others.
            return !name.ends_with("_BINDPATH");
        }
        match self.name {
            "sudo" => {
                let all = values_of(&self.options, &["preserve-env"]).any(str::is_empty);
                all || self.has(&["E"]) || self.lists(&["preserve-env"], name)
            }
            "doas" | "pkexec" => false,
            "env" => {
                let is_empty = self.has(&["i", "ignore-environment"])
                    || self.arguments.iter().any(|word| word == "-");
                !is_empty && !values_of(&self.options, &["u", "unset"]).any(|word| word == name)
            }
            "setpriv" => !self.has(&["reset-env"]),
            "srun" => {
                let list = values_of(&self.options, &["export"])
                    .next_back()
                    .map(str::to_owned)
                    .or_else(|| variable("SLURM_EXPORT_ENV"));
                list.is_none_or(|list| has_name(&list, "ALL") || has_name(&list, name))
            }
            "systemd-run" => {
                let has_property = |key: &str| {
                    values_of(&self.options, &["p", "property"])
                        .filter_map(|text| text.split_once('='))
                        .filter(|(found, _)| *found == key)
                        .flat_map(|(_, words)| words.split([' ', '"', '\'']))
                        .any(|word| word.split('=').next() == Some(name))
                };
                let has_file = values_of(&self.options, &["p", "property"])
                    .any(|text| text.starts_with("EnvironmentFile="));
                let is_set = self.lists(&["E", "setenv"], name)
                    || has_file
                    || has_property("Environment")
                    || has_property("PassEnvironment");
                !self.starts_elsewhere() || is_set && !has_property("UnsetEnvironment")
            }
            _ => true,
        }
    }

    fn starts_elsewhere(&self) -> bool {
        match self.name {
            "srun" => true,
            "systemd-run" => !self.has(&["scope"]),
            _ => false,
        }
    }
}

fn has_name(list: &str, wanted: &str) -> bool {
    list.split(',')
        .any(|word| word.split('=').next() == Some(wanted))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    static PIPES: [PathBuf; 2] = [PathBuf::new(), PathBuf::new()];

    fn wanted() -> WantedInContainer<'static> {
        WantedInContainer {
            device: Some("0"),
            is_chosen: false,
            is_rank: false,
            uuid: "",
            directory: &PIPES[0],
            pipes: &PIPES,
            limits: "",
            limit_variables: &[],
            choosing: &[],
            command: "run 0 --",
            requires_mps: false,
        }
    }

    fn lost(line: &str) -> Option<String> {
        let words: Vec<Cow<'_, str>> = line.split(' ').map(Cow::from).collect();
        let needed = ["PIPE", "A_BINDPATH"].map(str::to_owned);
        let found = CommandLine::of(&words).describe_lost(&needed, wanted(), |_| None)?;
        // The environment has no PATH then.
        let program = std::env::current_exe().unwrap().display().to_string();
        let found = found.replace(&program, "mig-mps");
        Some(found.replace(", and without them the programs run outside MPS", ""))
    }

    #[test]
    fn launchers_that_lose_variables_are_named_with_a_line_that_keeps_them() {
        for (line, launcher, kept) in [
            ("sudo x", "sudo", "sudo"),
            (
                "/usr/bin/sudo -nu alice A=b x y",
                "sudo",
                "/usr/bin/sudo -nu alice A=b",
            ),
            ("sudo -E nice env -i x", "env", "sudo -E nice env -i"),
            (
                "sudo --preserve-env=OTHER x",
                "sudo",
                "sudo --preserve-env=OTHER",
            ),
            ("doas -u alice x", "doas", "doas -u alice"),
            ("pkexec x", "pkexec", "pkexec"),
            ("env - A=b x", "env", "env - A=b"),
            (
                "env --default-signal sudo x",
                "sudo",
                "env --default-signal sudo",
            ),
            ("timeout .5 sudo x", "sudo", "timeout .5 sudo"),
            ("taskset ff sudo 7z x", "sudo", "taskset ff sudo"),
            ("chrt 10 nice -5 sudo x", "sudo", "chrt 10 nice -5 sudo"),
            (
                "mpirun -np 2 -mca A b sudo x",
                "sudo",
                "mpirun -np 2 -mca A b sudo",
            ),
            ("env -iv x", "env", "env -iv"),
            (
                "env -u PIPE -u A_BINDPATH x",
                "env",
                "env -u PIPE -u A_BINDPATH",
            ),
            ("setpriv --reset-env x", "setpriv", "setpriv --reset-env"),
            (
                "srun -n 2 --export=NONE x",
                "srun",
                "srun -n 2 --export=NONE",
            ),
            ("srun --export A,B=c x", "srun", "srun --export A,B=c"),
            (
                "systemd-run --user -p A=b x",
                "systemd-run",
                "systemd-run --user -p A=b",
            ),
            (
                "systemd-run -E OTHER x",
                "systemd-run",
                "systemd-run -E OTHER",
            ),
        ] {
            let expected = format!(
                "{launcher} does not pass on PIPE and A_BINDPATH; write `{kept} mig-mps run 0 -- …`"
            );
            assert_eq!(lost(line).as_deref(), Some(&*expected), "{line}");
        }
    }

    #[test]
    fn only_what_is_lost_is_named() {
        for line in [
            "env A_BINDPATH=/x x",
            "env -u A_BINDPATH x",
            "srun --export=PIPE x",
        ] {
            let found = lost(line).unwrap();
            assert!(
                found.contains(" does not pass on A_BINDPATH, and without it "),
                "{found}"
            );
        }
        for line in [
            "x sudo y",
            "sudo -E x",
            "sudo -nE x",
            "sudo --preserve-env x",
            "sudo --preserve-env=PIPE,A_BINDPATH x",
            "sudo -l",
            "env A=b x",
            "env PIPE=/p x",
            "nice -n 5 x",
            "srun --export=ALL,A=b x",
            "srun --export=PIPE,A_BINDPATH x",
            "srun --export=NONE --container-image=i x",
            "srun --export=NONE --container=/bundle x",
            "systemd-run --scope x",
            "systemd-run -E PIPE --setenv=A_BINDPATH=b x",
            "systemd-run -p Environment=PIPE=/p -p PassEnvironment=A_BINDPATH x",
            "setpriv --nnp x",
            "env -S true sudo x",
        ] {
            assert_eq!(lost(line), None, "{line}");
        }
    }

    /// systemd removes what is unset after all that is set.
    #[test]
    fn a_property_that_unsets_or_names_another_variable_passes_nothing_on() {
        for (properties, expected) in [
            ("UnsetEnvironment=PIPE -E PIPE -E A_BINDPATH", "PIPE, "),
            ("PassEnvironment=NOT_PIPE -E A_BINDPATH", "PIPE, "),
            ("UnsetEnvironment=PIPE", "PIPE and A_BINDPATH; "),
        ] {
            let found = lost(&format!("systemd-run -p {properties} x")).unwrap();
            let expected = format!(" does not pass on {expected}");
            assert!(found.contains(&expected), "{found}");
        }
    }

    #[test]
    fn a_list_of_slurm_may_be_in_a_variable() {
        let words = ["srun", "x"].map(Cow::from);
        let says = |list: &'static str| {
            let variable = |name: &str| (name == "SLURM_EXPORT_ENV").then(|| list.to_owned());
            CommandLine::of(&words).describe_lost(&["PIPE".to_owned()], wanted(), variable)
        };
        assert!(says("NONE").is_some());
        assert_eq!(says("ALL"), None);
    }

    #[test]
    fn programs_that_a_service_starts_are_not_seen() {
        let says = |line: &'static str| {
            let words: Vec<Cow<'_, str>> = line.split(' ').map(Cow::from).collect();
            CommandLine::of(&words).describe_unseen(wanted(), |_| None)
        };
        assert_eq!(
            says("nice srun -n 2 x").unwrap(),
            "--require-mps does not see the programs that srun has its service start; write \
             `nice srun -n 2 mig-mps run 0 -- …`"
        );
        assert!(says("systemd-run --user x").is_some());
        for line in ["sudo x", "mpirun -n 2 x", "systemd-run --scope x"] {
            assert_eq!(says(line), None, "{line}");
        }
    }
}
