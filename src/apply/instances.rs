//! GPU and compute instances: made, destroyed and tracked, and recorded as ours.

use super::cause::Cause;
use super::gpu_state::{ChangingGpu, describe_compute_instance};
use super::in_use::{find_holders, find_processes_in_the_way, retry_while_in_use, stop_units};
use crate::geometry::{ComputeChoice, ComputeInstanceProfile, Placement, ProfileId};
use crate::host::Interrupt;
use crate::nvml::{Code, GpuHandle, GpuInstanceReading, NvmlError};
use crate::plan::GpuInstance;
use crate::state::{DestroyedInstance, RecordedInstance};

/// Makes a GPU instance. One of ours is recorded first: what a crash leaves behind is then known as ours.
pub(super) fn create_gpu_instance(
    gpu: &mut ChangingGpu<'_>,
    instance: &GpuInstance,
) -> Result<(), Cause> {
    let (profile, placement) = (instance.profile, instance.placement);
    let run = gpu.run;
    let created = created_entry(gpu, profile, placement, None);
    if becomes_ours(gpu, &created) {
        run.node_record.add_created(&created)?;
    }
    let made = call_with_retries(gpu, &gpu.plan.uuid, move |handle| {
        handle.create_gpu_instance(profile, placement)
    });
    match made {
        Ok(id) => {
            let reading = GpuInstanceReading {
                id,
                profile,
                placement,
                compute: Vec::new(),
                offered: Vec::new(),
            };
            gpu.instances.insert(placement, reading);
            Ok(())
        }
        Err(cause) if cause.may_have_worked() => {
            gpu.unknown.insert(placement, instance.to_string());
            Err(cause)
        }
        Err(cause) => {
            run.node_record.forget_created(|other| *other == created);
            Err(cause)
        }
    }
}

/// True if mig-mps is recorded as the maker of an instance that it makes. A rollback makes again for others what was
/// theirs.
fn becomes_ours(gpu: &ChangingGpu<'_>, created: &RecordedInstance) -> bool {
    !gpu.rolling_back || gpu.run.node_record.had_created(created)
}

pub(super) fn create_compute_instance(
    gpu: &mut ChangingGpu<'_>,
    instance: Placement,
    choice: ComputeChoice,
) -> Result<(), Cause> {
    let parent = gpu.instances.get(&instance).ok_or(Cause::NoInstance)?;
    let (id, profile) = (parent.id, parent.profile);
    let offered = offered_profiles(gpu, instance)?;
    let (chosen, at) = choice
        .choose_profile(&offered)
        .ok_or_else(|| not_offered(choice, &offered))?;
    let kind = chosen.id;
    // The driver puts a compute instance that has only one place there.
    let known = match chosen.placements.as_slice() {
        [only] => Some(*only),
        _ => at,
    };
    let expected = known
        .map(|at| created_entry(gpu, profile, instance, Some(at)))
        .filter(|created| becomes_ours(gpu, created));
    if let Some(created) = &expected {
        gpu.run.node_record.add_created(created)?;
    }
    let made = call_with_retries(gpu, &gpu.plan.uuid, move |handle| {
        handle.create_compute_instance(id, kind, at)
    });
    if let (Ok(made), Some(parent)) = (&made, gpu.instances.get_mut(&instance)) {
        parent.compute.push(made.clone());
        parent.compute.sort_by_key(|compute| compute.placement);
    }
    let actual = match &made {
        Ok(made) => Some(created_entry(gpu, profile, instance, Some(made.placement)))
            .filter(|created| becomes_ours(gpu, created)),
        Err(cause) if cause.may_have_worked() => {
            let thing = known.map_or_else(
                || format!("a compute instance of the GPU instance at {instance}"),
                |at| describe_compute_instance(at, instance),
            );
            gpu.unknown.insert(instance, thing);
            expected.clone()
        }
        Err(_) => None,
    };
    gpu.run
        .node_record
        .replace_created(expected.as_ref(), actual.as_ref())?;
    made.map(drop)
}

