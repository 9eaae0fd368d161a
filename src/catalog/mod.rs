//! The GPU models as data, one TOML file each, for planning without the GPU.
//!
//! On a machine with the GPU, NVML is asked instead.

mod evidence;
mod files;
mod incomplete;
mod model;
mod models;
mod pci;
mod products;

pub use evidence::Evidence;
pub use incomplete::Incomplete;
pub use model::Model;
pub use models::{incomplete, models, named};
pub use pci::PciId;
pub use products::products_of;
