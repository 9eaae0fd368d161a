//! The systemd services that hold GPUs open.

mod error;
mod systemctl;
mod unit;

pub use error::UnitsError;
pub use systemctl::Units;
pub use unit::Unit;
