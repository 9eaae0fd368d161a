//! Checks a profile without a GPU: runs the planner of `up` on GPUs of the catalog.

mod fleet;
mod reach;
mod shape;
mod virtual_node;

pub use fleet::{BlockOnModel, against_all};
pub use shape::{Shape, ShapeDevice};
pub use virtual_node::{GpuArgument, OnNode, against};

use std::path::Path;

use crate::host::Uid;
use crate::node::Node;
use crate::plan::{self, Plan, Refusal};
use crate::profile::Profile;
use crate::settings::Serve;
use crate::state::RunDir;

/// A plain user, for profiles that root cannot apply.
const SOMEBODY: Uid = Uid(1000);

/// Plans a profile for a virtual node.
pub fn judge(node: &Node, profile: &Profile) -> Result<Plan, Refusal> {
    // The user who checks need not be the one who applies it: a profile that says "self" is a plain
    // user's, any other root's.
    let own = profile.serves.iter().any(|(serve, _)| *serve == Serve::Own);
    let caller = if own { SOMEBODY } else { Uid::ROOT };
    let run_dir = RunDir::at(Path::new("/run/mig-mps"));
    plan::up(node, profile, &run_dir, caller)
}
