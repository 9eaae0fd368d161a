use crate::geometry::{ComputeChoice, Placement, SliceMap};
use crate::plan::{Action, GpuInstance, GpuPlan, Place, Start};
use crate::settings::Settings;

/// The layout that a profile gives a virtual GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// True if it is in MIG mode.
    pub is_mig: bool,
    /// Its slices.
    pub map: SliceMap,
    /// Its devices, from left to right.
    pub devices: Vec<ShapeDevice>,
}

/// A device that there would be.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeDevice {
    /// `3g.40gb`, or `1c.3g.40gb` for a compute instance with part of the SMs; `None` for a whole GPU.
    pub profile: Option<String>,
    /// Where its GPU instance lies; `None` for a whole GPU.
    pub placement: Option<Placement>,
    /// Its daemon, if it has one.
    pub daemon: Option<ShapeDaemon>,
}

/// A daemon that would serve a device.
#[derive(Clone, Debug, PartialEq)]
pub struct ShapeDaemon {
    /// The device's name.
    pub name: String,
    pub settings: Settings,
}

impl Shape {
    /// The layout of a GPU without MIG mode and without a daemon.
    pub(super) fn bare() -> Self {
        Self {
            is_mig: false,
            map: SliceMap::new(0, Vec::new()),
            devices: Vec::new(),
        }
    }

    /// Returns the result of a plan for an empty GPU.
    pub fn of(plan: &GpuPlan) -> Self {
        let actions = || plan.steps.iter().map(|step| &step.action);
        let daemon_at = |place: Place| {
            let mut starts = actions().filter_map(Action::as_start);
            let start = starts.find(|start| start.place == place);
            start.map(ShapeDaemon::of)
        };
        let mut instances: Vec<&GpuInstance> = actions()
            .filter_map(|action| match action {
                Action::CreateGpuInstance(instance) => Some(instance),
                _ => None,
            })
            .collect();
        instances.sort_by_key(|instance| instance.placement);
        let whole = daemon_at(Place::Whole).map(|daemon| ShapeDevice {
            profile: None,
            placement: None,
            daemon: Some(daemon),
        });
        let in_mig = instances.into_iter().flat_map(|instance| {
            let placement = instance.placement;
            let compute = actions().filter_map(move |action| match action {
                Action::CreateComputeInstance { instance, compute } if *instance == placement => {
                    Some(*compute)
                }
                _ => None,
            });
            compute.enumerate().map(move |(nth, compute)| ShapeDevice {
                profile: Some(match compute {
                    ComputeChoice::Slices { count, .. } => format!("{count}c.{}", instance.name),
                    _ => instance.name.to_string(),
                }),
                placement: Some(placement),
                daemon: daemon_at(Place::Mig { placement, nth }),
            })
        });
        Self {
            is_mig: actions().any(|action| matches!(action, Action::SwitchMig { on: true })),
            map: plan.after.clone(),
            devices: whole.into_iter().chain(in_mig).collect(),
        }
    }
}

impl ShapeDaemon {
    fn of(start: &Start) -> Self {
        Self {
            name: start.name.clone(),
            settings: start.settings.clone(),
        }
    }
}
