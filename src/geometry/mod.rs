//! Pure geometry: profile names, placements, the solver and the slice map. No I/O.
//!
//! Two number spaces meet here and must not be mixed (`nvml.h`): the *enum* by which NVML is asked
//! for a profile's properties ([`ProfileEnum`]), and the *id* that every other call wants
//! ([`ProfileId`], the number `nvidia-smi mig -lgip` prints).

mod instance;
mod nearest;
mod partition;
mod profile_name;
mod slice_map;
mod solver;

pub use instance::{
    ComputeChoice, ComputeInstanceId, ComputeInstanceProfile, ComputeProfileId, Engines,
    GpuInstanceId, GpuInstanceProfile, Placement, ProfileEnum, ProfileId,
};
pub use nearest::nearest_requests;
pub use partition::{Partition, Unused, enumerate_partitions};
pub use profile_name::{ComputeName, ProfileName};
pub use slice_map::{Cell, Segment, SliceMap, slice_map};
pub use solver::{Disruption, Existing, Request, arrange, count_each, count_units};
