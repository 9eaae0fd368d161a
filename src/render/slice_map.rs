//! Slice maps in colour.

use std::fmt::Write as _;

use console::Style;

use super::output::{Symbols, symbols, symbols_for_stderr};
use crate::geometry::{Cell, ProfileName, SliceMap};

/// Draws a map: a colour for each size of profile, and lines where the terminal has them.
pub fn map(map: &SliceMap) -> String {
    drawn(map, symbols(), style)
}

/// Draws a map for standard error.
pub fn map_for_stderr(map: &SliceMap) -> String {
    drawn(map, symbols_for_stderr(), |cell| style(cell).for_stderr())
}

fn drawn(map: &SliceMap, symbols: Symbols, style: impl Fn(&Cell<'_>) -> Style) -> String {
    let Symbols { border, free, .. } = symbols;
    let mut drawn = String::new();
    for cell in map.cells() {
        let _ = write!(drawn, "{border}{}", style(&cell).apply_to(cell.text(free)));
    }
    drawn.push_str(border);
    drawn
}

/// Returns the colour of a cell, by the number of its compute slices.
pub fn style(cell: &Cell<'_>) -> Style {
    let Some(segment) = cell.segment else {
        return Style::new().dim();
    };
    let name = segment.label.split(' ').next().unwrap_or_default();
    match name.parse::<ProfileName>().map(|name| name.slices()) {
        Ok(0 | 1) => Style::new().cyan(),
        Ok(2) => Style::new().green(),
        Ok(3) => Style::new().yellow(),
        Ok(4) => Style::new().magenta(),
        Ok(_) => Style::new().blue(),
        Err(_) => Style::new(),
    }
}
