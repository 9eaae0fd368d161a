//! The health of GPUs: what the driver and the kernel's log tell, as findings.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fault::{Finding, Severity};
use super::{Gpu, Node};
use crate::host::{format_gpus, join_words, strip_needless_sudo};
use crate::nvml::RecoveryAction;

/// Xids for which NVIDIA's catalog of Xids has more done than to restart the program or nothing: a reset, a reboot, or a
/// diagnosis of the GPU. See docs.nvidia.com/deploy/xid-errors. Programs cause most of the others.
const SERIOUS_XIDS: [u32; 18] = [
    46, 48, 62, 64, 74, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151, 155, 156, 158,
];

/// The findings for which no new job is to come to a GPU.
///
/// NVIDIA asks for no new work for as long as there is a recovery action, and lets new programs start while rows wait to be
/// remapped: the driver takes their memory out of use until the reset ("GPU Memory Error Management", and the manual of
/// nvidia-smi). Where a row cannot be remapped any more, the next error in it ends the program that has it.
const JOB_BLOCKING_FINDINGS: [&str; 2] = ["gpu-recovery", "row-remap-failed"];

/// A sign of a GPU's health.
pub struct HealthSign {
    /// The id of its fault.
    pub id: &'static str,
    /// True if it is there; `None` if the driver does not tell.
    pub is_there: Option<bool>,
}

impl Gpu {
    /// Returns the signs that the GPU can have; none if its health was not read.
    pub fn health_signs(&self) -> Vec<HealthSign> {
        let Some(health) = self.health else {
            return Vec::new();
        };
        let rows = health.remapped_rows;
        let retired = health.are_retired_pages_pending;
        let known_action = health.recovery.filter(|action| action.name().is_some());
        let mut signs = vec![
            (
                "gpu-recovery",
                known_action.map(|action| action != RecoveryAction::NONE),
            ),
            ("ecc-pending", Some(health.is_ecc_pending == Some(true))),
        ];
        if let Some(mode) = self.mig {
            signs.push(("mig-pending", Some(mode.current != mode.pending)));
        }
        // A GPU retires pages, or remaps rows, as every GPU with MIG does.
        if retired.is_none() {
            signs.push(("row-remap-failed", rows.map(|rows| rows.has_failed)));
            signs.push(("row-remap-pending", rows.map(|rows| rows.are_pending)));
        }
        if rows.is_none() && self.mig.is_none() || retired.is_some() {
            signs.push(("retired-pages-pending", retired));
        }
        signs
            .into_iter()
            .map(|(id, is_there)| HealthSign { id, is_there })
            .collect()
    }

    /// True if its PCI address is this one, which lacks the function.
    fn is_at_pci_address(&self, pci: &str) -> bool {
        self.pci.rsplit_once('.').is_some_and(|(own, _)| own == pci)
    }

    fn health_finding(&self, id: &'static str) -> Finding {
        let index = self.index;
        let reset = strip_needless_sudo(&format!("`sudo nvidia-smi --gpu-reset -i {index}`"));
        match id {
            "gpu-recovery" => self.recovery_finding(&reset),
            "row-remap-failed" => {
                let seen = format!("GPU {index}: a row of its memory could not be remapped");
                let remedy =
                    "use NVIDIA's field diagnostic to find out whether the GPU must be replaced";
                Finding::fail(id, seen).with_remedy(remedy)
            }
            "row-remap-pending" => {
                let seen =
                    format!("GPU {index}: rows of its memory are remapped at the next reset");
                let remedy = format!("run {reset} when its programs have exited");
                Finding::warn(id, seen).with_remedy(remedy)
            }
            "retired-pages-pending" => {
                let seen =
                    format!("GPU {index}: pages of its memory are retired at the next reboot");
                Finding::warn(id, seen).with_remedy("reboot when its programs have exited")
            }
            "ecc-pending" => {
                let seen = format!("GPU {index}: its ECC mode changes at the next reboot");
                Finding::warn(id, seen).with_remedy("reboot when its programs have exited")
            }
            _ => self.pending_mode_finding(id),
        }
    }

