//! Findings that say the same of several devices or GPUs, in one.

use crate::host::format_gpus;
use crate::node::Finding;
use crate::render::format::{group_by, shorten_list};

/// The number of devices from which on findings that say the same share a sentence.
const MIN_FOLDED_FINDINGS: usize = 4;

/// The thing that a finding is about.
enum Subject<'a> {
    Device(&'a str),
    Gpu(u32),
    Node,
}

/// Puts findings that say the same into one: those of several GPUs, and those of many devices, for whose name DEVICE
/// stands.
pub fn fold_findings<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Vec<Finding> {
    let divided = findings.into_iter().map(|finding| {
        let (subject, general) = divide_finding(finding);
        (finding, subject, general)
    });
    let groups = group_by(divided, |(_, of_a, a), (_, of_b, b)| {
        let is_one_kind = std::mem::discriminant(of_a) == std::mem::discriminant(of_b);
        is_one_kind && !matches!(of_a, Subject::Node) && a == b
    });
    let mut folded = Vec::new();
    for alike in groups {
        let (mut names, mut gpus) = (Vec::new(), Vec::new());
        for (_, subject, _) in &alike {
            match subject {
                Subject::Device(name) => names.push(*name),
                Subject::Gpu(index) => gpus.push(*index),
                Subject::Node => {}
            }
        }
        let general = alike[0].2.clone();
        if gpus.len() > 1 {
            let seen = format!("{}: {}", format_gpus(&gpus), general.seen);
            folded.push(Finding { seen, ..general });
        } else if names.len() >= MIN_FOLDED_FINDINGS {
            let devices = shorten_list(&names);
            let devices = if devices.contains('…') {
                format!("{devices} ({})", names.len())
            } else {
                devices
            };
            folded.push(general.on_device(&devices));
        } else {
            folded.extend(alike.into_iter().map(|(finding, ..)| finding.clone()));
        }
    }
    folded
}

/// Divides a finding into its device or GPU and what it says of any such one.
fn divide_finding(finding: &Finding) -> (Subject<'_>, Finding) {
    if let Some(name) = finding.device.as_deref() {
        let general = Finding {
            seen: put_device_for(name, &finding.seen),
            remedy: finding
                .remedy
                .as_deref()
                .map(|remedy| put_device_for(name, remedy)),
            device: None,
            ..finding.clone()
        };
        return (Subject::Device(name), general);
    }
    let divided = finding.seen.strip_prefix("GPU ");
    let divided = divided.and_then(|rest| rest.split_once(": "));
    match divided.and_then(|(index, seen)| Some((index.parse().ok()?, seen))) {
        Some((index, seen)) => {
            let seen = seen.to_owned();
            let general = Finding {
                seen,
                ..finding.clone()
            };
            (Subject::Gpu(index), general)
        }
        None => (Subject::Node, finding.clone()),
    }
}

/// Puts DEVICE in the place of the device's name.
fn put_device_for(name: &str, text: &str) -> String {
    let words = text.split(' ').map(|word| {
        let (bare, end) = word.split_at(word.trim_end_matches(['`', ',', ';']).len());
        if bare == name {
            format!("DEVICE{end}")
        } else {
            word.to_owned()
        }
    });
    words.collect::<Vec<_>>().join(" ")
}
