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

impl<'a> Check<'a> {
    pub(super) fn new(source: &'a Arc<Source>) -> Self {
        Self {
            source,
            serves: RefCell::default(),
            mistakes: RefCell::default(),
        }
    }

    /// Takes note of a mistake, so that the check can go on.
    pub(super) fn keep<T>(&self, checked: Result<T, ProfileError>) -> Option<T> {
        checked.map_err(|error| self.note(error)).ok()
    }

    pub(super) fn note(&self, mistake: ProfileError) {
        self.mistakes.borrow_mut().push(mistake);
    }

    /// Returns every `serve` with its place, or all mistakes.
    pub(super) fn finish(self) -> Result<Vec<(Serve, Span)>, ProfileError> {
        match ProfileError::all(self.mistakes.into_inner()) {
            Some(error) => Err(error),
            None => Ok(self.serves.into_inner()),
        }
    }

    pub(super) fn error(&self, span: impl Into<Span>, message: impl Into<String>) -> ProfileError {
        self.source.error(span, message)
    }
}
