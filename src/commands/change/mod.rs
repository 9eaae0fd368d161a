//! The one way in which commands change the node: observe, plan, show, get consent, wait for clients, lock, observe
//! and plan again, apply, read back.

mod agree;
mod carry_out;
mod closing;

use std::cell::OnceCell;
use std::time::Duration;

use super::args::{ConsentArgs, IN_USE_HINT_WITHOUT_WAIT};
use super::cdi_file::CdiRequest;
use super::change_report::Outcome;
use super::drain::{Drain, wait_for_clients};
use super::give_back::restore_interrupted;
use super::{LOCK_LIMIT, check_not_newer, pick_up_interrupted, warn_of_unknown_pods};
use closing::ClosingProgress;

use crate::apply::{self, Allowed, ApplyError, OnFailure};
use crate::error::{Result, command_error, usage_error};
use crate::host::{Directories, Environment, Unit, raise_memory};
use crate::node::{Detail, Node, Observer};
use crate::plan::{HeldGpus, LeftOut, Plan, Refusal};
use crate::render::json::ChangeDocument;
use crate::render::{self, can_ask, consequences, is_quiet, print, print_json, print_lines, warn};
use crate::state::RunDir;

/// The change that a command wants.
pub trait Change {
    /// Plans the change for a node, without the parts that are left out.
    fn plan(
        &mut self,
        node: &Node,
        run_dir: &RunDir,
        left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal>;

    /// Prints notes that belong to a plan which is shown.
    fn remark(&self, _node: &Node, _plan: &Plan) {}

    /// False if the plan does only what the command's own name asks for.
    fn needs_consent(&self, _plan: &Plan) -> bool {
        true
    }

    /// False if the change can be made while the driver does not answer.
    fn needs_driver(&self) -> bool {
        true
    }

    /// True to plan again after the change: a node that reads back as something else is an error.
    fn is_verified(&self) -> bool {
        false
    }

    /// What the change makes of the CDI file.
    fn cdi_request(&self) -> CdiRequest {
        CdiRequest::Ignore
    }
}

/// A change that only has a plan.
impl<F: FnMut(&Node, &RunDir) -> Result<Plan, Refusal>> Change for F {
    fn plan(
        &mut self,
        node: &Node,
        run_dir: &RunDir,
        _left_out: Option<&mut LeftOut>,
    ) -> Result<Plan, Refusal> {
        self(node, run_dir)
    }
}

/// The end of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeEnding {
    /// There was nothing to do, and no lock was taken.
    Unchanged,
    Done,
    Failed,
}

/// The way in which a command changes the node.
pub struct ChangeOptions<'a> {
    pub environment: &'a Environment,
    pub directories: &'a Directories,
    pub consent: &'a ConsentArgs,
    pub allowed: Allowed,
    pub on_failure: OnFailure,
    /// Admit no new programs while clients are waited for.
    pub no_new: bool,
    /// The parts that are left out; more are added with [`OnFailure::LeaveOut`].
    pub left_out: LeftOut,
    pub detail: Detail,
    /// True for `up` and `down`: another one of these resumes one that was killed.
    pub is_resumable: bool,
    /// The time to wait for another change.
    pub lock_limit: Duration,
    /// One for all snapshots: NVML is opened once, and a daemon that hangs is waited for once.
    pub observer: Observer<'a>,
    /// A snapshot that the command has taken before, for the first plan. It may have less detail than `detail`.
    pub first_node: Option<Node>,
}

impl<'a> ChangeOptions<'a> {
    /// A change that asks before it disrupts anything, and undoes what it did when a step fails.
    pub fn new(
        environment: &'a Environment,
        directories: &'a Directories,
        consent: &'a ConsentArgs,
    ) -> Self {
        Self {
            environment,
            directories,
            consent,
            allowed: Allowed::default(),
            on_failure: OnFailure::RollBack,
            no_new: false,
            left_out: LeftOut::default(),
            detail: Detail::CLIENTS,
            is_resumable: false,
            lock_limit: LOCK_LIMIT,
            observer: Observer::new(environment),
            first_node: None,
        }
    }

