//! The one way in which commands change the node: observe, plan, show, get consent, wait for clients, lock, observe
//! and plan again, apply, read back.

use std::cell::RefCell;
use std::fmt::Write as _;

use super::consent::{ConsentArgs, HINT};
use super::drain::Drain;
use super::{Context, locked, pick_up_interrupted, refuse_newer};
use crate::apply::{self, Allowed, ApplyContext, ApplyError, OnFailure};
use crate::error::{CommandError, Context as _, ExitStatus, Result};
use crate::host::{Directories, Lock, raise_memory};
use crate::node::{Detail, Node, Observer};
use crate::plan::{Plan, Refusal};
use crate::render::{Consent, Ui};
use crate::state::RunDir;

type Planner<'a> = dyn Fn(&Node, &RunDir) -> Result<Plan, Refusal> + 'a;

/// A command's change of the node.
pub(super) struct Change<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) directories: &'a Directories,
    pub(super) consent: &'a ConsentArgs,
    pub(super) allowed: Allowed,
    pub(super) on_failure: OnFailure,
    pub(super) detail: Detail,
    pub(super) planner: &'a Planner<'a>,
    /// Notes shown with a plan.
    pub(super) remark: &'a dyn Fn(&Node, &Plan),
    /// False if the plan does only what the command's own name asks for.
    pub(super) needs_consent: &'a dyn Fn(&Plan) -> bool,
    /// Plans again afterwards: a node that reads back as something else is an error.
    pub(super) verify: bool,
}

/// The outcome of a change.
pub(super) enum Outcome {
    /// The plan was shown, and that was all.
    Shown,
    Unchanged(Box<Node>),
    Changed(Box<Changed>),
}

pub(super) struct Changed {
    /// Nobody else changes anything until this is dropped.
    pub(super) _lock: Option<Lock>,
    /// The actions that were carried out; none if somebody else had done them meanwhile.
    pub(super) plan: Plan,
    pub(super) after: Node,
    /// Failures of daemons that run as other users; everything else was done.
    pub(super) failed: Option<ApplyError>,
}

impl Outcome {
    /// Shows the devices as they are after the change.
    pub(super) fn report(&self, devices: &[String], consent: &ConsentArgs, ui: &Ui) -> Result<()> {
        let nothing = Plan::default();
        let (node, plan) = match self {
            Self::Shown => return Ok(()),
            Self::Unchanged(node) => (&**node, &nothing),
            Self::Changed(changed) => (&changed.after, &changed.plan),
        };
        if consent.json {
            return Ok(ui.outcome_json(node, plan, !plan.is_empty())?);
        }
        Ok(ui.status(node, &node.resolve(devices)?, &[])?)
    }
}

impl<'a> Change<'a> {
    /// A change that asks before it disrupts anything, and undoes what it did when a step fails.
    pub(super) fn new(
        context: &'a Context<'a>,
        directories: &'a Directories,
        consent: &'a ConsentArgs,
        planner: &'a Planner<'a>,
    ) -> Self {
        Self {
            context,
            directories,
            consent,
            allowed: Allowed::default(),
            on_failure: OnFailure::RollBack,
            detail: Detail::Clients,
            planner,
            remark: &|_, _| {},
            needs_consent: &|_| true,
            verify: false,
        }
    }

    pub(super) fn run(&self) -> Result<Outcome> {
        // Too little memory is no error that could be handled: it aborts.
        raise_memory()?;
        let Context {
            environment, ui, ..
        } = *self.context;
        let run = Run {
            change: self,
            state: RunDir::at(&self.directories.run),
            observer: RefCell::new(Observer::new(environment)),
            drain: Drain::of(self.consent.drain.filter(|_| !self.consent.force)),
        };
        refuse_newer(&run.state)?;
        if !self.consent.dry_run && run.state.owner() == Some(environment.caller) {
            pick_up_interrupted(environment, self.directories, ui)?;
        }
        let (node, plan) = run.first_plan()?;
        if plan.is_empty() {
            return Ok(Outcome::Unchanged(Box::new(node)));
        }
        if self.consent.dry_run {
            run.show_only(&node, &plan)?;
            return Ok(Outcome::Shown);
        }
        run.show(&node, &plan)?;
        let (lock, node, plan) = run.reach(plan)?;
        Ok(Outcome::Changed(Box::new(run.carry_out(lock, node, plan)?)))
    }
}

