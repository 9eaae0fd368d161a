/// The kind of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A command or answer of a control session.
    Chatter,
    /// It reads like an error but is harmless.
    Benign,
    /// Normal operation.
    Ordinary,
    /// Something was refused: a client, a setting, the start of a server.
    Refusal,
    /// A fatal GPU fault or one of its consequences.
    Fault,
    Unknown,
}

/// The meaning of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub kind: Kind,
    /// An explanation, if the line does not explain itself.
    pub why: Option<&'static str>,
}

/// The meaning of the lines that match a pattern. Patterns are loose: wording and spelling differ between drivers. The
/// first match counts.
pub(super) struct Rule {
    pub(super) pattern: &'static str,
    pub(super) meaning: Meaning,
}

pub(super) const fn chatter(pattern: &'static str) -> Rule {
    of(Kind::Chatter, pattern)
}

pub(super) const fn benign(pattern: &'static str) -> Rule {
    of(Kind::Benign, pattern)
}

pub(super) const fn ordinary(pattern: &'static str) -> Rule {
    of(Kind::Ordinary, pattern)
}

pub(super) const fn refusal(pattern: &'static str) -> Rule {
    of(Kind::Refusal, pattern)
}

pub(super) const fn fault(pattern: &'static str) -> Rule {
    of(Kind::Fault, pattern)
}

const fn of(kind: Kind, pattern: &'static str) -> Rule {
    let meaning = Meaning { kind, why: None };
    Rule { pattern, meaning }
}

impl Rule {
    /// Adds an explanation.
    pub(super) const fn because(self, why: &'static str) -> Self {
        let meaning = Meaning {
            why: Some(why),
            ..self.meaning
        };
        Self { meaning, ..self }
    }
}
