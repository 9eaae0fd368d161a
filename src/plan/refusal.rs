//! The reasons for refusing to plan or to apply: what is in use, what is no client, what the driver cannot do, what does
//! not fit and the nearest requests that do.

use std::fmt;

use thiserror::Error;

use super::disrupted::{ClientOf, IdlePod, POD_HINT, describe_devices_in_use, describe_in_use};
use super::gpu_layout::GpuRequest;
use crate::catalog;
use crate::failure::{ExitStatus, Failure, Problem};
use crate::geometry::{
    self, GpuInstanceProfile, Partition, ProfileName, Request, SliceMap, count_each,
    nearest_requests, slice_map,
};
use crate::host::{Pid, root_hint};
use crate::mps::{ContextMemory, ControlProgram};
use crate::node::{Gpu, NoSuchDevice, Node, Served};
use crate::profile::{DeviceEntry, Profile, ProfileError, Span};
use crate::settings::MemoryLimit;

/// The reason for refusing to plan. Nothing has been touched.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The profile does not suit this node. Exit status 2.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// The command names no device, or several. Exit status 2.
    #[error(transparent)]
    Device(#[from] NoSuchDevice),
    /// The request does not fit. Exit status 5.
    #[error("{0}")]
    Infeasible(Box<Misfit>),
    /// The command does not apply to what it names. Exit status 2.
    #[error("{0}")]
    NotMeant(Problem),
    /// Something in use would have to go. Exit status 4.
    #[error("{0}")]
    InTheWay(Problem),
    /// A daemon could not start. Exit status 1.
    #[error("{0}")]
    CannotStart(Problem),
    /// Clients, or pods that hold a share, would be disrupted. Exit status 4.
    #[error("{}", describe_in_use(clients, pods))]
    InUse {
        clients: Vec<ClientOf>,
        pods: Vec<IdlePod>,
        /// The remedy for clients.
        hint: String,
    },
}

