//! What `down` remarks on: what stays, what others have to end, and how devices come back.

use super::down::{DownTargets, is_run_by_service};
use crate::host::{Environment, format_gpus};
use crate::node::{Gpu, Node};
use crate::plan::{Destroy, Plan, remark_on_virtual_machines};
use crate::render::note;
use crate::state::{ProfileHistory, RunDir};

/// Says how devices that were stopped by name come back. One that lacks a GPU does not start.
pub fn remark_on_return(plan: &Plan, node: &Node) {
    let names: Vec<&str> = plan
        .stops()
        .filter(|stop| stop.keeps_device)
        .map(|stop| stop.name.as_str())
        .filter(|name| !node.is_unstartable(name))
        .collect();
    if !names.is_empty() {
        let again = if names.len() == 1 { "it" } else { "them" };
        note(&format!(
            "run `mig-mps start {}` to start {again} again",
            names.join(" ")
        ));
    }
}

/// The profile brings back what was taken down by hand.
pub fn remark_on_the_profile(environment: &Environment) {
    let directory = environment.state_dir().ok();
    let history = directory.and_then(|directory| ProfileHistory::load(&directory).ok());
    if let Some(history) = history.filter(ProfileHistory::is_in_force)
        && let Some(profile) = history.last_applied()
    {
        note(&format!(
            "the next up of {}, also at boot, creates them again, unless you change the profile",
            profile.title()
        ));
    }
}

/// Says that the profile is applied again at the next boot. The boot starts no daemons of plain users, and a service that
/// stops at a shutdown needs no such note.
pub(super) fn remark_on_boot(environment: &Environment) {
    let host = &environment.host;
    if environment.is_root() && !is_run_by_service() && host.applies_profile_at_boot() {
        note(&format!(
            "mig-mps.service applies {} at the next boot; to prevent this, run `systemctl disable mig-mps`",
            host.boot_profile().path().display()
        ));
    }
}

/// Daemons that users run themselves are theirs to end.
pub fn remark_on_users_daemons(node: &Node) {
    for unmanaged in &node.unmanaged {
        if let Some(command) = unmanaged.command_as_owner("down") {
            note(&format!(
                "daemon {} belongs to a user; to stop it: `{command}`",
                unmanaged.pid
            ));
        }
    }
}

/// Files that are not a daemon's are kept, and somebody must know where.
pub fn remark_on_quarantined_files(run_dir: &RunDir) {
    let left: Vec<String> = run_dir
        .quarantined_dirs()
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    if !left.is_empty() {
        note(&format!(
            "these pipe directories contain other files than the daemon's, or belong to a user, and were moved \
             away:\n  {}",
            left.join("\n  ")
        ));
    }
}

/// Names the instances of the devices asked for that `--destroy-mig` leaves alone, and those without a device on GPUs that
/// are meant as a whole.
pub(super) fn remark_on_remaining_instances(node: &Node, asked: &DownTargets, destroy: Destroy) {
    let mut staying = Vec::new();
    for gpu in &node.gpus {
        let is_whole = asked.whole_gpus.contains(&gpu.uuid);
        if is_whole && let Some(remark) = remark_on_virtual_machines(node, gpu) {
            note(&remark);
        }
        let instances = gpu
            .instances
            .iter()
            .filter(|one| !node.belongs_to_virtual_machine(gpu, one));
        for instance in instances {
            let is_asked = if instance.compute.is_empty() {
                is_whole
            } else {
                instance
                    .compute
                    .iter()
                    .any(|compute| asked.devices.contains(&compute.uuid))
            };
            if is_asked {
                let name = gpu.instance_title(instance, None);
                staying.push(format!(
                    "GPU {} {name} at {}",
                    gpu.index, instance.placement
                ));
            }
        }
    }
    if !staying.is_empty() {
        let why = if destroy == Destroy::All {
            "they hold other devices"
        } else {
            "mig-mps has no record of creating them (--destroy-unmanaged destroys such instances), or they hold other \
             devices"
        };
        let staying = staying.join("\n  ");
        note(&format!(
            "these GPU instances remain, because {why}:\n  {staying}"
        ));
    }
}

/// Names the GPUs that `--disable-mig` leaves in MIG mode: it switches off what mig-mps switched on, and a reboot in
/// between forgets that.
pub fn remark_on_remaining_mig_modes(node: &Node, plan: &Plan, asked: &[String]) {
    let off = plan.mig_switched_off();
    let (used, unknown): (Vec<&Gpu>, Vec<&Gpu>) = node
        .gpus
        .iter()
        .filter(|gpu| gpu.in_mig_mode() && asked.contains(&gpu.uuid))
        .filter(|gpu| !off.contains(&gpu.index))
        .partition(|gpu| {
            let planned = plan.gpus.iter().find(|plan| plan.uuid == gpu.uuid);
            planned.map_or(!gpu.instances.is_empty(), |plan| !plan.after.is_empty())
        });
    if !used.is_empty() {
        note(&format!(
            "{}: it still has instances",
            describe_staying_mode(&used)
        ));
    }
    if !unknown.is_empty() {
        let indices: Vec<String> = unknown.iter().map(|gpu| gpu.index.to_string()).collect();
        note(&format!(
            "{}: mig-mps has no record of enabling MIG mode (the record does not survive a reboot); to disable MIG mode, \
             run `nvidia-smi -i {} -mig 0`",
            describe_staying_mode(&unknown),
            indices.join(",")
        ));
    }
}

/// `GPU 0 stays in MIG mode`, `GPUs 0-2 stay in MIG mode`
fn describe_staying_mode(gpus: &[&Gpu]) -> String {
    let indices: Vec<u32> = gpus.iter().map(|gpu| gpu.index).collect();
    let verb = if gpus.len() == 1 { "stays" } else { "stay" };
    format!("{} {verb} in MIG mode", format_gpus(&indices))
}
