use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;

use crate::host::steers;

/// The version of `--json`. The format only grows; a change that breaks readers raises it.
pub(super) const VERSION: u32 = 1;

/// Formats a value as indented JSON with a newline at its end.
pub(super) fn pretty(value: &impl Serialize) -> Result<String> {
    let mut text = spelled(&serde_json::to_string_pretty(value)?);
    text.push('\n');
    Ok(text)
}

/// Escapes everything in JSON that could control a terminal: it occurs in strings alone, where escapes are allowed.
pub(super) fn spelled(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for c in json.chars() {
        if c == '\n' || !steers(c) {
            text.push(c);
            continue;
        }
        let mut units = [0; 2];
        for unit in c.encode_utf16(&mut units) {
            let _ = write!(text, "\\u{unit:04x}");
        }
    }
    text
}
