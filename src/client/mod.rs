//! The other side: programs that use a device.
//!
//! A program finds its daemon by its environment alone, and CUDA says nothing if it finds none. So the environment is made
//! here ([`Variables`]), and two questions are answered before a program starts ([`ready()`]): may this user's programs use
//! the device now, and does CUDA really take them as MPS clients?

mod access;
mod choice;
mod container;
mod limits;
mod ready;
mod variables;

use access::access;

pub use access::{NoAccess, refuse_unmapped};
pub use choice::{LocalRank, Map, NoneFree, Wanted, devices_for, free_devices};
pub use container::{CDI_KIND, Container, ContainerDevice, SharedMemory, cdi_specification};
pub use limits::{ClientLimits, own_memory};
pub use ready::{ClientSlot, NotReady, Verified, ready, verify};
pub use variables::{Variables, own_limits};
