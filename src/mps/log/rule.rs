use super::Kind;

/// A pattern, the kind of the lines that match it, and an explanation. Patterns are loose: wording and spelling differ
/// between drivers. The first match counts.
pub(super) type Row = (&'static str, Kind, Option<&'static str>);
