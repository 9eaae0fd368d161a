//! The GPU models as data, one TOML file each, for planning without the GPU; and the built-in profiles.
//!
//! On a machine with the GPU, NVML is asked instead.

mod evidence;
mod find;
mod model;
mod models;
mod pci;
mod profiles;

pub use evidence::Evidence;
pub use find::find;
pub use model::{Incomplete, Model};
pub use models::{has_product, incomplete, models, named, of_product, products_of};
pub use pci::PciId;
pub use profiles::BuiltIn;