impl Refusal {
    /// Describes it in one line, without the lines of the profile and the map.
    pub fn to_problem(&self) -> Problem {
        let problem = match self {
            Self::Profile(error) => Problem::without_hint(error.first_message()),
            Self::Infeasible(misfit) => Problem::without_hint(misfit.one_line_message()),
            Self::Device(unknown) => Problem::without_hint(unknown.to_string()),
            Self::NotMeant(problem) | Self::InTheWay(problem) | Self::CannotStart(problem) => {
                problem.clone()
            }
            Self::InUse { clients, pods, .. } => Problem {
                public_reason: Some(describe_devices_in_use(clients, pods)),
                ..Problem::without_hint(self.to_string())
            },
        };
        let in_one_line = |text: String| {
            let lines: Vec<&str> = text.lines().map(str::trim).collect();
            lines.join(" ")
        };
        Problem {
            what: in_one_line(problem.what),
            public_reason: problem.public_reason.map(in_one_line),
            hint: self.hint(),
            ..problem
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::InTheWay(problem)
    }
}

/// A request that does not fit on a GPU, with the nearest ones that do.
#[derive(Debug)]
pub struct Misfit {
    /// The error at the request's place in the profile.
    pub profile: ProfileError,
    /// The request's place.
    pub(super) span: Span,
    /// The GPU's index.
    pub gpu: u32,
    /// Its product name.
    pub product: String,
    /// The request.
    pub wanted: String,
    /// The reason why it does not fit.
    pub why: String,
    /// The layout of the largest part of it that fits.
    pub part: Option<SliceMap>,
    /// The nearest requests that fit, that part first.
    pub nearest: Vec<String>,
    /// The requests of other blocks that do not fit.
    pub(super) others: Vec<Misfit>,
}

impl Misfit {
    /// Describes it in one line, among other mistakes of the profile.
    pub(super) fn as_mistake(&self, profile: &Profile) -> ProfileError {
        let error = profile.error_at(self.span, self.one_line_message());
        match self.hint() {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }

    fn one_line_message(&self) -> String {
        let (gpu, product) = (self.gpu, &self.product);
        let (wanted, why) = (&self.wanted, &self.why);
        format!("GPU {gpu} ({product}): {wanted} does not fit: {why}")
    }

    fn hint(&self) -> Option<String> {
        if self.nearest.is_empty() {
            return None;
        }
        Some(format!("request {} instead", self.nearest.join(", or ")))
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.profile, self.one_line_message())?;
        if let (Some(map), Some(part)) = (&self.part, self.nearest.first()) {
            write!(f, "\n  {map}  {part}")?;
        }
        for other in &self.others {
            write!(f, "\n{other}")?;
        }
        Ok(())
    }
}

impl Failure for Refusal {
    fn status(&self) -> ExitStatus {
        match self {
            Self::Profile(_) | Self::Device(_) | Self::NotMeant(_) => ExitStatus::Usage,
            Self::CannotStart(_) => ExitStatus::Failed,
            Self::Infeasible(_) => ExitStatus::Infeasible,
            Self::InTheWay(_) | Self::InUse { .. } => ExitStatus::Refused,
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Profile(_) => None,
            Self::Device(unknown) => unknown.hint(),
            Self::Infeasible(misfit) if misfit.others.is_empty() => misfit.hint(),
            Self::Infeasible(misfit) => {
                let hints: Vec<String> = std::iter::once(misfit.as_ref())
                    .chain(&misfit.others)
                    .filter_map(|one| Some(format!("{} (GPU {})", one.hint()?, one.gpu)))
                    .collect();
                (!hints.is_empty()).then(|| hints.join("; "))
            }
            Self::NotMeant(problem) | Self::InTheWay(problem) | Self::CannotStart(problem) => {
                problem.hint.clone()
            }
            Self::InUse { clients, .. } if clients.is_empty() => Some(POD_HINT.to_owned()),
            Self::InUse { hint, .. } => Some(hint.clone()),
        }
    }
}

/// Returns the reason why a process is not a client that could be terminated.
pub(super) fn not_a_client(node: &Node, served: &Served, pid: Pid) -> Refusal {
    let name = &served.record.name;
    if served.has_waiting_program(pid) {
        return Problem::new(
            format!(
                "pid {pid} is not a client of device {name} yet: it waits in cuInit until the programs of another \
                 user have exited, and uses nothing on the GPU"
            ),
            end_process_hint(pid),
        )
        .into();
    }
    let what = format!("pid {pid} is not a client of device {name}");
    Refusal::NotMeant(match other_role(node, pid) {
        Some((role, hint)) => Problem::new(format!("{what}: it {role}"), hint),
        None => Problem::new(what, clients_hint(served)),
    })
}

/// Names the clients of a device, as a hint.
fn clients_hint(served: &Served) -> String {
    let (name, clients) = (&served.record.name, &served.clients);
    let pids = clients.shown_pids();
    let unseen = clients.as_slice().len() - pids.len();
    match (unseen, pids.as_slice()) {
        (0, []) => format!(
            "run `mig-mps status` to see the clients of each device; device {name} has none"
        ),
        (0, pids) => format!("choose a client of device {name}: pid {}", pids.join(", ")),
        (unseen, _) => format!(
            "end them in their containers, or all clients with `mig-mps restart {name} --force`; the daemon does not \
             see the pids of {unseen} of its clients"
        ),
    }
}

/// Returns the role of a process on this node, such as `is one of 0.1`, and a hint; `None` if it is not known.
fn other_role(node: &Node, pid: Pid) -> Option<(String, String)> {
    for served in node.served() {
        let name = &served.record.name;
        if served.clients.contains_pid(pid) {
            let hint = format!("run `mig-mps kill {name} {pid}`");
            return Some((format!("is a client of device {name}"), hint));
        }
        if served.has_waiting_program(pid) {
            return Some((format!("waits for device {name}"), end_process_hint(pid)));
        }
        let daemon = served.record.daemon;
        let program = if served.is_alive() && daemon.is_some_and(|daemon| daemon.pid == pid) {
            "control daemon"
        } else if served.servers.iter().any(|server| server.pid == pid) {
            "MPS server"
        } else {
            continue;
        };
        let hint = format!("run `mig-mps restart {name}` to replace the daemon and its servers");
        return Some((format!("is the {program} of device {name}"), hint));
    }
    for device in &node.devices {
        let Some(processes) = &device.processes else {
            continue;
        };
        let (name, served) = (&device.name, device.serving_daemon());
        let is_known = served.is_none_or(|served| served.clients.are_known());
        let how = if processes.contains_client(pid) {
            "through an MPS daemon that mig-mps has not started"
        } else if is_known && device.processes_outside_mps().contains(&pid) {
            "outside MPS, where no daemon can end its work"
        } else {
            continue;
        };
        return Some((
            format!("computes on device {name} {how}"),
            end_process_hint(pid),
        ));
    }
    None
}

fn end_process_hint(pid: Pid) -> String {
    format!("end the process itself with `kill {pid}`")
}

/// Refuses a driver that is too old for any change but the end of what runs.
pub(super) fn check_driver_version(node: &Node) -> Result<(), Refusal> {
    if !node.control_program().is_too_old {
        return Ok(());
    }
    let (driver, first) = (&node.driver, ControlProgram::FIRST_SUPPORTED_BRANCH);
    let what =
        format!("driver {driver} is too old: mig-mps changes a node with driver {first} or newer");
    let hint =
        "install a newer driver; only `mig-mps list`, `status` and `down` work with this one";
    Err(Refusal::NotMeant(Problem::new(what, hint)))
}

/// The reason why no program starts with that limit on a whole GPU, if that was measured.
pub(super) fn no_program_starts(node: &Node, gpu: &Gpu, limit: MemoryLimit) -> Option<String> {
    ContextMemory::reason_against_limit(limit, &gpu.product, node.control_program().branch)
}

/// Instances that cannot be seen cannot be planned with.
pub(super) fn check_visible(gpu: &Gpu) -> Result<(), Problem> {
    let Some(why) = &gpu.hidden else {
        return Ok(());
    };
    let what = format!("GPU {}: its instances cannot be seen: {why}", gpu.index);
    Err(Problem::new(what, root_hint()))
}

/// Refuses to switch MIG off under virtual machines.
pub(super) fn check_no_virtual_machines(node: &Node, gpu: &Gpu) -> Result<(), Problem> {
    let Some(named) = node.describe_virtual_machine_instances(gpu) else {
        return Ok(());
    };
    let what = format!(
        "GPU {}: {named} may be in use by virtual machines, and would be destroyed with MIG mode",
        gpu.index
    );
    let hint = "omit this GPU from the profile, or ask the administrator of the virtual machines to destroy these GPU instances";
    Err(Problem::new(what, hint))
}

pub(super) fn unknown_profile(profile: &Profile, gpu: &Gpu, part: &DeviceEntry) -> ProfileError {
    let known: Vec<String> = gpu
        .profiles
        .iter()
        .map(|offer| offer.name.to_string())
        .collect();
    let (index, product, wanted) = (gpu.index, &gpu.product, &part.profile);
    let message = format!("GPU {index} ({product}) has no profile \"{wanted}\"");
    let error = profile.error_at(part.span, message);
    match nearest_offer(gpu, wanted) {
        Some(near) => error.with_hint(format!(
            "did you mean \"{}\"? It has {}",
            near.name,
            known.join(", ")
        )),
        None => error,
    }
}

/// Returns the profile with the same attributes and slices whose memory is within a third of the wanted one: a driver's
/// next version may call the same profile `1g.23gb` or `1g.24gb`. Otherwise returns the one that is the same share of this
/// GPU as the wanted one is of the models that have it. Of a profile that no model has, the numbers in its name count.
fn nearest_offer<'g>(gpu: &'g Gpu, wanted: &ProfileName) -> Option<&'g GpuInstanceProfile> {
    let shares: Vec<(u32, u32)> = catalog::models()
        .filter_map(|model| {
            let offered = model.offers();
            let all = offered.iter().map(|offer| (&offer.name, offer));
            Some(share_of_gpu(&offered, wanted.find_among(all)?))
        })
        .collect();
    gpu.profiles.iter().min_by_key(|offer| {
        let (memory, slices) = share_of_gpu(&gpu.profiles, offer);
        let from_shares = shares
            .iter()
            .map(|other| (memory.abs_diff(other.0), slices.abs_diff(other.1)))
            .min();
        let gigabytes = offer.name.gigabytes().zip(wanted.gigabytes());
        let ratio =
            gigabytes.map(|(own, other)| own.max(other) * WHOLE_GPU_SHARE / own.min(other).max(1));
        let near = ratio.filter(|ratio| *ratio <= WHOLE_GPU_SHARE * 4 / 3);
        let distance = from_shares.unwrap_or_else(|| {
            let difference = gigabytes.map_or(0, |(own, other)| own.abs_diff(other));
            (offer.slices.abs_diff(wanted.slices()), difference)
        });
        let has_slices = offer.slices == wanted.slices();
        let distance = near.map_or(distance, |ratio| (0, ratio));
        (
            !offer.name.has_attributes_of(wanted),
            !has_slices,
            near.is_none(),
            distance,
        )
    })
}

