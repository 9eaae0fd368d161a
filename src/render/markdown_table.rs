//! Tables of the manual.

use std::fmt::Write as _;

use console::{measure_text_width, style};

use super::format::{behind, wrapped};

/// The gap between two columns.
const GAP: usize = 2;

/// The rows of a table; the first one has the titles.
#[derive(Default)]
pub(super) struct Rows {
    rows: Vec<Vec<String>>,
    row: Vec<String>,
}

impl Rows {
    pub(super) fn cell(&mut self, text: String) {
        self.row.push(text);
    }

    pub(super) fn end_row(&mut self) {
        self.rows.push(std::mem::take(&mut self.row));
    }
}

/// Formats a table with aligned columns, whose cells are wrapped if need be. If words do not fit, each row is a list.
pub(super) fn text(rows: &Rows, width: usize) -> String {
    let Some((titles, rows)) = rows.rows.split_first() else {
        return String::new();
    };
    let Some(widths) = widths(titles, rows, width) else {
        return lists(titles, rows, width);
    };
    let rule: Vec<String> = widths.iter().map(|width| "-".repeat(*width)).collect();
    let all = [titles, rule.as_slice()].into_iter();
    let all = all.chain(rows.iter().map(Vec::as_slice));
    all.map(|cells| row(cells, &widths)).collect()
}

/// Returns the widths of the columns; `None` if a word is too long for them.
fn widths(titles: &[String], rows: &[Vec<String>], width: usize) -> Option<Vec<usize>> {
    let cells = |column: usize| {
        let cells = rows.iter().filter_map(move |row| row.get(column));
        cells.chain(titles.get(column))
    };
    let columns = 0..titles.len();
    let widest = |text: &String| measure_text_width(text);
    let longest_word = |text: &String| {
        let words = wrapped(text, 0);
        let widths = words.iter().map(|word| measure_text_width(word));
        widths.max().unwrap_or(0)
    };
    let natural = columns
        .clone()
        .map(|column| cells(column).map(widest).max());
    let natural: Vec<usize> = natural.map(Option::unwrap_or_default).collect();
    let least = columns.map(|column| cells(column).map(longest_word).max());
    let mut widths: Vec<usize> = least.map(Option::unwrap_or_default).collect();
    let gaps = GAP * titles.len().saturating_sub(1);
    let mut left = width.checked_sub(gaps + widths.iter().sum::<usize>())?;
    while left > 0 {
        let growing = widths.iter_mut().zip(&natural);
        let growing = growing.filter(|(width, natural)| **width < **natural);
        // The narrowest first: a short cell is not wrapped for a long one beside it.
        let Some((narrowest, _)) = growing.min_by_key(|(width, _)| **width) else {
            break;
        };
        *narrowest += 1;
        left -= 1;
    }
    Some(widths)
}

/// Formats a row, in several lines if a cell is wrapped.
fn row(cells: &[String], widths: &[usize]) -> String {
    let cells = cells.iter().zip(widths);
    let cells: Vec<Vec<String>> = cells.map(|(cell, width)| wrapped(cell, *width)).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    let mut out = String::new();
    for nth in 0..height {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let text = cell.get(nth).map_or("", String::as_str);
            let pad = width.saturating_sub(measure_text_width(text)) + GAP;
            let _ = write!(line, "{text}{:pad$}", "");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// Formats each row as its first cell, and below it the others with their titles.
fn lists(titles: &[String], rows: &[Vec<String>], width: usize) -> String {
    let mut out = String::new();
    for row in rows {
        let mut cells = row.iter().zip(titles);
        if let Some((first, _)) = cells.next() {
            let _ = writeln!(out, "{}", style(wrapped(first, width).join("\n")).bold());
        }
        for (cell, title) in cells.filter(|(cell, _)| !cell.is_empty()) {
            let head = match title.as_str() {
                "" => "  ".to_owned(),
                title => format!("  {title}: "),
            };
            out.push_str(&behind(&head, cell, width));
        }
    }
    out
}
