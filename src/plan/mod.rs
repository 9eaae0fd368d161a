//! Pure: a node and what is wanted of it become ordered actions, each with its reason. No I/O.

mod action;
mod arrange;
mod beside;
mod change;
pub mod check;
mod compute;
mod compute_mode;
mod daemons;
mod down;
mod draft;
mod driver;
#[cfg(test)]
mod example;
mod gpu_plan;
mod gpu_request;
mod infeasible;
mod kill;
mod layout;
mod mode;
mod no_client;
mod planner;
mod refusal;
mod restart;
mod set;
mod slot;
mod standing;
mod strays;
mod up;

pub use action::{Action, EndStray, Place, Start, StartServer, Step, Stop};
pub use beside::Beside;
pub use change::{Change, Set};
pub use down::{Down, down};
pub use gpu_plan::{GpuPlan, ModeChange, Plan};
pub use kill::{Kill, Victim, kill};
pub use refusal::{Because, ClientOf, Obstacle, Refusal};
pub use restart::restart;
pub use set::set;
pub use up::up;
