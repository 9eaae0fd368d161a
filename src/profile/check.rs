use std::cell::RefCell;
use std::sync::Arc;

use super::diagnostic::{ProfileError, Source, Span};
use crate::settings::Serve;

/// The state of a profile's checks.
pub(super) struct Check<'a> {
    pub(super) source: &'a Arc<Source>,
    pub(super) serves: RefCell<Vec<(Serve, Span)>>,
}

impl Check<'_> {
    pub(super) fn error(
        &self,
        span: std::ops::Range<usize>,
        message: impl Into<String>,
    ) -> ProfileError {
        self.source.error(span.into(), message)
    }

    pub(super) fn at(&self, span: Span, message: impl Into<String>) -> ProfileError {
        self.source.error(span, message)
    }
}
