//! The error of a run: what failed, what was undone, what is left.

use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

use super::cause::Cause;

/// The error of an incomplete run.
#[derive(Debug, Default)]
pub struct ApplyError {
    /// The steps that failed.
    pub failures: Vec<Failure>,
    /// True if all steps but the failed ones of other users' daemons were carried out.
    pub is_rest_done: bool,
    /// True if the user interrupted it.
    pub interrupted: bool,
    /// The result of the rollback.
    pub rolled_back: Box<RolledBack>,
    /// The steps that did not begin.
    pub left: Vec<String>,
}

/// A step that failed.
#[derive(Debug)]
pub struct Failure {
    /// The attempted step.
    pub attempt: String,
    /// The reason.
    pub cause: Cause,
    /// True if it is about another user's daemon: the rest of the run continues without it.
    pub is_a_users: bool,
}

/// The result of a rollback.
#[derive(Debug, Default)]
pub struct RolledBack {
    /// The changes that were undone.
    pub undone: Vec<String>,
    /// The things that the run made and the rollback could not remove.
    pub stands: Vec<String>,
    /// The things that the run removed and the rollback could not make again.
    pub missing: Vec<String>,
    /// The number of clients that were terminated.
    pub clients: usize,
    /// True if another try may undo more: the journal stays then.
    pub cut_short: bool,
}

impl Failure {
    pub(super) fn new(attempt: String, cause: Cause) -> Self {
        Self {
            attempt,
            cause,
            is_a_users: false,
        }
    }
}

impl ApplyError {
    /// The error of a run that did not begin.
    pub(super) fn at_start(cause: impl Into<Cause>) -> Self {
        Self {
            failures: vec![Failure::new("nothing was changed".to_owned(), cause.into())],
            ..Self::default()
        }
    }

    /// Adds the rollback of one GPU.
    pub(super) fn add(&mut self, undone: RolledBack) {
        self.rolled_back.undone.extend(undone.undone);
        self.rolled_back.stands.extend(undone.stands);
        self.rolled_back.missing.extend(undone.missing);
        self.rolled_back.clients += undone.clients;
        self.rolled_back.cut_short |= undone.cut_short;
    }

    /// True if only a reset or a reboot is missing (exit status 3).
    pub fn is_pending(&self) -> bool {
        self.fails_only(|cause| matches!(cause, Cause::NotActive { .. }))
    }

    /// True if only processes that use a GPU are in the way (exit status 4).
    pub fn is_busy(&self) -> bool {
        self.fails_only(|cause| {
            matches!(
                cause,
                Cause::Busy { .. } | Cause::InUse { .. } | Cause::Reset { .. }
            )
        })
    }

    /// True if the user interrupted the run and nothing failed (exit status 130).
    pub fn is_interrupted(&self) -> bool {
        self.interrupted && self.failures.is_empty()
    }

    /// True if only daemons of other users have failed.
    pub fn is_of_users_alone(&self) -> bool {
        let mut failures = self.failures.iter();
        let is_undone = self.interrupted || !self.left.is_empty();
        !is_undone && !self.failures.is_empty() && failures.all(|failure| failure.is_a_users)
    }

    fn fails_only(&self, kind: impl Fn(&Cause) -> bool) -> bool {
        let mut failures = self.failures.iter();
        !self.failures.is_empty() && failures.all(|failure| kind(&failure.cause))
    }

    /// Groups the failures by cause: 56 daemons that lack the same library are one message.
    fn kinds(&self) -> Vec<(&Failure, Vec<&str>)> {
        /// The part that differs between equal causes.
        static DEVICE: LazyLock<Option<Regex>> =
            LazyLock::new(|| Regex::new("(GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}").ok());
        let general = |cause: &Cause| match DEVICE.as_ref() {
            Some(device) => device.replace_all(&cause.to_string(), "it").into_owned(),
            None => cause.to_string(),
        };
        let mut kinds: Vec<(String, &Failure, Vec<&str>)> = Vec::new();
        for failure in &self.failures {
            let said = general(&failure.cause);
            match kinds.iter_mut().find(|(known, ..)| *known == said) {
                Some((.., others)) => others.push(&failure.attempt),
                None => kinds.push((said, failure, Vec::new())),
            }
        }
        kinds
            .into_iter()
            .map(|(_, failure, others)| (failure, others))
            .collect()
    }

    /// The remedies, each once.
    pub fn hints(&self) -> Vec<String> {
        let mut hints: Vec<String> = Vec::new();
        let again = "run the same command again: it goes on from here".to_owned();
        let unfinished = self.is_of_users_alone()
            || !self.rolled_back.stands.is_empty()
            || !self.rolled_back.missing.is_empty();
        let kinds = self.kinds();
        let causes = kinds.iter().map(|(failure, _)| failure.cause.hint());
        for hint in causes.chain([unfinished.then_some(again)]).flatten() {
            if !hints.contains(&hint) {
                hints.push(hint);
            }
        }
        hints
    }
}

impl std::error::Error for ApplyError {}

impl fmt::Display for ApplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        for (Failure { attempt, cause, .. }, others) in self.kinds() {
            lines.push(format!("{attempt}: {cause}"));
            match others.as_slice() {
                [] => {}
                [other] => lines.push(format!("and likewise {other}")),
                [.., last] => {
                    lines.push(format!("and likewise {} more, to {last}", others.len()));
                }
            }
        }
        if self.is_of_users_alone() && self.is_rest_done {
            lines.push("everything else was done".to_owned());
        }
        if self.interrupted {
            lines.push("interrupted".to_owned());
        }
        let RolledBack {
            undone,
            stands,
            missing,
            clients,
            cut_short,
        } = self.rolled_back.as_ref();
        if !undone.is_empty() {
            let count = undone.len();
            let s = if count == 1 { "" } else { "s" };
            let gone = match clients {
                0 => String::new(),
                1 => ", but a client is gone".to_owned(),
                _ => format!(", but {clients} clients are gone"),
            };
            lines.push(format!(
                "what had been done before was undone ({count} step{s}){gone}"
            ));
        }
        let said = [
            ("still there", stands),
            ("missing", missing),
            ("not done", &self.left),
        ];
        for (word, things) in said {
            lines.extend(things.iter().map(|thing| format!("{word}: {thing}")));
        }
        if *cut_short {
            lines.push(
                "not everything was undone: the journal stays, and the next up or down goes on"
                    .to_owned(),
            );
        }
        f.write_str(&lines.join("\n"))
    }
}
