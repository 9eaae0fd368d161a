//! Names of devices traced back to the names of profile entries.

use std::ops::Range;

use crate::profile::NameTemplate;

/// The digits in a name, as byte ranges.
fn digit_runs(name: &str) -> Vec<Range<usize>> {
    let mut numbers: Vec<Range<usize>> = Vec::new();
    for (at, _) in name.match_indices(|c: char| c.is_ascii_digit()) {
        match numbers.last_mut() {
            Some(number) if number.end == at => number.end += 1,
            _ => numbers.push(at..at + 1),
        }
    }
    numbers
}

fn replace_range(name: &str, number: &Range<usize>, word: &str) -> String {
    format!("{}{word}{}", &name[..number.start], &name[number.end..])
}

/// Returns a name that gives these names to devices of an entry of `count`, with the number of the first: that of a
/// single one, or a template with `{n}`.
pub(super) fn shared_name(names: &[&str], count: usize) -> Option<(String, Option<u32>)> {
    let first = names.first()?;
    if count == 1 {
        return Some(((*first).to_owned(), None));
    }
    for number in digit_runs(first) {
        let template = replace_range(first, &number, "{n}");
        if names
            .iter()
            .all(|name| NameTemplate(&template).can_yield(0, name))
        {
            return Some((template, first[number].parse().ok()));
        }
    }
    None
}

/// Puts `{gpu}` into a name where the GPU's index stands last.
pub(super) fn with_gpu(name: &str, gpu: u32) -> String {
    let index = gpu.to_string();
    let numbers = digit_runs(name);
    let last = numbers
        .iter()
        .rfind(|number| name[(*number).clone()] == index);
    last.map_or_else(
        || name.to_owned(),
        |number| replace_range(name, number, "{gpu}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_traced_back_to_the_template_that_could_have_given_it() {
        assert_eq!(with_gpu("trainer-3", 3), "trainer-{gpu}");
        assert_eq!(with_gpu("node0-0", 0), "node0-{gpu}");
        assert_eq!(with_gpu("s-1-{n}", 1), "s-{gpu}-{n}");
        assert_eq!(with_gpu("trainer-13", 3), "trainer-13");
        let shared = |names: &[&str]| shared_name(names, names.len());
        assert_eq!(shared(&["one7"]), Some(("one7".to_owned(), None)));
        let numbered = Some(("w0-{n}".to_owned(), Some(4)));
        assert_eq!(shared(&["w0-4", "w0-5"]), numbered);
        assert_eq!(
            shared_name(&["w-4"], 2),
            Some(("w-{n}".to_owned(), Some(4)))
        );
        for other in [&["a0", "a01"][..], &["a0", "b1"], &["a", "b"], &[]] {
            assert_eq!(shared(other), None, "{other:?}");
        }
    }
}
