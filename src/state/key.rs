use serde::{Deserialize, Serialize};

use crate::geometry::{Placement, ProfileId};

/// What a device is matched by from one boot to the next: a MIG UUID is opaque and may change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceKey {
    /// The GPU's UUID.
    pub gpu: String,
    /// The part of it; `None` for the whole.
    pub instance: Option<InstanceKey>,
}

/// A compute instance's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct InstanceKey {
    /// The GPU instance's profile.
    pub profile: ProfileId,
    /// Where the GPU instance lies.
    pub placement: Placement,
    /// Where the compute instance lies in it, in compute slices.
    pub compute: Placement,
}
