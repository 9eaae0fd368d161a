//! Slurm: its configuration of generic resources (GRES), and the variables that it gives to prologs and tasks.
//!
//! All of it was tried with Slurm 22.05.8. Slurm numbers the GPUs of a node by their place in its own list: gres.conf's
//! entries, ordered by the types in the `Gres=` of the node's line in slurm.conf.

mod conf;
mod gres;
mod job;

pub use conf::{Gres, GresConf, gres_of_node};
pub use gres::{GresDevice, gres_conf, gres_string, in_order, type_name};
pub use job::SlurmJob;
