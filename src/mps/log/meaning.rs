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
