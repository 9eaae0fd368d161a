//! What a self-test tests, and how each GPU is now.

use std::fmt::Write as _;
use std::time::Duration;

use super::SelftestArgs;
use super::serving::TestedSize;
use crate::catalog::{self, Model};
use crate::error::{CommandError, Result, command_error, usage_error};
use crate::geometry::{ComputeInstanceProfile, GpuInstanceProfile};
use crate::host::format_gpus;
use crate::node::{Gpu, LOST_GPU_REMEDY, Node};
use crate::nvml::GpuInstanceReading;
use crate::state::GpuUnderTest;

/// The GPUs of a self-test.
pub(super) struct TestPlan {
    pub(super) gpus: Vec<TestedGpu>,
    is_quick: bool,
}

/// A GPU of a self-test.
pub(super) struct TestedGpu {
    pub(super) under_test: GpuUnderTest,
    /// The GPU as it was before.
    pub(super) gpu: Gpu,
    /// The version of the driver.
    pub(super) driver: String,
    /// True if MIG instances are made.
    pub(super) tests_mig: bool,
    /// True if the GPU is tested as one device.
    pub(super) tests_whole: bool,
    /// What of both is not tested, and why.
    pub(super) left_out: Option<[&'static str; 2]>,
    /// What is wrong with its health.
    bad_health: Vec<String>,
}

impl TestPlan {
    /// Returns the plan for the GPUs that the arguments name, or for all.
    pub(super) fn new(node: &Node, args: &SelftestArgs) -> Result<Self> {
        let mut indices = Vec::new();
        for word in &args.gpus {
            let index = node.gpu_index(word).map_err(|error| {
                let mut error = CommandError::from(error);
                if ["*", "all"].contains(&word.as_str()) {
                    error.hints = vec!["omit --gpu to test every GPU".to_owned()];
                }
                error
            })?;
            if !node.gpus.iter().any(|gpu| gpu.index == index) {
                node.names_on(index)?;
            }
            if !indices.contains(&index) {
                indices.push(index);
            }
        }
        if let Some((_, why)) = node
            .lost_gpus()
            .find(|(index, _)| indices.is_empty() || indices.contains(index))
        {
            return Err(command_error(why).with_hint(LOST_GPU_REMEDY));
        }
        let is_meant = |gpu: &&Gpu| indices.is_empty() || indices.contains(&gpu.index);
        let gpus: Vec<&Gpu> = node.gpus.iter().filter(is_meant).collect();
        if gpus.is_empty() {
            let error = command_error(format_args!("the driver ({}) shows no GPU", node.driver));
            return Err(error.with_hint("run `mig-mps doctor` to find the cause"));
        }
        let gpus = gpus.into_iter().map(|gpu| TestedGpu::new(node, gpu, args));
        Ok(Self {
            gpus: gpus.collect::<Result<_>>()?,
            is_quick: args.quick,
        })
    }

    /// `GPU 0 and 2`
    pub(super) fn gpus_in_words(&self) -> String {
        let indices: Vec<u32> = self.gpus.iter().map(|gpu| gpu.under_test.index).collect();
        format_gpus(&indices)
    }

    /// Describes what is tested and how long that takes, for the person who agrees to it.
    pub(super) fn render(&self) -> String {
        let mut text = String::new();
        let mut time = Duration::ZERO;
        for gpu in &self.gpus {
            let (index, product) = (gpu.under_test.index, &gpu.gpu.product);
            // A String takes everything.
            let _ = writeln!(text, "GPU {index}  {product}, {}", geometry_of(&gpu.gpu));
            if gpu.tests_mig {
                let _ = writeln!(
                    text,
                    "  each instance profile at {}, full layouts, and programs on {}",
                    if self.is_quick {
                        "one placement"
                    } else {
                        "both ends of its placements"
                    },
                    if self.is_quick {
                        "the smallest device"
                    } else {
                        "a device of each size"
                    },
                );
            }
            if gpu.tests_whole {
                let _ = writeln!(text, "  programs on the whole GPU");
            }
            if let Some([what, why]) = &gpu.left_out {
                let _ = writeln!(text, "  not tested: {what} ({why})");
            }
            for sign in &gpu.bad_health {
                let _ = writeln!(text, "  note: {sign}");
            }
            time += gpu.expected_time(self.is_quick);
        }
        let minutes = time.as_secs().div_ceil(60);
        let _ = writeln!(
            text,
            "This takes about {minutes} min. Do not use the GPUs during the test. Afterwards they have the same MIG mode and \
             instances as now."
        );
        text
    }
}

/// The expected time for one instance on its own, and for the programs on one device. The driver takes about a second to make
/// and a second to destroy an instance; a daemon starts in a second, and each of twenty programs takes about a second.
const INSTANCE_TIME: Duration = Duration::from_secs(3);
const DEVICE_TIME: Duration = Duration::from_secs(30);

impl TestedGpu {
    fn new(node: &Node, gpu: &Gpu, args: &SelftestArgs) -> Result<Self> {
        let index = gpu.index;
        let is_in_mig_mode = gpu.in_mig_mode();
        let switches = gpu.mig.is_some() && (gpu.resetless != Some(false) || args.reset);
        let tests_mig = !args.no_mig && gpu.mig.is_some() && (is_in_mig_mode || switches);
        let tests_whole = !is_in_mig_mode || !args.no_mig && switches;
        if !tests_mig && !tests_whole {
            let error = usage_error(format_args!(
                "GPU {index} is in MIG mode: --no-mig leaves nothing to test on it"
            ));
            return Err(error.with_hint("omit --no-mig, or select other GPUs with --gpu"));
        }
        let needs_reset = "its MIG mode can change only with a reset, which --reset allows";
        let left_out = match (tests_mig, tests_whole) {
            (true, true) => None,
            (true, false) => Some(["the whole GPU", needs_reset]),
            (false, _) if gpu.mig.is_none() => Some(["instances", "the driver offers no MIG"]),
            (false, _) if args.no_mig => Some(["instances", "--no-mig"]),
            (false, _) => Some(["instances", needs_reset]),
        };
        Ok(Self {
            under_test: GpuUnderTest {
                uuid: gpu.uuid.clone(),
                index,
                before: profile_of(gpu),
            },
            gpu: gpu.clone(),
            driver: node.driver.clone(),
            tests_mig,
            tests_whole,
            left_out,
            bad_health: node.health_problems(gpu),
        })
    }

