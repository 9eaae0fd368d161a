//! The other side: programs that use a device.
//!
//! A program finds its daemon by its environment alone, and CUDA says nothing if it finds none. So the environment is made
//! here ([`Variables`]), and two questions are answered before a program starts ([`check_ready()`]): may this user's programs use
//! the device now, and does CUDA really take them as MPS clients?

pub mod admission;
mod another;
mod apptainer;
mod attach;
pub mod cdi_files;
mod compose;
mod container;
mod engine;
mod engine_words;
mod existing;
mod launch;
mod launcher;
mod no_access;
mod ready;
mod variables;
mod visible;

pub use admission::{ADMISSION_LIMIT, check_admission};
pub use another::another_device;
pub use apptainer::unbound_directories;
pub use attach::{HeldClient, hold_device};
pub use cdi_files::CdiFiles;
pub use container::{AdmissionHook, CDI_KIND, ContainerDevice, SharedMemory, cdi_specification};
pub use launch::{WantedInContainer, launch_warnings};
pub use no_access::NoAccess;
pub use ready::{
    ClientSlot, NotReady, Verified, check_client_access, check_ready, check_user,
    check_user_mapping, verify_devices,
};
pub use variables::{ClientOptions, Variables, pipe_directory};
pub use visible::{DeviceList, usable_gpus, visible_devices};
