use super::Refusal;
use crate::geometry::{
    GpuInstanceProfile, Placement, ProfileId, Request, SliceMap, Standing, place,
};
use crate::node::Gpu;
use crate::profile::{Part, Profile, ProfileError, Settings, Span};

/// One GPU instance that a profile wants on a GPU, with its place.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Its entry's number in the block: devices of one entry share name and settings.
    pub(super) entry: usize,
    /// Its profile.
    pub(super) profile: ProfileId,
    /// Where it shall lie.
    pub(super) placement: Placement,
    /// The slices of its compute instances; empty for the one that has all its SMs.
    pub(super) compute: Vec<u32>,
    /// The devices' name, if the profile gives one, and where it stands.
    pub(super) name: Option<(String, Span)>,
    /// How their daemons shall serve.
    pub(super) settings: Settings,
}

/// Finds the profiles that the parts mean on this GPU, and places for all of them that keep what
/// stands.
pub(super) fn arrange(
    profile: &Profile,
    gpu: &Gpu,
    parts: &[Part],
    span: Span,
) -> Result<Vec<Wanted>, Refusal> {
    let mut wanted = Vec::new();
    let mut requests = Vec::new();
    for (entry, part) in parts.iter().enumerate() {
        let offered = gpu.profiles.iter().map(|offer| (&offer.name, offer));
        let offer = part
            .profile
            .choose(offered)
            .ok_or_else(|| unknown_profile(profile, gpu, part))?;
        if let Some(at) = part.at {
            check_start(profile, gpu, part, offer, at)?;
        }
        for _ in 0..part.count {
            requests.push(Request {
                profile: offer.id,
                at: part.at,
            });
            wanted.push(Wanted {
                entry,
                profile: offer.id,
                placement: Placement::new(0, 0),
                compute: part.compute.iter().map(|compute| compute.slices).collect(),
                name: part.name.clone(),
                settings: part.settings.clone(),
            });
        }
    }
    let standing: Vec<Standing> = gpu
        .instances
        .iter()
        .map(|instance| Standing {
            profile: instance.profile,
            placement: instance.placement,
        })
        .collect();
    let units = gpu.units();
    if place(&gpu.profiles, &[], &requests, units).is_err() {
        return Err(infeasible(profile, gpu, &requests, span));
    }
    let places = place(&gpu.profiles, &standing, &requests, units).map_err(|_| in_the_way(gpu))?;
    for (wanted, placement) in wanted.iter_mut().zip(places) {
        wanted.placement = placement;
    }
    // Devices of one entry are counted from left to right.
    wanted.sort_by_key(|wanted| (wanted.entry, wanted.placement));
    Ok(wanted)
}

fn unknown_profile(profile: &Profile, gpu: &Gpu, part: &Part) -> Refusal {
    let known: Vec<String> = gpu
        .profiles
        .iter()
        .map(|offer| offer.name.to_string())
        .collect();
    let wanted = part.profile.to_string();
    let error = profile.error(
        part.span,
        format!(
            "GPU {} ({}) has no profile \"{wanted}\"",
            gpu.index, gpu.product
        ),
    );
    // The same slices on this model come nearest; then the most similar spelling.
    let same = part.profile.short();
    let near = gpu
        .profiles
        .iter()
        .find(|offer| offer.name.short() == same)
        .map(|offer| offer.name.to_string())
        .or_else(|| {
            let distance = |name: &String| strsim::damerau_levenshtein(name, &wanted);
            known.iter().min_by_key(|name| distance(name)).cloned()
        });
    Refusal::Profile(match near {
        Some(near) => error.with_hint(format!(
            "did you mean \"{near}\"? It has {}",
            known.join(", ")
        )),
        None => error,
    })
}

