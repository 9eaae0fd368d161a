//! Names of devices as the templates that give them.

use std::collections::BTreeMap;

/// A device name in which `{gpu}` or `{n}` may stand.
pub(super) type Template = String;

/// Stretches of digits in a name, as byte ranges.
fn numbers(name: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in name.char_indices().chain([(name.len(), ' ')]) {
        match (c.is_ascii_digit(), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                found.push((from, at));
                start = None;
            }
            _ => {}
        }
    }
    found
}

fn replaced(name: &str, (start, end): (usize, usize), word: &str) -> Template {
    format!("{}{word}{}", &name[..start], &name[end..])
}

/// The templates that can have given these names to the devices of one entry, in their order: a single one's name
/// itself, or a template in which `{n}` counts on by one.
fn with_number(names: &[&str]) -> Vec<Template> {
    let [first, others @ ..] = names else {
        return Vec::new();
    };
    if others.is_empty() {
        return vec![(*first).to_owned()];
    }
    let counts_on = |&place: &(usize, usize)| {
        let template = replaced(first, place, "{n}");
        let from: u64 = first[place.0..place.1].parse().ok()?;
        let gives =
            |(name, number): (&&str, u64)| template.replace("{n}", &number.to_string()) == **name;
        names.iter().zip(from..).all(gives).then_some(template)
    };
    numbers(first).iter().filter_map(counts_on).collect()
}

/// The templates with `{n}` for devices that one entry names together, with the number of each, by name.
///
/// `{n}` counts on wherever a template is used again: every device of the node that it would name must
/// then have its name from it, from 0 on. `all` are the names GPU by GPU; on one GPU any order will do.
pub(super) fn counted(
    all: &[Vec<&str>],
    together: &[Vec<&str>],
) -> BTreeMap<String, (Template, usize)> {
    let mut templates = BTreeMap::new();
    for names in together.iter().filter(|names| names.len() > 1) {
        for template in with_number(names) {
            let numbers: Option<Vec<Vec<usize>>> = all
                .iter()
                .map(|names| numbers_from(&template, names))
                .collect();
            let counts_from_0 = |numbers: &Vec<Vec<usize>>| {
                numbers
                    .iter()
                    .flatten()
                    .copied()
                    .eq(0..numbers.iter().flatten().count())
            };
            if let Some(numbers) = numbers.filter(counts_from_0) {
                templates.extend(numbers.into_iter().flatten().map(|number| {
                    let name = template.replace("{n}", &number.to_string());
                    (name, (template.clone(), number))
                }));
                break;
            }
        }
    }
    templates
}

/// The numbers, in rising order, with which a template gives those of the names that match it; `None`
/// where one only looks like it, as `a01` does for `a{n}`.
fn numbers_from(template: &str, names: &[&str]) -> Option<Vec<usize>> {
    let (before, after) = template.split_once("{n}")?;
    let mut numbers = Vec::new();
    for name in names {
        let number = name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after));
        let digits = |text: &&str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
        if let Some(text) = number.filter(digits) {
            numbers.push(
                text.parse()
                    .ok()
                    .filter(|n: &usize| n.to_string() == text)?,
            );
        }
    }
    numbers.sort_unstable();
    Some(numbers)
}

/// The templates that can have given that name on the GPU with that index: with `{gpu}` at the first, the last or all
/// places where the index stands; never the name itself, which another GPU's device could not have.
pub(super) fn with_gpu(name: &str, gpu: u32) -> Vec<Template> {
    let index = gpu.to_string();
    let places: Vec<(usize, usize)> = numbers(name)
        .into_iter()
        .filter(|&(start, end)| name[start..end] == index)
        .collect();
    let mut all = name.to_owned();
    for &place in places.iter().rev() {
        all = replaced(&all, place, "{gpu}");
    }
    let one = |place: Option<&(usize, usize)>| place.map(|&place| replaced(name, place, "{gpu}"));
    let mut templates: Vec<Template> = [one(places.first()), one(places.last())]
        .into_iter()
        .flatten()
        .collect();
    if places.len() > 1 {
        templates.push(all);
    }
    templates.dedup();
    templates
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_traced_back_to_what_can_have_given_it() {
        assert_eq!(with_gpu("trainer-3", 3), ["trainer-{gpu}"]);
        assert_eq!(
            with_gpu("a0-0", 0),
            ["a{gpu}-0", "a0-{gpu}", "a{gpu}-{gpu}"]
        );
        assert_eq!(with_gpu("trainer-13", 3), [""; 0]);
        assert_eq!(with_number(&["one"]), ["one"]);
        assert_eq!(with_number(&["w0", "w1", "w2"]), ["w{n}"]);
        assert_eq!(with_number(&["w0-4", "w0-5"]), ["w0-{n}"]);
        assert_eq!(with_number(&["w1", "w0"]), [""; 0]);
        assert_eq!(with_number(&[]), [""; 0]);
    }

    #[test]
    fn a_template_that_counts_is_used_for_all_that_it_names_or_not_at_all() {
        let of = |all: &[&[&str]], together: &[&str]| {
            let all: Vec<Vec<&str>> = all.iter().map(|names| names.to_vec()).collect();
            counted(&all, &[together.to_vec()]).len()
        };
        assert_eq!(of(&[&["a0", "a1", "b", "a2"]], &["a0", "a1"]), 3);
        assert_eq!(of(&[&["a2", "a0", "a1"]], &["a0", "a1"]), 3);
        assert_eq!(of(&[&["a0", "a1"], &["a3", "a2"]], &["a0", "a1"]), 4);
        assert_eq!(of(&[&["a2", "a3"], &["a0", "a1"]], &["a0", "a1"]), 0);
        assert_eq!(of(&[&["a0"]], &["a0"]), 0);
        assert_eq!(of(&[&["a1", "a2"]], &["a1", "a2"]), 0);
        assert_eq!(of(&[&["a0", "a1", "a01"]], &["a0", "a1"]), 0);
        assert_eq!(of(&[&["a0", "a1b"]], &["a0", "a1b"]), 0);
    }
}
