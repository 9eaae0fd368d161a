use std::collections::BTreeSet;

use console::style;

/// How many characters the mark in front of a line takes.
pub(super) const WIDTH: usize = 2;

/// Which lines were there the last time. A changed line is marked with a character, so that it can be seen without
/// colours.
#[derive(Clone, Debug, Default)]
pub(in crate::render) struct Marks {
    before: Option<BTreeSet<String>>,
    now: BTreeSet<String>,
}

impl Marks {
    /// From here on, lines are compared with those since the last call.
    pub(in crate::render) fn turn(&mut self) {
        if !self.now.is_empty() {
            self.before = Some(std::mem::take(&mut self.now));
        }
    }

    /// The mark in front of a line that says this.
    pub(super) fn mark(&mut self, essence: &str) -> String {
        self.now.insert(essence.to_owned());
        let is_new = self
            .before
            .as_ref()
            .is_some_and(|before| !before.contains(essence));
        if is_new {
            style("* ").yellow().bold().to_string()
        } else {
            " ".repeat(WIDTH)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_not_there_the_last_time_is_marked() {
        let mut marks = Marks::default();
        let mut show = |lines: &[&str]| -> Vec<bool> {
            marks.turn();
            lines
                .iter()
                .map(|line| marks.mark(line).contains('*'))
                .collect()
        };
        assert_eq!(show(&["a", "b"]), [false, false]);
        assert_eq!(show(&["a", "c"]), [false, true]);
        assert_eq!(show(&["a", "c"]), [false, false]);
    }
}
