//! Profiles out of what other tools wrote, and out of what a node has now.
//!
//! A [`Draft`] is a profile on its way to being a file; [`mig_parted`] is the other tool's format.

mod draft;
mod export;
mod group;
mod import;
pub mod mig_parted;
mod packing;
mod present;
mod settings;
mod templates;
mod to_mig_parted;

pub use draft::{Draft, DraftBlock, DraftPart, DraftSelect, DraftWant};
pub use export::{Exported, export};
pub use import::{Imported, import};
pub use packing::{MigDevice, MigDeviceError, Shared, pack};
pub use to_mig_parted::to_mig_parted;
