//! `mig-mps slurm gres`: the devices of this node, and the numbers by which Slurm knows them. Their lines in gres.conf and
//! slurm.conf stand in the order in which Slurm numbers the GPUs.

use std::fmt::Write as _;

use clap::Args;

use super::check::gres_differences;
use super::conf::{Gres, SlurmFiles, check_name, node_name, split_resources};
use super::host_list::expand_host_list;
use crate::commands::Context;
use crate::commands::args::number;
use crate::error::{Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{Environment, join_words, to_printable};
use crate::node::{Detail, Device, Gpu, NoSuchDevice, Node, Served, observe};
use crate::render::format::group_by;
use crate::render::{examples_and_statuses, note, print, report, warn};
use crate::settings::Serve;

/// Returns the devices that have a daemon, as Slurm counts them. The node is one with its geometry.
pub(super) fn gres_devices(environment: &Environment, node: &Node) -> Result<Vec<GresDevice>> {
    let own = environment.roots_run_dir();
    let mut devices = Vec::new();
    for gpu in &node.gpus {
        if let Some(why) = &gpu.hidden {
            warn(&format!(
                "GPU {}: its instances cannot be seen: {why}",
                gpu.index
            ));
        }
        for device in node.devices_of(gpu) {
            // A device that an administrator has stopped still exists, and its line keeps the numbers of the others.
            let stopped = node.find_stopped(device);
            let started = stopped.map(|(run_dir, stopped)| Served {
                hardware_limit: node.size_of(device).and_then(|size| size.clients),
                ..Served::new(stopped.record.clone(), run_dir)
            });
            // Slurm counts what is on one GPU.
            if !device.key.is_joint()
                && let Some(served) = device.served.as_ref().or(started.as_ref())
                && served.run_dir.path() == own
            {
                devices.push(GresDevice {
                    name: device.name.clone(),
                    kind: match &device.part {
                        Some(part) => part.title.clone(),
                        None => type_name(&gpu.product),
                    },
                    files: device_files(environment, gpu, device)?,
                    share: served.share_count(),
                    client_limit: served.hardware_limit,
                    only_for: match &served.record.settings.serve {
                        Some(serve @ (Serve::User(_) | Serve::Group(_))) => Some(serve.to_string()),
                        _ => None,
                    },
                    stopped: stopped.map(|(_, stopped)| stopped.error()),
                });
            }
        }
    }
    Ok(devices)
}

fn device_files(environment: &Environment, gpu: &Gpu, device: &Device) -> Result<Vec<String>> {
    let minor = gpu.minor.ok_or_else(|| {
        command_error(format_args!(
            "the driver does not report the device file of GPU {}",
            gpu.index
        ))
        .with_hint("update the driver to version 450 or newer, which reports it")
    })?;
    let of_gpu = format!("/dev/nvidia{minor}");
    let Some(part) = &device.part else {
        return Ok(vec![of_gpu]);
    };
    let (instance, compute) = (part.gpu_instance.0, part.compute_instance.0);
    let files = environment.host.capability_files(minor, instance, compute);
    let files = files.map_err(|error| {
        command_error(format_args!(
            "cannot read the driver's table of capability files: {error}"
        ))
        .with_hint("run `nvidia-modprobe` to load the module; mig-mps slurm needs /proc/driver/nvidia-caps")
    })?;
    let [of_instance, of_compute] = files.ok_or_else(|| {
        command_error(format_args!(
            "the driver's table of capability files lacks device {}",
            device.name
        ))
        .with_hint("reload the kernel module of the driver, or reboot, to update its table")
    })?;
    Ok(vec![of_gpu, of_instance, of_compute])
}

/// Returns the device that an entry of gres.conf means.
pub(super) fn device_of<'d>(gres: &Gres, devices: &'d [GresDevice]) -> Option<&'d GresDevice> {
    let is_of_instance = gres.files.iter().any(|file| file.contains("/nvidia-caps/"));
    devices.iter().find(|device| {
        let is_named = gres.files.iter().any(|file| file == device.own_file());
        // The file of the GPU stands in the entries of its instances, too.
        is_named && (device.files.len() > 1) == is_of_instance
    })
}

/// The lines to print.
#[derive(Args, Debug)]
pub(super) struct LineArgs {
    /// Let N jobs share each device [default: its `share`]
    #[arg(long, value_name = "N", value_parser = number::<1, { u32::MAX }>)]
    shard: Option<u32>,
    /// List one file of each device, as Slurm 22.05 requires in a cluster with shards
    #[arg(long, hide_short_help = true)]
    one_file: bool,
    /// Name of this node in Slurm [default: that of slurmd]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Rename a type, such as 3g.40gb=a100l.3 (repeatable)
    #[arg(long = "type", value_name = "TYPE=NAME", value_parser = renamed_type)]
    types: Vec<(String, String)>,
}

