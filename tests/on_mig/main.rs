//! A destructive run for people who own a GPU with MIG: a GPU is partitioned, used and given back by the shipped program, with
//! the conformance suite on one of its MIG devices. Afterwards the GPU is as it was.
//!
//! On simulated nodes it runs with every `cargo test`. On a real machine the test `a_real_gpu` runs, if a GPU is named:
//!
//! | variable | is |
//! |---|---|
//! | `ON_MIG_GPU` | the UUID of the GPU to use, or the unique beginning of it |
//! | `ON_MIG_DESTROY_INSTANCES` | `yes`: instances that are there may be destroyed, and made again at the end |
//! | `ON_MIG_CUDA_APP` | the program built from `fixtures/gpu/cuda-app.cu`; without it, what needs clients is left out |
//! | `ON_MIG_MIG_MPS` | the `mig-mps` to run; by default the one that was built with this test |
//! | `ON_MIG_ROWS` | only rows of the conformance suite whose ids begin like this |
//! | `ON_MIG_TRANSCRIPT` | the file to write everything to; by default `on-mig.txt` |

#![allow(clippy::too_many_lines, reason = "a test tells one story")]

/// Rows run here on the lent GPU alone, one after the other.
macro_rules! simulated {
    ($($about:tt)*) => {};
}

#[path = "../../fixtures/simnode/tests/conformance/suite.rs"]
#[allow(dead_code, reason = "the simulated node here is that of the harness")]
mod suite;
use suite::harness::{process, scene};
use suite::{partition, raw, run};

mod give_back;
mod interrupt;
mod judge;
mod lent;
mod node;
mod owner;
mod refusal;
mod rounds;
mod simulated;
mod snapshot;
mod transcript;
mod walk;

use testkit::skip;

use crate::judge::{Request, judge};
use crate::node::Node;
use crate::transcript::Transcript;

#[test]
fn a_real_gpu() {
    let Some(request) = Request::from_env() else {
        skip(
            "a_real_gpu",
            "it is destructive, and ON_MIG_GPU names no GPU",
        );
        return;
    };
    interrupt::watch();
    let path = std::env::var_os("ON_MIG_TRANSCRIPT").unwrap_or_else(|| "on-mig.txt".into());
    let transcript = Transcript::to_file(path.as_ref());
    let verdict = judge(&Node::real(), &request, &transcript);
    assert!(
        verdict.refused.is_none(),
        "refused, nothing was changed: {}",
        verdict.refused.unwrap_or_default()
    );
    assert!(
        verdict.failures.is_empty(),
        "{} things are not as expected; the transcript in {} has them:\n{}",
        verdict.failures.len(),
        path.display(),
        verdict.failures.join("\n")
    );
}
