/// Splits a name so that `0.10` sorts behind `0.9`.
pub(super) fn natural(name: &str) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let digits = rest
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let text = tail
            .find(|c: char| c.is_ascii_digit())
            .unwrap_or(tail.len());
        // Where there is no number, the text comes behind every number.
        parts.push((number.parse().unwrap_or(u64::MAX), tail[..text].to_owned()));
        rest = &tail[text..];
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
        names.sort_by_key(|name| natural(name));
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
