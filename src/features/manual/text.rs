//! The manual as text: Markdown refilled for a width, and its tables.

use std::fmt::Write as _;

use comfy_table::{
    ColumnConstraint, ContentArrangement, ContentLineStyle, LineStyle, Table, TableStyle, Width,
};
use console::{Style, measure_text_width, strip_ansi_codes};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::topics::ALIASES;
use crate::render::format::{NO_BREAK, keep_together, wrap_behind};

/// Stands for the mark of code until text is wrapped: what is between two marks would not be wrapped.
const CODE_MARK: char = '\u{e000}';

/// The longest code that is not wrapped.
const MAX_CODE_WIDTH: usize = 30;

/// Formats a chapter in at most `width` columns, except for its code blocks. Pictures are left out.
pub fn render_markdown(source: &str, width: usize) -> String {
    let mut page = Page {
        width,
        ..Page::default()
    };
    for event in Parser::new_ext(source, Options::ENABLE_TABLES) {
        page.add_event(event);
    }
    page.out
}

/// Returns a section, with its title and its subsections; `None` if the chapter has no section of this title.
pub fn section<'a>(chapter: &'a str, title: &str) -> Option<&'a str> {
    let mut headings = Parser::new_ext(chapter, Options::ENABLE_TABLES)
        .into_offset_iter()
        .filter_map(|(event, place)| match event {
            Event::Start(Tag::Heading { level, .. }) => Some((level, place)),
            _ => None,
        });
    let (own, place) = headings.find(|(_, place)| {
        let words = chapter[place.clone()].trim_start_matches('#');
        words.trim() == title
    })?;
    let end = headings
        .find(|(level, _)| *level <= own)
        .map_or(chapter.len(), |(_, next)| next.start);
    Some(&chapter[place.start..end])
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
    is_in_table: bool,
    /// The lists being read; each with the number of its next item if it has numbers.
    lists: Vec<Option<u64>>,
    /// Stands before the next text: the mark of a list item.
    mark: String,
    /// True after the first item of a list: no blank line stands between items.
    is_in_items: bool,
    inside: Inside,
    /// The word for the chapter or section that the link being read leads to, and where its text begins.
    link: Option<(String, usize)>,
    /// The rows of the table being read.
    rows: Vec<Vec<String>>,
    /// The cells of the row being read.
    row: Vec<String>,
}

impl Page {
    fn add_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.open_tag(&tag),
            Event::End(tag) => self.close_tag(tag),
            Event::Text(text) => match self.inside {
                Inside::Words => self.add_words(&text),
                Inside::CodeBlock => self.text.push_str(&text),
                Inside::Picture => {}
            },
            Event::Code(code) => self.add_code(&code),
            Event::SoftBreak | Event::HardBreak => self.text.push(' '),
            _ => {}
        }
    }

    fn open_tag(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Heading { .. } | Tag::Strong | Tag::Emphasis => self.is_strong = true,
            Tag::Image { .. } => self.inside = Inside::Picture,
            Tag::Link { dest_url, .. } => {
                self.link = subject_of_link(dest_url).map(|chapter| (chapter, self.text.len()));
            }
            Tag::Table(_) => self.is_in_table = true,
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

    fn close_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(_) => {
                self.is_strong = false;
                self.flush();
            }
            TagEnd::Strong | TagEnd::Emphasis => self.is_strong = false,
            TagEnd::Image => self.inside = Inside::Words,
            TagEnd::Link => self.end_link(),
            TagEnd::Paragraph | TagEnd::Item => self.flush(),
            TagEnd::List(_) => {
                self.lists.pop();
                self.is_in_items = !self.lists.is_empty();
            }
            TagEnd::CodeBlock => self.add_code_block(),
            TagEnd::TableHead | TagEnd::TableRow => {
                self.rows.push(std::mem::take(&mut self.row));
            }
            TagEnd::TableCell => {
                // Colors would count as text where the table is laid out.
                let cell = strip_ansi_codes(&self.text).replace(NO_BREAK, " ");
                self.row.push(cell);
                self.text.clear();
            }
            TagEnd::Table => {
                self.is_in_table = false;
                self.add_gap();
                let rows = std::mem::take(&mut self.rows);
                self.out.push_str(&render_table(&rows, self.width));
            }
            _ => {}
        }
    }

    /// Adds words of a paragraph, each in its own style: a pager forgets it at the end of a line.
    fn add_words(&mut self, text: &str) {
        if !self.is_strong {
            self.text.push_str(text);
            return;
        }
        self.add_styled(text, &Style::new().bold());
    }

    fn add_code(&mut self, code: &str) {
        let is_short = measure_text_width(code) <= MAX_CODE_WIDTH;
        let kept = is_short.then(|| keep_together(code));
        let code = kept.as_deref().unwrap_or(code);
        // Without a color, code stands between marks.
        if console::colors_enabled() || self.is_strong || self.is_in_table {
            self.add_styled(code, &Style::new().green());
        } else {
            let _ = write!(self.text, "{CODE_MARK}{code}{CODE_MARK}");
        }
    }

    /// Adds the command that shows the chapter that a link leads to, in the place of the chapter's name.
    fn end_link(&mut self) {
        let Some((chapter, start)) = self.link.take() else {
            return;
        };
        let command = format!("mig-mps help {chapter}");
        if strip_ansi_codes(&self.text[start..]) == chapter {
            self.text.truncate(start);
            self.add_code(&command);
        } else if self.text[..start].ends_with('(') {
            self.text.push_str(": ");
            self.add_code(&command);
        } else {
            self.text.push_str(" (");
            self.add_code(&command);
            self.text.push(')');
        }
    }

    fn add_styled(&mut self, text: &str, style: &Style) {
        let words = text.split(' ').map(|word| match word {
            "" => String::new(),
            word => style.apply_to(word).to_string(),
        });
        self.text.push_str(&words.collect::<Vec<_>>().join(" "));
    }

    /// Adds a blank line, except at the start and between the items of a list.
    fn add_gap(&mut self) {
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
        self.add_gap();
        let depth = self.lists.len().saturating_sub(1);
        let mark = std::mem::take(&mut self.mark);
        let head = match (self.lists.is_empty(), mark.is_empty()) {
            (true, _) => String::new(),
            (false, true) => "  ".repeat(depth + 1),
            (false, false) => "  ".repeat(depth) + &mark,
        };
        let text = wrap_behind(&head, text.trim(), self.width);
        self.out.push_str(&text.replace(CODE_MARK, "`"));
        self.is_in_items = !self.lists.is_empty();
    }

    /// Adds a code block as it is, indented if it fits so.
    fn add_code_block(&mut self) {
        self.inside = Inside::Words;
        self.is_in_items = false;
        self.add_gap();
        let text = std::mem::take(&mut self.text);
        let widest = text.lines().map(measure_text_width).max().unwrap_or(0);
        let indent = 2.min(self.width.saturating_sub(widest));
        for line in text.lines() {
            let line = format!("{:indent$}{line}", "");
            let _ = writeln!(self.out, "{}", line.trim_end());
        }
    }
}

