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
const HIDDEN_HEAD: &str = "not shown: ";

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
    pub fn render(self, width: usize, option: &str) -> String {
        let mut fitted = self.fit(width);
        let rows = fitted.take_rows(usize::MAX);
        rows + &hidden_remark(&[&fitted], width, option)
    }

    /// Hides the columns for which there is no room in a line of this width.
    pub fn fit(mut self, width: usize) -> FittedTable {
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
        let mut lines = self.lines();
        while !fits_all(&lines, width)
            && let Some((position, column)) = hideable.pop()
        {
            self.constrain_column(position, ColumnConstraint::Hidden);
            hidden.push((position, column));
            lines = self.lines();
        }
        self.restore_fitting_columns(&mut hidden, width, &mut lines);
        let is_whole = hidden.is_empty() && fits_all(&lines, width);
        let mut lines = lines.into_iter();
        FittedTable {
            head: lines.next().unwrap_or_default(),
            rows: lines,
            hidden: hidden.iter().map(|(_, column)| column.title).collect(),
            is_whole,
        }
    }

    /// Shows hidden columns again, the last one first, that fit beside the others: a wider one may have been hidden after
    /// them.
    fn restore_fitting_columns(
        &mut self,
        hidden: &mut Vec<(usize, Column)>,
        width: usize,
        lines: &mut Vec<String>,
    ) {
        for nth in (0..hidden.len()).rev() {
            let (position, _) = hidden[nth];
            self.constrain_column(position, ColumnConstraint::ContentWidth);
            let wider = self.lines();
            if fits_all(&wider, width) {
                hidden.remove(nth);
                *lines = wider;
            } else {
                self.constrain_column(position, ColumnConstraint::Hidden);
            }
        }
    }

    /// Returns the lines, the head first, without blanks at their ends.
    fn lines(&self) -> Vec<String> {
        self.comfy
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect()
    }

    fn constrain_column(&mut self, position: usize, constraint: ColumnConstraint) {
        if let Some(drawn) = self.comfy.column_mut(position) {
            drawn.set_constraint(constraint);
        }
    }
}

/// The lines of a table that fits the terminal. Groups of its rows can stand under headings: their columns are the same.
#[derive(Debug)]
pub struct FittedTable {
    head: String,
    rows: std::vec::IntoIter<String>,
    hidden: Vec<&'static str>,
    /// True if every column is shown and no line is too long.
    pub is_whole: bool,
}

impl FittedTable {
    /// Returns the next rows below the head, which is bold on a terminal; nothing for no rows.
    pub fn take_rows(&mut self, count: usize) -> String {
        if count == 0 {
            return String::new();
        }
        let mut text = format!("{}\n", style(&self.head).bold());
        for row in self.rows.by_ref().take(count) {
            let _ = writeln!(text, "{row}");
        }
        text
    }
}

/// Names the columns that the tables of a screen hide, and the option that shows them; empty if there are none.
pub fn hidden_remark(tables: &[&FittedTable], width: usize, option: &str) -> String {
    let mut titles: Vec<&str> = Vec::new();
    for title in tables.iter().flat_map(|table| &table.hidden) {
        if !titles.contains(title) {
            titles.push(title);
        }
    }
    let mut text = String::new();
    if !titles.is_empty() {
        let names = titles.join(", ").to_lowercase();
        let remark = format!("{names} (widen the terminal, or use {option})");
        for line in wrap_behind(HIDDEN_HEAD, &remark, width).lines() {
            let _ = writeln!(text, "{}", style(line).dim());
        }
    }
    text
}

/// True if no line is wider than this.
fn fits_all(lines: &[String], width: usize) -> bool {
    lines.iter().all(|line| measure_text_width(line) <= width)
}

/// Stand in cells for a value that does not exist, for one that is unknown, and for several values.
pub const NONE: &str = "-";
pub const UNKNOWN: &str = "?";
pub const SEVERAL: &str = "…";

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
            "NAME       PID\n0.0          7\ntrainer  12345\nnot shown: uuid\n  (widen the\n  terminal, or use\n  --json)\n"
        );
        let narrow = within(1);
        assert!(
            narrow.starts_with("NAME\n0.0\ntrainer\nnot\n  shown:\n  uuid,\n  pid\n"),
            "{narrow}"
        );
    }

    #[test]
    fn groups_of_rows_have_the_same_columns() {
        let mut fitted = table(Column::left_aligned("UUID", 2)).fit(20);
        assert_eq!(fitted.take_rows(0), "");
        assert_eq!(fitted.take_rows(1), "NAME       PID\n0.0          7\n");
        assert_eq!(fitted.take_rows(1), "NAME       PID\ntrainer  12345\n");
        assert!(!fitted.is_whole);
        let remark = hidden_remark(&[&fitted, &fitted], 80, "--json");
        assert_eq!(
            remark,
            "not shown: uuid (widen the terminal, or use --json)\n"
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
            shown.starts_with("NAME  GPU\n0.0     0\nnot shown: users"),
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
            within(25).contains("\n0.1      python train.py…\nnot shown: pid"),
            "{}",
            within(25)
        );
    }
}
