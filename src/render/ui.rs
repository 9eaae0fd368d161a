//! The one place through which commands print and ask.

use std::io::{self, IsTerminal};

use anyhow::Result;
use console::Term;

use super::logs::LogView;
use super::output::{note, print, say};
use super::pager::page;
use super::progress::Bar;
use super::question::ask;
use super::status::{Status, StatusColumn};
use super::{
    check, consequences, json, list, logs_json, models, plan, plan_json, status, unmanaged,
};
use crate::apply::Allowed;
use crate::catalog::{Incomplete, Model};
use crate::logs::LogEntry;
use crate::mps::LogLine;
use crate::node::Node;
use crate::plan::check::{BlockOnModel, OnNode};
use crate::plan::{Plan, Refusal};
use crate::profile::Profile;

/// The way to get consent for a plan that disrupts something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Given beforehand with `--yes`.
    Given,
    /// Asked for on the terminal.
    Ask,
    /// Asked for again: the plan disrupts more than the one that the user agreed to.
    AskAgain,
}

/// Prints everything that a command shows.
#[derive(Debug)]
pub struct Ui {
    width: usize,
}

/// The width if output does not go to a terminal: a program or a log gets every column.
const UNLIMITED: usize = usize::MAX;

#[allow(
    clippy::unused_self,
    reason = "a command prints through its Ui, whether or not an output depends on its options"
)]
impl Ui {
    /// Returns the UI for the terminal, or for a pipe or file in its place.
    pub fn new() -> Self {
        let width = Term::stdout()
            .size_checked()
            .map_or(UNLIMITED, |(_, columns)| columns.into());
        Self { width }
    }

    /// Prints the GPUs and their MIG devices.
    pub fn list(&self, node: &Node, profiles: bool) -> Result<()> {
        print(&list::text(node, profiles, self.width))
    }

    /// Prints the GPUs and their MIG devices as JSON.
    pub fn list_json(&self, node: &Node) -> Result<()> {
        print(&json::pretty(&list::json(node))?)
    }

    /// Prints the status of these devices, or of all if none is named.
    pub fn status(&self, node: &Node, devices: &[String], columns: &[StatusColumn]) -> Result<()> {
        print(&status::text(node, devices, columns, self.width, None))
    }

    /// Prints the status as JSON.
    pub fn status_json(&self, node: &Node, devices: &[String]) -> Result<()> {
        print(&json::pretty(&Status::of(node, devices))?)
    }

    /// Prints the JSON schema of `status_json`.
    pub fn status_schema(&self) -> Result<()> {
        print(&json::pretty(&status::schema())?)
    }

    /// True if standard output is a terminal.
    pub fn is_for_a_person(&self) -> bool {
        self.width != UNLIMITED
    }

    /// Returns a view of log lines that fits the terminal.
    pub fn log_view(&self) -> LogView {
        LogView::new(self.is_for_a_person().then_some(self.width))
    }

    /// Prints lines of a daemon's logs.
    pub fn logs(&self, view: &mut LogView, entries: &[LogEntry]) -> Result<()> {
        print(&view.text(entries))
    }

    /// Explains the lines that were printed.
    pub fn explain_logs(&self, view: &mut LogView) {
        let explanation = view.explanation();
        if !explanation.is_empty() {
            say(&format!("\n{explanation}"));
        }
    }

    /// Prints lines of a daemon's logs as JSON, one object each.
    pub fn logs_json(&self, lines: &[LogLine]) -> Result<()> {
        print(&logs_json::of(lines)?)
    }

    /// Prints a plan.
    pub fn plan(&self, plan: &Plan) -> Result<()> {
        print(&plan::text(plan))
    }

    /// Names the unmanaged daemons on the devices for which a plan starts daemons.
    pub fn beside(&self, plan: &Plan) {
        let text = unmanaged::text(plan);
        if !text.is_empty() {
            say(text.trim_end());
        }
    }

    /// Prints the clients that a plan would disrupt, and its obstacles.
    pub fn consequences(&self, plan: &Plan) -> Result<()> {
        print(&consequences::text(plan))
    }