    /// True if the test changes the MIG mode of the GPU.
    pub(super) fn changes_mig_mode(&self) -> bool {
        if self.gpu.in_mig_mode() {
            self.tests_whole
        } else {
            self.tests_mig
        }
    }

    /// Returns the model of the catalog.
    pub(super) fn model(&self) -> Option<&'static Model> {
        catalog::model_with_product(&self.gpu.product)
    }

    /// Returns the size of an instance that is one device.
    pub(super) fn size_of(&self, offer: &GpuInstanceProfile) -> TestedSize {
        TestedSize {
            sms: self.gpu.instance_size(offer, 1, true).multiprocessors,
            // An instance of a GPU that shares the machine's memory has none of its own.
            memory: Some(offer.memory_mib).filter(|mib| *mib > 0),
        }
    }

    fn expected_time(&self, is_quick: bool) -> Duration {
        let (profiles, sizes) = match (self.model(), is_quick) {
            (None, _) => (10, 5),
            (Some(model), true) => (model.offers().len(), 1),
            (Some(model), false) => {
                let offers = model.offers();
                let plain = offers.iter().filter(|offer| offer.name.is_plain());
                (2 * offers.len(), plain.count())
            }
        };
        let of_mig = INSTANCE_TIME * u32::try_from(profiles).unwrap_or(u32::MAX)
            + DEVICE_TIME * u32::try_from(sizes).unwrap_or(u32::MAX);
        let of_mig = if self.tests_mig {
            of_mig
        } else {
            Duration::ZERO
        };
        of_mig
            + if self.tests_whole {
                DEVICE_TIME
            } else {
                Duration::ZERO
            }
    }
}

/// Describes the MIG mode, the compute mode if it is not the default, and the instances of a GPU.
pub(super) fn geometry_of(gpu: &Gpu) -> String {
    let mode = match gpu.compute_mode {
        None | Some(0) => String::new(),
        Some(mode) => format!(", compute mode {mode}"),
    };
    match gpu.mig {
        None => return format!("without MIG{mode}"),
        Some(mig) if !mig.current => return format!("MIG off{mode}"),
        Some(_) if gpu.instances.is_empty() => return "MIG on, no instances".to_owned(),
        Some(_) => {}
    }
    let instances = gpu.instances.iter().map(|instance| {
        let parts: Vec<String> = instance
            .compute
            .iter()
            .map(|compute| compute.placement.format_range())
            .collect();
        let name = gpu.instance_title(instance, None);
        format!("{name} at {} ({})", instance.placement, parts.join(" "))
    });
    format!("MIG on, {}", instances.collect::<Vec<_>>().join(", "))
}

/// Returns the profile that makes the GPU as it is, without daemons.
fn profile_of(gpu: &Gpu) -> String {
    let uuid = &gpu.uuid;
    let select = format!("mps = false\n[[gpu]]\nselect = {{ uuid = \"{uuid}\" }}\n");
    if !gpu.in_mig_mode() {
        return format!("{select}mig = false\n");
    }
    let devices = gpu.instances.iter().map(|instance| {
        let (name, start) = (gpu.instance_title(instance, None), instance.placement.start);
        let compute = compute_words(instance).unwrap_or_default();
        format!("  {{ profile = \"{name}\", at = {start}{compute} }},\n")
    });
    format!("{select}devices = [\n{}]\n", devices.collect::<String>())
}

/// Returns the compute instances of a GPU instance as a profile has them: nothing for the one with all SMs. `None` if there is a
/// gap, which a profile cannot make.
pub(super) fn compute_words(instance: &GpuInstanceReading) -> Option<String> {
    let full = instance
        .offered
        .iter()
        .map(|offer: &ComputeInstanceProfile| offer.multiprocessors);
    match instance.compute.as_slice() {
        [] => None,
        [only] if Some(only.multiprocessors) >= full.max() => Some(String::new()),
        parts => {
            let mut start = 0;
            for part in parts {
                if part.placement.start != start {
                    return None;
                }
                start = part.placement.end();
            }
            let words: Vec<String> = parts
                .iter()
                .map(|part| format!("\"{}c\"", part.slices))
                .collect();
            Some(format!(", compute = [{}]", words.join(", ")))
        }
    }
}
