//! The values of `mig-mps help`.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Arg, Command, Error};

use super::TOPICS;

/// The commands and topics that completion offers to `help`, which also takes any other word.
#[derive(Clone)]
pub struct HelpSubjects(Vec<PossibleValue>);

impl HelpSubjects {
    /// Makes the list. A topic stands for the command of the same name, whose help is behind `--help`.
    pub fn of(program: &Command, commands: &[&'static str]) -> Self {
        let topics = TOPICS
            .iter()
            .map(|topic| PossibleValue::new(topic.name).help(topic.about));
        let is_topic = |name: &str| TOPICS.iter().any(|topic| topic.name == name);
        let commands = commands.iter().filter(|name| !is_topic(name)).map(|&name| {
            let command = program.find_subcommand(name);
            let about = command.and_then(Command::get_about);
            PossibleValue::new(name).help(about.cloned().unwrap_or_default())
        });
        Self(commands.chain(topics).collect())
    }
}

impl TypedValueParser for HelpSubjects {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().cloned()))
    }
}
