//! Text for other systems, made from records and profiles: containers, Prometheus, Slurm, systemd.

mod cdi;
mod container;

pub use cdi::{CDI_KIND, cdi_specification};
pub use container::{Container, ContainerDevice, SharedMemory};
