//! Plans: turns a node and a request into ordered actions, each with its reason. Pure: no I/O.

mod action;
mod arrange;
mod beside;
mod cdi_change;
pub mod check;
mod compute;
mod compute_mode;
mod daemons;
mod down;
mod driver;
#[cfg(test)]
mod example;
mod gpu_plan;
mod gpu_request;
mod held;
mod infeasible;
mod instance_use;
mod kill;
mod layout;
mod mode;
mod names;
mod no_client;
mod permit;
mod planner;
mod purge;
mod refusal;
mod restart;
mod set;
mod setting_change;
mod slot;
mod strays;
mod up;
mod victim;

pub use action::{
    ASKED_FOR, Action, EndStray, GpuInstance, Part, Place, Set, Start, StartServer, StartedBy,
    Step, Stop,
};
pub use beside::Beside;
pub use cdi_change::CdiChange;
pub use down::{Down, down};
pub use gpu_plan::{GpuPlan, LooseLimits, ModeChange, Plan};
pub use held::Held;
pub use kill::{KillRequest, device_of, kill};
pub use purge::Purge;
pub use refusal::{ClientOf, Misfit, Obstacle, Refusal};
pub use restart::{heal, is_healed, mend, restart};
pub use set::{set, set_back};
pub use up::up;
pub use victim::{Kill, Signal, Victim};
