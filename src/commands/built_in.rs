//! The built-in profiles on the GPUs of a node: which fit, and the error of one that does not.

use crate::catalog::BuiltIn;
use crate::error::{CommandError, Result};
use crate::host::Environment;
use crate::node::{Detail, observe};
use crate::plan::Refusal;
use crate::plan::virtual_node::{EmptyNode, check_on_node};
use crate::profile::Profile;

/// Returns the number of devices that a built-in profile makes on the GPUs of a node.
pub fn count_devices_on(profile: &BuiltIn, empty: &EmptyNode) -> Result<usize, Refusal> {
    let read = Profile::parse(profile.name.as_ref(), profile.text.to_owned())?;
    let judged = check_on_node(&read, empty)?;
    let shapes = judged.gpus.iter().filter_map(|gpu| gpu.shape.as_ref());
    Ok(shapes.map(|shape| shape.devices.len()).sum())
}

/// Returns the GPUs of this node as if nothing was on them; `None` if the driver shows none.
pub fn gpus_of_node(environment: &Environment) -> Option<EmptyNode> {
    let node = observe(environment, Detail::OFFERS).ok()?;
    (!node.gpus.is_empty()).then(|| EmptyNode::from_node(&node))
}

/// Returns the built-in profile that this is.
pub fn find_built_in(profile: &Profile) -> Option<BuiltIn> {
    let built_in = profile
        .source
        .path()
        .to_str()
        .and_then(BuiltIn::find_by_name);
    built_in.filter(|built_in| built_in.text == profile.source.text())
}

/// Returns the error of a profile that these GPUs refuse. Nobody edits a built-in one: the error names those that fit.
pub fn suggest_fitting_profiles(
    profile: &Profile,
    error: CommandError,
    gpus: impl FnOnce() -> Option<EmptyNode>,
) -> CommandError {
    let refusal = error.error.downcast_ref::<Refusal>();
    let is_misfit = matches!(refusal, Some(Refusal::Profile(_) | Refusal::Infeasible(_)));
    let (Some(built_in), true) = (find_built_in(profile), is_misfit) else {
        return error;
    };
    // What is on the GPUs now may be in the way of it.
    let Some(empty) = gpus() else { return error };
    let Err(refusal) = count_devices_on(&built_in, &empty) else {
        return error;
    };
    let fitting: Vec<&str> = BuiltIn::all()
        .into_iter()
        .filter(|other| count_devices_on(other, &empty).is_ok())
        .map(|other| other.name)
        .collect();
    let what = format!(
        "the built-in profile {} does not fit these GPUs: {}",
        built_in.name,
        refusal.to_problem()
    );
    let hint = if fitting.is_empty() {
        "run `mig-mps init` to write a profile for these GPUs".to_owned()
    } else {
        format!(
            "use a built-in profile that fits ({}), or run `mig-mps init` to write another profile",
            fitting.join(", ")
        )
    };
    CommandError::new(error.status, what).with_hint(hint)
}
