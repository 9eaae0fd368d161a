//! Text for other systems, made from records and profiles: containers, Prometheus, Slurm, systemd.

mod cdi;
mod container;
mod slurm;

pub use cdi::{CDI_KIND, cdi_specification};
pub use container::{Container, ContainerDevice, SharedMemory};
pub use slurm::{
    Gres, GresConf, GresDevice, SlurmJob, gres_conf, gres_of_node, gres_string, in_order, type_name,
};
