//! Pure: a node and what is wanted of it become ordered actions, each with its reason. No I/O.

mod action;
mod daemons;
mod down;
mod refusal;
mod up;
mod wanted;

pub use action::{Action, GpuPlan, Place, Plan, Start, Step, Stop};
pub use down::{Down, down};
pub use refusal::{ClientOf, Refusal};
pub use up::up;
