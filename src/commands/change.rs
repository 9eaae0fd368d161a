//! The one way in which commands change the node: observe, plan, show, get consent, wait for clients, lock, observe
//! and plan again, apply, read back.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use super::args::{ConsentArgs, HINT, HINT_WITHOUT_WAIT};
use super::drain::Drain;
use super::give_back::{give_back_interrupted, give_back_left};
use super::outcome::{Outcome, differs};
use super::{Context, LOCK_LIMIT, locked, pick_up_interrupted, refuse_newer};
use crate::apply::{self, Allowed, ApplyContext, ApplyError, OnFailure};
use crate::error::{Context as _, Result, chosen};
use crate::failure::ExitStatus;
use crate::host::{Directories, Lock, MpsPrograms, Unit, raise_memory, take_limits_of_services};
use crate::node::{Detail, Node, Observer};
use crate::plan::{Held, LeftOut, Plan, Refusal};
use crate::render::json::ChangeDocument;
use crate::render::{
    self, Consent, can_ask, confirm, consequences, is_quiet, note, print, print_json, progress,
};
use crate::state::RunDir;

type Planner<'a> = dyn Fn(&Node, &RunDir) -> Result<Plan, Refusal> + 'a;

/// A command's change of the node.
pub struct Change<'a> {
    pub context: &'a Context<'a>,
    pub directories: &'a Directories,
    pub consent: &'a ConsentArgs,
    pub allowed: Allowed,
    pub on_failure: OnFailure,
    pub detail: Detail,
    pub planner: &'a Planner<'a>,
    /// The parts of a profile that are left out, so that the rest is applied; `None` for all or nothing.
    pub left_out: Option<&'a RefCell<LeftOut>>,
    /// Notes shown with a plan.
    pub remark: &'a dyn Fn(&Node, &Plan),
    /// False if the plan does only what the command's own name asks for.
    pub needs_consent: &'a dyn Fn(&Plan) -> bool,
    /// True if the change can be made while the driver does not answer.
    pub does_without_driver: bool,
    /// Plans again afterwards: a node that reads back as something else is an error.
    pub verify: bool,
    /// True for a change that nobody watches: it shows no plan.
    pub is_unattended: bool,
    /// The time to wait for another change.
    pub lock_limit: Duration,
    /// Follows the change, under its lock, however it ended.
    pub after: &'a dyn Fn(Ending) -> Result<()>,
}

/// The end of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// There was nothing to do, and no lock was taken.
    Unchanged,
    Done,
    Failed,
}

impl<'a> Change<'a> {
    /// A change that asks before it disrupts anything, and undoes what it did when a step fails.
    pub fn new(
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
            detail: Detail::CLIENTS,
            planner,
            left_out: None,
            remark: &|_, _| {},
            needs_consent: &|_| true,
            does_without_driver: false,
            verify: false,
            is_unattended: false,
            lock_limit: LOCK_LIMIT,
            after: &|_| Ok(()),
        }
    }

    /// Makes the change; `None` if its plan was only to be shown.
    pub fn run(&self) -> Result<Option<Outcome>> {
        raise_memory();
        let environment = self.context.environment;
        let observer = Observer::new(environment);
        let run = ChangeRun {
            change: self,
            state: RunDir::at(&self.directories.run),
            observer: RefCell::new(if self.does_without_driver {
                observer.without_driver()
            } else {
                observer
            }),
            drain: Drain::of(self.consent.drain.filter(|_| !self.consent.force)),
            cannot_start: RefCell::default(),
            restarted: RefCell::default(),
        };
        refuse_newer(&run.state)?;
        give_back_interrupted(environment, self.directories, self.consent.dry_run)?;
        if !self.consent.dry_run && run.state.owner() == Some(environment.caller) {
            pick_up_interrupted(environment, self.directories)?;
        }
        let _planning = environment.interrupt.plan();
        let (node, plan) = run.first_plan()?;
        if plan.is_empty() {
            let after = (!self.consent.dry_run).then(|| (self.after)(Ending::Unchanged));
            let failed = run.cannot_start.take();
            let after = after.and_then(Result::err);
            return Ok(Some(Outcome::unchanged(plan, node, failed, after)));
        }
        run.show(&node, &plan)?;
        if self.consent.dry_run {
            if self.consent.json {
                print_json(&ChangeDocument::planned(&plan, &run.held(&node, &plan)))?;
            } else {
                let held = run.held(&node, &plan);
                print(&consequences::text(&plan, &held, self.on_failure))?;
            }
            return Ok(None);
        }
        let (lock, node, plan) = run.agree_and_lock(node, plan)?;
        run.carry_out(lock, node, plan).map(Some)
    }
}

