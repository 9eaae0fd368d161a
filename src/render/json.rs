use anyhow::Result;
use serde::Serialize;

/// The form of `--json`: it only grows; a change that breaks readers raises it.
pub(super) const VERSION: u32 = 1;

/// A value as a person can read it too, with a newline at its end.
pub(super) fn pretty(value: &impl Serialize) -> Result<String> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    Ok(text)
}
