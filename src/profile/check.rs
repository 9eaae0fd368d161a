//! Collects the mistakes of a profile, so that all are reported at once.

use std::cell::RefCell;
use std::sync::Arc;

use super::diagnostic::{ProfileError, Source, Span};
use crate::settings::Serve;

/// The state of a profile's checks.
pub(super) struct Check<'a> {
    pub(super) source: &'a Arc<Source>,
    pub(super) serves: RefCell<Vec<(Serve, Span)>>,
    mistakes: RefCell<Vec<ProfileError>>,
}

/// The value is missing because of a mistake that has been noted.
#[derive(Debug)]
pub(super) struct Noted;

impl<'a> Check<'a> {
    pub(super) fn new(source: &'a Arc<Source>) -> Self {
        Self {
            source,
            serves: RefCell::default(),
            mistakes: RefCell::default(),
        }
    }

    /// Notes the mistake, if there is one, so that the check can go on.
    pub(super) fn keep<T>(&self, checked: Result<T, ProfileError>) -> Result<T, Noted> {
        checked.map_err(|error| self.note(error))
    }

    pub(super) fn note(&self, mistake: ProfileError) -> Noted {
        self.mistakes.borrow_mut().push(mistake);
        Noted
    }

    /// Returns what was read, or all mistakes.
    pub(super) fn finish<T>(self, read: Result<T, Noted>) -> Result<T, ProfileError> {
        match (ProfileError::all(self.mistakes.into_inner()), read) {
            (None, Ok(read)) => Ok(read),
            (Some(error), _) => Err(error),
            (None, Err(Noted)) => unreachable!("a mistake was noted"),
        }
    }

    pub(super) fn error(&self, span: impl Into<Span>, message: impl Into<String>) -> ProfileError {
        self.source.error(span, message)
    }
}
