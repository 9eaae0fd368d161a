use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table as Comfy, presets};
use console::{measure_text_width, style};

use super::format::wrapped;

/// A table that fits the terminal by leaving columns out, never by breaking cells: half a UUID cannot be copied.
pub(super) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

/// A column of a table.
pub(super) struct Column {
    title: &'static str,
    right: bool,
    /// Columns with higher ranks are left out first; rank 0 stays.
    rank: u8,
    /// True if its cells change with time alone.
    is_restless: bool,
}

impl Column {
    pub(super) const fn left(title: &'static str, rank: u8) -> Self {
        Self {
            title,
            right: false,
            rank,
            is_restless: false,
        }
    }

    pub(super) const fn right(title: &'static str, rank: u8) -> Self {
        Self {
            title,
            right: true,
            rank,
            is_restless: false,
        }
    }

    /// Marks it as changing with time alone.
    pub(super) const fn restless(self) -> Self {
        Self {
            is_restless: true,
            ..self
        }
    }

    /// Marks it as never left out.
    pub(super) const fn kept(self) -> Self {
        Self { rank: 0, ..self }
    }
}

/// The gap between two columns.
const GAP: usize = 2;

impl Table {
    pub(super) fn new(columns: Vec<Column>) -> Self {
        Self {
            columns,
            rows: Vec::new(),
        }
    }

    /// Adds a row with a cell for every column.
    pub(super) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns the text of each row without the columns that change with time alone.
    pub(super) fn essences(&self) -> Vec<String> {
        let lasting = |row: &Vec<String>| {
            let cells = row.iter().zip(&self.columns);
            let cells = cells.filter(|(_, column)| !column.is_restless);
            let cells: Vec<&str> = cells.map(|(cell, _)| cell.as_str()).collect();
            cells.join("\u{1f}")
        };
        self.rows.iter().map(lasting).collect()
    }

    /// Formats the table in at most `width` characters; also returns the titles of the columns left out.
    pub(super) fn fit(&self, width: usize) -> (String, Vec<&'static str>) {
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().filter_map(|row| row.get(column));
                let widest = cells
                    .map(|cell| measure_text_width(cell))
                    .max()
                    .unwrap_or(0);
                widest.max(self.columns[column].title.len())
            })
            .collect();
        let mut shown: Vec<usize> = (0..self.columns.len()).collect();
        let mut left_out = Vec::new();
        let total = |shown: &[usize]| {
            shown
                .iter()
                .map(|&column| widths[column] + GAP)
                .sum::<usize>()
                .saturating_sub(GAP)
        };
        while total(&shown) > width {
            let Some(&last) = shown
                .iter()
                .max_by_key(|&&column| self.columns[column].rank)
                .filter(|&&column| self.columns[column].rank > 0)
            else {
                break;
            };
            shown.retain(|&column| column != last);
            left_out.push(self.columns[last].title);
        }
        (self.draw(&shown), left_out)
    }

    /// Formats the table, with a line under it that names the columns left out.
    pub(super) fn within(&self, width: usize) -> String {
        let (mut text, left_out) = self.fit(width);
        if !left_out.is_empty() {
            let left_out = left_out.join(", ").to_lowercase();
            let remark = format!("(not shown for want of room: {left_out}; --json has everything)");
            for line in wrapped(&remark, width) {
                let _ = writeln!(text, "{}", style(line).dim());
            }
        }
        text
    }

    fn draw(&self, shown: &[usize]) -> String {
        let mut table = Comfy::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(shown.iter().map(|&column| self.columns[column].title));
        for row in &self.rows {
            table.add_row(
                shown
                    .iter()
                    .map(|&column| row.get(column).map_or("", String::as_str)),
            );
        }
        for (position, &column) in shown.iter().enumerate() {
            let Some(drawn) = table.column_mut(position) else {
                continue;
            };
            drawn.set_padding((0, u16::try_from(GAP).unwrap_or(2)));
            if self.columns[column].right {
                drawn.set_cell_alignment(CellAlignment::Right);
            }
        }
        let mut text = String::new();
        for line in table.lines() {
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(vec![
            Column::left("NAME", 0),
            Column::right("PID", 1),
            Column::left("UUID", 2),
        ]);
        table.row(vec!["0.0".into(), "7".into(), "MIG-1".into()]);
        table.row(vec!["trainer".into(), "12345".into(), "MIG-2".into()]);
        table
    }

    #[test]
    fn columns_are_aligned_and_lines_end_where_they_end() {
        let (text, left_out) = table().fit(80);
        assert_eq!(
            text,
            "NAME       PID  UUID\n0.0          7  MIG-1\ntrainer  12345  MIG-2\n"
        );
        assert!(left_out.is_empty());
    }

    #[test]
    fn a_narrow_terminal_loses_columns_and_no_characters() {
        let (text, left_out) = table().fit(15);
        assert_eq!(text, "NAME       PID\n0.0          7\ntrainer  12345\n");
        assert_eq!(left_out, ["UUID"]);
        let (text, left_out) = table().fit(1);
        assert_eq!(text, "NAME\n0.0\ntrainer\n");
        assert_eq!(left_out, ["UUID", "PID"]);
    }
}
