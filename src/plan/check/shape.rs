use crate::geometry::{ComputeChoice, Placement, SliceMap};
use crate::plan::{Action, GpuPlan, Place, Start};
use crate::settings::Settings;

/// The layout that a profile gives a virtual GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// Its slices.
    pub map: SliceMap,
    /// Its devices, from left to right.
    pub devices: Vec<ShapeDevice>,
}

/// A device that would be served.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeDevice {
    pub name: String,
    /// `3g.40gb`, or `1c.3g.40gb` for a compute instance with part of the SMs; `None` for a whole GPU.
    pub profile: Option<String>,
    /// Where its GPU instance lies; `None` for a whole GPU.
    pub placement: Option<Placement>,
    /// The settings of its daemon.
    pub settings: Settings,
}

impl Shape {
    /// Returns the result of a plan for an empty GPU.
    pub fn of(plan: &GpuPlan) -> Self {
        let starts = plan.steps.iter().filter_map(|step| step.action.as_start());
        let mut starts: Vec<&Start> = starts.collect();
        starts.sort_by_key(|start| start.place);
        let devices = starts.into_iter().map(|start| {
            let (placement, nth) = match start.place {
                Place::Whole => (None, 0),
                Place::Mig { placement, nth } => (Some(placement), nth),
            };
            ShapeDevice {
                name: start.name.clone(),
                profile: placement.and_then(|at| title(plan, at, nth)),
                placement,
                settings: start.settings.clone(),
            }
        });
        Self {
            map: plan.after.clone(),
            devices: devices.collect(),
        }
    }
}

/// The default name of the nth device of a GPU instance.
fn title(plan: &GpuPlan, at: Placement, nth: usize) -> Option<String> {
    let actions = || plan.steps.iter().map(|step| &step.action);
    let name = actions().find_map(|action| match action {
        Action::CreateGpuInstance(instance) if instance.placement == at => Some(&instance.name),
        _ => None,
    })?;
    let mut compute = actions().filter_map(|action| match action {
        Action::CreateComputeInstance { instance, compute } if *instance == at => Some(*compute),
        _ => None,
    });
    Some(match compute.nth(nth) {
        Some(ComputeChoice::Slices { count, .. }) => format!("{count}c.{name}"),
        _ => name.to_string(),
    })
}
