//! Nodes on which something is wrong.

mod dead_server;
mod drift;
mod drivers;
mod full_disk;
mod gpu_fault;
mod heal;
pub(crate) mod hung;
mod logs;
mod lost_daemon;
mod name_service;
mod no_driver;
mod old_kernel;
mod slow_daemons;
mod verify;
