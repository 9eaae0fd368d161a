//! systemd: the services that hold GPUs open, and the scopes of daemons.

mod error;
mod scopes;
mod systemctl;
mod unit;

pub use error::UnitsError;
pub use scopes::Scopes;
pub use systemctl::Units;
pub use unit::Unit;
