//! Text for other systems, made from records and profiles: containers, Prometheus, Slurm, systemd.

mod cdi;
mod container;
mod prometheus;
mod slurm;
mod systemd;

pub use cdi::{CDI_KIND, cdi_specification};
pub use container::{Container, ContainerDevice, SharedMemory};
pub use prometheus::{ALERTS, Kind, Metrics, Samples};
pub use slurm::{
    Gres, GresConf, GresDevice, SlurmJob, gres_conf, gres_of_node, gres_string, in_order, type_name,
};
pub use systemd::{HEAL_TIMER, SERVICE, UnitFile, WRITTEN, unit_files};
