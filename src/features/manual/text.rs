//! The manual as text: Markdown refilled for a width, and its tables.

use std::fmt::Write as _;

use console::{Style, measure_text_width, style};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::render::format::{behind, kept_together, wrapped};

/// The longest code that is not wrapped.
const LONGEST_CODE: usize = 30;

/// Formats a chapter in at most `width` columns, except for its code blocks. Pictures are left out.
pub fn markdown(source: &str, width: usize) -> String {
    let mut page = Page {
        width,
        ..Page::default()
    };
    for event in Parser::new_ext(source, Options::ENABLE_TABLES) {
        page.take(event);
    }
    page.out
}

/// The kind of text that is being read.
#[derive(Default, PartialEq, Eq)]
enum Inside {
    #[default]
    Words,
    CodeBlock,
    Picture,
}

/// The text under construction.
#[derive(Default)]
struct Page {
    out: String,
    width: usize,
    /// The paragraph, heading or cell being read.
    text: String,
    is_strong: bool,
    /// The lists being read; each with the number of its next item if it has numbers.
    lists: Vec<Option<u64>>,
    /// Stands before the next text: the mark of a list item.
    mark: String,
    /// True after the first item of a list: no blank line stands between items.
    is_in_items: bool,
    inside: Inside,
    table: Rows,
}

impl Page {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match self.inside {
                Inside::Words => self.words(&text),
                Inside::CodeBlock => self.text.push_str(&text),
                Inside::Picture => {}
            },
            Event::Code(code) => self.code(&code),
            Event::SoftBreak | Event::HardBreak => self.text.push(' '),
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::Strong | Tag::Emphasis | Tag::TableHead => {
                self.is_strong = true;
            }
            Tag::Image { .. } => self.inside = Inside::Picture,
            Tag::CodeBlock(_) => {
                self.flush();
                self.inside = Inside::CodeBlock;
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(*first);
            }
            Tag::Item => {
                "- ".clone_into(&mut self.mark);
                if let Some(Some(number)) = self.lists.last_mut() {
                    self.mark = format!("{number}. ");
                    *number += 1;
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.is_strong = false;
                self.flush();
            }
            TagEnd::Strong | TagEnd::Emphasis => self.is_strong = false,
            TagEnd::Image => self.inside = Inside::Words,
            TagEnd::Paragraph | TagEnd::Item => self.flush(),
            TagEnd::List(_) => {
                self.lists.pop();
                self.is_in_items = !self.lists.is_empty();
            }
            TagEnd::CodeBlock => self.code_block(),
            TagEnd::TableHead => {
                self.is_strong = false;
                self.table.end_row();
            }
            TagEnd::TableRow => self.table.end_row(),
            TagEnd::TableCell => self.table.cell(std::mem::take(&mut self.text)),
            TagEnd::Table => {
                self.gap();
                let rows = std::mem::take(&mut self.table);
                self.out.push_str(&text(&rows, self.width));
            }
            _ => {}
        }
    }

    /// Adds words of a paragraph, each in its own style: a pager forgets it at the end of a line.
    fn words(&mut self, text: &str) {
        if !self.is_strong {
            self.text.push_str(text);
            return;
        }
        self.styled(text, &Style::new().bold());
    }

    fn code(&mut self, code: &str) {
        let is_short = measure_text_width(code) <= LONGEST_CODE;
        if is_short {
            let style = Style::new().green();
            let _ = write!(self.text, "{}", style.apply_to(kept_together(code)));
        } else {
            self.styled(code, &Style::new().green());
        }
    }

    fn styled(&mut self, text: &str, style: &Style) {
        let words = text.split(' ').map(|word| match word {
            "" => String::new(),
            word => style.apply_to(word).to_string(),
        });
        self.text.push_str(&words.collect::<Vec<_>>().join(" "));
    }

    /// Adds a blank line, except at the start and between the items of a list.
    fn gap(&mut self) {
        if !self.out.is_empty() && !self.is_in_items {
            self.out.push('\n');
        }
    }

    /// Adds the paragraph or item that was read.
    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        if text.trim().is_empty() {
            return;
        }
        self.gap();
        let depth = self.lists.len().saturating_sub(1);
        let mark = std::mem::take(&mut self.mark);
        let head = match (self.lists.is_empty(), mark.is_empty()) {
            (true, _) => String::new(),
            (false, true) => "  ".repeat(depth + 1),
            (false, false) => "  ".repeat(depth) + &mark,
        };
        self.out.push_str(&behind(&head, text.trim(), self.width));
        self.is_in_items = !self.lists.is_empty();
    }

    /// Adds a code block as it is, indented if it fits so.
    fn code_block(&mut self) {
        self.inside = Inside::Words;
        self.is_in_items = false;
        self.gap();
        let text = std::mem::take(&mut self.text);
        let widest = text.lines().map(measure_text_width).max().unwrap_or(0);
        let indent = 2.min(self.width.saturating_sub(widest));
        for line in text.lines() {
            let line = format!("{:indent$}{line}", "");
            let _ = writeln!(self.out, "{}", line.trim_end());
        }
    }
}

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
    let all = [titles, rule.as_slice()]
        .into_iter()
        .chain(rows.iter().map(Vec::as_slice));
    all.map(|cells| row(cells, &widths)).collect()
}

