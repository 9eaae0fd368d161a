use std::sync::LazyLock;

use regex::Regex;

use super::control_rules::CONTROL;
use super::rule::Rule;
use super::server_rules::SERVER;
use super::{Kind, Meaning};

struct Rules(Vec<(Regex, Meaning)>);

impl Rules {
    fn of(rules: &[Rule]) -> Self {
        let compiled = rules.iter().map(|rule| {
            let pattern = Regex::new(rule.pattern).expect("the patterns are tested");
            (pattern, rule.meaning)
        });
        Self(compiled.collect())
    }

    fn find(&self, text: &str) -> Option<Meaning> {
        let mut rules = self.0.iter();
        let (_, meaning) = rules.find(|(pattern, _)| pattern.is_match(text))?;
        Some(*meaning)
    }
}

/// Returns the meaning of a line with this tag in its head.
pub(super) fn meaning(tag: Option<&str>, text: &str) -> Meaning {
    static BY_CONTROL: LazyLock<Rules> = LazyLock::new(|| Rules::of(CONTROL));
    static BY_SERVER: LazyLock<Rules> = LazyLock::new(|| Rules::of(SERVER));
    let rules = match tag {
        None => None,
        Some("Control") => Some(&*BY_CONTROL),
        Some(_) => Some(&*BY_SERVER),
    };
    let known = rules.and_then(|rules| rules.find(text.trim()));
    known.unwrap_or(Meaning {
        kind: Kind::Unknown,
        why: None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{LogFile, LogLine};
    use super::*;

    /// Every form of line that was recorded on an H200 with driver 580, or is known from other drivers, with its kind.
    const FORMS: &str = include_str!("forms.txt");

    fn mark(kind: Kind) -> &'static str {
        match kind {
            Kind::Chatter => "chatter",
            Kind::Benign => "benign",
            Kind::Ordinary => "ordinary",
            Kind::Refusal => "refusal",
            Kind::Fault => "fault",
            Kind::Unknown => "unknown",
        }
    }

    #[test]
    fn every_known_form_of_line_has_its_kind() {
        let mut wrong = Vec::new();
        let forms = FORMS
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        for form in forms {
            let (wanted, line) = form.split_once('\t').expect("a mark, a tab, a line");
            // The meaning does not depend on the file.
            let parsed = LogLine::parse(LogFile::Control, line);
            assert!(parsed.tag.is_some(), "{line}");
            let is = mark(parsed.meaning().kind);
            if is != wanted {
                wrong.push(format!("{is}, not {wanted}: {line}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn harmless_lines_that_read_like_errors_are_explained() {
        for (tag, text) in [
            ("Control", "User did not send valid credentials"),
            (
                "Server",
                "Server failed to recevie command with status 806, assuming client {PID: 1, Context ID: 0} exit",
            ),
            ("Server", "Receive command failed, assuming client exit"),
        ] {
            let found = meaning(Some(tag), text);
            assert_eq!(found.kind, Kind::Benign);
            assert!(found.why.unwrap().starts_with("harmless: "));
        }
    }

    #[test]
    fn unknown_lines_have_no_guessed_meaning() {
        for (tag, text) in [
            (None, "User did not send valid credentials"),
            (Some("Control"), "A line of a driver to come"),
            (Some("Server"), "A line of a driver to come"),
        ] {
            assert_eq!(
                meaning(tag, text),
                Meaning {
                    kind: Kind::Unknown,
                    why: None
                }
            );
        }
    }
}