pub(super) fn destroy_gpu_instance(
    gpu: &mut ChangingGpu<'_>,
    instance: &GpuInstance,
) -> Result<(), Cause> {
    let placement = instance.placement;
    let Some(reading) = gpu.instances.get(&placement) else {
        return Ok(());
    };
    let id = reading.id;
    if !gpu.rolling_back {
        gpu.run.journal.record_destruction(DestroyedInstance {
            instance: created_entry(gpu, instance.profile, placement, None),
            name: instance.name.to_string(),
        })?;
    }
    call_with_retries(gpu, &gpu.plan.uuid, move |handle| {
        handle.destroy_gpu_instance(id)
    })?;
    gpu.instances.remove(&placement);
    // With what was made in it.
    gpu.run
        .node_record
        .forget_created(|created| created.gpu == gpu.plan.uuid && created.placement == placement);
    Ok(())
}

pub(super) fn destroy_compute_instance(
    gpu: &mut ChangingGpu<'_>,
    instance: Placement,
    compute: Placement,
) -> Result<(), Cause> {
    let Some(parent) = gpu.instances.get(&instance) else {
        return Ok(());
    };
    let Some(part) = parent.compute.iter().find(|part| part.placement == compute) else {
        return Ok(());
    };
    let created = created_entry(gpu, parent.profile, instance, Some(compute));
    let (parent, id) = (parent.id, part.id);
    call_with_retries(gpu, &part.uuid, move |handle| {
        handle.destroy_compute_instance(parent, id)
    })?;
    if let Some(parent) = gpu.instances.get_mut(&instance) {
        parent.compute.retain(|other| other.placement != compute);
    }
    // With its GPU instance, if that goes too: a rollback on a full disk can then make both again.
    if gpu.rolling_back || !gpu.plan.destroys_instance_at(instance) {
        let run = gpu.run;
        run.node_record.forget_created(|other| *other == created);
    }
    Ok(())
}

fn created_entry(
    gpu: &ChangingGpu<'_>,
    profile: ProfileId,
    placement: Placement,
    compute: Option<Placement>,
) -> RecordedInstance {
    RecordedInstance {
        gpu: gpu.plan.uuid.clone(),
        profile,
        placement,
        compute,
    }
}

/// Returns the compute instance profiles that a GPU instance offers. Asks once for each profile.
fn offered_profiles(
    gpu: &mut ChangingGpu<'_>,
    instance: Placement,
) -> Result<Vec<ComputeInstanceProfile>, Cause> {
    let asked = gpu.instances.get(&instance).ok_or(Cause::NoInstance)?;
    let known = gpu
        .instances
        .values()
        .find(|standing| standing.profile == asked.profile && !standing.offered.is_empty());
    if let Some(known) = known {
        return Ok(known.offered.clone());
    }
    let id = asked.id;
    let offered = gpu.call(move |handle| handle.compute_profiles_of(id))?;
    if let Some(asked) = gpu.instances.get_mut(&instance) {
        asked.offered.clone_from(&offered);
    }
    Ok(offered)
}

/// Makes a call about the GPU, and retries it while the driver reports it in use, at last without monitoring services if
/// they may be stopped. The error names the processes that use `device`.
fn call_with_retries<T: Send + 'static>(
    gpu: &ChangingGpu<'_>,
    device: &str,
    call: impl Fn(&GpuHandle) -> Result<T, NvmlError> + Clone + Send + 'static,
) -> Result<T, Cause> {
    let call = || retry_while_in_use(gpu.interrupt(), || gpu.call(call.clone()));
    let mut answer = call();
    let stops_services = gpu.run.context.allowed.stop_holders;
    if stops_services
        && !gpu.rolling_back
        && answer
            .as_ref()
            .is_err_and(|error| error.code() == Some(Code::IN_USE))
        && stop_units(gpu, &find_holders(gpu))?
    {
        answer = call();
    }
    answer.map_err(|error| match error.code() {
        Some(Code::IN_USE) if gpu.interrupt().is_some_and(Interrupt::is_interrupted) => {
            Cause::Interrupted
        }
        Some(Code::IN_USE) => Cause::InUse {
            error,
            holders: find_processes_in_the_way(gpu, device),
            stops_services,
        },
        _ => Cause::Nvml(error),
    })
}

fn not_offered(choice: ComputeChoice, offered: &[ComputeInstanceProfile]) -> Cause {
    let offers: Vec<String> = offered
        .iter()
        .map(|offer| format!("{}c (profile {})", offer.slices, offer.id))
        .collect();
    Cause::Other(format!(
        "the GPU instance offers {}, and nothing for {choice:?}",
        offers.join(", ")
    ))
}