/// Returns the widths of the columns; `None` if a word is too long for them.
fn widths(titles: &[String], rows: &[Vec<String>], width: usize) -> Option<Vec<usize>> {
    let mut natural = vec![0; titles.len()];
    let mut widths = vec![0; titles.len()];
    for row in rows.iter().map(Vec::as_slice).chain([titles]) {
        for (column, cell) in row.iter().enumerate().take(titles.len()) {
            natural[column] = measure_text_width(cell).max(natural[column]);
            widths[column] = longest_word(cell).max(widths[column]);
        }
    }
    let gaps = GAP * titles.len().saturating_sub(1);
    let mut left = width.checked_sub(gaps + widths.iter().sum::<usize>())?;
    while left > 0 {
        let growing = widths
            .iter_mut()
            .zip(&natural)
            .filter(|(width, natural)| **width < **natural);
        // The narrowest first: a short cell is not wrapped for a long one beside it.
        let Some((narrowest, _)) = growing.min_by_key(|(width, _)| **width) else {
            break;
        };
        *narrowest += 1;
        left -= 1;
    }
    Some(widths)
}

/// Returns the width of the longest word.
fn longest_word(text: &str) -> usize {
    wrapped(text, 0)
        .iter()
        .map(|word| measure_text_width(word))
        .max()
        .unwrap_or(0)
}

/// Formats a row, in several lines if a cell is wrapped.
fn row(cells: &[String], widths: &[usize]) -> String {
    let cells: Vec<Vec<String>> = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| wrapped(cell, *width))
        .collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_and_lists_are_refilled_and_code_stays() {
        let source = "# A chapter\n\nWords that\nare `refilled` here,\nsee [states](states.md).\n\n\
                      ![picture](a.svg)\n\n- one item that is long\n- two\n\n```toml\na  = 1\n```\n";
        assert_eq!(
            markdown(source, 24),
            "A chapter\n\nWords that are refilled\nhere, see states.\n\n- one item that is long\n- two\n\n  a  = 1\n"
        );
    }

    #[test]
    fn tables_are_aligned_wrapped_or_turned_into_lists() {
        let source = "| key | meaning |\n|---|---|\n| `a` | what it is for |\n| `longer` | b |\n";
        assert_eq!(
            markdown(source, 40),
            "key     meaning\n------  --------------\na       what it is for\nlonger  b\n"
        );
        assert_eq!(
            markdown(source, 18),
            "key     meaning\n------  ----------\na       what it is\n        for\nlonger  b\n"
        );
        assert_eq!(
            markdown(source, 13),
            "a\n  meaning:\n    what it\n    is for\nlonger\n  meaning: b\n"
        );
    }
}
