//! GPUs: what they can do, and who is in the way.

use super::check::Judge;
use super::{Check, Examined, Finding, Subject, reported};
use crate::catalog;
use crate::host::{Holders, with_sudo};
use crate::node::{Gpu, ProblemId};
use crate::nvml::{EXCLUSIVE_PROCESS, compute_mode_in_words};

/// `NVML_COMPUTEMODE_PROHIBITED`
const PROHIBITED: u32 = 2;

/// The first compute capability whose clients have address spaces of their own.
const VOLTA: (u32, u32) = (7, 0);

/// The holders of a GPU that are named.
const MOST_HOLDERS: usize = 3;

pub(super) const CHECKS: &[Check] = &[
    Check {
        id: "architecture",
        subject: Subject::Gpus,
        fault: "a GPU is older than Volta",
        why: "there are no limits and at most 16 clients, and a client can write into the memory of others",
        remedy: "use such a GPU without MPS, or for the ranks of one program",
        judge: Judge::Own(architecture),
    },
    Check {
        id: "mig-support",
        subject: Subject::Gpus,
        fault: "the driver offers no MIG on a GPU that has it",
        why: "the GPU cannot be partitioned: the driver is too old for this model, or the GPU is a virtual one",
        remedy: "install a newer driver; in a virtual machine ask its host",
        judge: Judge::Own(mig_support),
    },
    Check {
        id: "mig-pending",
        subject: Subject::Gpus,
        fault: "a change of the MIG mode waits for a reset or a reboot",
        why: "until then the GPU is in the old mode",
        remedy: "`sudo mig-mps up PROFILE --reset`, or reboot",
        judge: Judge::Own(mig_pending),
    },
    Check {
        id: "gpu-held",
        subject: Subject::Gpus,
        fault: "processes keep a GPU from changing its MIG mode",
        why: "only a GPU that nobody has open changes its mode or can be reset",
        remedy: "end them, or stop monitoring services meanwhile with `sudo mig-mps up PROFILE --stop-holders`",
        judge: Judge::Own(held),
    },
    Check {
        id: "compute-mode",
        subject: Subject::Gpus,
        fault: ProblemId::ComputeMode.meaning(),
        why: ProblemId::ComputeMode.why(),
        remedy: ProblemId::ComputeMode.remedy(),
        judge: Judge::Own(compute_mode),
    },
    Check {
        id: "persistence",
        subject: Subject::Gpus,
        fault: "nothing keeps an idle GPU initialised",
        why: "the first program on it waits for its initialisation, and settings of an idle GPU are lost",
        remedy: "`sudo systemctl enable --now nvidia-persistenced`",
        judge: Judge::Own(persistence),
    },
];

fn architecture(examined: &Examined<'_>) -> Vec<Finding> {
    let of = |gpu: &Gpu| {
        let (index, product) = (gpu.index, &gpu.product);
        match gpu.capability {
            None => Finding::unknown(format!("GPU {index} does not tell its compute capability")),
            Some(is) if is < VOLTA => Finding::warn(format!(
                "GPU {index} ({product}) has compute capability {}.{}: MPS has no memory limits and no thread \
                 percentages there, at most 16 clients, and one address space for all; serve = \"all\" does not start",
                is.0, is.1
            )),
            Some(is) => Finding::ok(format!("GPU {index}: compute capability {}.{}", is.0, is.1)),
        }
    };
    examined.gpus().map(of).collect()
}

fn mig_support(examined: &Examined<'_>) -> Vec<Finding> {
    let has_mig = |product: &String| {
        let mut models = catalog::models().iter();
        models.any(|model| model.product_names.contains(product))
    };
    let of = |gpu: &Gpu| {
        let (index, product) = (gpu.index, &gpu.product);
        match gpu.mig {
            Some(mode) if mode.current => Finding::ok(format!("GPU {index}: MIG is on")),
            Some(_) => Finding::ok(format!("GPU {index}: MIG is off")),
            None if has_mig(product) => Finding::warn(format!(
                "GPU {index}: models of {product} have MIG, and driver {} offers none",
                examined.node.driver
            ))
            .run(format!(
                "nvidia-smi -i {index} --query-gpu=mig.mode.current --format=csv"
            )),
            None => Finding::ok(format!("GPU {index}: {product} has no MIG")),
        }
    };
    examined.gpus().map(of).collect()
}

