use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a GPU instance lies, in the GPU's own placement units (8 on A100 and H100, 4 on A30, 12 on
/// RTX PRO 6000).
///
/// The size is not the slice count: `3g` has size 4 and `7g` size 8 on a GPU with 8 units
/// (`nvmlDeviceGetGpuInstancePossiblePlacements_v2`).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[schemars(rename = "placement")]
pub struct Placement {
    /// The first unit.
    pub start: u32,
    /// The number of units.
    pub size: u32,
}

impl Placement {
    /// The placement of `size` units from `start` on.
    pub fn new(start: u32, size: u32) -> Self {
        Self { start, size }
    }

    /// The first unit behind it.
    pub fn end(self) -> u32 {
        self.start + self.size
    }

    /// Its units: `4`, `4-5`.
    pub fn range(self) -> String {
        match self.size {
            0 | 1 => self.start.to_string(),
            _ => format!("{}-{}", self.start, self.end() - 1),
        }
    }

    /// True if both occupy a common unit.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// `slice 4`, `slices 4-5`
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.size == 1 { "slice" } else { "slices" };
        write!(f, "{noun} {}", self.range())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_overlap() {
        let left = Placement::new(0, 4);
        assert!(!left.overlaps(Placement::new(4, 4)));
        assert_eq!(left.to_string(), "slices 0-3");
        assert_eq!(Placement::new(3, 1).to_string(), "slice 3");
        assert!(left.overlaps(Placement::new(3, 1)));
        assert!(Placement::new(0, 8).overlaps(left));
    }
}
