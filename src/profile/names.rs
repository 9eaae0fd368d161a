//! Names of devices: as a profile writes them, and as they are given, no two alike.

use std::collections::BTreeMap;

use crate::config::begins_as_uuid;

/// A device's name as a profile gives it: `{gpu}` stands for the GPU's index, `{n}` for a number
/// that tells apart the devices which would otherwise share the name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameTemplate<'a>(pub &'a str);

impl NameTemplate<'_> {
    /// True if it holds `{n}`.
    pub fn is_numbered(self) -> bool {
        self.0.contains("{n}")
    }

    /// The name of a device of the GPU with that index.
    pub fn fill(self, gpu: u32, number: u32) -> String {
        self.with_gpu_index(gpu).replace("{n}", &number.to_string())
    }

    /// True if it can give that name to a device of that GPU.
    pub fn can_yield(self, gpu: u32, name: &str) -> bool {
        let text = self.with_gpu_index(gpu);
        let Some((before, _)) = text.split_once("{n}") else {
            return text == name;
        };
        let digits: String = name
            .strip_prefix(before)
            .into_iter()
            .flat_map(str::chars)
            .take_while(char::is_ascii_digit)
            .collect();
        // What follows the number may begin with digits of its own.
        (1..=digits.len()).any(|end| {
            let number = &digits[..end];
            // As it is written by `fill`.
            let is_plain = matches!(number.parse::<u32>(), Ok(own) if own.to_string() == number);
            is_plain && text.replace("{n}", number) == name
        })
    }

    fn with_gpu_index(self, gpu: u32) -> String {
        self.0.replace("{gpu}", &gpu.to_string())
    }
}

/// The names given out on one node, each with whose it is.
#[derive(Debug, Default)]
pub struct Names {
    given: BTreeMap<String, String>,
}

impl Names {
    /// Gives a name to `to`, or returns its holder.
    pub fn assign_name(&mut self, name: &str, to: &str) -> Result<(), String> {
        if let Some(holder) = self.given.get(name) {
            return Err(holder.clone());
        }
        self.given.insert(name.to_owned(), to.to_owned());
        Ok(())
    }

    /// Gives the first name of a numbered template that is free.
    pub fn assign_next(&mut self, template: NameTemplate<'_>, gpu: u32, to: &str) -> String {
        let mut number = 0;
        loop {
            let name = template.fill(gpu, number);
            if self.assign_name(&name, to).is_ok() {
                return name;
            }
            number += 1;
        }
    }
}

/// True if a text can name a device: it becomes a file name and a word on command lines.
pub fn is_device_name(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 64
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        && !text.starts_with(['.', '-'])
        && !begins_as_uuid(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n_counts_what_would_share_a_name() {
        let mut names = Names::default();
        names.assign_name("w1", "another").unwrap();
        let mut next = |template, gpu| names.assign_next(NameTemplate(template), gpu, "x");
        assert_eq!(next("small-{gpu}-{n}", 0), "small-0-0");
        assert_eq!(next("small-{gpu}-{n}", 0), "small-0-1");
        assert_eq!(next("small-{gpu}-{n}", 1), "small-1-0");
        assert_eq!(next("w{n}", 0), "w0");
        assert_eq!(next("w{n}", 1), "w2", "w1 is another's");
        assert_eq!(names.assign_name("w2", "y"), Err("x".to_owned()));
    }

    #[test]
    fn a_name_is_known_by_its_template() {
        for (template, name) in [
            ("a", "a"),
            ("t-{gpu}", "t-3"),
            ("t-{gpu}-{n}", "t-3-17"),
            ("{n}{gpu}", "13"),
            ("x{n}-{n}", "x2-2"),
        ] {
            assert!(
                NameTemplate(template).can_yield(3, name),
                "{template} {name}"
            );
        }
        for (template, name) in [
            ("a", "b"),
            ("t-{gpu}", "t-4"),
            ("t-{n}", "t-"),
            ("t-{n}", "t-01"),
            ("t-{n}", "t-1x"),
            ("x{n}-{n}", "x1-2"),
        ] {
            assert!(
                !NameTemplate(template).can_yield(3, name),
                "{template} {name}"
            );
        }
    }

    #[test]
    fn a_device_name_is_a_plain_file_name_and_no_uuid() {
        for good in ["0", "0.4", "0.4.c1", "trainer-0", "a_b"] {
            assert!(is_device_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            "-x",
            "a/b",
            "a b",
            "GPU-1",
            "MIG-1",
            "ü",
            &"x".repeat(65),
        ] {
            assert!(!is_device_name(bad), "{bad}");
        }
    }
}
