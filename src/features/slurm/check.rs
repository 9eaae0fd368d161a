//! `mig-mps slurm gres --check`: what in gres.conf and slurm.conf contradicts the node, or each other. Types and other
//! resources are the site's.

use std::collections::BTreeSet;

use super::conf::{Gres, GresConf, counts_of, is_same_type};
use super::joint::{gpu_of_files, joint_error};
use super::numbering::{GresDevice, device_of};
use crate::geometry::ProfileName;
use crate::host::to_printable;
use crate::node::Node;
use crate::render::format::group_by;

/// Returns the differences between the files and the devices. `shards` is the number of shards that the devices are to have.
pub(super) fn gres_differences(
    conf: &GresConf,
    node_gres: &str,
    (node, devices): (&Node, &[GresDevice]),
    shards: u64,
) -> Vec<String> {
    let mut all = device_differences(conf, node, devices);
    if !conf.detects {
        all.extend(count_differences(&conf.gpus, node_gres));
    }
    all.extend(shard_differences(&conf.shards, node_gres, shards));
    all
}

/// Compares the files and types of gres.conf with the devices.
fn device_differences(conf: &GresConf, node: &Node, devices: &[GresDevice]) -> Vec<String> {
    let mut all = Vec::new();
    let mut listed = BTreeSet::new();
    for gres in &conf.gpus {
        let file = to_printable(gres.files.last().map_or("no file", String::as_str));
        let Some(device) = device_of(gres, devices) else {
            let joint = gpu_of_files(node, gres).and_then(|gpu| joint_error(node, gpu));
            let why = joint.map_or_else(
                || "no device of mig-mps has this file".to_owned(),
                |error| error.to_string(),
            );
            all.push(format!("{file}: {why}"));
            continue;
        };
        let name = &device.name;
        if !listed.insert(name) {
            all.push(format!("device {name}: gres.conf lists it twice"));
        }
        let kind = gres.kind.as_deref().unwrap_or_default();
        if contradicts_device(kind, device, devices) {
            let (kind, is) = (to_printable(kind), &device.kind);
            all.push(format!(
                "device {name}: its Type is {kind}, but the device is {is}"
            ));
        }
    }
    let missing = devices
        .iter()
        .filter(|device| !listed.contains(&device.name));
    if !conf.detects {
        all.extend(missing.map(|device| format!("device {}: gres.conf lacks it", device.name)));
    }
    all
}

/// True if a type names another device: its profile, or the product of another GPU of this node. Every other type is a name
/// that the site has chosen.
fn contradicts_device(kind: &str, device: &GresDevice, devices: &[GresDevice]) -> bool {
    if is_same_type(Some(kind), &device.kind) {
        return false;
    }
    if devices
        .iter()
        .any(|other| is_same_type(Some(kind), &other.kind))
    {
        return true;
    }
    let (named, is) = (profile_in(kind), profile_in(&device.kind));
    match (named, is) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(named), Some(is)) => named.slices() != is.slices() || !is_near(&named, &is),
    }
}

/// True if both sizes may be of one profile: Slurm's detection computes the size, and so do sites.
fn is_near(one: &ProfileName, other: &ProfileName) -> bool {
    match (one.gigabytes(), other.gigabytes()) {
        (Some(one), Some(other)) => one.max(other) * 3 <= one.min(other) * 4,
        _ => true,
    }
}

/// The most slices of a GPU. A larger number is a size of memory.
const MAX_SLICES: u32 = 8;

/// Returns the profile at the end of a type, as in `a100_3g.40gb`.
fn profile_in(kind: &str) -> Option<ProfileName> {
    let kind = kind.to_ascii_lowercase();
    let starts = (0..kind.len()).filter(|&at| {
        let before = at.checked_sub(1).map(|before| kind.as_bytes()[before]);
        kind.is_char_boundary(at) && !before.is_some_and(|sign| sign.is_ascii_alphanumeric())
    });
    starts
        .filter_map(|at| kind[at..].parse::<ProfileName>().ok())
        .find(|profile| profile.slices() <= MAX_SLICES)
}

/// Compares the numbers of GPUs in gres.conf and slurm.conf.
fn count_differences(gpus: &[Gres], node_gres: &str) -> Vec<String> {
    let counts = counts_of(node_gres, "gpu");
    if counts.iter().all(|(kind, _)| kind.is_none()) {
        let counted: u64 = counts.iter().map(|(_, count)| count).sum();
        let listed = gpus.len() as u64;
        return compare_counts("GPUs", listed, counted)
            .into_iter()
            .collect();
    }
    let mut all = Vec::new();
    let kind_of = |gpu: &Gres| gpu.kind.clone().unwrap_or_default();
    let is_same = |one: &Gres, other: &Gres| is_same_type(Some(&kind_of(one)), &kind_of(other));
    for alike in group_by(gpus, |one, other| is_same(one, other)) {
        let kind = kind_of(alike[0]);
        let counted = counts
            .iter()
            .filter(|(of, _)| is_same_type(*of, &kind))
            .map(|(_, count)| count)
            .sum();
        let what = match kind.as_str() {
            "" => "GPUs without a Type".to_owned(),
            kind => format!("GPUs of type {}", to_printable(kind)),
        };
        all.extend(compare_counts(&what, alike.len() as u64, counted));
    }
    for (kind, count) in counts {
        let kind = kind.unwrap_or_default();
        if !gpus
            .iter()
            .any(|gpu| is_same_type(gpu.kind.as_deref(), kind))
        {
            let what = format!("GPUs of type {}", to_printable(kind));
            all.extend(compare_counts(&what, 0, count));
        }
    }
    all
}

