//! Chapters as manual pages: Markdown as roff.

use std::fmt::Write as _;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::Topic;
use super::text::chapter_of;

/// The section of the manual to which a chapter belongs: files, or all kinds of things.
pub fn section_of(topic: &str) -> u8 {
    if topic == "profile" { 5 } else { 7 }
}

/// Formats a chapter as a manual page. Pictures are left out, and tables become lists, because the words of their first columns
/// are often wider than a column of a page.
pub fn render_roff(topic: &Topic, section: u8) -> String {
    let mut page = RoffPage {
        out: format!(
            ".TH mig-mps-{name} {section} \"\" \"mig-mps {version}\"\n.ad l\n.nh\n.SH NAME\nmig\\-mps\\-{name} \\- {about}\n\
             .SH DESCRIPTION\n",
            name = topic.name,
            version = env!("CARGO_PKG_VERSION"),
            about = escape(topic.about),
        ),
        ..RoffPage::default()
    };
    for event in Parser::new_ext(topic.text, Options::ENABLE_TABLES) {
        page.add_event(event);
    }
    page.out
}

/// The page under construction.
#[derive(Default)]
struct RoffPage {
    out: String,
    /// The paragraph, heading, cell or code block being read.
    text: String,
    is_code_block: bool,
    is_picture: bool,
    link: String,
    /// The lists being read; each with the number of its next item if it has numbers.
    lists: Vec<Option<u64>>,
    /// The line that begins the next paragraph.
    begin: String,
    /// The titles of the columns of the table being read, and the cells of its row.
    header: Vec<String>,
    row: Vec<String>,
}

impl RoffPage {
    fn add_event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.open_tag(tag),
            Event::End(tag) => self.close_tag(tag),
            Event::Text(_) if self.is_picture => {}
            Event::Text(text) => self.text += &escape(&text),
            Event::Code(code) => drop(write!(self.text, "\\fB{}\\fR", escape(&code))),
            Event::SoftBreak | Event::HardBreak => self.text.push('\n'),
            _ => {}
        }
    }

    fn open_tag(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Strong => self.text += "\\fB",
            Tag::Emphasis => self.text += "\\fI",
            Tag::Image { .. } => self.is_picture = true,
            Tag::Link { dest_url, .. } => self.link = dest_url.into_string(),
            Tag::CodeBlock(_) => {
                self.flush();
                self.is_code_block = true;
            }
            Tag::List(first) => {
                self.flush();
                self.lists.push(first);
            }
            Tag::Item => {
                ".IP \\(bu 2".clone_into(&mut self.begin);
                if let Some(Some(number)) = self.lists.last_mut() {
                    self.begin = format!(".IP {number}. 4");
                    *number += 1;
                }
            }
            _ => {}
        }
    }

    fn close_tag(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                let title = std::mem::take(&mut self.text)
                    .replace("\\fB", "")
                    .replace("\\fR", "");
                match level {
                    HeadingLevel::H1 => {}
                    HeadingLevel::H2 => drop(writeln!(self.out, ".SH {title}")),
                    _ => drop(writeln!(self.out, ".SS {title}")),
                }
            }
            TagEnd::Strong | TagEnd::Emphasis => self.text += "\\fR",
            TagEnd::Image => self.is_picture = false,
            TagEnd::Link => {
                if let Some(name) = chapter_of(&self.link) {
                    let section = section_of(&name);
                    let name = escape(&name);
                    let _ = write!(self.text, " (\\fBmig\\-mps\\-{name}\\fR({section}))");
                }
            }
            TagEnd::Paragraph | TagEnd::Item => self.flush(),
            TagEnd::List(_) => drop(self.lists.pop()),
            TagEnd::CodeBlock => {
                self.is_code_block = false;
                let code = std::mem::take(&mut self.text);
                let _ = write!(self.out, ".PP\n.RS 4\n.nf\n{code}.fi\n.RE\n");
            }
            TagEnd::TableCell => self.row.push(std::mem::take(&mut self.text)),
            TagEnd::TableHead => self.header = std::mem::take(&mut self.row),
            TagEnd::TableRow => self.add_row(),
            _ => {}
        }
    }

    /// Adds the row that was read: its first cell, and below it the others, with their titles if there are several.
    fn add_row(&mut self) {
        let row = std::mem::take(&mut self.row);
        let Some((first, others)) = row.split_first() else {
            return;
        };
        let texts: Vec<String> = others
            .iter()
            .zip(self.header.iter().skip(1))
            .filter(|(cell, _)| !cell.is_empty())
            .map(|(cell, title)| match others {
                [_] => cell.clone(),
                _ => format!("{title}: {cell}"),
            })
            .collect();
        let _ = writeln!(self.out, ".TP\n\\&{first}\n{}", texts.join("\n.br\n"));
    }

    /// Adds the paragraph or the item that was read.
    fn flush(&mut self) {
        let text = std::mem::take(&mut self.text);
        if text.is_empty() {
            return;
        }
        let usual = if self.lists.is_empty() { ".PP" } else { ".IP" };
        let begin = std::mem::take(&mut self.begin);
        let begin = if begin.is_empty() { usual } else { &begin };
        let _ = writeln!(self.out, "{begin}\n{text}");
    }
}

/// Text in which no character means something to roff, also at the start of a line.
fn escape(text: &str) -> String {
    let mut escaped = text.replace('\\', "\\e").replace('-', "\\-");
    for sign in ['.', '\''] {
        escaped = escaped.replace(&format!("\n{sign}"), &format!("\n\\&{sign}"));
        if escaped.starts_with(sign) {
            escaped.insert_str(0, "\\&");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::topics::Part;
    use super::*;

    #[test]
    fn a_chapter_is_a_manual_page() {
        let topic = Topic {
            name: "boot",
            part: Part::Operate,
            about: "What happens at boot",
            text: "# Boot\n\nSee [files](install.md#files) and `up --yes`.\n\n## Steps\n\n1. One\n2. Two\n\n\
                   ```sh\n.a \\\n```\n\n| a | b |\n|---|---|\n| c | d |\n\n\
                   | e | g | i |\n|---|---|---|\n| f | h | j |\n",
            commands: &[],
        };
        let page = render_roff(&topic, 7);
        let (_, text) = page.split_once(".SH DESCRIPTION\n").unwrap();
        assert_eq!(
            text,
            ".PP\nSee files (\\fBmig\\-mps\\-install\\fR(7)) and \\fBup \\-\\-yes\\fR\\&.\n.SH Steps\n.IP 1. 4\nOne\n.IP 2. 4\nTwo\n\
             .PP\n.RS 4\n.nf\n\\&.a \\e\n.fi\n.RE\n.TP\n\\&c\nd\n.TP\n\\&f\ng: h\n.br\ni: j\n"
        );
    }
}
