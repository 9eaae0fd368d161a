//! Questions that flags, defaults or a user answer.

use std::str::FromStr;

use crate::error::{CommandError, Context as _, Result, failed, usage};
use crate::failure::ExitStatus;
use crate::render::{self, Question, can_ask};

/// A round of questions, each of which has a flag.
pub(super) struct Interview {
    can_ask: bool,
    /// True if questions without a flag take their defaults.
    takes_defaults: bool,
    /// The flags that are needed and were not given, each with the default.
    missing: Vec<String>,
}

impl Interview {
    pub(super) fn new(takes_defaults: bool) -> Self {
        Self {
            can_ask: can_ask(),
            takes_defaults,
            missing: Vec::new(),
        }
    }

    /// True if the user is asked.
    pub(super) fn asks(&self) -> bool {
        self.can_ask && !self.takes_defaults
    }

    /// Shows what the questions are about; with --quiet only to somebody who is asked.
    pub(super) fn show(&self, text: &str) {
        if self.asks() {
            render::say(text);
        } else {
            render::tell(text);
        }
    }

    /// Returns the answer of a flag, or else asks. Without a terminal, notes that the flag is missing and goes on with
    /// the default.
    pub(super) fn answer<T, U>(
        &mut self,
        flag: &str,
        given: Option<&T>,
        question: Question<'_>,
        check: impl Fn(&T) -> Result<U>,
    ) -> Result<U>
    where
        T: FromStr<Err = String>,
    {
        if let Some(given) = given {
            return check(given);
        }
        let read = |text: &str| {
            let answer: T = text.parse()?;
            check(&answer).map_err(|error| with_hints(&error))
        };
        if self.asks() {
            let answer = render::answer(question, read).context("cannot ask on the terminal")?;
            return answer.ok_or_else(ended);
        }
        if !self.takes_defaults {
            self.missing.push(format!("{flag} {}", question.default));
        }
        let default: T = question.default.parse().map_err(failed)?;
        check(&default)
    }

    /// Fails if this flag, which answers several questions, is missing.
    pub(super) fn finish_with(&mut self, flag: &str, default: &str) -> Result<()> {
        if !self.missing.is_empty() {
            self.missing = vec![format!("{flag} {default}")];
        }
        self.finish()
    }

    /// Fails if a flag is missing, and names all that are.
    pub(super) fn finish(&self) -> Result<()> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let flags = self.missing.iter().filter_map(|one| one.split(' ').next());
        let flags: Vec<&str> = flags.collect();
        let flags = match flags.as_slice() {
            [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
            all => all.join(", "),
        };
        let defaults = self.missing.join(" ");
        Err(
            usage(format_args!("there is no terminal to ask on: give {flags}"))
                .hint(format!("the defaults, which --yes takes, are {defaults}")),
        )
    }
}

fn with_hints(error: &CommandError) -> String {
    let hints = error.hints.iter().map(|hint| format!("\n  {hint}"));
    format!("{error}{}", hints.collect::<String>())
}

/// The input ended instead of an answer.
pub(super) fn ended() -> CommandError {
    CommandError {
        is_chosen: true,
        ..CommandError::new(ExitStatus::Interrupted, "Nothing was written.")
    }
}