/// Reads `3g.40gb=a100l.3`.
fn renamed_type(text: &str) -> std::result::Result<(String, String), &'static str> {
    let is_plain = |name: &&str| !name.is_empty() && *name == type_name(name);
    let (kind, name) = text.split_once('=').unwrap_or_default();
    match Some(name).filter(|name| is_plain(&name.to_ascii_lowercase().as_str())) {
        Some(name) => Ok((kind.to_owned(), name.to_owned())),
        None => Err("expected a type and its name in Slurm, such as 3g.40gb=a100l.3"),
    }
}

/// Print the lines of gres.conf and slurm.conf for this node
///
/// The Type of a device is its instance profile, or the product of a whole GPU. Slurm numbers the GPUs of a node by the
/// types in Gres=, so always install the lines of both files.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps slurm gres", "Print the lines"),
    ("mig-mps slurm gres --check", "Compare with the files"),
    ("mig-mps slurm gres --type 3g.40gb=a100l.3", "Rename a type"),
], &[("3", "the files differ (with --check)")]))]
pub(super) struct GresArgs {
    #[command(flatten)]
    lines: LineArgs,
    /// Compare the lines with the installed files
    #[arg(long)]
    check: bool,
}

pub(super) fn run(args: &GresArgs, context: &Context<'_>) -> Result<ExitStatus> {
    if args.check {
        let name = args.lines.node_name()?;
        let (node, devices) = observe_devices(context)?;
        let files = SlurmFiles::find(&context.environment.host);
        return compare_with_files(&args.lines, &files, &name, (&node, &devices));
    }
    print(&args.lines.render_lines(context)?.text)?;
    Ok(ExitStatus::Done)
}

/// The lines of a node for gres.conf and slurm.conf.
#[derive(Debug, Default)]
pub(super) struct PrintedLines {
    pub(super) text: String,
    pub(super) has_shards: bool,
}

/// Returns the node and its devices.
fn observe_devices(context: &Context<'_>) -> Result<(Node, Vec<GresDevice>)> {
    let node = observe(context.environment, Detail::GEOMETRY)?;
    let devices = gres_devices(context.environment, &node)?;
    if node.unseen_daemons().is_some() {
        return Err(crate::commands::no_daemon_error(&node));
    }
    for served in node.served().filter(|served| served.record.key.is_joint()) {
        let name = &served.record.name;
        note(&format!(
            "device {name} is left out, because it is a joint device, and gres.conf lists devices on one GPU"
        ));
    }
    for stopped in devices.iter().filter_map(|device| device.stopped.as_ref()) {
        note(&format!(
            "{stopped}; its line keeps the numbers of the other devices, and its jobs fail until it is started again"
        ));
    }
    Ok((node, devices))
}

impl LineArgs {
    /// Returns the name of the node in Slurm.
    fn node_name(&self) -> Result<String> {
        self.node.clone().map_or_else(node_name, check_name)
    }

    /// Gives the devices the types of the site.
    fn rename_types(&self, devices: &mut [GresDevice]) -> Result<()> {
        let known: Vec<String> = by_type(devices)
            .iter()
            .map(|alike| alike[0].kind.clone())
            .collect();
        for (kind, _) in &self.types {
            if !known.contains(kind) {
                let (shown, known) = (to_printable(kind), known.join(", "));
                return Err(usage_error(format_args!(
                    "no device has the type {shown}: there are {known}"
                ))
                .with_hint("run `mig-mps slurm gres` to print the types"));
            }
        }
        for device in devices {
            let renamed = self.types.iter().find(|(kind, _)| *kind == device.kind);
            device.kind = renamed.map_or_else(|| device.kind.clone(), |(_, name)| name.clone());
        }
        Ok(())
    }

