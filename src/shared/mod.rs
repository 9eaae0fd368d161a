//! What several features share, and the core does without.

mod choice;
mod device_use;
mod draft;
pub mod jobs;
mod portion;
pub mod private;
pub mod program;

pub use choice::{
    CHOICE, LocalRank, NoRank, RankMapping, WantedDevices, check_not_only_joint, devices_for,
    free_devices,
};
pub use device_use::{DeviceUse, LeftMps, WatchedDevice, find_descendants_outside_mps};
pub use draft::{
    ConvertedProfile, DraftBlock, DraftProfile, default_setting, device_entry, merge_equal_entries,
    mig_devices, regex_of, settings_table, table,
};
pub use portion::Portion;
