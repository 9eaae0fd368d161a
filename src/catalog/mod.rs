//! What each GPU model can do when no GPU is there: a TOML per model.
//!
//! On a machine with the GPU, NVML beats the catalog: nothing here is looked at then.

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
pub use pci::{PciId, PciIdError};
pub use products::products_of;
