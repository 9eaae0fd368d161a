//! The profile file: reads and checks it, without a GPU.
//!
//! Loading finds every error that does not depend on a node, and points at file, line and column.

mod block;
mod diagnostic;
mod inherited;
mod names;
mod pod_profile;
mod read;
mod schema;
mod selector;
mod value_hint;
mod wanted;

pub use block::{Block, DeviceEntry, Profile, SettingAssignment, Want, WholeGpu};
pub use diagnostic::{ProfileError, Source, Span};
pub use names::{NameTemplate, Names, is_device_name};
#[cfg(feature = "kubernetes")]
pub use pod_profile::without_mark;
pub use pod_profile::{PROFILE_MARK, is_of_pod};
pub use schema::profile_schema;
pub use selector::{PciAddress, Selector};
pub use wanted::{
    Amount, FIGURE_RANGE, MeasuredDevice, Measurement, Sharing, WantedProgram, WantedPrograms,
    is_program_name,
};