    /// Returns the lines to print. Warns of devices that are not for everybody.
    pub(super) fn render_lines(&self, context: &Context<'_>) -> Result<PrintedLines> {
        let name = self.node_name()?;
        let (node, mut devices) = observe_devices(context)?;
        if devices.is_empty() && node.served().any(|served| served.record.key.is_joint()) {
            let error = command_error("no device on a single GPU has a daemon");
            return Err(error.with_hint("remove joint from the profile of a Slurm node"));
        }
        if devices.is_empty() {
            return Err(crate::commands::no_daemon_error(&node));
        }
        self.rename_types(&mut devices)?;
        let of_few = devices.iter().filter(|device| device.only_for.is_some());
        for devices in group_by(of_few, |one, other| one.only_for == other.only_for) {
            warn_of_restricted(&devices);
        }
        let has_instances = devices.iter().any(|device| device.files.len() > 1);
        if has_instances && name.contains(['[', ',']) {
            note(
                "the nvidia-cap files of equal nodes can have other numbers; run `mig-mps slurm gres` on each of \
                 these nodes for its lines of gres.conf. Gres= is the same on nodes with the same GPUs and profile.",
            );
        }
        for device in &devices {
            if let (Some(asked_for), Some(shards)) = (self.shard, device.shard_count(self.shard))
                && shards < asked_for
            {
                note(&format!(
                    "device {}: {shards} shards instead of {asked_for}, because its daemon accepts no more clients",
                    device.name
                ));
            }
        }
        let lines = gres_conf(&name, &devices, self.shard, self.one_file);
        let files = SlurmFiles::find(&context.environment.host);
        let others = other_resources(&files, &name);
        if others.iter().any(|other| is_resource(other, "mps")) {
            note(
                "slurm.conf has mps for this node, for daemons that Slurm's prolog would start; mig-mps shares \
                 devices as shards",
            );
        }
        let gres = [vec![gres_string(&devices, self.shard)], others]
            .concat()
            .join(",");
        Ok(PrintedLines {
            text: format!(
                "# gres.conf\n{lines}\n# slurm.conf: append to the line of this node\n# NodeName={name} Gres={gres}\n"
            ),
            has_shards: count_shards(&devices, self.shard) > 0,
        })
    }
}

/// Returns the other resources in the `Gres=` of a node in slurm.conf, or of the first one of a list. They are the site's.
fn other_resources(files: &SlurmFiles, name: &str) -> Vec<String> {
    let first = expand_host_list(name).and_then(|names| names.into_iter().next());
    let gres = first.and_then(|first| files.node_gres(&first).ok().flatten());
    let gres = gres.unwrap_or_default();
    split_resources(&gres)
        .into_iter()
        .filter(|one| !is_resource(one, "gpu") && !is_resource(one, "shard"))
        .map(to_printable)
        .collect()
}

/// True for `nvme` and `nvme:4`, if the name is `nvme`.
fn is_resource(resource: &str, name: &str) -> bool {
    resource.split([':', '(']).next() == Some(name)
}

/// The most devices that a warning names.
const MAX_NAMED: usize = 4;

/// Warns of the devices of one user or group. The prolog of another user's job fails there.
fn warn_of_restricted(devices: &[&GresDevice]) {
    let Some(users) = &devices[0].only_for else {
        return;
    };
    let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
    let names = match names.as_slice() {
        [first, .., last] if names.len() > MAX_NAMED => {
            format!("{first} … {last} ({})", names.len())
        }
        few => join_words(few, "and"),
    };
    let others = match users.strip_prefix("group:") {
        Some(group) => format!("AllowGroups={group}, or AllowAccounts="),
        None => "AllowAccounts=".to_owned(),
    };
    warn(&format!(
        "only programs of {users} can use {names}, but Slurm gives such a device to the job of any user and drains \
         the node when that job cannot use it. Keep the jobs of others out of the node's partition ({others}), set \
         serve to \"one-at-a-time\" or \"all\", or omit these lines."
    ));
}

/// Compares the files in use with the node.
fn compare_with_files(
    args: &LineArgs,
    files: &SlurmFiles,
    name: &str,
    (node, devices): (&Node, &[GresDevice]),
) -> Result<ExitStatus> {
    let conf = files.gres_of(name)?;
    if conf.detects {
        note("gres.conf has AutoDetect, so only the devices that it lists are compared");
    }
    let mut differences = match files.node_gres(name)? {
        Some(gres) => {
            let shards = count_shards(devices, args.shard);
            gres_differences(&conf, &gres, (node, devices), shards)
        }
        // Then the node may have another name there, and all the rest follows from that.
        None => vec![format!(
            "slurm.conf has no line of {name} with Gres=; use --node with the node's name in Slurm"
        )],
    };
    if conf.gpus.iter().any(|gpu| gpu.files.len() > 1) && files.has_shards()? {
        let why = "MultipleFiles in gres.conf, and shard in GresTypes: Slurm 22.05 counts each file as a GPU; use \
         `mig-mps slurm gres --one-file`";
        differences.push(why.to_owned());
    }
    for difference in &differences {
        print(&format!("{difference}\n"))?;
    }
    if differences.is_empty() {
        report("gres.conf and slurm.conf match this node.");
        return Ok(ExitStatus::Done);
    }
    note(
        "device files can change their numbers with the profile and at a reboot; run `mig-mps slurm gres` for the \
         present lines of this node",
    );
    Ok(ExitStatus::Drift)
}