    fn recovery_finding(&self, reset: &str) -> Finding {
        let action = self.health.and_then(|health| health.recovery);
        let action = action.unwrap_or(RecoveryAction::NONE);
        let seen = format!(
            "GPU {}: after a fault, the driver asks for the recovery action \"{}\"",
            self.index,
            action.name().unwrap_or_default()
        );
        let remedy = match action {
            RecoveryAction::DRAIN_P2P => {
                "end the programs that transfer data between GPUs; the driver then requests another action".to_owned()
            }
            RecoveryAction::DRAIN_AND_RESET => {
                format!("start no more programs on it, wait until the running programs have exited, and then run {reset}")
            }
            RecoveryAction::RESET => format!("end its programs, and then run {reset}"),
            RecoveryAction::RECOVER_IMEX => "NVIDIA's guide to IMEX says how".to_owned(),
            _ => "end its programs, and reboot this machine".to_owned(),
        };
        Finding::fail("gpu-recovery", seen).with_remedy(remedy)
    }

    fn pending_mode_finding(&self, id: &'static str) -> Finding {
        let index = self.index;
        let is_on = self.mig.is_some_and(|mode| mode.pending);
        let to = if is_on { "on" } else { "off" };
        let how = match self.resetless {
            Some(true) => "as soon as no process has the GPU open",
            _ => "with a reset of the GPU",
        };
        Finding::fail(id, format!("GPU {index}: MIG mode changes to {to} {how}"))
            .with_command(format!("sudo nvidia-smi --gpu-reset -i {index}"))
    }

    /// Returns the reason why a sign is not told, after `the driver`, and true if all is well as far as it matters.
    ///
    /// The driver does not tell rows of a GPU with MIG instances. But it asks for a recovery action if it remaps a row for
    /// an uncorrectable error ("drain and reset", manual of nvidia-smi), or cannot (a reset: Xid 64, catalog of Xids).
    fn unreported_reason(&self, id: &str) -> (String, bool) {
        let action = self.health.and_then(|health| health.recovery);
        let why = match (id, action) {
            ("gpu-recovery", Some(RecoveryAction(number))) => {
                format!("asks for recovery action {number}, which this version does not know")
            }
            ("gpu-recovery", None) => "does not report this; 570 and newer drivers do".to_owned(),
            _ if self.in_mig_mode() && !self.has_nothing_in_mig_mode() => {
                let why = "does not report this for a GPU with MIG instances".to_owned();
                if action == Some(RecoveryAction::NONE) {
                    return (format!("{why}, and asks for no recovery action"), true);
                }
                why
            }
            _ => "does not report this".to_owned(),
        };
        (why, false)
    }
}

impl Node {
    /// Returns what is wrong with the health of the GPUs of these devices, or of all GPUs, and what is not known of it.
    pub(super) fn health_findings(&self, devices: &[String]) -> Vec<Finding> {
        let is_of = |gpu: &Gpu| {
            self.devices
                .iter()
                .filter(|device| device.key.has_gpu(&gpu.uuid))
                .any(|device| devices.contains(&device.name))
        };
        let mut found = match devices {
            [] => self.health_of(self.gpus.iter()),
            _ => self.health_of(self.gpus.iter().filter(|gpu| is_of(gpu))),
        };
        // A lost GPU does not tell its index.
        for (pci, xids) in self.serious_xids() {
            if devices.is_empty() && !self.gpus.iter().any(|gpu| gpu.is_at_pci_address(pci)) {
                found.push(xid_finding(&format!("the GPU at {pci}"), &xids));
            }
        }
        if let Some(Err(why)) = &self.xids {
            found.push(Finding::hidden("xid-errors", why.as_str()));
        }
        found
    }