/// Compares the shards in gres.conf, in slurm.conf, and those of the devices, if they are shared.
fn shard_differences(shards: &[Gres], node_gres: &str, of_devices: u64) -> Vec<String> {
    let counts = counts_of(node_gres, "shard");
    let counted = counts.iter().map(|(_, count)| count).sum();
    // Without lines in gres.conf Slurm spreads those of slurm.conf over the GPUs.
    let listed = match shards {
        [] => counted,
        shards => shards.iter().map(|shards| shards.count).sum(),
    };
    let mut all: Vec<String> = compare_counts("shards", listed, counted)
        .into_iter()
        .collect();
    if of_devices > 0 && listed != of_devices {
        all.push(format!(
            "the files have {listed} shards, but the devices have {of_devices} shares"
        ));
    }
    all
}

fn compare_counts(what: &str, listed: u64, counted: u64) -> Option<String> {
    (listed != counted).then(|| format!("{what}: {listed} in gres.conf, {counted} in slurm.conf"))
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn device(name: &str, kind: &str, file: &str) -> GresDevice {
        let of_gpu = "/dev/nvidia0".to_owned();
        let file = file.to_owned();
        let is_whole = !file.contains("nvidia-caps");
        GresDevice {
            name: name.to_owned(),
            kind: kind.to_owned(),
            files: if is_whole {
                vec![file]
            } else {
                vec![of_gpu, file]
            },
            share: None,
            client_limit: None,
            only_for: None,
            stopped: None,
        }
    }

    fn found(gres: &str, node_gres: &str, shards: u64) -> String {
        let devices = [
            device("0.0", "1g.10gb", "/dev/nvidia-caps/nvidia-cap1"),
            device("0.4", "1c.3g.40gb", "/dev/nvidia-caps/nvidia-cap3"),
            device("1", "nvidia_h200", "/dev/nvidia1"),
        ];
        let conf = GresConf::parse(gres, "n1").unwrap();
        let node = Node::default();
        gres_differences(&conf, node_gres, (&node, &devices), shards).join("\n")
    }

    fn gres(kinds: [&str; 3]) -> String {
        let [small, large, whole] = kinds;
        let of = |kind: &str| {
            if kind.is_empty() {
                String::new()
            } else {
                format!("Type={kind}")
            }
        };
        format!(
            "Name=gpu {} File=/dev/nvidia-caps/nvidia-cap1\nName=gpu {} File=/dev/nvidia-caps/nvidia-cap3\n\
             Name=gpu {} File=/dev/nvidia1\n",
            of(small),
            of(large),
            of(whole)
        )
    }

    #[test]
    fn types_of_the_site_are_right_where_they_are_consistent() {
        for (kinds, node_gres) in [
            (
                ["1g.10gb", "1c.3g.40gb", "nvidia_h200"],
                "gpu:1g.10gb:1,gpu:1c.3g.40gb:1,gpu:nvidia_h200:1",
            ),
            (
                ["a100.1", "a100l.3g.40gb", "h200"],
                "gpu:h200:1,gpu:A100.1,nvme:4,gpu:a100l.3g.40gb:1(S:0,1)",
            ),
            (
                ["nvidia_a100_1g.10gb", "3g.39gb", "gh200-96g"],
                "gpu:nvidia_a100_1g.10gb:1,gpu:3g.39gb:1,gpu:gh200-96g:1",
            ),
            (["mig", "mig", "h200"], "gpu:mig:2,gpu:h200:no_consume:1"),
            (["1g", "3g", "whole"], "gpu:3"),
            (["", "", ""], "craynetwork:4,gpu:3,mps:300"),
        ] {
            assert_eq!(found(&gres(kinds), node_gres, 0), "", "{node_gres}");
        }
    }

    #[test]
    fn a_type_that_names_another_device_is_found() {
        let swapped = gres(["a100_3g.40gb", "nvidia_h200", "1g"]);
        assert_snapshot!(found(&swapped, "gpu:3", 0), @"
        device 0.0: its Type is a100_3g.40gb, but the device is 1g.10gb
        device 0.4: its Type is nvidia_h200, but the device is 1c.3g.40gb
        device 1: its Type is 1g, but the device is nvidia_h200
        ");
        let of_another_size = gres(["1g.20gb", "", ""]);
        assert_snapshot!(found(&of_another_size, "gpu:3", 0), @"device 0.0: its Type is 1g.20gb, but the device is 1g.10gb");
    }

    #[test]
    fn numbers_that_differ_are_found() {
        let three = gres(["a", "a", "b"]);
        assert_snapshot!(found(&three, "gpu:A:1,gpu:c:2,shard:8", 0), @"
        GPUs of type a: 2 in gres.conf, 1 in slurm.conf
        GPUs of type b: 1 in gres.conf, 0 in slurm.conf
        GPUs of type c: 0 in gres.conf, 2 in slurm.conf
        ");
        assert_snapshot!(found(&three, "gpu:4,shard:8", 6), @"
        GPUs: 3 in gres.conf, 4 in slurm.conf
        the files have 8 shards, but the devices have 6 shares
        ");
        let twice = "Name=gpu File=/dev/nvidia[1,1,7]\nName=shard Count=4\n";
        assert_snapshot!(found(twice, "gpu:3,shard:8", 8), @"
        device 1: gres.conf lists it twice
        /dev/nvidia7: no device of mig-mps has this file
        device 0.0: gres.conf lacks it
        device 0.4: gres.conf lacks it
        shards: 4 in gres.conf, 8 in slurm.conf
        the files have 4 shards, but the devices have 8 shares
        ");
        // Slurm detects more than what is listed.
        let detected = format!(
            "AutoDetect=nvml\n{}",
            gres(["", "", ""]).lines().next().unwrap()
        );
        assert_eq!(found(&detected, "gpu:3", 0), "");
    }
}
