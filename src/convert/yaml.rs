//! YAML as mig-parted reads it: go-yaml makes JSON of it, and Go's JSON reader fills the fields (`ParseConfigFile`, and
//! `yaml.go` of sigs.k8s.io/yaml).

use serde::Deserialize;

/// A truth value. Nothing in quotes is one; null is false.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "Scalar")]
pub(super) struct Flag(pub(super) bool);

/// A whole number, which may be written `7.0`. Nothing in quotes is one; null is 0.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(try_from = "Scalar")]
pub(super) struct Count(pub(super) i64);

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected a single value")]
enum Scalar {
    Flag(bool),
    Whole(i64),
    Fraction(f64),
    #[allow(dead_code, reason = "a text is refused, no matter which")]
    Text(String),
    Null(()),
}

impl TryFrom<Scalar> for Flag {
    type Error = &'static str;

    fn try_from(scalar: Scalar) -> Result<Self, Self::Error> {
        match scalar {
            Scalar::Flag(flag) => Ok(Self(flag)),
            Scalar::Null(()) => Ok(Self(false)),
            _ => Err("expected true or false, without quotes"),
        }
    }
}

impl TryFrom<Scalar> for Count {
    type Error = &'static str;

    fn try_from(scalar: Scalar) -> Result<Self, Self::Error> {
        match scalar {
            Scalar::Whole(number) => Ok(Self(number)),
            #[allow(
                clippy::cast_possible_truncation,
                reason = "a number that is too large becomes the largest, and is refused as such"
            )]
            Scalar::Fraction(number) if number.fract() == 0.0 => Ok(Self(number as i64)),
            Scalar::Null(()) => Ok(Self(0)),
            _ => Err("expected a whole number, without quotes"),
        }
    }
}

/// Returns the text of the first document. go-yaml stops behind it, whatever follows.
pub(super) fn first_document(text: &str) -> &str {
    let mut has_begun = false;
    let mut end = 0;
    for line in text.split_inclusive('\n') {
        let is_marker = |marker: &str| {
            let rest = line.strip_prefix(marker);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
        };
        if has_begun && (is_marker("---") || is_marker("...")) {
            return &text[..end];
        }
        let content = line.trim_start();
        has_begun |= !(content.is_empty() || content.starts_with(['#', '%']) || is_marker("..."));
        end += line.len();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_ends_at_the_next_marker() {
        for (text, first) in [
            ("a: 1\n", "a: 1\n"),
            ("a: 1", "a: 1"),
            ("", ""),
            ("# x\n---\na: 1\n---\n}", "# x\n---\na: 1\n"),
            (
                "%YAML 1.1\n--- # x\na: 1\n...\n}",
                "%YAML 1.1\n--- # x\na: 1\n",
            ),
            ("a: 1\n --- \n---b: 2\n", "a: 1\n --- \n---b: 2\n"),
            ("--- 1\n--- 2\n", "--- 1\n"),
            ("---", "---"),
        ] {
            assert_eq!(first_document(text), first, "{text:?}");
        }
    }
}
