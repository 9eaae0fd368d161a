//! Pure geometry: profile names, placements, the solver and the slice map. No I/O.
//!
//! Two number spaces meet here and must not be mixed (`nvml.h`): the *enum* by which NVML is asked
//! for a profile's properties ([`ProfileEnum`]), and the *id* that every other call wants
//! ([`ProfileId`], the number `nvidia-smi mig -lgip` prints).

mod assignment;
mod disruption;
mod fitting;
mod instance;
mod nearest;
mod partition;
mod placement;
mod profile_name;
mod request;
mod slice_map;
mod solver;

pub use disruption::Disruption;
pub use instance::{
    ComputeChoice, ComputeInstanceId, ComputeInstanceProfile, ComputeProfileId, GpuInstanceId,
    GpuInstanceProfile, ProfileEnum, ProfileId,
};
pub use nearest::nearest;
pub use partition::{Aim, Partition, best, choices, partitions};
pub use placement::Placement;
pub use profile_name::{ComputeName, ProfileName};
pub use request::{Request, count};
pub use slice_map::{Cell, Segment, SliceMap, slice_map};
pub use solver::{Existing, arrange, units};
