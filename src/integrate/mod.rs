//! Text for other systems, made from records and profiles: containers, Prometheus, systemd.

mod cdi;
mod container;
mod prometheus;
mod systemd;

pub use cdi::{CDI_KIND, cdi_specification};
pub use container::{Container, ContainerDevice, SharedMemory};
pub use prometheus::{ALERTS, Kind, Metrics, Samples};
pub use systemd::{HEAL_TIMER, SERVICE, UnitFile, WRITTEN, unit_files};