fn check_start(
    profile: &Profile,
    gpu: &Gpu,
    part: &Part,
    offer: &GpuInstanceProfile,
    at: u32,
) -> Result<(), Refusal> {
    if offer
        .placements
        .iter()
        .any(|placement| placement.start == at)
    {
        return Ok(());
    }
    let starts: Vec<String> = offer
        .placements
        .iter()
        .map(|p| p.start.to_string())
        .collect();
    let message = format!(
        "{} cannot start at {at} on GPU {} ({})",
        offer.name, gpu.index, gpu.product
    );
    let error: ProfileError = profile.error(part.span, message);
    Err(Refusal::Profile(
        error.with_hint(format!("it can at {}", starts.join(", "))),
    ))
}

/// Something stands that the request does not keep.
fn in_the_way(gpu: &Gpu) -> Refusal {
    Refusal::InTheWay {
        what: format!(
            "GPU {} ({}) is partitioned otherwise, and this version does not destroy instances to make room\n  {}",
            gpu.index,
            gpu.product,
            gpu.slice_map()
        ),
        hint: format!(
            "take it down with mig-mps down --destroy-mig, or destroy the instances of other tools \
             with nvidia-smi mig -i {0} -dci && nvidia-smi mig -i {0} -dgi",
            gpu.index
        ),
    }
}

fn infeasible(profile: &Profile, gpu: &Gpu, requests: &[Request], span: Span) -> Refusal {
    let units = gpu.units();
    let size = |id: ProfileId| {
        let offer = gpu.profile(id);
        offer
            .and_then(|offer| offer.placements.first())
            .map_or(0, |place| place.size)
    };
    let needed: u32 = requests.iter().map(|request| size(request.profile)).sum();
    let too_many = requests.iter().find_map(|request| {
        let offer = gpu.profile(request.profile)?;
        let asked = requests
            .iter()
            .filter(|other| other.profile == request.profile)
            .count();
        (asked > offer.most as usize).then(|| {
            format!(
                "{} of {} are asked for and {} can exist",
                asked, offer.name, offer.most
            )
        })
    });
    let why = match too_many {
        Some(why) => why,
        None if needed > units => format!("it needs {needed} of {units} memory slices"),
        None => "no arrangement of these placements exists".to_owned(),
    };
    Refusal::Infeasible {
        profile: Box::new(profile.error(span, "this does not fit on a GPU it selects")),
        gpu: gpu.index,
        wanted: sum(gpu, requests),
        map: Box::new(SliceMap::new(units, Vec::new())),
        why,
        nearest: nearest(gpu, requests, units).map(|requests| sum(gpu, &requests)),
    }
}

/// `3g.40gb + 1g.10gb`
fn sum(gpu: &Gpu, requests: &[Request]) -> String {
    let name = |request: &Request| {
        gpu.profile(request.profile).map_or_else(
            || request.profile.to_string(),
            |offer| offer.name.to_string(),
        )
    };
    requests.iter().map(name).collect::<Vec<_>>().join(" + ")
}

/// The requests with as few left out as makes them fit; the small ones go first.
fn nearest(gpu: &Gpu, requests: &[Request], units: u32) -> Option<Vec<Request>> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    order.sort_by_key(|&index| {
        gpu.profile(requests[index].profile)
            .map(|offer| offer.memory_mib)
    });
    (1..requests.len()).find_map(|out| {
        leave_out(&order, out, 0, &mut Vec::new(), &mut |left_out| {
            let rest: Vec<Request> = requests
                .iter()
                .enumerate()
                .filter(|(index, _)| !left_out.contains(index))
                .map(|(_, request)| request.clone())
                .collect();
            place(&gpu.profiles, &[], &rest, units).ok().map(|_| rest)
        })
    })
}

fn leave_out<T>(
    order: &[usize],
    count: usize,
    from: usize,
    chosen: &mut Vec<usize>,
    judge: &mut impl FnMut(&[usize]) -> Option<T>,
) -> Option<T> {
    if count == 0 {
        return judge(chosen);
    }
    for next in from..order.len() {
        chosen.push(order[next]);
        let found = leave_out(order, count - 1, next + 1, chosen, judge);
        chosen.pop();
        if found.is_some() {
            return found;
        }
    }
    None
}
