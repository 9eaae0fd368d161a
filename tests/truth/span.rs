//! Something that was true for a while.

/// Nanoseconds since the Unix epoch, as in the event log.
pub(crate) type Time = u64;

/// From somewhere between two moments to somewhere between two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) from: (Time, Time),
    pub(crate) to: (Time, Time),
}

/// The truth of something at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    No,
    /// It was beginning, or ending.
    Either,
    Yes,
}

impl Span {
    pub(crate) const NEVER_ENDS: (Time, Time) = (Time::MAX, Time::MAX);

    pub(crate) fn at(self, time: Time) -> Truth {
        if time < self.from.0 || time > self.to.1 {
            Truth::No
        } else if time <= self.from.1 || time >= self.to.0 {
            Truth::Either
        } else {
            Truth::Yes
        }
    }

    /// Its four moments.
    pub(crate) fn edges(self) -> [Time; 4] {
        [self.from.0, self.from.1, self.to.0, self.to.1]
    }
}

impl Truth {
    /// True if it may be said.
    pub(crate) fn may(self) -> bool {
        self != Self::No
    }

    /// True if it must be said.
    pub(crate) fn must(self) -> bool {
        self == Self::Yes
    }
}
