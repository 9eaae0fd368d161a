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

    /// True if both occupy a common unit.
    pub fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// `4:2`: size 2 from unit 4 on, in the order of `nvidia-smi mig -lgi`.
impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.start, self.size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_do_not_overlap() {
        let left = Placement::new(0, 4);
        assert!(!left.overlaps(Placement::new(4, 4)));
        assert!(left.overlaps(Placement::new(3, 1)));
        assert!(Placement::new(0, 8).overlaps(left));
    }
}
