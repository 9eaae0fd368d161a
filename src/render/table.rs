use std::fmt::Write as _;

use comfy_table::{
    CellAlignment, ColumnConstraint, ContentArrangement, Row, Table as Comfy, Width, presets,
};
use console::{measure_text_width, style};

use super::format::wrap_behind;

/// A table that fits the terminal by hiding columns, not by breaking cells: half a UUID cannot be copied.
pub struct Table {
    columns: Vec<Column>,
    comfy: Comfy,
}

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    title: &'static str,
    right: bool,
    /// Columns with higher ranks are hidden first; rank 0 stays.
    rank: u8,
    /// True if its cells change with time alone.
    changes_with_time: bool,
    /// The width below which its cells are not cut; `None` if they are never cut.
    least: Option<u16>,
    /// True if it is left out where no row has a value.
    is_for_values: bool,
}

impl Column {
    pub const fn left_aligned(title: &'static str, rank: u8) -> Self {
        Self {
            title,
            right: false,
            rank,
            changes_with_time: false,
            least: None,
            is_for_values: false,
        }
    }

    pub const fn right_aligned(title: &'static str, rank: u8) -> Self {
        Self {
            right: true,
            ..Self::left_aligned(title, rank)
        }
    }

    /// Marks it as changing with time alone.
    pub const fn changing_with_time(self) -> Self {
        Self {
            changes_with_time: true,
            ..self
        }
    }

    /// Leaves it out of a table in which no row has a value.
    pub const fn hidden_if_empty(self) -> Self {
        Self {
            is_for_values: true,
            ..self
        }
    }

    /// Marks it as never hidden.
    pub const fn never_hidden(self) -> Self {
        Self {
            rank: 0,
            is_for_values: false,
            ..self
        }
    }

    /// Lets its cells be cut to the rest of the line, but to no less than this width.
    pub const fn with_least_width(self, least: u16) -> Self {
        Self {
            least: Some(least),
            ..self
        }
    }
}

/// The gap between two columns.
const COLUMN_GAP: u16 = 2;

/// Stands before the names of the columns that do not fit.
const HIDDEN_HEAD: &str = "hidden: ";

impl Table {
    pub fn new(columns: Vec<Column>) -> Self {
        let mut comfy = Comfy::new();
        comfy
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_truncation_indicator("…")
            .set_header(columns.iter().map(|column| column.title));
        for (column, drawn) in columns.iter().zip(comfy.column_iter_mut()) {
            drawn.set_padding((if drawn.index == 0 { 0 } else { COLUMN_GAP }, 0));
            if column.right {
                drawn.set_cell_alignment(CellAlignment::Right);
            }
            if let Some(least) = column.least {
                // Between characters: between words, most of a command line would be cut.
                drawn.set_delimiter('\n');
                drawn.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(
                    least + COLUMN_GAP,
                )));
            } else {
                drawn.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        Self { columns, comfy }
    }

    /// Adds a row with a cell for every column.
    pub fn add_row(&mut self, cells: Vec<String>) {
        let mut row = Row::from(cells);
        row.max_height(1);
        self.comfy.add_row(row);
    }

    pub fn is_empty(&self) -> bool {
        self.comfy.is_empty()
    }

    /// Returns the text of each row without the columns that change with time alone.
    pub fn lasting_texts(&self) -> Vec<String> {
        let mut texts = Vec::new();
        for row in self.comfy.row_iter() {
            let cells: Vec<String> = row
                .cell_iter()
                .zip(&self.columns)
                .filter(|(_, column)| !column.changes_with_time)
                .map(|(cell, _)| cell.content())
                .collect();
            texts.push(cells.join("\u{1f}"));
        }
        texts
    }

    /// True if a row has a value in this column.
    fn has_values(&self, position: usize) -> bool {
        self.comfy
            .row_iter()
            .filter_map(|row| row.cell_iter().nth(position))
            .any(|cell| ![NONE, UNKNOWN, SEVERAL, ""].contains(&cell.content().as_str()))
    }

    /// Formats the table in at most `width` characters. A line under it names the hidden columns, and the option that
    /// shows them.
    pub fn render(mut self, width: usize, option: &str) -> String {
        self.comfy
            .set_width(u16::try_from(width).unwrap_or(u16::MAX));
        let mut hideable: Vec<(usize, Column)> = Vec::new();
        for (position, column) in self.columns.iter().enumerate() {
            if column.is_for_values && !self.has_values(position) {
                if let Some(drawn) = self.comfy.column_mut(position) {
                    drawn.set_constraint(ColumnConstraint::Hidden);
                }
            } else if column.rank > 0 {
                hideable.push((position, *column));
            }
        }
        hideable.sort_by_key(|(_, column)| column.rank);
        let mut hidden = Vec::new();
        let mut text = trim_lines(&self.comfy);
        while text.lines().any(|line| measure_text_width(line) > width)
            && let Some((position, column)) = hideable.pop()
        {
            self.constrain_column(position, ColumnConstraint::Hidden);
            hidden.push((position, column));
            text = trim_lines(&self.comfy);
        }
        text = self.restore_fitting_columns(&mut hidden, width, text);
        if !hidden.is_empty() {
            let names = hidden
                .iter()
                .map(|(_, column)| column.title.to_lowercase())
                .collect::<Vec<_>>()
                .join(", ");
            let remark = format!("{names} (widen the terminal, or use {option})");
            for line in wrap_behind(HIDDEN_HEAD, &remark, width).lines() {
                let _ = writeln!(text, "{}", style(line).dim());
            }
        }
        text
    }

