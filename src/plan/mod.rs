//! Plans: turns a node and a request into ordered actions, each with its reason. Pure: no I/O.

mod action;
mod consent;
mod daemons;
mod device;
mod device_names;
mod disrupted;
mod down;
mod drift;
#[cfg(test)]
mod example;
mod gpu_layout;
mod gpu_plan;
mod gpu_steps;
mod held_gpus;
mod joint;
mod kill;
mod left_out;
mod lost_daemons;
mod missing_gpus;
mod mode_change;
mod parts;
mod preconditions;
mod private;
mod prune;
mod reason;
mod refusal;
mod remarks;
mod restart;
mod setting_change;
mod up;
pub mod virtual_node;

pub use action::{
    Action, CdiChange, Close, EndStray, GpuInstance, Place, PlanInstance, Purge, Set, Signal,
    Start, StartServer, StartedBy, Step, Stop, serve_setting,
};
pub use daemons::set;
pub use device::DevicePlan;
pub use disrupted::{ClientOf, IdlePod};
pub use down::{Destroy, DownRequest, down};
pub use drift::differs_from_profile;
pub use gpu_plan::{GpuPlan, Plan, Undisturbed, UnmanagedDaemon};
pub use held_gpus::{Cost, HeldGpus, Work, pids_accounted_for};
pub use kill::{Kill, KillRequest, Victim, device_with_clients, kill, may_end_client};
pub use left_out::LeftOut;
pub use mode_change::ModeChange;
pub use private::{check_only_daemon, private_daemon};
pub use reason::Reason;
pub use refusal::{Misfit, Refusal};
pub use remarks::remark_on_virtual_machines;
pub use restart::{heal, needs_healing, restart, start};
pub use up::{Unselected, block_selects, up, up_in_part, up_with};
