use serde::{Deserialize, Serialize};

use crate::geometry::{Placement, ProfileId};

/// Identifies a device across boots: a MIG UUID is opaque and may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceKey {
    /// The GPU's UUID.
    pub gpu: String,
    /// The compute instance; `None` for the whole GPU.
    pub instance: Option<InstanceKey>,
}

/// The profile and placements of a compute instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceKey {
    /// The GPU instance's profile.
    pub profile: ProfileId,
    /// The GPU instance's placement.
    pub placement: Placement,
    /// The compute instance's placement, in compute slices.
    pub compute: Placement,
}