/// Returns the chapter that a link leads to; `None` for other files and for places in the same chapter.
pub fn chapter_of(link: &str) -> Option<String> {
    let file = link.split('#').next()?;
    let chapter = file.strip_suffix(".md")?;
    (!chapter.is_empty() && !chapter.contains('/')).then(|| chapter.to_owned())
}

/// Returns the word for `mig-mps help` that shows what a link leads to: the section if it has a word, or the chapter.
fn subject_of_link(link: &str) -> Option<String> {
    let chapter = chapter_of(link)?;
    let (_, place) = link.split_once('#').unwrap_or_default();
    let alias = ALIASES.iter().find(|alias| {
        let place_of = |title: &str| title.to_lowercase().replace('\'', "").replace(' ', "-");
        alias.topic == chapter && alias.section.is_some_and(|title| place_of(title) == place)
    });
    Some(alias.map_or(chapter, |alias| alias.name.to_owned()))
}

/// No lines but one below the titles, with a gap between columns.
const TABLE_STYLE: TableStyle = TableStyle::new()
    .header_lines(ContentLineStyle::none().junction(' '))
    .header_separator(LineStyle::none().fill('-').junction(' '))
    .content_lines(ContentLineStyle::none().junction(' '));

/// Formats a table, whose first row has the titles. Cells are wrapped between words: a name in one can be copied.
fn render_table(rows: &[Vec<String>], width: usize) -> String {
    let mut table = Table::new();
    table
        .load_style(TABLE_STYLE)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(u16::try_from(width).unwrap_or(u16::MAX))
        .set_header(rows.first().cloned().unwrap_or_default())
        .add_rows(rows.iter().skip(1).cloned());
    for column in table.column_iter_mut() {
        let longest = rows
            .iter()
            .filter_map(|row| row.get(column.index))
            .flat_map(|cell| cell.split(' '))
            .map(|word| measure_text_width(word) + 1)
            .max();
        let least = u16::try_from(longest.unwrap_or(0)).unwrap_or(u16::MAX);
        column.set_padding((0, 1));
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(least)));
    }
    let mut out = String::new();
    let mut style = Style::new().bold();
    for line in table.lines() {
        if line.starts_with('-') {
            style = Style::new();
        }
        let _ = writeln!(out, "{}", style.apply_to(line.trim_end()));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_and_lists_are_refilled_and_code_stays() {
        let source = "# A chapter\n\nWords that\nare `refilled` here.\n\n\
                      ![picture](a.svg)\n\n- one item that is long\n- two\n\n```toml\na  = 1\n```\n";
        assert_eq!(
            render_markdown(source, 24),
            "A chapter\n\nWords that are\n`refilled` here.\n\n- one item that is long\n- two\n\n  a  = 1\n"
        );
    }

    #[test]
    fn a_link_to_a_chapter_is_the_command_that_shows_it() {
        let source = "See [status](status.md) ([heal](boot.md#heal)), [open files](security.md#open-files) and [exit statuses]\
                      (interfaces.md#exit-statuses), not [this](#place) or [source](../../fixtures/simnode).";
        let shown = "See `mig-mps help status` (heal: `mig-mps help boot`), open files (`mig-mps help security`) and exit statuses \
                     (`mig-mps help exit-status`), not this or source.\n";
        assert_eq!(render_markdown(source, 200).replace(NO_BREAK, " "), shown);
    }

    #[test]
    fn tables_are_aligned_and_wrapped() {
        let source = "| key | meaning |\n|---|---|\n| `a` | what it is for |\n| `longer` | b |\n";
        assert_eq!(
            render_markdown(source, 40),
            "key     meaning\n------- ---------------\na       what it is for\nlonger  b\n"
        );
        assert_eq!(
            render_markdown(source, 19),
            "key     meaning\n------- -----------\na       what it is\n        for\nlonger  b\n"
        );
    }
}