fn mig_pending(examined: &Examined<'_>) -> Vec<Finding> {
    let gpus = examined.gpus();
    let waiting = gpus.filter_map(|gpu| Some((gpu, gpu.mig?)));
    let waiting = waiting.filter(|(_, mode)| mode.current != mode.pending);
    let found = waiting.map(|(gpu, mode)| {
        let index = gpu.index;
        let to = if mode.pending { "on" } else { "off" };
        let how = match gpu.resetless {
            Some(true) => "as soon as nobody has the GPU open",
            _ => "with a reset of the GPU",
        };
        Finding::fail(format!("GPU {index}: MIG mode changes to {to} {how}"))
            .run(format!("sudo nvidia-smi --gpu-reset -i {index}"))
    });
    found.collect()
}

fn held(examined: &Examined<'_>) -> Vec<Finding> {
    let of = |gpu: &Gpu| {
        let index = gpu.index;
        let waits = gpu.mig.is_some_and(|mode| mode.current != mode.pending);
        match examined.holders(gpu) {
            None => Finding::unknown(format!("GPU {index}: its holders are not known")),
            Some(holders) if !holders.seen.is_empty() => {
                let seen = format!("GPU {index}: held open by {}", named(holders));
                if waits {
                    Finding::warn(format!("{seen}: its MIG mode cannot change until they end"))
                        .run("sudo mig-mps up PROFILE --stop-holders")
                } else {
                    Finding::ok(seen)
                }
            }
            Some(holders) if waits && holders.hidden > 0 => Finding::unknown(format!(
                "GPU {index}: {} processes are hidden, and each may hold it",
                holders.hidden
            ))
            .run(with_sudo()),
            Some(_) => Finding::ok(format!("GPU {index}: nobody has it open")),
        }
    };
    examined.gpus().map(of).collect()
}

fn named(holders: &Holders) -> String {
    let names = holders.seen.iter().take(MOST_HOLDERS);
    let mut names: Vec<String> = names.map(ToString::to_string).collect();
    let more = holders.seen.len().saturating_sub(MOST_HOLDERS);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}

fn compute_mode(examined: &Examined<'_>) -> Vec<Finding> {
    let mut findings = reported::findings(examined, ProblemId::ComputeMode);
    for gpu in examined.gpus() {
        let (index, Some(mode)) = (gpu.index, gpu.compute_mode) else {
            continue;
        };
        let served = examined.node.serving(&gpu.uuid);
        let is_set = served.is_some_and(|served| served.record.settings.compute_mode.is_some());
        let seen = format!("GPU {index}: {}", compute_mode_in_words(mode));
        let reset = format!("sudo nvidia-smi -i {index} -c DEFAULT");
        findings.push(match mode {
            PROHIBITED => Finding::fail(seen).run(reset),
            EXCLUSIVE_PROCESS if !is_set => Finding::warn(format!(
                "{seen}, and not by a profile: a program that does not reach a daemon gets error 46"
            ))
            .run(reset),
            _ => Finding::ok(seen),
        });
    }
    findings
}

fn persistence(examined: &Examined<'_>) -> Vec<Finding> {
    let has_daemon = examined.runs("nvidia-persistenced");
    let of = |gpu: &Gpu| {
        let index = gpu.index;
        if has_daemon {
            return Finding::ok(format!("GPU {index}: by nvidia-persistenced"));
        }
        match (gpu.is_persistent, examined.holders(gpu)) {
            (Some(true), _) => Finding::ok(format!("GPU {index}: persistence mode is on")),
            (None, _) | (_, None) => Finding::unknown(format!("GPU {index}: not known")),
            (_, Some(holders)) if !holders.seen.is_empty() => Finding::ok(format!(
                "GPU {index}: by those who have it open"
            )),
            (_, Some(holders)) if holders.hidden > 0 => Finding::unknown(format!(
                "GPU {index}: {} processes are hidden, and each may hold it",
                holders.hidden
            )),
            _ => Finding::warn(format!(
                "GPU {index}: persistence mode is off, nvidia-persistenced does not run, and nobody has it open"
            ))
            .run("sudo systemctl enable --now nvidia-persistenced"),
        }
    };
    examined.gpus().map(of).collect()
}
