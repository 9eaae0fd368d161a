use std::collections::BTreeMap;

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
    let mut counts: BTreeMap<ProfileId, u64> = BTreeMap::new();
    for (entry, part) in parts.iter().enumerate() {
        let offered = gpu.profiles.iter().map(|offer| (&offer.name, offer));
        let offer = part
            .profile
            .choose(offered)
            .ok_or_else(|| unknown_profile(profile, gpu, part))?;
        if let Some(at) = part.at {
            check_start(profile, gpu, part, offer, at)?;
        }
        let count = counts.entry(offer.id).or_default();
        *count += u64::from(part.count);
        if *count > u64::from(offer.most) {
            let why = format!(
                "{count} of {} are asked for and {} can exist",
                offer.name, offer.most
            );
            return Err(infeasible(
                profile,
                gpu,
                &requests,
                span,
                Some((offer, part.count, why)),
            ));
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
        return Err(infeasible(profile, gpu, &requests, span, None));
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

/// More of one profile than can exist: that profile, how many of it, and why not.
type TooMany<'a> = (&'a GpuInstanceProfile, u32, String);

fn infeasible(
    profile: &Profile,
    gpu: &Gpu,
    requests: &[Request],
    span: Span,
    too_many: Option<TooMany<'_>>,
) -> Refusal {
    let units = gpu.units();
    let size = |id: ProfileId| {
        let offer = gpu.profile(id);
        let placement = offer.and_then(|offer| offer.placements.first());
        placement.map_or(0, |placement| placement.size)
    };
    let mut wanted = sum(gpu, requests);
    let mut fitting = requests.to_vec();
    let why = if let Some((offer, count, why)) = too_many {
        let plus = if wanted.is_empty() { "" } else { " + " };
        wanted = format!("{wanted}{plus}{count} × {}", offer.name);
        let request = Request {
            profile: offer.id,
            at: None,
        };
        fitting.extend(std::iter::repeat_n(request, offer.most as usize));
        why
    } else {
        let needed: u32 = requests.iter().map(|request| size(request.profile)).sum();
        if needed > units {
            format!("it needs {needed} of {units} memory slices")
        } else {
            "no arrangement of these placements exists".to_owned()
        }
    };
    Refusal::Infeasible {
        profile: Box::new(profile.error(span, "this does not fit on a GPU it selects")),
        gpu: gpu.index,
        wanted,
        map: Box::new(SliceMap::new(units, Vec::new())),
        why,
        nearest: nearest(gpu, &fitting, units).map(|requests| sum(gpu, &requests)),
    }
}

/// `2 × 3g.40gb + 1g.10gb`
fn sum(gpu: &Gpu, requests: &[Request]) -> String {
    let mut counts: Vec<(ProfileId, usize)> = Vec::new();
    for request in requests {
        match counts
            .iter_mut()
            .find(|(profile, _)| *profile == request.profile)
        {
            Some((_, count)) => *count += 1,
            None => counts.push((request.profile, 1)),
        }
    }
    let name = |&(profile, count): &(ProfileId, usize)| {
        let name = gpu
            .profile(profile)
            .map_or_else(|| profile.to_string(), |offer| offer.name.to_string());
        if count == 1 {
            name
        } else {
            format!("{count} × {name}")
        }
    };
    counts.iter().map(name).collect::<Vec<_>>().join(" + ")
}

/// The requests with as few left out as makes them fit; of equally few, the small ones go.
///
/// Equal requests are interchangeable: what is searched is how many of each kind stay, which is a
/// few thousand cases at the most.
fn nearest(gpu: &Gpu, requests: &[Request], units: u32) -> Option<Vec<Request>> {
    let mut kinds: Vec<(Request, usize)> = Vec::new();
    for request in requests {
        match kinds.iter_mut().find(|(kind, _)| kind == request) {
            Some((_, count)) => *count += 1,
            None => kinds.push((request.clone(), 1)),
        }
    }
    let memory = |request: &Request| gpu.profile(request.profile).map_or(0, |p| p.memory_mib);
    let mut cases: Vec<Vec<usize>> = vec![Vec::new()];
    for (_, count) in &kinds {
        cases = cases
            .iter()
            .flat_map(|case| (0..=*count).map(move |kept| [case.as_slice(), &[kept]].concat()))
            .collect();
    }
    cases.sort_by_key(|case| {
        let kept: usize = case.iter().sum();
        let size: u64 = case
            .iter()
            .zip(&kinds)
            .map(|(n, (kind, _))| *n as u64 * memory(kind))
            .sum();
        std::cmp::Reverse((kept, size))
    });
    cases.iter().find_map(|case| {
        let kept: Vec<Request> = kinds
            .iter()
            .zip(case)
            .flat_map(|((kind, _), count)| std::iter::repeat_n(kind.clone(), *count))
            .collect();
        let fits = !kept.is_empty() && place(&gpu.profiles, &[], &kept, units).is_ok();
        fits.then_some(kept)
    })
}
