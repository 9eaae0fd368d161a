//! The lines of gres.conf and slurm.conf that describe a node's devices, in the order in which Slurm numbers its GPUs.

use std::fmt::Write as _;

use super::conf::{Gres, GresError};

/// A device as Slurm counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresDevice {
    pub name: String,
    /// The value of `Type`: the profile name, or the product of a whole GPU.
    pub kind: String,
    /// The device files that its programs open: those of the GPU, of the GPU instance, and of the compute instance.
    pub files: Vec<String>,
    /// The users whose programs the device takes, if it does not take everybody's: `user:alice`.
    pub only_for: Option<String>,
}

impl GresDevice {
    /// Returns the file that no other device has.
    pub fn own_file(&self) -> &str {
        self.files.last().map_or("", String::as_str)
    }

    /// Returns the comment on a line of gres.conf.
    fn comment(&self) -> String {
        match &self.only_for {
            Some(users) => format!("{}, {users} only", self.name),
            None => self.name.clone(),
        }
    }
}

/// Returns the devices by type, in the order in which the types first appear: the order in which Slurm numbers them.
fn by_type(devices: &[GresDevice]) -> Vec<&GresDevice> {
    let kinds = type_counts(devices.iter().map(|device| Some(device.kind.as_str())));
    let kinds = kinds.iter().map(|(kind, _)| kind.as_deref());
    kinds
        .flat_map(|kind| {
            let devices = devices.iter();
            devices.filter(move |device| Some(device.kind.as_str()) == kind)
        })
        .collect()
}

/// Returns the lines of gres.conf. With shards each device is named by one file: where `GresTypes` has `shard`, Slurm 22.05
/// counts every file of `MultipleFiles` as a GPU.
pub fn gres_conf(
    node: &str,
    devices: &[GresDevice],
    shards: Option<u32>,
    one_file: bool,
) -> String {
    let mut text = String::new();
    for device in by_type(devices) {
        let files = if device.files.len() == 1 || one_file || shards.is_some() {
            format!("File={}", device.own_file())
        } else {
            format!("MultipleFiles={}", device.files.join(","))
        };
        let (comment, kind) = (device.comment(), &device.kind);
        let _ = writeln!(
            text,
            "NodeName={node} Name=gpu Type={kind} {files} # {comment}"
        );
    }
    for device in by_type(devices) {
        if let Some(shards) = shards {
            let (comment, file) = (device.comment(), device.own_file());
            let _ = writeln!(
                text,
                "NodeName={node} Name=shard Count={shards} File={file} # {comment}"
            );
        }
    }
    text
}

/// Returns the value of `Gres=` in the node's line of slurm.conf.
pub fn gres_string(devices: &[GresDevice], shards: Option<u32>) -> String {
    let kinds = type_counts(devices.iter().map(|device| Some(device.kind.as_str())));
    let mut parts: Vec<String> = kinds
        .into_iter()
        .map(|(kind, count)| format!("gpu:{}:{count}", kind.unwrap_or_default()))
        .collect();
    if let Some(shards) = shards {
        parts.push(format!("shard:{}", shards as usize * devices.len()));
    }
    parts.join(",")
}

/// Returns the type of a whole GPU: its product name, spelled as Slurm's own detection does.
pub fn type_name(product: &str) -> String {
    let is_kept = |sign: char| sign.is_ascii_alphanumeric() || "-._+".contains(sign);
    let product = product.to_ascii_lowercase();
    product.replace(|sign| !is_kept(sign), "_")
}

/// Returns each type with its count, in the order of their first appearance.
pub(super) fn type_counts<'a>(
    types: impl Iterator<Item = Option<&'a str>>,
) -> Vec<(Option<String>, usize)> {
    let mut counts: Vec<(Option<String>, usize)> = Vec::new();
    for kind in types {
        match counts
            .iter_mut()
            .find(|(known, _)| known.as_deref() == kind)
        {
            Some((_, count)) => *count += 1,
            None => counts.push((kind.map(str::to_owned), 1)),
        }
    }
    counts
}

/// Puts GPUs into Slurm's order: by the types of the node's `Gres=`, and within a type as in gres.conf.
///
/// # Errors
/// There are several types, and `node_gres` is not known or lacks one.
pub fn in_order(gpus: Vec<Gres>, node_gres: Option<&str>) -> Result<Vec<Gres>, GresError> {
    let types = type_counts(gpus.iter().map(|gpu| gpu.kind.as_deref()));
    if types.len() < 2 {
        return Ok(gpus);
    }
    let node_gres = node_gres.ok_or(GresError::NoNodeLine)?;
    let kinds: Vec<&str> = types_of(node_gres).collect();
    let mut ordered = Vec::with_capacity(gpus.len());
    let mut gpus = gpus;
    for kind in kinds {
        let (of_kind, others): (Vec<Gres>, Vec<Gres>) = gpus
            .into_iter()
            .partition(|gpu| gpu.kind.as_deref() == Some(kind));
        ordered.extend(of_kind);
        gpus = others;
    }
    match gpus.first() {
        None => Ok(ordered),
        Some(left) => Err(GresError::NotInNodeLine(
            left.kind
                .clone()
                .unwrap_or_else(|| "without Type".to_owned()),
        )),
    }
}