    /// Returns the parts that are left out, to add more; `None` if the change leaves nothing out.
    fn left_out(&mut self) -> Option<&mut LeftOut> {
        (self.on_failure == OnFailure::LeaveOut).then_some(&mut self.left_out)
    }

    /// Makes a change that only has a plan.
    pub fn run_plan(
        self,
        mut plan: impl FnMut(&Node, &RunDir) -> Result<Plan, Refusal>,
    ) -> Result<Option<Outcome>> {
        self.run(&mut plan)
    }

    /// Makes the change; `None` if its plan was only to be shown.
    pub fn run(mut self, change: &mut dyn Change) -> Result<Option<Outcome>> {
        raise_memory();
        let (environment, consent) = (self.environment, self.consent);
        if self.no_new && consent.drain == Some(0) && !consent.force {
            let error = usage_error("--no-new waits for programs, and --drain 0 leaves no time");
            return Err(error.with_hint("use a longer --drain, such as --drain 1h"));
        }
        if !change.needs_driver() {
            self.observer = self.observer.without_driver();
        }
        // With --force, the steps themselves wait for the time of --drain.
        let drain = if consent.force && !self.no_new {
            None
        } else {
            consent.drain
        };
        let mut run = ChangeRun {
            state: RunDir::at(&self.directories.run),
            change,
            drain: Drain::from_seconds(drain),
            closing: ClosingProgress::default(),
            agreed: None,
            cannot_start: None,
            restarted: Vec::new(),
            options: self,
        };
        run.resume_interrupted()?;
        let _planning = environment.interrupt.begin_planning();
        let first = run.first_plan()?;
        if first.plan.is_empty() {
            let updated = (!consent.dry_run).then(|| run.update_cdi_file(ChangeEnding::Unchanged));
            return Ok(Some(Outcome {
                is_unchanged: true,
                failed: run.cannot_start.take(),
                deferred_error: updated.and_then(Result::err),
                ..Outcome::new(first.plan, first.node)
            }));
        }
        run.show_plan(&first)?;
        if consent.dry_run {
            let held = run.held_gpus(&first);
            if consent.json {
                print_json(&ChangeDocument::from_plan(&first.plan, held))?;
            } else {
                let on_failure = run.options.on_failure;
                print(&consequences::render(&first.plan, held, on_failure))?;
                print_lines(&format!("\n{}", render::plan::summary(&first.plan)))?;
            }
            return Ok(None);
        }
        let agreed = run.agree_and_lock(first);
        let ended = agreed.and_then(|(lock, planned)| run.carry_out(lock, planned));
        if ended.is_err() {
            // What was refused or has failed is not done when the programs have left.
            run.reopen_closed();
        }
        ended.map(Some)
    }
}

/// A snapshot of the node, and the plan for it.
struct Planned {
    node: Node,
    plan: Plan,
    /// Those who held GPUs when it was first asked. To find them, the open files of every process are read.
    held: OnceCell<Vec<HeldGpus>>,
}

impl Planned {
    fn new(node: Node, plan: Plan) -> Self {
        Self {
            node,
            plan,
            held: OnceCell::new(),
        }
    }
}

/// Refuses `--no-new` where programs that start meanwhile were not seen to be refused.
fn check_refuses_newcomers(node: &Node) -> Result<()> {
    if node.control_program().refuses_newcomers {
        return Ok(());
    }
    let error = command_error(format_args!(
        "--no-new is not possible with driver {}: only the MPS of driver 580 was tested to refuse new programs while \
         running programs continue",
        node.driver
    ));
    Err(error.with_hint("omit --no-new; new programs are then admitted while --drain waits"))
}

