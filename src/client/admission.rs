//! The last check before a container starts on a device: by the device's record and processes. No daemon is asked, because the
//! engine waits for the answer.

use std::thread;
use std::time::{Duration, Instant};

use crate::host::Environment;
use crate::node::{DaemonState, Detail, Unseen, observe_records, observe_without_driver};

/// The pause between two checks of a device that a change is working on.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The time for which a container of an engine waits for a change of the node.
pub const ADMISSION_LIMIT: Duration = Duration::from_secs(5);

/// The reason of a device without a record.
pub const NO_LONGER_SERVED: &str = "mig-mps no longer serves it";

/// A device takes no new programs now: they would run outside MPS.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Unready {
    why: String,
    /// True if a change of the node is in progress, after which the device may be ready.
    is_passing: bool,
}

/// Refuses the device with this UUID if its daemon would not take a client now, with the reason, such as "its daemon has
/// died". What cannot be seen is not held against it. A change in progress is waited for within the limit.
pub fn check_admission(
    environment: &Environment,
    uuid: &str,
    limit: Duration,
) -> Result<(), String> {
    let end = Instant::now() + limit;
    loop {
        match check_admission_now(environment, uuid) {
            Err(unready) if unready.is_passing && Instant::now() < end => {
                thread::sleep(CHECK_INTERVAL);
            }
            checked => return checked.map_err(|unready| unready.why),
        }
    }
}

fn check_admission_now(environment: &Environment, uuid: &str) -> Result<(), Unready> {
    let Ok(mut node) = observe_records(environment) else {
        return Ok(());
    };
    let is_passing = !node.under_way.is_empty();
    let refused = |why: &str| {
        Err(Unready {
            why: why.to_owned(),
            is_passing,
        })
    };
    node.detail = Detail::GEOMETRY;
    node.devices.retain(|device| device.uuid == uuid);
    observe_without_driver(environment, &mut node, Duration::ZERO);
    let Some(served) = node.served().next() else {
        let hides_records =
            |unseen: &Unseen| matches!(unseen, Unseen::RunDir { .. } | Unseen::Record { .. });
        return if node.unseen.iter().any(hides_records) {
            Ok(())
        } else {
            refused(NO_LONGER_SERVED)
        };
    };
    if let Some(why) = served.closed_reason() {
        return refused(&why);
    }
    match (&served.state, served.state.outage_reason()) {
        _ if served.record.leaving => refused("mig-mps is stopping it"),
        (DaemonState::Starting, _) => Err(Unready {
            why: "its daemon is starting".to_owned(),
            is_passing: true,
        }),
        (_, Some(ailment)) => refused(ailment),
        (_, None) => Ok(()),
    }
}