/// The size of a whole GPU in the numbers of [`share_of_gpu`]: a multiple of the slices and placement units of every model.
const WHOLE_GPU_SHARE: u32 = 840;

/// Returns a profile's share of the memory and of the compute slices of a GPU.
fn share_of_gpu(offered: &[GpuInstanceProfile], profile: &GpuInstanceProfile) -> (u32, u32) {
    let slices = offered.iter().map(|offer| offer.slices).max().unwrap_or(1);
    (
        profile.placement_size() * WHOLE_GPU_SHARE / geometry::count_units(offered).max(1),
        profile.slices * WHOLE_GPU_SHARE / slices.max(1),
    )
}

pub(super) fn check_start(
    profile: &Profile,
    gpu: &Gpu,
    part: &DeviceEntry,
    offer: &GpuInstanceProfile,
    at: u32,
) -> Result<(), ProfileError> {
    if offer.placements.iter().any(|place| place.start == at) {
        return Ok(());
    }
    let starts = offer.placements.iter().map(|place| place.start.to_string());
    let message = format!(
        "{} cannot start at {at} on GPU {} ({})",
        offer.name, gpu.index, gpu.product
    );
    let hint = format!(
        "choose another start: {}",
        starts.collect::<Vec<_>>().join(", ")
    );
    let error = profile.error_at(part.span, message);
    Err(error.with_hint(hint))
}

