//! The proof: does a process become a client?

use super::check::Judge;
use super::{AttachResult, Check, Examined, Finding, Subject};

/// It starts a process for each device, and is not made unless it is asked for.
pub(super) const ID: &str = "attach";

pub(super) const CHECKS: &[Check] = &[Check {
    id: ID,
    subject: Subject::Daemons,
    fault: "a new program does not become a client of a device",
    why: "this is what users get: it fails, waits for ever, or runs outside MPS",
    remedy: "see the other checks; `mig-mps verify DEVICE` makes this one alone",
    judge: Judge::Records(attach),
}];

fn attach(examined: &Examined<'_>) -> Vec<Finding> {
    let found = examined.attached.iter().flatten().map(|one| {
        let finding = match &one.result {
            AttachResult::Attached(how) => Finding::ok(how.as_str()),
            AttachResult::LeftAlone(why) => Finding::unknown(why.as_str()),
            AttachResult::Failed(why, remedy) => {
                let seen = match remedy {
                    Some(remedy) => format!("{why}: {remedy}"),
                    None => why.clone(),
                };
                Finding::fail(seen).run(format!("mig-mps verify {}", one.name))
            }
        };
        finding.on(&one.name)
    });
    found.collect()
}
