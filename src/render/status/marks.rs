use std::collections::BTreeSet;

use console::style;

/// Width of the mark in front of a line.
pub(super) const WIDTH: usize = 2;

/// Finds the lines that were not shown the last time. A changed line is marked with a character, so that it can be seen
/// without colours.
#[derive(Clone, Debug, Default)]
pub(in crate::render) struct Marks {
    before: Option<BTreeSet<String>>,
    now: BTreeSet<String>,
}

impl Marks {
    /// Starts a new turn: its lines are compared with those of the last one.
    pub(in crate::render) fn turn(&mut self) {
        if !self.now.is_empty() {
            self.before = Some(std::mem::take(&mut self.now));
        }
    }

    /// Returns the mark in front of a line with this text.
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
