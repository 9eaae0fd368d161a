//! The plan of a profile, for `up`, `plan` and the metrics.

use super::cdi_file::{self, CdiRequest};
use crate::host::{Environment, Uid};
use crate::node::Node;
use crate::plan::{self, LeftOut, Plan, Refusal, Unselected};
use crate::profile::Profile;
use crate::state::RunDir;

/// A profile to apply with `up`.
pub struct UpRequest<'a> {
    pub environment: &'a Environment,
    pub profile: &'a Profile,
    /// The user who applies it.
    pub caller: Uid,
    /// True to stop daemons on GPUs that no block selects.
    pub prune: bool,
}

impl UpRequest<'_> {
    /// Plans to apply the profile, with what becomes of daemons in no block, and of the CDI file; with `left_out` the part of
    /// it that can be applied.
    pub fn plan(
        &self,
        node: &Node,
        run_dir: &RunDir,
        mut left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal> {
        let (profile, caller) = (self.profile, self.caller);
        let unselected = if self.prune {
            Unselected::Stop
        } else {
            Unselected::Stay
        };
        let plan = match left_out.as_deref_mut() {
            None => plan::up_with(node, profile, run_dir, caller, unselected)?,
            Some(left_out) => {
                plan::up_in_part(node, profile, run_dir, caller, left_out, unselected)?
            }
        };
        let mut plan =
            plan.prune_or_remark(node, profile, run_dir, unselected, left_out.as_deref());
        if caller == Uid::ROOT {
            let request = CdiRequest::from_profile(profile);
            plan.cdi = cdi_file::plan_change(self.environment, node, run_dir, request, &plan);
        }
        Ok(plan)
    }
}