struct ChangeRun<'a> {
    options: ChangeOptions<'a>,
    change: &'a mut dyn Change,
    state: RunDir,
    drain: Drain,
    closing: ClosingProgress,
    /// The last plan that was agreed to.
    agreed: Option<Plan>,
    /// The daemons that the last plan leaves as they are: they could not start again.
    cannot_start: Option<ApplyError>,
    /// The monitoring services that were stopped, and run again.
    restarted: Vec<Unit>,
}

impl ChangeRun<'_> {
    /// Resumes a self-test and a change that were killed. A snapshot from before is out of date then.
    fn resume_interrupted(&mut self) -> Result<()> {
        check_not_newer(&self.state)?;
        let (environment, directories) = (self.options.environment, self.options.directories);
        let is_dry_run = self.options.consent.dry_run;
        let mut is_resumed = restore_interrupted(environment, directories, is_dry_run)?;
        if !is_dry_run && self.state.owner() == Some(environment.caller) {
            is_resumed |= pick_up_interrupted(environment, directories, self.options.is_resumable)?;
        }
        if is_resumed {
            self.options.first_node = None;
        }
        Ok(())
    }

    /// Takes a snapshot with every detail that a plan needs.
    fn observe_node(&mut self) -> Result<Node> {
        Ok(self.options.observer.observe(self.options.detail)?)
    }

    /// Returns the snapshot that the command has taken before, or a new one if a plan shows more than that snapshot has. The plan
    /// is made again under the lock, with every detail, before it is applied.
    fn first_snapshot(&mut self) -> Result<Node> {
        let consent = self.options.consent;
        let is_shown = consent.dry_run || consent.json || !consent.is_unattended;
        match self.options.first_node.take() {
            Some(node) if !is_shown || node.detail == self.options.detail => Ok(node),
            _ => self.observe_node(),
        }
    }

    /// Plans the change for a node, without the parts that must be left out.
    fn make_plan(&mut self, node: &Node) -> Result<Plan, Refusal> {
        loop {
            let left_out = self.options.left_out();
            let mut plan = self.change.plan(node, &self.state, left_out)?;
            self.check_not_closed_by_another(node, &plan)?;
            if !self.change.is_verified() {
                plan = self.closing.without_done(plan);
            }
            if let Some(seconds) = self.force_after_seconds() {
                plan = plan.by_force(seconds);
            }
            // A question names the instances that others may have made.
            let is_asked = !self.options.consent.yes && can_ask();
            if !(self.options.allowed.destroy_unmanaged || is_asked) {
                plan = plan.sparing_unmanaged();
            }
            let leaves_more_out =
                self.leave_out(|left_out| left_out.add_refused(&plan, IN_USE_HINT_WITHOUT_WAIT));
            // The names of a GPU that is left out are not free for others: all is planned again.
            if !leaves_more_out && let Some(plan) = self.check_starts(plan, node)? {
                return Ok(plan);
            }
        }
    }

    /// The time that clients get before they are ended; `None` if they are not, or not yet.
    fn force_after_seconds(&self) -> Option<u32> {
        if self.options.no_new {
            self.closing.force_after_seconds()
        } else {
            self.options.consent.force_after_seconds()
        }
    }

    /// Checks what the starts of a plan need and its stops do not. Where the change goes on after a failure, the plan leaves
    /// those daemons as they are; `None` if more GPUs are left out.
    fn check_starts(&mut self, mut plan: Plan, node: &Node) -> Result<Option<Plan>, Refusal> {
        let environment = self.options.environment;
        self.cannot_start = None;
        let checked = apply::check_starts(&mut plan, environment, self.options.directories, node);
        let Err(error) = checked else {
            return Ok(Some(plan));
        };
        match self.options.on_failure {
            OnFailure::RollBack => Err(Refusal::CannotStart(error.into())),
            // Where nothing stops, the start of that daemon fails alone.
            OnFailure::LeaveOut => {
                let mut missing = error.missing_parts();
                missing.retain(|missing| plan.stops_on(missing.gpu));
                let is_more = self.leave_out(|left_out| left_out.add_failed(&missing));
                Ok((!is_more).then_some(plan))
            }
            OnFailure::GoOn => {
                let plan = plan.without_devices(&error.failed_devices());
                self.cannot_start = Some(error);
                Ok(Some(plan))
            }
        }
    }

    /// True if the change leaves out what cannot be applied.
    fn may_leave_out(&self) -> bool {
        self.options.on_failure == OnFailure::LeaveOut
    }

    /// Leaves more out; returns false if there is no more, or nothing may be left out.
    fn leave_out(&mut self, more: impl FnOnce(&mut LeftOut) -> bool) -> bool {
        self.options.left_out().is_some_and(more)
    }

    /// Observes and plans. If clients block planning itself, waits for them within `--drain`.
    fn first_plan(&mut self) -> Result<Planned> {
        let node = self.first_snapshot()?;
        if self.options.no_new {
            check_refuses_newcomers(&node)?;
        }
        match self.make_plan(&node) {
            Ok(plan) => {
                let mut first = Planned::new(node, plan);
                // Holders may end before a change, and where the plan is only shown nobody waits for them.
                if self.options.consent.dry_run {
                    let held = self.held_gpus(&first);
                    if self.leave_out(|left_out| left_out.add_held(held)) {
                        let plan = self.make_plan(&first.node)?;
                        first = Planned::new(first.node, plan);
                    }
                }
                Ok(first)
            }
            Err(refusal) if self.drain.can_wait_for(&refusal) => {
                self.wait_for_plan(Self::make_plan)
            }
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Observes and plans until the plan is not refused for clients in the way, or the time of `--drain` is over.
    fn wait_for_plan(
        &mut self,
        plan: fn(&mut Self, &Node) -> Result<Plan, Refusal>,
    ) -> Result<Planned> {
        let until = self.drain.begin();
        wait_for_clients(until, || {
            let node = self.observe_node()?;
            let planned = plan(self, &node);
            Ok(planned.map(|plan| Planned::new(node, plan)))
        })
    }

    fn shows_plans(&self) -> bool {
        let consent = self.options.consent;
        !consent.json && (consent.dry_run || !(is_quiet() || consent.is_unattended))
    }

    /// Shows a plan with the remarks on it, in the form that the command line asks for.
    fn show_plan(&self, shown: &Planned) -> Result<()> {
        self.change.remark(&shown.node, &shown.plan);
        warn_of_unknown_pods(&shown.node, &shown.plan);
        let consent = self.options.consent;
        if !consent.is_unattended {
            Self::remark_on_recorded_changes(shown);
        }
        if let (true, Some(error)) = (consent.dry_run, &self.cannot_start) {
            warn(&error.to_string());
        }
        if self.shows_plans() {
            print(&render::plan::render(&shown.plan))?;
            if !consent.dry_run {
                // Those that are in the way are waited for, and named then.
                let mut held = self.held_gpus(shown).to_vec();
                held.retain(|held| !held.is_in_the_way && (held.stay || !held.services.is_empty()));
                print(&consequences::render_held(&held, self.options.on_failure))?;
            }
        }
        Ok(())
    }

    /// Finds who holds the GPUs whose MIG mode the plan switches, or whose instances it destroys.
    fn find_held_gpus(&self, planned: &Planned) -> Vec<HeldGpus> {
        let (options, Planned { node, plan, .. }) = (&self.options, planned);
        let (allowed, on_failure) = (options.allowed, options.on_failure);
        apply::find_held_gpus(options.environment, node, plan, allowed, on_failure)
    }

    /// Returns those who held these GPUs when this was first asked of the plan.
    fn held_gpus<'p>(&self, planned: &'p Planned) -> &'p [HeldGpus] {
        planned.held.get_or_init(|| self.find_held_gpus(planned))
    }
}