/// A device as Slurm counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresDevice {
    pub name: String,
    /// The value of `Type`: the profile name, or the product of a whole GPU.
    pub kind: String,
    /// The device files that its programs open: those of the GPU, of the GPU instance, and of the compute instance.
    pub files: Vec<String>,
    /// The number of clients that each have an equal part of it, if it is shared so.
    pub share: Option<u32>,
    /// The most clients that its daemon takes, if that is known.
    pub client_limit: Option<u32>,
    /// The users whose programs the device takes, if it does not take everybody's: `user:alice`.
    pub only_for: Option<String>,
    /// The error of its jobs, if an administrator has stopped it.
    pub stopped: Option<NoSuchDevice>,
}

impl GresDevice {
    /// Returns the file that no other device has.
    pub fn own_file(&self) -> &str {
        self.files.last().map_or("", String::as_str)
    }

    /// Returns the number of its shards: the one that is asked for on every device, or that of its share. A job for which the
    /// daemon takes no client would fail.
    fn shard_count(&self, asked_for: Option<u32>) -> Option<u32> {
        let limit = self.client_limit.unwrap_or(u32::MAX);
        asked_for.or(self.share).map(|shards| shards.min(limit))
    }

    /// Returns the comment on a line of gres.conf.
    fn line_comment(&self) -> String {
        match &self.only_for {
            Some(users) => format!("{}, {users} only", self.name),
            None => self.name.clone(),
        }
    }
}

/// Returns the devices by type, in the order in which the types first appear: the order in which Slurm numbers them.
fn by_type(devices: &[GresDevice]) -> Vec<Vec<&GresDevice>> {
    group_by(devices, |one, other| one.kind == other.kind)
}

/// Returns the number of the shards of all devices.
fn count_shards(devices: &[GresDevice], asked_for: Option<u32>) -> u64 {
    devices
        .iter()
        .filter_map(|device| device.shard_count(asked_for))
        .map(u64::from)
        .sum()
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
    let one_file = one_file || count_shards(devices, shards) > 0;
    let devices = by_type(devices).concat();
    for device in &devices {
        let files = if device.files.len() == 1 || one_file {
            format!("File={}", device.own_file())
        } else {
            format!("MultipleFiles={}", device.files.join(","))
        };
        let (comment, kind) = (device.line_comment(), &device.kind);
        let _ = writeln!(
            text,
            "NodeName={node} Name=gpu Type={kind} {files} # {comment}"
        );
    }
    for device in &devices {
        if let Some(shards) = device.shard_count(shards) {
            let (comment, file) = (device.line_comment(), device.own_file());
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
    let mut parts: Vec<String> = by_type(devices)
        .iter()
        .map(|alike| format!("gpu:{}:{}", alike[0].kind, alike.len()))
        .collect();
    let shards = count_shards(devices, shards);
    if shards > 0 {
        parts.push(format!("shard:{shards}"));
    }
    parts.join(",")
}

/// Returns the type of a whole GPU: its product name, spelled as Slurm's own detection does.
pub fn type_name(product: &str) -> String {
    product.to_ascii_lowercase().replace(
        |sign: char| !(sign.is_ascii_alphanumeric() || "-._+".contains(sign)),
        "_",
    )
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
            share: None,
            client_limit: None,
            only_for: None,
            stopped: None,
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
    fn a_device_with_a_share_has_as_many_shards() {
        let [mut small, large, _, whole] = devices();
        small.share = Some(4);
        small.client_limit = Some(6);
        let devices = [small, large, whole];
        assert_snapshot!(gres_conf("n1", &devices, None, false), @r"
        NodeName=n1 Name=gpu Type=1g.10gb File=/dev/nvidia-caps/nvidia-cap67 # 0.0
        NodeName=n1 Name=gpu Type=3g.40gb File=/dev/nvidia-caps/nvidia-cap22 # 0.4
        NodeName=n1 Name=gpu Type=nvidia_h200 File=/dev/nvidia1 # 1
        NodeName=n1 Name=shard Count=4 File=/dev/nvidia-caps/nvidia-cap67 # 0.0
        ");
        let of = |asked_for| gres_string(&devices, asked_for);
        assert!(of(None).ends_with(",shard:4") && of(Some(2)).ends_with(",shard:6"));
        assert!(of(Some(8)).ends_with(",shard:22"));
    }

    #[test]
    fn a_product_is_spelled_as_slurm_spells_it() {
        assert_eq!(type_name("NVIDIA A100-SXM4-80GB"), "nvidia_a100-sxm4-80gb");
    }
}
