//! Requests that do not fit on a GPU, and the nearest ones that do.

use super::arrange::GpuRequest;
use super::{Misfit, Refusal};
use crate::geometry::{GpuInstanceProfile, ProfileId, Request, count, nearest, slice_map};
use crate::node::Gpu;
use crate::profile::{DeviceEntry, Profile, ProfileError};

pub(super) fn unknown_profile(profile: &Profile, gpu: &Gpu, part: &DeviceEntry) -> ProfileError {
    let known = gpu.profiles.iter().map(|offer| offer.name.to_string());
    let known: Vec<String> = known.collect();
    let wanted = part.profile.to_string();
    let (index, product) = (gpu.index, &gpu.product);
    let message = format!("GPU {index} ({product}) has no profile \"{wanted}\"");
    let error = profile.error(part.span, message);
    // The same slices on this model come nearest, then a size near it, then the most similar
    // spelling.
    let same = part.profile.short();
    let slices = part.profile.slices();
    let by_size = gpu
        .profiles
        .iter()
        .filter(|offer| offer.name.is_plain() && part.profile.is_plain())
        .filter(|_| part.profile.is_short())
        .min_by_key(|offer| (offer.slices.abs_diff(slices), offer.slices));
    let near = gpu
        .profiles
        .iter()
        .find(|offer| offer.name.short() == same)
        .or(by_size)
        .map(|offer| offer.name.to_string())
        .or_else(|| {
            let distance = |name: &String| strsim::damerau_levenshtein(name, &wanted);
            known.iter().min_by_key(|name| distance(name)).cloned()
        });
    match near {
        Some(near) => error.with_hint(format!(
            "did you mean \"{near}\"? It has {}",
            known.join(", ")
        )),
        None => error,
    }
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
    let hint = format!("possible starts: {}", starts.collect::<Vec<_>>().join(", "));
    let error = profile.error(part.span, message);
    Err(error.with_hint(hint))
}

/// More of one profile than can exist, beside what was read before it.
pub(super) fn too_many(
    wanted_gpu: &GpuRequest<'_>,
    before: &[Request],
    offer: &GpuInstanceProfile,
    count: u32,
) -> Refusal {
    let mut wanted = sum(wanted_gpu.gpu, before);
    let plus = if wanted.is_empty() { "" } else { " + " };
    wanted = format!("{wanted}{plus}{count} × {}", offer.name);
    let mut fitting = before.to_vec();
    let request = Request {
        profile: offer.id,
        at: None,
        entry: 0,
    };
    fitting.extend(std::iter::repeat_n(request, offer.most as usize));
    let why = number(offer, count);
    refuse(wanted_gpu, wanted, why, &fitting)
}

/// Requests for which there is no arrangement.
pub(super) fn refusal(wanted_gpu: &GpuRequest<'_>, requests: &[Request]) -> Refusal {
    let gpu = wanted_gpu.gpu;
    let units = gpu.units();
    let size = |request: &Request| {
        let offer = gpu.profile(request.profile);
        let placement = offer.and_then(|offer| offer.placements.first());
        placement.map_or(0, |placement| placement.size)
    };
    let counts = count(requests.iter().map(|request| request.profile));
    let excessive = gpu.profiles.iter().find_map(|offer| {
        let (_, count) = *counts.iter().find(|(id, _)| *id == offer.id)?;
        (count > offer.most).then(|| number(offer, count))
    });
    let needed: u32 = requests.iter().map(size).sum();
    let media = |request: &&Request| {
        let offer = gpu.profile(request.profile);
        offer.is_some_and(|offer| offer.name.has("+me") || offer.name.has("+me.all"))
    };
    let why = if let Some(why) = excessive {
        why
    } else if needed > units {
        format!("it needs {needed} of {units} memory slices")
    } else if requests.iter().any(|request| media(&request)) {
        "there are not enough memory slices or media engines: a GPU has one +me, and beside \
         +me.all nothing but -me"
            .to_owned()
    } else {
        "no arrangement of these placements exists".to_owned()
    };
    refuse(wanted_gpu, sum(gpu, requests), why, requests)
}

fn number(offer: &GpuInstanceProfile, count: u32) -> String {
    format!(
        "{count} × {} requested, and at most {} can exist",
        offer.name, offer.most
    )
}

fn refuse(
    wanted_gpu: &GpuRequest<'_>,
    wanted: String,
    why: String,
    requests: &[Request],
) -> Refusal {
    let gpu = wanted_gpu.gpu;
    let near = nearest(&gpu.profiles, requests);
    let map = near.first().and_then(|part| slice_map(&gpu.profiles, part));
    Refusal::Infeasible(Box::new(Misfit {
        profile: wanted_gpu.planner.profile.error(
            wanted_gpu.block.span,
            "this does not fit on a GPU it selects",
        ),
        span: wanted_gpu.block.span,
        gpu: gpu.index,
        product: gpu.product.clone(),
        wanted,
        why,
        part: map,
        nearest: near.iter().map(|requests| sum(gpu, requests)).collect(),
        others: Vec::new(),
    }))
}

/// `2 × 3g.40gb + 1g.10gb`
fn sum(gpu: &Gpu, requests: &[Request]) -> String {
    let counts = count(requests.iter().map(|request| request.profile));
    let name = |&(profile, count): &(ProfileId, u32)| {
        let offer = gpu.profile(profile);
        let name = offer.map_or_else(|| profile.to_string(), |offer| offer.name.to_string());
        if count == 1 {
            name
        } else {
            format!("{count} × {name}")
        }
    };
    let names: Vec<String> = counts.iter().map(name).collect();
    names.join(" + ")
}
