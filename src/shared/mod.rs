//! What several features share, and the core does without.

mod choice;
mod device_use;
mod draft;
pub mod program;

pub use choice::{LocalRank, Map, NoRank, Portion, Wanted, devices_for, free_devices};
pub use device_use::{DeviceUse, LeftMps};
pub use draft::{
    Converted, DraftBlock, DraftProfile, counted, default_setting, device_entry, mig_devices,
    regex_of, settings_table, table,
};