/// Returns the types of GPUs in `gpu:1g.10gb:4,gpu:3g.40gb:1(S:0),shard:8`.
fn types_of(node_gres: &str) -> impl Iterator<Item = &str> {
    node_gres.split(',').filter_map(|part| {
        let mut words = part.split('(').next()?.split(':');
        let is_gpu = words.next()?.eq_ignore_ascii_case("gpu");
        // A number alone is a count.
        let kind = words.next().filter(|word| word.parse::<u64>().is_err())?;
        is_gpu.then_some(kind)
    })
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    fn device(name: &str, kind: &str, files: &[&str]) -> GresDevice {
        GresDevice {
            name: name.to_owned(),
            kind: kind.to_owned(),
            files: files.iter().map(|&file| file.to_owned()).collect(),
            only_for: None,
        }
    }

    fn devices() -> [GresDevice; 4] {
        let mig = |name, kind, gi: u32| {
            let cap = |minor: u32| format!("/dev/nvidia-caps/nvidia-cap{minor}");
            device(name, kind, &["/dev/nvidia0", &cap(gi), &cap(gi + 1)])
        };
        [
            mig("0.0", "1g.10gb", 66),
            mig("0.4", "3g.40gb", 21),
            mig("0.1", "1g.10gb", 75),
            device("1", "nvidia_h200", &["/dev/nvidia1"]),
        ]
    }

    #[test]
    fn devices_of_one_type_stand_together() {
        assert_snapshot!(gres_conf("n1", &devices(), None, false), @r"
        NodeName=n1 Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap66,/dev/nvidia-caps/nvidia-cap67 # 0.0
        NodeName=n1 Name=gpu Type=1g.10gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap75,/dev/nvidia-caps/nvidia-cap76 # 0.1
        NodeName=n1 Name=gpu Type=3g.40gb MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap21,/dev/nvidia-caps/nvidia-cap22 # 0.4
        NodeName=n1 Name=gpu Type=nvidia_h200 File=/dev/nvidia1 # 1
        ");
        assert_eq!(
            gres_string(&devices(), None),
            "gpu:1g.10gb:2,gpu:3g.40gb:1,gpu:nvidia_h200:1"
        );
    }

    #[test]
    fn a_device_with_shards_has_one_file() {
        assert_snapshot!(gres_conf("n1", &devices()[2..], Some(4), false), @r"
        NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap76 # 0.1
        NodeName=n1 Name=gpu Type=nvidia_h200 File=/dev/nvidia1 # 1
        NodeName=n1 Name=shard Count=4 File=/dev/nvidia-caps/nvidia-cap76 # 0.1
        NodeName=n1 Name=shard Count=4 File=/dev/nvidia1 # 1
        ");
        assert_eq!(
            gres_string(&devices()[2..], Some(4)),
            "gpu:1g.10gb:1,gpu:nvidia_h200:1,shard:8"
        );
    }

    #[test]
    fn a_product_is_spelled_as_slurm_spells_it() {
        assert_eq!(type_name("NVIDIA A100-SXM4-80GB"), "nvidia_a100-sxm4-80gb");
    }

    fn gpus() -> Vec<Gres> {
        let all = [
            ("3g", "cap5"),
            ("1g", "cap9"),
            ("1g", "cap2"),
            ("1g", "cap10"),
        ];
        all.map(|(kind, file)| Gres {
            kind: Some(kind.to_owned()),
            files: vec![file.to_owned()],
            count: 1,
        })
        .into()
    }

    fn order(node_gres: Option<&str>) -> String {
        match in_order(gpus(), node_gres) {
            Ok(gpus) => gpus
                .iter()
                .map(|gpu| gpu.files[0].as_str())
                .collect::<Vec<_>>()
                .join(" "),
            Err(error) => error.to_string(),
        }
    }

    /// As Slurm 22.05.8 numbered them, with these very lines.
    #[test]
    fn types_come_as_in_the_line_of_the_node_and_devices_as_in_gres_conf() {
        assert_eq!(
            order(Some("gpu:1g:3,gpu:3g:1,shard:8")),
            "cap9 cap2 cap10 cap5"
        );
        assert_eq!(
            order(Some("gpu:3g:1(S:0),gpu:1g:3(S:0-1)")),
            "cap5 cap9 cap2 cap10"
        );
    }

    #[test]
    fn an_order_that_is_not_known_is_not_guessed() {
        assert!(order(None).contains("slurm.conf"));
        assert!(order(Some("gpu:4")).contains("3g"));
        let one_type = gpus().split_off(1);
        assert_eq!(in_order(one_type.clone(), None).unwrap(), one_type);
    }
}
