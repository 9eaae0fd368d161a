//! The time that planning takes, over every request on every model and every way from any layout to any
//! request on the grid of seven slices: `cargo bench --bench planning`.
//!
//! Fails where the 99.9th percentile is not below a millisecond.

#[allow(dead_code, reason = "the tests use the rest")]
mod brute;
mod model;
#[allow(dead_code, reason = "the tests use the rest")]
mod testbed;

use std::process::ExitCode;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use testbed::Testbed;

const LIMIT: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    // `cargo test` and `cargo bench` give flags of their own, none of which means anything here.
    let all = [
        ("requests on empty GPUs of every model", requests()),
        ("pairs of a layout and a request", pairs()),
    ];
    let mut holds = true;
    for (what, mut times) in all {
        times.sort_unstable();
        let at = |share: f64| {
            #[allow(
                clippy::cast_sign_loss,
                clippy::cast_possible_truncation,
                clippy::cast_precision_loss,
                reason = "an index"
            )]
            let index = (times.len() as f64 * share) as usize;
            times[index.min(times.len() - 1)]
        };
        println!(
            "{} {what}: median {:?}, 99th percentile {:?}, 99.9th {:?}, slowest {:?}",
            times.len(),
            at(0.5),
            at(0.99),
            at(0.999),
            at(1.0)
        );
        holds &= at(0.999) < LIMIT;
    }
    if holds {
        ExitCode::SUCCESS
    } else {
        println!("the 99.9th percentile is not below {LIMIT:?}");
        ExitCode::FAILURE
    }
}

/// Those that fit and those that do not: a refusal looks for the nearest that would.
fn requests() -> Vec<Duration> {
    let mut times = Vec::new();
    for key in model::keys() {
        let model = model::named(key);
        let testbed = Testbed::new(model, 1);
        for counts in brute::requests(model) {
            if counts.iter().any(|&count| count > 0) {
                times.push(time(&testbed, &counts));
            }
        }
    }
    times
}

fn pairs() -> Vec<Duration> {
    let model = model::named("a100-80gb");
    let layouts = brute::layouts(model);
    let mut times = Vec::new();
    for layout in layouts.values().flatten() {
        let mut testbed = Testbed::new(model, 1);
        testbed.lay(layout);
        for counts in layouts.keys() {
            if counts.iter().any(|&count| count > 0) {
                times.push(time(&testbed, counts));
            }
        }
    }
    times
}

fn time(testbed: &Testbed, counts: &[u32]) -> Duration {
    let profile = testbed::asking_for(testbed.models[0], counts);
    let begun = processor_time();
    // A refusal is as good an answer.
    let _ = std::hint::black_box(testbed.plan(&profile));
    processor_time().saturating_sub(begun)
}

/// The time that this thread has computed, in which other programs on the machine have no part.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(time).expect("a clock that runs forwards")
}
