//! The questions about jobs, and the jobs that do not fit.

use super::first_answers::{JobCount, LeastMemory, Wanted};
use super::interview::Interview;
use crate::convert::{GroupSupply, Supply, TooManyJobs, gib_at_most};
use crate::error::{CommandError, Result};
use crate::failure::ExitStatus;
use crate::render::{Question, partitions};

/// The default is so many jobs on each GPU, or as many as it has room for.
const JOBS_PER_GPU: u32 = 4;

/// Asks for the jobs and their memory. Returns the devices that they need on each GPU.
pub(super) fn ask<'a>(
    given_jobs: Option<&JobCount>,
    given_memory: Option<&LeastMemory>,
    interview: &mut Interview,
    supply: &Supply<'a>,
) -> Result<Vec<(GroupSupply<'a>, u32)>> {
    let least = given_memory.copied().unwrap_or(LeastMemory(0));
    let fits = |jobs: u32, memory: LeastMemory| {
        let divided = supply.divide(jobs, memory.0);
        divided.map_err(|error| too_many(supply, Wanted { jobs, memory }, error))
    };
    if given_jobs.is_none() {
        // Else no answer would do.
        fits(1, least)?;
    }
    let enough = supply.with_memory(least.0);
    let most = enough.most_jobs();
    let groups = enough.groups.iter();
    let usual = groups.map(|group| group.devices(group.most().min(JOBS_PER_GPU)));
    let usual: u32 = usual.sum();
    let default = usual.to_string();
    let meaning = format!("Each gets a device of its own. At most {most} fit.");
    let question = Question {
        text: "How many jobs will run at once?",
        meaning: &meaning,
        form: "Number of jobs",
        default: &default,
    };
    let check = |jobs: &JobCount| fits(jobs.0, least).map(|_| jobs.0);
    let jobs = interview.answer("--jobs", given_jobs, question, check)?;
    let most = supply.most_memory(jobs).unwrap_or(0);
    let meaning = format!(
        "At least this much. {} can have up to {} GiB{}.",
        JobCount(jobs),
        gib_at_most(most),
        JobCount(jobs).each()
    );
    let question = Question {
        text: "How much memory must each job have?",
        meaning: &meaning,
        form: "Size such as 10G, or any",
        default: "any",
    };
    interview.answer("--memory", given_memory, question, |memory| {
        fits(jobs, *memory)
    })
}

/// Explains that the memory asked for is a profile's by its name, and not what its devices have:
/// `2g.20gb has 19.5 GiB: ask for 19G`.
fn smaller_than_its_name(supply: &Supply<'_>, least_mib: u64) -> Option<String> {
    let groups = supply.groups.iter();
    let profiles = groups.flat_map(|supply| &supply.group.profiles);
    let fitting = profiles.filter(|profile| {
        let named = profile.name.gigabytes().unwrap_or(0);
        profile.memory_mib < least_mib && u64::from(named) << 10 >= least_mib
    });
    let profile = fitting.max_by_key(|profile| (profile.name.is_plain(), profile.name.slices()))?;
    let (name, has) = (&profile.name, profile.memory_mib);
    Some(format!(
        "{name} has {} GiB: ask for {}G",
        gib_at_most(has),
        has >> 10
    ))
}

/// The error of jobs that do not fit: the most devices that do, and the nearest jobs.
fn too_many(supply: &Supply<'_>, wanted: Wanted, error: TooManyJobs) -> CommandError {
    let least = wanted.memory.0;
    let TooManyJobs {
        jobs: most,
        memory_mib,
        largest_mib,
    } = error;
    let gpus = match supply.gpus() {
        1 => "this GPU".to_owned(),
        several => format!("these {several} GPUs"),
    };
    let why = match most {
        0 => format!("the largest device has {} GiB", gib_at_most(largest_mib)),
        _ if least == 0 => format!("{gpus} can have {most} devices"),
        _ => format!("{gpus} can have {most} devices with this much memory"),
    };
    let does = if wanted.jobs == 1 { "does" } else { "do" };
    let maps = partitions::fullest(&supply.with_memory(least));
    let error = CommandError::new(
        ExitStatus::Infeasible,
        format!("{wanted} {does} not fit: {why}{maps}"),
    );
    let with_most = |jobs: u32| {
        let memory = supply.most_memory(jobs).unwrap_or(0);
        let jobs = JobCount(jobs);
        format!("{jobs} with {} GiB{}", gib_at_most(memory), jobs.each())
    };
    let fewer = (most > 0).then(|| {
        Wanted {
            jobs: most,
            ..wanted
        }
        .to_string()
    });
    let less = (memory_mib.is_some() && least > 0).then(|| with_most(wanted.jobs));
    let error = match smaller_than_its_name(supply, least) {
        Some(hint) => error.hint(hint),
        None => error,
    };
    let mut nearest: Vec<String> = fewer.into_iter().chain(less).collect();
    if nearest.is_empty() {
        nearest.push(with_most(supply.most_jobs()));
    }
    error.hint(format!("{} would fit", nearest.join(", or ")))
}
