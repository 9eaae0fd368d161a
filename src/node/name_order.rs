/// A run of digits or of other characters. Numbers sort before text.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub enum NamePart {
    Number(u64),
    Text(String),
}

/// Returns the key by which names sort, so that `0.10` follows `0.9`.
pub fn name_order(name: &str) -> Vec<NamePart> {
    let is_digit = |c: char| c.is_ascii_digit();
    let mut parts = Vec::new();
    let mut rest = name;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_digit(c) != is_digit(first));
        let (part, tail) = rest.split_at(end.unwrap_or(rest.len()));
        parts.push(match part.parse() {
            Ok(number) if is_digit(first) => NamePart::Number(number),
            _ => NamePart::Text(part.to_owned()),
        });
        rest = tail;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_people_count() {
        let mut names = vec![
            "0.10",
            "0.9",
            "trainer-10",
            "1.0",
            "trainer-9",
            "0.0.c1",
            "0.0",
        ];
        names.sort_by_key(|name| name_order(name));
        assert_eq!(
            names,
            [
                "0.0",
                "0.0.c1",
                "0.9",
                "0.10",
                "1.0",
                "trainer-9",
                "trainer-10"
            ]
        );
    }
}
