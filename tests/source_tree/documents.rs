//! The documents that are read on a terminal.

/// The columns of a terminal. Text is refilled for it, and examples are shown as they are.
pub(crate) const COLUMNS: usize = 80;

/// The numbers of the lines in code blocks that are too wide, from 1.
pub(crate) fn wide_lines(text: &str) -> Vec<usize> {
    let mut is_code = false;
    let mut wide = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if is_code && line.chars().count() > COLUMNS {
            wide.push(number + 1);
        }
    }
    wide
}

#[test]
fn only_code_is_measured() {
    let (fits, wide) = ("…".repeat(COLUMNS), "x".repeat(COLUMNS + 1));
    let text = format!("{wide}\n```console\n{fits}\n{wide}\n```\n{wide}\n");
    assert_eq!(wide_lines(&text), [4]);
}