struct ChangeRun<'a> {
    change: &'a Change<'a>,
    state: RunDir,
    /// One for all snapshots: a daemon that hangs is waited for once.
    observer: RefCell<Observer<'a>>,
    drain: Drain,
    /// The daemons that the last plan leaves as they are: they could not start again.
    cannot_start: RefCell<Option<ApplyError>>,
    /// The monitoring services that were stopped, and run again.
    restarted: RefCell<Vec<Unit>>,
}

impl ChangeRun<'_> {
    fn observe(&self) -> Result<Node> {
        Ok(self.observer.borrow_mut().observe(self.change.detail)?)
    }

    fn plan(&self, node: &Node) -> Result<Plan, Refusal> {
        loop {
            let mut plan = (self.change.planner)(node, &self.state)?;
            if let Some(seconds) = self.change.consent.force() {
                plan = plan.by_force(seconds);
            }
            // A question names the instances that others may have made.
            let is_asked = !self.change.consent.yes && can_ask();
            if !(self.change.allowed.destroy_unmanaged || is_asked) {
                plan = plan.sparing_unmanaged();
            }
            // The names of a GPU that is left out are not free for others: all is planned again.
            if self.leave_out(|left_out| left_out.add_refused(&plan, HINT_WITHOUT_WAIT)) {
                continue;
            }
            if let Some(plan) = self.check_starts(plan, node)? {
                return Ok(plan);
            }
        }
    }

    /// Checks what the starts of a plan need and its stops do not. Where the change goes on after a failure, the plan leaves
    /// those daemons as they are; `None` if more GPUs are left out.
    fn check_starts(&self, mut plan: Plan, node: &Node) -> Result<Option<Plan>, Refusal> {
        let environment = self.change.context.environment;
        self.cannot_start.take();
        let checked = apply::check_starts(&mut plan, environment, self.change.directories, node);
        let Err(error) = checked else {
            return Ok(Some(plan));
        };
        match self.change.on_failure {
            OnFailure::RollBack => Err(Refusal::CannotStart(error.into())),
            // Where nothing stops, the start of that daemon fails alone.
            OnFailure::LeaveOut => {
                let mut missing = error.missing();
                missing.retain(|missing| plan.stops_on(missing.gpu));
                let is_more = self.leave_out(|left_out| left_out.add_failed(&missing));
                Ok((!is_more).then_some(plan))
            }
            OnFailure::GoOn => {
                let plan = plan.without_devices(&error.devices());
                self.cannot_start.replace(Some(error));
                Ok(Some(plan))
            }
        }
    }

    /// Leaves more out; returns false if there is no more, or nothing may be left out.
    fn leave_out(&self, more: impl FnOnce(&mut LeftOut) -> bool) -> bool {
        let left_out = self.change.left_out;
        left_out.is_some_and(|left_out| more(&mut left_out.borrow_mut()))
    }

    /// Plans, and refuses a plan that clients are in the way of.
    fn permitted_plan(&self, node: &Node) -> Result<Plan, Refusal> {
        let plan = self.plan(node)?;
        plan.permit(HINT)?;
        Ok(plan)
    }

    /// Observes and plans. If clients block planning itself, waits for them within `--drain`.
    fn first_plan(&self) -> Result<(Node, Plan)> {
        let node = self.observe()?;
        match self.plan(&node) {
            // Holders may end before a change, and where the plan is only shown nobody waits for them.
            Ok(plan) if self.change.consent.dry_run => {
                let held = self.held(&node, &plan);
                let is_less = self.leave_out(|left_out| left_out.add_held(&held));
                let plan = if is_less { self.plan(&node)? } else { plan };
                Ok((node, plan))
            }
            Ok(plan) => Ok((node, plan)),
            Err(refusal) if self.drain.allows(&refusal) => {
                self.drain.wait(|| self.observe(), |node| self.plan(node))
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    fn show(&self, node: &Node, plan: &Plan) -> Result<()> {
        (self.change.remark)(node, plan);
        if let Some(why) = &node.pods_unknown
            && plan.takes_devices()
        {
            note(&format!("Which pods hold shares is unknown: {why}."));
        }
        let consent = self.change.consent;
        let cannot_start = self.cannot_start.borrow();
        if let (true, Some(error)) = (consent.dry_run, cannot_start.as_ref()) {
            note(&error.to_string());
        }
        let is_wanted = consent.dry_run || !is_quiet();
        if is_wanted && !consent.json && !self.change.is_unattended {
            print(&render::plan::text(plan))?;
            if !consent.dry_run {
                // Those that are in the way are waited for, and named then.
                let mut held = self.held(node, plan);
                held.retain(|held| !held.is_in_the_way && (held.stay || !held.services.is_empty()));
                print(&consequences::held_text(&held, self.change.on_failure))?;
            }
        }
        Ok(())
    }

    /// Gets consent for the plan that was shown, or for the one it becomes, and takes the node's lock. Returns the lock, the
    /// node as it is under that lock, and the plan for it. Nobody is asked while the lock is held, which would block every
    /// other change, nor after a wait for clients about something that was known before it.
    fn agree_and_lock(&self, observed: Node, shown: Plan) -> Result<(Option<Lock>, Node, Plan)> {
        let (mut node, mut plan, mut agreed) = (observed, shown, None::<Plan>);
        loop {
            if let Err(refusal) = plan.permit(HINT)
                && !self.drain.allows(&refusal)
            {
                return Err(refusal.into());
            }
            self.suit_daemons(&plan)?;
            if let Some(changed) = self.while_held(&node, &plan)? {
                (node, plan) = changed;
                continue;
            }
            if let Some(consent) = self.missing(&plan, agreed.as_ref()) {
                let waits = consequences::waits_text(&plan, self.drain.remaining());
                let is_asked = (self.change.needs_consent)(&plan);
                let (allowed, held) = (self.change.allowed, self.held(&node, &plan));
                if is_asked && !confirm(&plan, allowed, &held, consent, &waits)? {
                    return Err(chosen(ExitStatus::Refused, "Nothing was changed."));
                }
                agreed = Some(plan.clone());
            }
            (node, plan) = self.drained(node, plan)?;
            // What came while clients were waited for was not agreed to.
            if self.missing(&plan, agreed.as_ref()).is_some() {
                continue;
            }
            let lock = self.lock(&plan)?;
            let observed = self.observe()?;
            let now = match self.plan(&observed) {
                Err(refusal) if self.drain.allows(&refusal) => continue,
                planned => planned?,
            };
            node = observed;
            match now.permit(HINT) {
                // A client came in between: there may be time left for it.
                Err(refusal) if self.drain.allows(&refusal) => {
                    plan = now;
                    continue;
                }
                permitted => permitted?,
            }
            if let Some(changed) = self.while_held(&node, &now)? {
                (node, plan) = changed;
                continue;
            }
            if now.does_the_same_as(&plan) {
                return Ok((lock, node, now));
            }
            self.tell_of_change(&node, &now)?;
            if now.is_empty() || self.missing(&now, agreed.as_ref()).is_none() {
                return Ok((lock, node, now));
            }
            plan = now;
        }
    }

    /// Shows the plan that another change of the node has led to, or holders of a GPU that is left out.
    fn tell_of_change(&self, node: &Node, now: &Plan) -> Result<()> {
        match self.change.left_out {
            // The outcome says what is left out.
            Some(_) if now.is_empty() => return Ok(()),
            Some(_) => note("The plan is now:"),
            None if now.is_empty() => {
                note("Nothing is left to do: the node has changed meanwhile.");
                return Ok(());
            }
            None => note("The node has changed meanwhile. The plan is now:"),
        }
        self.show(node, now)
    }

    /// Makes this process fit for starting the daemons of a plan, and those that a rollback starts again. Where a change
    /// goes on after a failure, the start of one daemon may fail alone.
    fn suit_daemons(&self, plan: &Plan) -> Result<()> {
        if plan.may_start_daemons(self.change.on_failure != OnFailure::GoOn) {
            take_limits_of_services()?;
        }
        Ok(())
    }

    /// Takes the node's lock. A user whose own server another user's daemon has started may end its clients, and cannot
    /// take that daemon's lock: nothing that the lock guards is changed.
    fn lock(&self, plan: &Plan) -> Result<Option<Lock>> {
        if plan.kill.as_ref().is_some_and(|kill| !kill.is_callers) {
            return Ok(None);
        }
        let (environment, directories) = (self.change.context.environment, self.change.directories);
        let lock_within = |limit| locked(environment, directories, limit);
        let lock = match lock_within(Duration::ZERO) {
            // The change that has the lock may have to reset a GPU, which this process must not hold.
            Err(error) if error.status == ExitStatus::Refused => {
                let limit = self.change.lock_limit;
                let waited = self.observer.borrow().aside(|| lock_within(limit));
                waited.unwrap_or_else(|_| lock_within(limit))
            }
            taken => taken,
        }?;
        // A self-test may have been killed since the plan was made.
        give_back_left(environment, directories, &self.observer.borrow())?;
        Ok(Some(lock))
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
    fn drained(&self, node: Node, plan: Plan) -> Result<(Node, Plan)> {
        if plan.permit(HINT).is_ok() {
            return Ok((node, plan));
        }
        let (node, plan) = self
            .drain
            .wait(|| self.observe(), |node| self.permitted_plan(node))?;
        self.show(&node, &plan)?;
        Ok((node, plan))
    }

    /// Finds who holds the GPUs whose MIG mode the plan switches, or whose instances it destroys.
    fn held(&self, node: &Node, plan: &Plan) -> Vec<Held> {
        let environment = self.change.context.environment;
        let (allowed, on_failure) = (self.change.allowed, self.change.on_failure);
        apply::held(environment, node, plan, allowed, on_failure)
    }

    /// Waits for those who hold GPUs. Returns the node and the plan for it if that has changed meanwhile, or if GPUs that
    /// are held are left out.
    fn while_held(&self, node: &Node, plan: &Plan) -> Result<Option<(Node, Plan)>> {
        let Err(refusal) = self.wait_for_holders(node, plan) else {
            return Ok(None);
        };
        self.leave_out(|left_out| left_out.add_held(&self.held(node, plan)));
        // They may be what another change has started meanwhile.
        let node = self.observe()?;
        let now = self.plan(&node)?;
        if !now.does_the_same_as(plan) {
            self.tell_of_change(&node, &now)?;
        } else if self.change.left_out.is_none() {
            return Err(refusal);
        }
        Ok(Some((node, now)))
    }

    /// Waits a moment for those who keep a GPU from changing its MIG mode, before anything is touched.
    fn wait_for_holders(&self, node: &Node, plan: &Plan) -> Result<()> {
        if !self.held(node, plan).iter().any(|held| held.is_in_the_way) {
            return Ok(());
        }
        let environment = self.change.context.environment;
        // Another change may wait for the same GPUs, and for this process.
        let waited = self.observer.borrow().aside(|| {
            let find = || self.held(node, plan);
            apply::wait_for_holders(environment, find, |held| note(&held.waits()))
        })?;
        waited.map_err(|obstacle| Refusal::from(obstacle).into())
    }

    /// Applies the plan, reads the node back, and does what follows the change.
    fn carry_out(&self, lock: Option<Lock>, node: Node, plan: Plan) -> Result<Outcome> {
        match self.make(node, plan) {
            Ok(outcome) => Ok(Outcome {
                lock,
                after: (self.change.after)(Ending::Done).err(),
                ..outcome
            }),
            Err(error) => {
                if let Err(second) = (self.change.after)(Ending::Failed) {
                    note(&format!("{second}"));
                }
                Err(error)
            }
        }
    }

    /// Applies the plan and reads the node back.
    fn make(&self, node: Node, plan: Plan) -> Result<Outcome> {
        let begun = Instant::now();
        let (mut node, mut plan) = (node, plan);
        let mut carried_out = plan.clone();
        let mut failed = self.cannot_start.take();
        if let Some(left_out) = self.change.left_out {
            left_out.borrow_mut().begin();
        }
        // Twice only where a driver lists profiles after MIG has been switched on.
        loop {
            let failed_now = self.apply(&node, &plan)?;
            if let Some(error) = &failed_now {
                self.leave_out(|left_out| left_out.add_failed(&error.missing()));
            }
            failed = match (failed, failed_now) {
                (Some(before), Some(now)) => Some(before.and(now)),
                (before, now) => before.or(now),
            };
            let (after, rest) = self.read_back().map_err(|error| {
                if carried_out.is_empty() {
                    error
                } else {
                    error.after_change()
                }
            })?;
            // Where it goes on, the rest tries again what failed.
            let goes_on = plan.gpus.iter().any(|gpu| gpu.to_be_continued);
            if rest.is_empty() || (failed.is_some() && !goes_on) {
                return Ok(Outcome {
                    lock: None,
                    is_unchanged: false,
                    plan: carried_out,
                    node: after,
                    failed,
                    restarted: self.restarted.take(),
                    after: None,
                    took: begun.elapsed(),
                });
            }
            if !goes_on {
                return Err(differs(&rest));
            }
            self.show(&after, &rest)?;
            rest.permit(HINT)
                .and_then(|()| rest.refuse_more_than(&carried_out))
                .context("MIG mode is on now, and the rest of the profile is refused")?;
            carried_out.go_on_with(&rest);
            (node, plan) = (after, rest);
        }
    }

    /// Returns the node after the change, and what is left to do if that is to be verified.
    fn read_back(&self) -> Result<(Node, Plan)> {
        let node = self.observe()?;
        let left_to_do = if self.change.verify {
            self.plan(&node)?
        } else {
            Plan::default()
        };
        Ok((node, left_to_do))
    }

    /// Applies the plan. Returns the failures of a change that nobody watches.
    fn apply(&self, node: &Node, plan: &Plan) -> Result<Option<ApplyError>> {
        if plan.is_empty() {
            return Ok(None);
        }
        self.suit_daemons(plan)?;
        let environment = self.change.context.environment;
        let programs = match environment.mps_programs() {
            // Instances are made and destroyed without MPS.
            Err(_) if !plan.is_of_daemons() => MpsPrograms::default(),
            programs => programs?,
        };
        let context = ApplyContext {
            environment,
            directories: self.change.directories,
            programs: &programs,
            node,
            allowed: self.change.allowed,
        };
        let form = self.change.consent.progress_form(self.change.is_unattended);
        let progress = progress(plan, form);
        let goes_on = self.change.left_out.is_some();
        match apply::run(plan, &context, progress.as_ref(), self.change.on_failure) {
            Ok(restarted) => {
                self.restarted.borrow_mut().extend(restarted);
                Ok(None)
            }
            Err(error) if self.change.is_unattended => Ok(Some(error)),
            Err(error) if goes_on && error.is_of_some_gpus() => Ok(Some(error)),
            Err(error) => Err(error.into()),
        }
    }
}