    /// Prints a plan as JSON.
    pub fn plan_json(&self, plan: &Plan) -> Result<()> {
        print(&json::pretty(&plan_json::of(plan))?)
    }

    /// Prints the outcome of a change as JSON: the plan, the status after it, and whether anything was changed.
    pub fn outcome_json(&self, node: &Node, plan: &Plan, changed: bool) -> Result<()> {
        let outcome = plan_json::Outcome {
            plan: plan_json::of(plan),
            status: serde_json::to_value(Status::of(node, &[]))?,
            changed,
        };
        print(&json::pretty(&outcome)?)
    }

    /// Prints the result of a profile on an imaginary node. If the profile does not fit, prints JSON alone: the error
    /// message says the rest.
    pub fn check_node(
        &self,
        profile: &Profile,
        judged: &Result<OnNode, Refusal>,
        as_json: bool,
    ) -> Result<()> {
        match judged {
            _ if as_json => print(&json::pretty(&check::node_json(profile, judged))?),
            Ok(on_node) => print(&check::node(profile, on_node, self.width)),
            Err(_) => Ok(()),
        }
    }

    /// Prints the result of a profile on each model that it can select.
    pub fn check_fleet(
        &self,
        profile: &Profile,
        judged: &[BlockOnModel],
        as_json: bool,
    ) -> Result<()> {
        if as_json {
            return print(&json::pretty(&check::fleet_json(profile, judged))?);
        }
        print(&check::fleet(profile, judged))
    }

    /// Prints the catalog.
    pub fn models(
        &self,
        catalog: &[Model],
        incomplete: &[Incomplete],
        as_json: bool,
    ) -> Result<()> {
        if as_json {
            return print(&json::pretty(&models::json(catalog, incomplete))?);
        }
        print(&models::text(catalog, incomplete, self.width))
    }

    /// Prints text.
    pub fn text(&self, text: &str) -> Result<()> {
        print(text)
    }

    /// Prints text, in a pager on a terminal.
    pub fn page(&self, text: &str) -> Result<()> {
        if page(text)? {
            return Ok(());
        }
        print(text)
    }

    /// Prints a message to standard error.
    pub fn note(&self, text: &str) {
        note(text);
    }

    /// Gets consent for a plan. A plan that disrupts nothing needs none.
    pub fn confirm(
        &self,
        plan: &Plan,
        allowed: Allowed,
        consent: Consent,
    ) -> Result<(), NoConsent> {
        let disrupts = consequences::disruptions(plan, allowed);
        if disrupts.is_empty() {
            return Ok(());
        }
        if consent == Consent::Given {
            return Ok(());
        }
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(match consent {
                Consent::AskAgain => NoConsent::Outgrown(disrupts),
                _ => NoConsent::NobodyToAsk(disrupts),
            });
        }
        note(&format!("This will {disrupts}."));
        // A whole line: "maybe" is no yes, and the cursor is never hidden.
        match ask("Go on? [y/N]").as_ref().map(Option::as_deref) {
            Ok(Some("y" | "Y" | "yes")) => Ok(()),
            Ok(_) => Err(NoConsent::Declined),
            Err(error) => Err(NoConsent::Failed(error.to_string())),
        }
    }

    /// Returns a progress bar for a plan. It shows only if standard error is a terminal.
    pub fn progress(&self, plan: &Plan) -> Bar {
        Bar::new(plan)
    }
}

impl Default for Ui {
    fn default() -> Self {
        Self::new()
    }
}

/// The user did not consent.
#[derive(Debug, thiserror::Error)]
pub enum NoConsent {
    /// The user said no.
    #[error("nothing was changed")]
    Declined,
    /// There is no terminal, and no `--yes`.
    #[error("this would {0}, and there is no terminal to ask on")]
    NobodyToAsk(String),
    /// There is no terminal, and the user agreed to a plan that disrupts less.
    #[error("the node has changed, and this would now {0}: nothing was changed")]
    Outgrown(String),
    /// The terminal did not work.
    #[error("cannot ask on the terminal: {0}")]
    Failed(String),
}
