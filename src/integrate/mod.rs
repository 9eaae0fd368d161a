//! Text for other systems, made from records and profiles: containers, systemd.

mod cdi;
mod container;
mod systemd;

pub use cdi::{CDI_KIND, cdi_specification};
pub use container::{Container, ContainerDevice, SharedMemory};
pub use systemd::{HEAL_TIMER, SERVICE, UnitFile, WRITTEN, unit_files};
