use std::collections::BTreeSet;

use super::daemons::{self, Aim};
use super::wanted::{Wanted, arrange};
use super::{Action, GpuPlan, Place, Plan, Refusal, Step};
use crate::geometry::{ComputeChoice, Placement, Segment, SliceMap};
use crate::host::Uid;
use crate::node::{Device, Gpu, Node, RunDir};
use crate::profile::{Block, Names, Profile, Serve, Settings, Span, Want};

/// What brings the node to what the profile asks for, with daemons in `home` run by `caller`.
///
/// # Errors
/// A [`Refusal`]; nothing has been touched.
pub fn up(node: &Node, profile: &Profile, home: &RunDir, caller: Uid) -> Result<Plan, Refusal> {
    let mut planner = Planner {
        node,
        profile,
        home,
        caller,
        names: Names::default(),
    };
    planner.check_serves()?;
    planner.check_selectors()?;
    planner.reserve_names_of_others()?;
    let mut plan = Plan::default();
    for gpu in &node.gpus {
        if let Some(block) = planner.block_of(gpu) {
            let gpu = planner.gpu(gpu, block)?;
            if !gpu.steps.is_empty() {
                plan.gpus.push(gpu);
            }
        }
    }
    Ok(plan)
}

struct Planner<'a> {
    node: &'a Node,
    profile: &'a Profile,
    home: &'a RunDir,
    caller: Uid,
    names: Names,
}