    /// Shows hidden columns again, the last one first, that fit beside the others: a wider one may have been hidden after
    /// them. Returns the text.
    fn restore_fitting_columns(
        &mut self,
        hidden: &mut Vec<(usize, Column)>,
        width: usize,
        mut text: String,
    ) -> String {
        for nth in (0..hidden.len()).rev() {
            let (position, _) = hidden[nth];
            self.constrain_column(position, ColumnConstraint::ContentWidth);
            let wider = trim_lines(&self.comfy);
            if wider.lines().all(|line| measure_text_width(line) <= width) {
                hidden.remove(nth);
                text = wider;
            } else {
                self.constrain_column(position, ColumnConstraint::Hidden);
            }
        }
        text
    }

    fn constrain_column(&mut self, position: usize, constraint: ColumnConstraint) {
        if let Some(drawn) = self.comfy.column_mut(position) {
            drawn.set_constraint(constraint);
        }
    }
}

/// Stand in cells for a value that does not exist, for one that is unknown, and for several values.
pub const NONE: &str = "-";
pub const UNKNOWN: &str = "?";
pub const SEVERAL: &str = "…";

/// Returns the lines of a table without blanks at their ends.
fn trim_lines(table: &Comfy) -> String {
    table.lines().fold(String::new(), |mut text, line| {
        let _ = writeln!(text, "{}", line.trim_end());
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(last: Column) -> Table {
        let mut table = Table::new(vec![
            Column::left_aligned("NAME", 0),
            Column::right_aligned("PID", 1),
            last,
        ]);
        table.add_row(vec!["0.0".into(), "7".into(), "MIG-1".into()]);
        table.add_row(vec!["trainer".into(), "12345".into(), "MIG-2".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_lines_end_where_they_end() {
        assert_eq!(
            table(Column::left_aligned("UUID", 2)).render(21, "--json"),
            "NAME       PID  UUID\n0.0          7  MIG-1\ntrainer  12345  MIG-2\n"
        );
    }

    #[test]
    fn a_narrow_terminal_loses_columns_and_no_characters() {
        let within = |width| table(Column::left_aligned("UUID", 2)).render(width, "--json");
        assert_eq!(
            within(20),
            "NAME       PID\n0.0          7\ntrainer  12345\nhidden: uuid (widen\n  the terminal, or\n  use --json)\n"
        );
        let narrow = within(1);
        assert!(
            narrow.starts_with("NAME\n0.0\ntrainer\nhidden:\n  uuid,\n  pid\n"),
            "{narrow}"
        );
    }

    #[test]
    fn a_column_that_was_hidden_before_a_wider_one_is_shown_where_it_fits() {
        let mut table = Table::new(vec![
            Column::left_aligned("NAME", 0),
            Column::left_aligned("USERS", 1),
            Column::right_aligned("GPU", 2),
        ]);
        table.add_row(vec!["0.0".into(), "one-at-a-time".into(), "0".into()]);
        let shown = table.render(18, "--json");
        assert!(
            shown.starts_with("NAME  GPU\n0.0     0\nhidden: users"),
            "{shown}"
        );
    }

    #[test]
    fn a_column_for_values_is_left_out_without_one() {
        let within = |last: &str, width| {
            let mut table = table(Column::left_aligned("JOB", 1).hidden_if_empty());
            table.add_row(vec!["0.1".into(), "8".into(), last.into()]);
            table.render(width, "--json")
        };
        assert!(within("7.0", 40).contains("\n0.1          8  7.0\n"));
        let mut none = Table::new(vec![
            Column::left_aligned("NAME", 0),
            Column::left_aligned("JOB", 1).hidden_if_empty(),
        ]);
        none.add_row(vec!["0.0".into(), NONE.into()]);
        none.add_row(vec!["0.1".into(), UNKNOWN.into()]);
        assert_eq!(none.render(2, "--json"), "NAME\n0.0\n0.1\n");
    }

    #[test]
    fn a_column_may_be_cut_to_the_rest_of_the_line_before_others_are_hidden() {
        let within = |width| {
            let mut table = table(Column::left_aligned("COMMAND", 0).with_least_width(10));
            table.add_row(vec![
                "0.1".into(),
                "8".into(),
                "python train.py --now".into(),
            ]);
            table.render(width, "--json")
        };
        assert!(within(40).ends_with("\n0.1          8  python train.py --now\n"));
        assert!(within(30).ends_with("\n0.1          8  python train.…\n"));
        assert!(within(26).ends_with("\n0.1          8  python tr…\n"));
        assert!(
            within(25).contains("\n0.1      python train.py…\nhidden: pid"),
            "{}",
            within(25)
        );
    }
}
