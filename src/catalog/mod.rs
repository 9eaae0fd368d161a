//! The GPU models as data, one TOML file each, for planning without the GPU.
//!
//! On a machine with the GPU, NVML is asked instead.

mod evidence;
mod model;
mod models;
mod pci;

pub use evidence::Evidence;
pub use model::{Incomplete, Model};
pub use models::{incomplete, models, named, products_of};
pub use pci::PciId;