    /// Returns what is wrong with the health of some GPUs, and what is not known of it, for GPUs alike once.
    fn health_of<'a>(&self, gpus: impl Iterator<Item = &'a Gpu>) -> Vec<Finding> {
        let mut found: Vec<Finding> = Vec::new();
        let mut untold: BTreeMap<(&str, (String, bool)), Vec<u32>> = BTreeMap::new();
        let serious = self.serious_xids();
        for gpu in gpus {
            for sign in gpu.health_signs() {
                match sign.is_there {
                    Some(true) => found.push(gpu.health_finding(sign.id)),
                    Some(false) => {}
                    None => {
                        let alike = untold.entry((sign.id, gpu.unreported_reason(sign.id)));
                        alike.or_default().push(gpu.index);
                    }
                }
            }
            for (_, xids) in serious.iter().filter(|(pci, _)| gpu.is_at_pci_address(pci)) {
                found.push(xid_finding(&format!("GPU {}", gpu.index), xids));
            }
        }
        found.extend(untold.into_iter().map(|((id, (why, is_well)), gpus)| {
            let seen = format!("{}: the driver {why}", format_gpus(&gpus));
            if is_well {
                Finding::ok(id, seen)
            } else {
                Finding::unknown(id, seen)
            }
        }));
        found
    }

    /// Returns what is wrong with the health of a GPU, for those who are about to build on it.
    pub fn health_problems(&self, gpu: &Gpu) -> Vec<String> {
        // The plan itself tells of a mode that waits.
        self.health_of(std::iter::once(gpu))
            .into_iter()
            .filter(|one| one.severity >= Severity::Warn && one.id != "mig-pending")
            .map(|one| one.describe_with_remedy())
            .collect()
    }

    /// Returns the serious Xids of each GPU by its address, each number once, with the age of the last.
    fn serious_xids(&self) -> BTreeMap<&str, BTreeMap<u32, Duration>> {
        let mut by_gpu: BTreeMap<&str, BTreeMap<u32, Duration>> = BTreeMap::new();
        let Some(Ok(xids)) = &self.xids else {
            return by_gpu;
        };
        for xid in xids.iter().filter(|xid| SERIOUS_XIDS.contains(&xid.number)) {
            by_gpu
                .entry(&xid.pci)
                .or_default()
                .insert(xid.number, xid.age);
        }
        by_gpu
    }

    /// Returns the reasons why no new job is to come to a GPU of this node.
    pub fn reasons_against_jobs(&self) -> Vec<String> {
        self.health_of(self.gpus.iter())
            .into_iter()
            .filter(|one| one.severity == Severity::Fail && JOB_BLOCKING_FINDINGS.contains(&one.id))
            .map(|one| one.seen)
            .collect()
    }
}

fn xid_finding(gpu: &str, xids: &BTreeMap<u32, Duration>) -> Finding {
    let shown: Vec<String> = xids
        .iter()
        .map(|(number, age)| match age.as_secs() / 3600 {
            0 => format!("Xid {number} within the last hour"),
            hours => format!("Xid {number} {hours} h ago"),
        })
        .collect();
    let seen = format!("{gpu}: the kernel log has {}", join_words(&shown, "and"));
    let remedy =
        "run `sudo dmesg | grep Xid` to see it; NVIDIA's catalog of Xids lists the action for each";
    Finding::warn("xid-errors", seen).with_remedy(strip_needless_sudo(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Xid;
    use crate::nvml::GpuHealth;

    fn node(health: GpuHealth) -> Node {
        let gpu = Gpu {
            pci: "0000:17:00.0".to_owned(),
            health: Some(health),
            ..Gpu::default()
        };
        Node {
            gpus: vec![gpu],
            ..Node::default()
        }
    }

    fn seen(node: &Node) -> Vec<String> {
        node.health_findings(&[])
            .into_iter()
            .map(|one| one.seen)
            .collect()
    }

    #[test]
    fn xids_are_named_once_with_the_age_of_the_last_by_gpu() {
        let mut node = node(GpuHealth {
            are_retired_pages_pending: Some(false),
            recovery: Some(RecoveryAction::NONE),
            ..GpuHealth::default()
        });
        let xid = |pci: &str, number, seconds| Xid {
            pci: pci.to_owned(),
            number,
            age: Duration::from_secs(seconds),
        };
        node.xids = Some(Ok(vec![
            xid("0000:17:00", 79, 80_000),
            xid("0000:18:00", 119, 3600),
            xid("0000:17:00", 79, 7200),
            xid("0000:17:00", 31, 10),
            xid("0000:17:00", 48, 3599),
        ]));
        let expected = [
            "GPU 0: the kernel log has Xid 48 within the last hour and Xid 79 2 h ago",
            "the GPU at 0000:18:00: the kernel log has Xid 119 1 h ago",
        ];
        assert_eq!(seen(&node), expected);
    }

    /// All but the documented numbers are unknown, and keep no jobs off.
    #[test]
    fn every_number_of_an_action_is_known_or_said_to_be_unknown() {
        for number in (0..20).chain([u32::MAX]) {
            let node = node(GpuHealth {
                are_retired_pages_pending: Some(false),
                recovery: Some(RecoveryAction(number)),
                ..GpuHealth::default()
            });
            let severities: Vec<Severity> = node
                .health_findings(&[])
                .iter()
                .map(|one| one.severity)
                .collect();
            let expected = match number {
                0 => vec![],
                1..=7 => vec![Severity::Fail],
                _ => vec![Severity::Unknown],
            };
            assert_eq!(severities, expected, "{number}");
            let against = node.reasons_against_jobs().len();
            assert_eq!(against, usize::from((1..=7).contains(&number)), "{number}");
        }
    }
}
