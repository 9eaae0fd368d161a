use crate::mps::LogLine;

/// Merges two logs by time. The lines of each log keep their order even if the clock was set back.
pub fn merge(one: Vec<LogLine>, other: Vec<LogLine>) -> Vec<LogLine> {
    let mut merged = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter().peekable(), other.into_iter().peekable());
    loop {
        let next = match (one.peek(), other.peek()) {
            (Some(a), Some(b)) if b.at < a.at => other.next(),
            (Some(_), _) => one.next(),
            (None, _) => other.next(),
        };
        match next {
            Some(line) => merged.push(line),
            None => return merged,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_logs_are_merged_by_time_and_each_keeps_its_order() {
        let control = vec![
            LogLine::example("04.000", "a"),
            LogLine::example("06.000", "b"),
            LogLine::example("05.000", "b, the clock was set back"),
        ];
        let server = vec![
            LogLine::example("04.000", "x"),
            LogLine::example("05.500", "y"),
        ];
        let texts: Vec<Box<str>> = merge(control, server)
            .into_iter()
            .map(|line| line.text)
            .collect();
        let wanted = ["a", "x", "y", "b", "b, the clock was set back"];
        assert_eq!(texts, wanted.map(Box::from));
    }
}
