//! `mig-mps down`

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use super::locked;
use crate::apply::{self, OnFailure, Site};
use crate::environment::{Environment, Home};
use crate::node::{Look, Node, RunDir, observe};
use crate::plan::{self, Action, Down, Plan, Refusal};
use crate::render::{Consent, Ui};

/// The flags of `down`.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct DownArgs {
    /// Only these devices: a name, a UUID, or the unique beginning of one
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// Wait for clients to end, at most so long; new ones are still admitted
    #[arg(long, value_name = "SECONDS")]
    drain: Option<u32>,
    /// End clients; with --drain, refuse new ones and end the rest after so many seconds
    #[arg(long)]
    now: bool,
    /// Also destroy the GPU instances that mig-mps made
    #[arg(long)]
    destroy_mig: bool,
    /// Also remove the daemons' logs
    #[arg(long)]
    purge: bool,
    /// Do not ask before instances are destroyed
    #[arg(long, short)]
    yes: bool,
}

/// Between two looks at who is still there.
const POLL: Duration = Duration::from_millis(500);

/// How long clients get with `--now` alone: `quit -t` takes whole seconds.
const AT_ONCE: u32 = 1;

/// Ends daemons and removes what was made for them.
///
/// # Errors
/// See [`Status`](crate::failure::Status) for what each ends the program with.
pub fn run(args: &DownArgs, environment: &Environment, ui: &Ui) -> Result<()> {
    let home = environment.home()?;
    let run_dir = RunDir::at(&home.run);
    let plan = |node: &Node| -> Result<Plan> {
        let wanted = Down {
            devices: node.resolve(&args.devices)?,
            force: args.now.then(|| args.drain.unwrap_or(AT_ONCE)),
            destroy_mig: args.destroy_mig,
        };
        Ok(plan::down(node, &run_dir, &wanted)?)
    };
    let patience = args
        .drain
        .filter(|_| !args.now)
        .map(u64::from)
        .map(Duration::from_secs);
    let begun = Instant::now();
    let shown = drain(environment, &plan, patience, begun, ui)?;
    if shown.is_empty() {
        ui.note("Nothing to do: mig-mps serves no device here.");
        return Ok(());
    }
    // Ending idle daemons is what was asked for; instances are another matter.
    if !shown.destroys().is_empty() {
        ui.plan(&shown)?;
        ui.confirm(
            &shown,
            if args.yes {
                Consent::Given
            } else {
                Consent::Ask
            },
        )?;
    }
    let programs = environment.mps_programs()?;
    let _lock = locked(environment, &home)?;
    let node = observe(environment, Look::Close)?;
    let plan = plan(&node)?;
    let site = Site {
        environment,
        home: &home,
        programs: &programs,
        served: &node.served,
        boot_id: &node.boot_id,
    };
    apply::run(&plan, &site, &ui.progress(&plan), OnFailure::GoOn)?;
    if args.purge {
        purge(&home, &plan)?;
    }
    let after = observe(environment, Look::Geometry)?;
    let left = after.served.iter().any(|served| served.run_dir == run_dir);
    if !left {
        apply::record_profile(&run_dir, &after.boot_id, None)
            .with_context(|| format!("cannot write in {}", home.run.display()))?;
    }
    ui.note(&report(&plan));
    Ok(())
}

/// Waits for clients to end, for as long as is allowed, and returns the plan for what is then.
fn drain(
    environment: &Environment,
    plan: &impl Fn(&Node) -> Result<Plan>,
    patience: Option<Duration>,
    begun: Instant,
    ui: &Ui,
) -> Result<Plan> {
    let mut said = 0;
    loop {
        let planned = plan(&observe(environment, Look::Close)?);
        let error = match planned {
            Ok(plan) => return Ok(plan),
            Err(error) => error,
        };
        let waiting_for = match error.downcast_ref() {
            Some(Refusal::InUse { clients, .. }) => clients.len(),
            _ => return Err(error),
        };
        let left = patience.and_then(|patience| patience.checked_sub(begun.elapsed()));
        let Some(left) = left.filter(|left| !left.is_zero()) else {
            return Err(error);
        };
        if waiting_for != said {
            ui.note(&format!(
                "{error}\nwaiting for at most {} s more",
                left.as_secs().max(1)
            ));
            said = waiting_for;
        }
        // A client's end announces itself to nobody but its server.
        std::thread::sleep(POLL.min(left));
    }
}

/// Removes the logs of the devices taken down.
fn purge(home: &Home, plan: &Plan) -> Result<()> {
    for step in plan.steps() {
        if let Action::Stop(stop) = &step.action {
            let logs = home.log.join(&stop.uuid);
            match std::fs::remove_dir_all(&logs) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| format!("cannot remove {}", logs.display()));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn report(plan: &Plan) -> String {
    let stopped = plan.interrupts().len();
    let cleared = plan
        .steps()
        .filter(|step| matches!(&step.action, Action::Stop(stop) if !stop.alive))
        .count();
    let destroyed = plan.destroys().len();
    let part = |number: usize, singular: &str, plural: &str| {
        (number > 0).then(|| format!("{number} {}", if number == 1 { singular } else { plural }))
    };
    let parts: Vec<String> = [
        part(stopped, "daemon stopped", "daemons stopped"),
        part(
            cleared,
            "dead daemon cleared away",
            "dead daemons cleared away",
        ),
        part(
            destroyed,
            "GPU instance destroyed",
            "GPU instances destroyed",
        ),
    ]
    .into_iter()
    .flatten()
    .collect();
    format!("{}.", parts.join(", "))
}
