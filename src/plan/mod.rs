//! Plans: turns a node and a request into ordered actions, each with its reason. Pure: no I/O.

mod absent;
mod action;
mod arrange;
mod consent;
mod daemons;
mod disrupted;
mod down;
mod drift;
#[cfg(test)]
mod example;
mod gate;
mod gpu_plan;
mod kill;
mod layout;
mod left_out;
mod mig_mode;
mod private;
mod prune;
mod refusal;
mod remarks;
mod restart;
mod setting_change;
mod up;
pub mod virtual_node;

pub use action::{
    Action, CdiChange, EndStray, GpuInstance, Part, Place, Purge, Reason, Set, Signal, Start,
    StartServer, StartedBy, Step, Stop, served_by,
};
pub use daemons::set;
pub use disrupted::{ClientOf, IdlePod};
pub use down::{Destroy, Down, down};
pub use drift::differs;
pub use gpu_plan::{DeviceAfter, GpuPlan, ModeChange, Plan, Undisturbed, UnmanagedDaemon};
pub use kill::{Kill, KillRequest, Victim, device_of, kill};
pub use left_out::LeftOut;
pub use mig_mode::{Cost, Held, Work, accounted_for};
pub use private::private;
pub use refusal::{Misfit, Obstacle, Refusal};
pub use remarks::remark_on_machines;
pub use restart::{heal, is_healed, restart};
pub use up::{selects, up, up_in_part};
