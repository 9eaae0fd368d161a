//! The GPU models as data, one TOML file each, for planning without the GPU; and the built-in profiles.
//!
//! On a machine with the GPU, NVML is asked instead.

mod find;
mod model;
mod no_mig;

pub use find::{
    BuiltIn, PciId, find_model, has_product, incomplete, model_with_product, models, named,
    products_of,
};
pub use model::{Evidence, Incomplete, Model};
pub use no_mig::{NoMig, explain_no_mig};