impl<'a> Planner<'a> {
    fn block_of(&self, gpu: &Gpu) -> Option<&'a Block> {
        self.profile.blocks.iter().find(|block| {
            block
                .select
                .selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
        })
    }

    /// Root's daemon is for others, a plain user's for that user alone: NVIDIA's daemon refuses the
    /// other way round, after it has started.
    fn check_serves(&self) -> Result<(), Refusal> {
        let root = self.caller == Uid::ROOT;
        for &(serve, span) in &self.profile.serves {
            if (serve == Serve::Own) == root {
                let (who, may) = if root {
                    ("root", "\"one-at-a-time\" or \"all\"")
                } else {
                    ("a plain user", "\"self\"")
                };
                let error = self
                    .profile
                    .error(span, format!("{who} cannot serve \"{serve}\""));
                let hint = format!("for {who} it is {may}, or leave serve out");
                return Err(error.with_hint(hint).into());
            }
        }
        Ok(())
    }

    /// A selector that names certain GPUs must find one, and the profile as a whole too.
    fn check_selectors(&self) -> Result<(), Refusal> {
        let gpus: Vec<String> = self
            .node
            .gpus
            .iter()
            .map(|gpu| format!("{} {} {} {}", gpu.index, gpu.product, gpu.uuid, gpu.pci))
            .collect();
        let here = format!("this node has:\n  {}", gpus.join("\n  "));
        for block in &self.profile.blocks {
            let missing = block
                .select
                .indices()
                .find(|index| !self.node.gpus.iter().any(|gpu| gpu.index == *index));
            if let Some(index) = missing {
                let message = format!("there is no GPU {index}");
                return Err(self
                    .profile
                    .error(block.span, message)
                    .with_hint(here)
                    .into());
            }
            let selects = |gpu: &Gpu| {
                block
                    .select
                    .selects(gpu.index, &gpu.uuid, &gpu.product, &gpu.pci)
            };
            if block.select.names_a_gpu() && !self.node.gpus.iter().any(selects) {
                let error = self
                    .profile
                    .error(block.span, "this selects a GPU that is not there");
                return Err(error.with_hint(here).into());
            }
        }
        if !self
            .node
            .gpus
            .iter()
            .any(|gpu| self.block_of(gpu).is_some())
        {
            let span = self
                .profile
                .blocks
                .first()
                .map_or(Span::default(), |block| block.span);
            let error = self
                .profile
                .error(span, "the profile selects no GPU of this node");
            return Err(error.with_hint(here).into());
        }
        Ok(())
    }

    /// Devices of GPUs that the profile leaves alone keep their names, given or by default.
    fn reserve_names_of_others(&mut self) -> Result<(), Refusal> {
        let left_alone = self
            .node
            .gpus
            .iter()
            .filter(|gpu| self.block_of(gpu).is_none());
        let unserved: Vec<Device> = left_alone
            .flat_map(Gpu::devices)
            .filter(|device| self.node.served_on(&device.key).is_none())
            .collect();
        for device in unserved {
            // Default names differ from each other.
            let _ = self
                .names
                .give(&device.default_name, device.gpu, "a device of another GPU");
        }
        for served in self
            .node
            .served
            .iter()
            .filter(|served| served.run_dir == *self.home)
        {
            let selected = self
                .node
                .gpus
                .iter()
                .any(|gpu| gpu.uuid == served.record.key.gpu && self.block_of(gpu).is_some());
            if !selected {
                let given = self
                    .names
                    .give(&served.record.name, 0, "a device of another GPU");
                given.map_err(|_| Refusal::InTheWay {
                    what: format!("two devices are recorded as \"{}\"", served.record.name),
                    hint: "take one of them down".to_owned(),
                })?;
            }
        }
        Ok(())
    }

    fn gpu(&mut self, gpu: &Gpu, block: &Block) -> Result<GpuPlan, Refusal> {
        let mut plan = GpuPlan {
            index: gpu.index,
            uuid: gpu.uuid.clone(),
            product: gpu.product.clone(),
            before: gpu.slice_map(),
            after: gpu.slice_map(),
            steps: Vec::new(),
            to_be_continued: false,
        };
        let aims = match &block.want {
            Want::Whole(whole) => {
                if gpu.in_mig_mode() {
                    return Err(Refusal::InTheWay {
                        what: format!(
                            "GPU {} ({}) is in MIG mode, and the profile wants it whole",
                            gpu.index, gpu.product
                        ),
                        hint: format!("switch it off with nvidia-smi -i {} -mig 0", gpu.index),
                    });
                }
                vec![self.aim(
                    gpu,
                    whole.name.as_ref(),
                    Place::Whole,
                    &whole.settings,
                    block.span,
                )?]
            }
            Want::Parts(parts) => {
                self.check_mig(gpu, block)?;
                if gpu.profiles.is_empty() {
                    if gpu.in_mig_mode() {
                        return Err(Refusal::InTheWay {
                            what: format!("GPU {}: the driver lists no profiles for it", gpu.index),
                            hint: "see what nvidia-smi mig -lgip says".to_owned(),
                        });
                    }
                    plan.to_be_continued = true;
                    self.enable_mig(gpu, &mut plan)?;
                    return Ok(plan);
                }
                let wanted = arrange(self.profile, gpu, parts, block.span)?;
                self.geometry(gpu, &wanted, &mut plan)?;
                self.aims(gpu, &wanted, block.span)?
            }
        };
        daemons::plan(self.node, self.home, gpu, &aims, &mut plan)?;
        Ok(plan)
    }

    fn check_mig(&self, gpu: &Gpu, block: &Block) -> Result<(), Refusal> {
        if gpu.mig.is_none() {
            let message = format!("GPU {} ({}) has no MIG", gpu.index, gpu.product);
            let error = self.profile.error(block.span, message);
            return Err(error.with_hint("use mig = false for it").into());
        }
        match &gpu.hidden {
            Some(why) => Err(Refusal::InTheWay {
                what: format!("GPU {}: its instances cannot be seen: {why}", gpu.index),
                hint: "run it as root".to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Switching the mode needs an idle GPU.
    fn enable_mig(&self, gpu: &Gpu, plan: &mut GpuPlan) -> Result<(), Refusal> {
        let ours: BTreeSet<u32> = self
            .node
            .served
            .iter()
            .filter(|served| served.record.uuid == gpu.uuid)
            .flat_map(|served| served.servers.iter().map(|server| server.pid.0))
            .collect();
        let processes = self.node.processes.get(&gpu.uuid);
        let busy: Vec<String> = processes
            .into_iter()
            .flat_map(|processes| &processes.compute)
            .filter(|usage| !ours.contains(&usage.pid))
            .map(|usage| usage.pid.to_string())
            .collect();
        if !busy.is_empty() {
            return Err(Refusal::InTheWay {
                what: format!(
                    "GPU {} ({}) computes for pid {}: MIG mode can be switched on an idle GPU only",
                    gpu.index,
                    gpu.product,
                    busy.join(", ")
                ),
                hint: "let them end first".to_owned(),
            });
        }
        plan.steps.push(Step {
            action: Action::SwitchMig { on: true },
            because: "the profile partitions this GPU".to_owned(),
        });
        Ok(())
    }

    fn geometry(&self, gpu: &Gpu, wanted: &[Wanted], plan: &mut GpuPlan) -> Result<(), Refusal> {
        if !gpu.in_mig_mode() {
            self.enable_mig(gpu, plan)?;
        }
        let mut segments = Vec::new();
        let mut by_size: Vec<&Wanted> = wanted.iter().collect();
        by_size.sort_by_key(|wanted| (std::cmp::Reverse(wanted.placement.size), wanted.placement));
        for wanted in by_size {
            let Some(profile) = gpu.profile(wanted.profile) else {
                continue;
            };
            segments.push(Segment {
                placement: wanted.placement,
                label: profile.name.to_string(),
            });
            let standing = gpu
                .instances
                .iter()
                .find(|instance| instance.placement == wanted.placement);
            if standing.is_none() {
                plan.steps.push(Step {
                    action: Action::CreateGpuInstance {
                        profile: profile.id,
                        name: profile.name.clone(),
                        placement: wanted.placement,
                    },
                    because: "the profile asks for it".to_owned(),
                });
            }
            // What a compute instance must have: its slices, or all the SMs.
            let full = profile.multiprocessors;
            let mut missing: Vec<Option<u32>> = match wanted.compute.as_slice() {
                [] => vec![None],
                slices => slices.iter().copied().map(Some).collect(),
            };
            for compute in standing.into_iter().flat_map(|instance| &instance.compute) {
                let found = missing.iter().position(|missing| match missing {
                    Some(slices) => *slices == compute.slices,
                    None => compute.multiprocessors == full,
                });
                match found {
                    Some(position) => drop(missing.remove(position)),
                    None => return Err(other_compute(gpu, wanted.placement)),
                }
            }
            for slices in missing {
                plan.steps.push(Step {
                    action: Action::CreateComputeInstance {
                        instance: wanted.placement,
                        compute: slices.map_or(ComputeChoice::Full, |count| {
                            ComputeChoice::Slices { count, at: None }
                        }),
                    },
                    because: match standing {
                        Some(_) => "its GPU instance is there without it",
                        None => "the profile asks for it",
                    }
                    .to_owned(),
                });
            }
        }
        plan.after = SliceMap::new(gpu.units(), segments);
        Ok(())
    }

    fn aims(&mut self, gpu: &Gpu, wanted: &[Wanted], span: Span) -> Result<Vec<Aim>, Refusal> {
        let mut aims = Vec::new();
        for wanted in wanted {
            for nth in 0..wanted.compute.len().max(1) {
                let place = Place::Part {
                    placement: wanted.placement,
                    nth,
                };
                let default = default_name(gpu, wanted.placement, nth, wanted.compute.len());
                let named = wanted.name.clone().unwrap_or((default, span));
                aims.push(self.aim(gpu, Some(&named), place, &wanted.settings, span)?);
            }
        }
        // Names are counted entry by entry; daemons are shown and started from left to right.
        aims.sort_by_key(|aim| aim.place);
        Ok(aims)
    }

    fn aim(
        &mut self,
        gpu: &Gpu,
        name: Option<&(String, Span)>,
        place: Place,
        settings: &Settings,
        span: Span,
    ) -> Result<Aim, Refusal> {
        let by_default = (gpu.index.to_string(), span);
        let (template, span) = name.unwrap_or(&by_default);
        let named = self.names.give(
            template,
            gpu.index,
            &format!("a device of GPU {}", gpu.index),
        );
        let name = named.map_err(|holder| {
            self.profile
                .error(
                    *span,
                    format!(
                        "\"{template}\" would name a device of GPU {} and {holder}",
                        gpu.index
                    ),
                )
                .with_hint("put {gpu} or {n} into the name")
        })?;
        let default = if self.caller == Uid::ROOT {
            Serve::OneAtATime
        } else {
            Serve::Own
        };
        Ok(Aim {
            name,
            place,
            serve: settings.serve.unwrap_or(default),
            settings: settings.clone(),
        })
    }
}

fn default_name(gpu: &Gpu, placement: Placement, nth: usize, compute: usize) -> String {
    if compute > 1 {
        format!("{}.{}.c{nth}", gpu.index, placement.start)
    } else {
        format!("{}.{}", gpu.index, placement.start)
    }
}

fn other_compute(gpu: &Gpu, placement: Placement) -> Refusal {
    Refusal::InTheWay {
        what: format!(
            "GPU {} ({}): the GPU instance at {placement} is split into other compute instances, \
             and this version does not destroy any to make room",
            gpu.index, gpu.product
        ),
        hint: "take it down with mig-mps down --destroy-mig".to_owned(),
    }
}