struct Run<'a> {
    change: &'a Change<'a>,
    state: RunDir,
    /// One for all snapshots: a daemon that hangs is waited for once.
    observer: RefCell<Observer<'a>>,
    drain: Drain,
}

impl Run<'_> {
    /// Observes and plans. The outer error is that nothing could be observed.
    fn plan(&self) -> Result<(Node, Result<Plan, Refusal>)> {
        let node = self.observer.borrow_mut().observe(self.change.detail)?;
        let plan = (self.change.planner)(&node, &self.state);
        let plan = plan.map(|plan| match self.change.consent.force() {
            Some(seconds) => plan.by_force(seconds),
            None => plan,
        });
        Ok((node, plan))
    }

    /// The first plan there is: one that a client is in the way of making is waited for.
    fn first_plan(&self) -> Result<(Node, Plan)> {
        let plan = || {
            let (node, plan) = self.plan()?;
            Ok(plan.map(|plan| (node, plan)))
        };
        match plan()? {
            Err(refusal) if self.drain.allows(&refusal) => {
                self.drain.wait(plan, self.change.context.ui)
            }
            plan => Ok(plan?),
        }
    }

    fn show(&self, node: &Node, plan: &Plan) -> Result<()> {
        (self.change.remark)(node, plan);
        if self.change.consent.json {
            return Ok(());
        }
        Ok(self.change.context.ui.plan(plan)?)
    }

    fn show_only(&self, node: &Node, plan: &Plan) -> Result<()> {
        (self.change.remark)(node, plan);
        if self.change.consent.json {
            return Ok(self.change.context.ui.plan_json(plan)?);
        }
        self.change.context.ui.plan(plan)?;
        Ok(self.change.context.ui.consequences(plan)?)
    }

    /// Gets consent for the plan that was shown, or for the one it becomes. Returns the node's lock, the node as it is
    /// under that lock, and the plan for it. Nobody is asked under the lock, which would keep everybody else from
    /// changing anything, nor after a wait for clients about something that was known before it.
    fn reach(&self, shown: Plan) -> Result<(Option<Lock>, Node, Plan)> {
        let ui = self.change.context.ui;
        let mut plan = shown;
        let mut agreed: Option<Plan> = None;
        loop {
            match plan.permit(HINT) {
                Err(refusal) if !self.drain.allows(&refusal) => return Err(refusal.into()),
                _ => {}
            }
            if let Some(consent) = self.missing(&plan, agreed.as_ref()) {
                if (self.change.needs_consent)(&plan) {
                    ui.confirm(&plan, self.change.allowed, consent)?;
                }
                agreed = Some(plan.clone());
            }
            plan = self.drained(plan)?;
            let lock = self.lock(&plan)?;
            let (node, now) = self.plan()?;
            let now = match now {
                Ok(now) => match now.permit(HINT) {
                    Ok(()) => now,
                    // A client came in between: there may be time left for it.
                    Err(refusal) if self.drain.allows(&refusal) => {
                        plan = now;
                        continue;
                    }
                    Err(refusal) => return Err(refusal.into()),
                },
                Err(refusal) if self.drain.allows(&refusal) => continue,
                Err(refusal) => return Err(refusal.into()),
            };
            if now == plan {
                return Ok((lock, node, now));
            }
            if now.is_empty() {
                ui.note("Nothing is left to do: the node has changed meanwhile.");
                return Ok((lock, node, now));
            }
            ui.note("The node has changed meanwhile. The plan is now:");
            self.show(&node, &now)?;
            if self.missing(&now, agreed.as_ref()).is_none() {
                return Ok((lock, node, now));
            }
            plan = now;
        }
    }

    /// Takes the node's lock. A user whose own server another user's daemon has started may end its clients, and cannot
    /// take that daemon's lock: nothing that the lock guards is changed.
    fn lock(&self, plan: &Plan) -> Result<Option<Lock>> {
        if plan.kill.as_ref().is_some_and(|kill| !kill.is_callers) {
            return Ok(None);
        }
        locked(self.change.context.environment, self.change.directories).map(Some)
    }

    /// The consent that a plan still wants, after another one was agreed to.
    fn missing(&self, plan: &Plan, agreed: Option<&Plan>) -> Option<Consent> {
        match agreed {
            Some(agreed) => plan.disrupts_more_than(agreed).then_some(Consent::AskAgain),
            None if self.change.consent.yes => Some(Consent::Given),
            None => Some(Consent::Ask),
        }
    }

    /// Waits for the clients in the way of a plan; returns the plan for the node without them.
    fn drained(&self, plan: Plan) -> Result<Plan> {
        if plan.permit(HINT).is_ok() {
            return Ok(plan);
        }
        let permitted = || {
            let (node, plan) = self.plan()?;
            Ok(plan.and_then(|plan| plan.permit(HINT).map(|()| (node, plan))))
        };
        let (node, plan) = self.drain.wait(permitted, self.change.context.ui)?;
        self.show(&node, &plan)?;
        Ok(plan)
    }

    /// Applies the plan and reads the node back.
    fn carry_out(&self, lock: Option<Lock>, node: Node, plan: Plan) -> Result<Changed> {
        let (mut node, mut plan) = (node, plan);
        let mut carried_out = plan.clone();
        // Twice only where a driver lists profiles after MIG has been switched on.
        loop {
            let failed = self.apply(&node, &plan)?;
            let read_back = |error: CommandError| {
                if carried_out.is_empty() {
                    error
                } else {
                    error.after_change()
                }
            };
            if !self.change.verify {
                let after = self.observer.borrow_mut().observe(self.change.detail);
                return Ok(Changed {
                    _lock: lock,
                    after: after.map_err(|error| read_back(error.into()))?,
                    plan: carried_out,
                    failed,
                });
            }
            let (after, rest) = self.plan().map_err(read_back)?;
            let rest = rest.map_err(|refusal| read_back(refusal.into()))?;
            // Where it goes on, the rest tries again what failed.
            let goes_on = plan.gpus.iter().any(|gpu| gpu.to_be_continued);
            if rest.is_empty() || (failed.is_some() && !goes_on) {
                return Ok(Changed {
                    _lock: lock,
                    after,
                    plan: carried_out,
                    failed,
                });
            }
            if !goes_on {
                return Err(differs(&rest));
            }
            self.show(&after, &rest)?;
            rest.permit(HINT)
                .context("MIG mode is on now, and the rest of the profile is refused")?;
            carried_out.go_on_with(&rest);
            (node, plan) = (after, rest);
        }
    }

    /// Applies the plan. Returns what failed of daemons that run as other users, if all else was done.
    fn apply(&self, node: &Node, plan: &Plan) -> Result<Option<ApplyError>> {
        if plan.is_empty() {
            return Ok(None);
        }
        let context = ApplyContext {
            environment: self.change.context.environment,
            directories: self.change.directories,
            programs: &self.change.context.environment.mps_programs()?,
            node,
            allowed: self.change.allowed,
        };
        let progress = self.change.context.ui.progress(plan);
        match apply::run(plan, &context, &progress, self.change.on_failure) {
            Ok(()) => Ok(None),
            Err(error) if error.is_of_users_alone() && self.change.verify => Ok(Some(error)),
            Err(error) => Err(error.into()),
        }
    }
}

/// The node differs from the profile after a run that reported no error.
fn differs(rest: &Plan) -> CommandError {
    let steps = rest
        .gpus
        .iter()
        .flat_map(|gpu| gpu.steps.iter().map(move |step| (gpu.name(), step)))
        .fold(String::new(), |mut text, (gpu, step)| {
            let _ = write!(text, "\n  {gpu}: {}: {}", step.action, step.because);
            text
        });
    CommandError::new(
        ExitStatus::Failed,
        format_args!("the node was changed, and does not read back as the profile says: still to do:{steps}"),
    )
    .with_hint(
        "nothing is undone: every step has reported success; run the same command again: it goes on from here",
    )
}
