use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::solver::{arrange, count_units, find_profile};
use super::{Disruption, GpuInstanceProfile, Placement, ProfileName, Request};

/// A GPU's placement units and who occupies them, drawn in characters.
///
/// ```text
/// |3g                     |2g         |1g   |.....|
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct SliceMap {
    #[serde(skip)]
    units: u32,
    segments: Vec<Segment>,
}

/// A GPU instance on the map of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Segment {
    /// The placement.
    pub placement: Placement,
    /// The profile name.
    #[serde(rename = "profile")]
    pub label: String,
}

impl Segment {
    /// As much of the label as there is room for: `1g.10gb` becomes `1g` before it is cut.
    fn label_within(&self, room: usize) -> String {
        let label = match self.label.parse::<ProfileName>() {
            Ok(name) if self.label.chars().count() > room => name.to_short().to_string(),
            _ => self.label.clone(),
        };
        label.chars().take(room).collect()
    }
}

/// Characters for the units of one GPU, borders included: 8 units get 6 each, 12 get 4.
const MAP_WIDTH: u32 = 48;

impl SliceMap {
    /// The map of a GPU with that many placement units. Segments must not overlap.
    pub fn new(units: u32, mut segments: Vec<Segment>) -> Self {
        segments.sort_by_key(|segment| segment.placement);
        Self { units, segments }
    }

    /// The segments, from left to right.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// True if it has no segments.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The number of placement units.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// The number of units in the largest free block.
    pub fn largest_free(&self) -> u32 {
        let cells = self.cells();
        let blocks = cells.split(|cell| cell.segment.is_some());
        blocks
            .map(<[Cell<'_>]>::len)
            .max()
            .and_then(|units| u32::try_from(units).ok())
            .unwrap_or(0)
    }

    /// Its segments and free units, from left to right.
    pub fn cells(&self) -> Vec<Cell<'_>> {
        let unit = (MAP_WIDTH / self.units.max(1)).max(2) as usize;
        let mut cells = Vec::new();
        let mut next = 0;
        for segment in &self.segments {
            cells.extend(
                (next..segment.placement.start).map(|start| Cell::free_unit(start, unit - 1)),
            );
            cells.push(Cell {
                placement: segment.placement,
                segment: Some(segment),
                room: unit * segment.placement.size as usize - 1,
            });
            next = segment.placement.end();
        }
        cells.extend((next..self.units).map(|start| Cell::free_unit(start, unit - 1)));
        cells
    }
}

/// A segment of a [`SliceMap`], or a free unit.
#[derive(Clone, Copy, Debug)]
pub struct Cell<'a> {
    pub placement: Placement,
    /// `None` for a free unit.
    pub segment: Option<&'a Segment>,
    /// The number of characters between its borders.
    pub room: usize,
}

impl Cell<'_> {
    fn free_unit(start: u32, room: usize) -> Self {
        Self {
            placement: Placement::new(start, 1),
            segment: None,
            room,
        }
    }

    /// The label, filled up with blanks; `free` repeated for a free unit.
    pub fn padded_label(&self, free: &str) -> String {
        match self.segment {
            None => free.repeat(self.room),
            Some(segment) => format!("{:<1$}", segment.label_within(self.room), self.room),
        }
    }
}

/// Returns the map of an empty GPU that meets these requests; `None` if there is no room for all.
pub fn slice_map(offered: &[GpuInstanceProfile], requests: &[Request]) -> Option<SliceMap> {
    let found = arrange(offered, &[], requests, &|_, _| Disruption::NONE)?;
    let segments = requests
        .iter()
        .zip(found.placements)
        .filter_map(|(request, placement)| {
            let label = find_profile(offered, request.profile)?.name.to_string();
            Some(Segment { placement, label })
        });
    Some(SliceMap::new(count_units(offered), segments.collect()))
}

impl fmt::Display for SliceMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for cell in self.cells() {
            write!(f, "|{}", cell.padded_label("."))?;
        }
        f.write_str("|")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(start: u32, size: u32, label: &str) -> Segment {
        Segment {
            placement: Placement::new(start, size),
            label: label.to_owned(),
        }
    }

    #[test]
    fn a_map_is_as_wide_as_its_gpu_whatever_lies_on_it() {
        let map = SliceMap::new(
            8,
            vec![segment(4, 4, "3g.40gb"), segment(0, 1, "1g.10gb+me")],
        );
        assert_eq!(
            map.to_string(),
            "|1g+me|.....|.....|.....|3g.40gb                |"
        );
        let other = SliceMap::new(12, vec![segment(3, 3, "1g.24gb")]);
        assert_eq!(
            other.to_string(),
            "|...|...|...|1g.24gb    |...|...|...|...|...|...|"
        );
        assert_eq!(other.to_string().len(), map.to_string().len());
    }
}