/// More of one profile than can exist, beside what was read before it.
pub(super) fn too_many(
    wanted_gpu: &GpuRequest<'_>,
    before: &[Request],
    offer: &GpuInstanceProfile,
    count: u32,
) -> Refusal {
    let mut wanted = partition_of(wanted_gpu.gpu, before);
    wanted.counts.push((offer, count));
    let wanted = wanted.to_string();
    let mut fitting = before.to_vec();
    let request = Request {
        profile: offer.id,
        at: None,
        entry: 0,
    };
    fitting.extend(std::iter::repeat_n(request, offer.most as usize));
    let why = describe_excess(offer, count);
    misfit_refusal(wanted_gpu, wanted, why, &fitting)
}

/// Requests for which there is no arrangement.
pub(super) fn no_arrangement(wanted_gpu: &GpuRequest<'_>, requests: &[Request]) -> Refusal {
    let gpu = wanted_gpu.gpu;
    let units = gpu.placement_units();
    let offers: Vec<&GpuInstanceProfile> = requests
        .iter()
        .filter_map(|request| gpu.profile(request.profile))
        .collect();
    let counts = count_each(requests.iter().map(|request| request.profile));
    let excessive = gpu.profiles.iter().find_map(|offer| {
        let (_, count) = *counts.iter().find(|(id, _)| *id == offer.id)?;
        (count > offer.most).then(|| describe_excess(offer, count))
    });
    let needed: u32 = offers.iter().map(|offer| offer.placement_size()).sum();
    let machines = wanted_gpu
        .planner
        .node
        .describe_virtual_machine_instances(gpu);
    let why = if let Some(why) = excessive {
        why
    } else if let Some(machines) = machines {
        format!("virtual machines have {machines}")
    } else if needed > units {
        format!("it needs {needed} of {units} memory slices")
    } else if offers
        .iter()
        .any(|offer| offer.name.has_attribute("+me") || offer.name.has_attribute("+me.all"))
    {
        "there are not enough memory slices or media engines: a GPU has one +me, and next to +me.all only -me"
            .to_owned()
    } else {
        "these placements cannot be combined".to_owned()
    };
    misfit_refusal(
        wanted_gpu,
        partition_of(gpu, requests).to_string(),
        why,
        requests,
    )
}

fn describe_excess(offer: &GpuInstanceProfile, count: u32) -> String {
    format!(
        "{count} × {} requested, and at most {} can exist",
        offer.name, offer.most
    )
}

fn misfit_refusal(
    wanted_gpu: &GpuRequest<'_>,
    wanted: String,
    why: String,
    requests: &[Request],
) -> Refusal {
    let gpu = wanted_gpu.gpu;
    let profiles = wanted_gpu.free_profiles();
    let near = nearest_requests(&profiles, requests);
    let map = near.first().and_then(|part| slice_map(&profiles, part));
    let machines = wanted_gpu.planner.node.virtual_machine_instances(gpu);
    let map = map.map(|map| {
        let segments = map.segments().iter().cloned();
        let all = segments.chain(gpu.segments_of(&machines)).collect();
        SliceMap::new(gpu.placement_units(), all)
    });
    Refusal::Infeasible(Box::new(Misfit {
        profile: wanted_gpu
            .planner
            .profile
            .error_at(wanted_gpu.block.span, "this does not fit on a selected GPU"),
        span: wanted_gpu.block.span,
        gpu: gpu.index,
        product: gpu.product.clone(),
        wanted,
        why,
        part: map,
        nearest: near
            .iter()
            .map(|requests| partition_of(gpu, requests).to_string())
            .collect(),
        others: Vec::new(),
    }))
}

/// Returns the instances of requests on a GPU.
fn partition_of<'g>(gpu: &'g Gpu, requests: &[Request]) -> Partition<'g> {
    Partition::from_instances(
        requests
            .iter()
            .filter_map(|request| gpu.profile(request.profile)),
    )
}
