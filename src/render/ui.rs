use std::io::{self, IsTerminal, Write};

use anyhow::{Result, bail};
use console::{Term, style};

use super::logs::LogView;
use super::pager::page;
use super::progress::Bar;
use super::question::ask;
use super::status::{StatusColumn, StatusView};
use super::words::harmless_lines;
use super::{beside, check, json, kill, list, logs_json, models, plan, plan_json, status};
use crate::apply::Allowed;
use crate::catalog::{Incomplete, Model};
use crate::logs::Entry;
use crate::mps::LogLine;
use crate::node::Node;
use crate::plan::check::{BlockOnModel, OnNode};
use crate::plan::{Kill, Plan, Refusal};
use crate::profile::Profile;

/// How the user agrees to a plan that disturbs something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    /// Given beforehand with `--yes`.
    Given,
    /// Asked for on the terminal.
    Ask,
    /// The same, for a plan that disturbs more than the one that was agreed to.
    AskAgain,
}

/// Everything that is written for the user goes through here.
#[derive(Debug)]
pub struct Ui {
    width: usize,
}

/// The width where output does not go to a terminal: nothing is left out for a program or a log.
const UNLIMITED: usize = usize::MAX;

impl Ui {
    /// The user's terminal, or whatever stands for it.
    pub fn new() -> Self {
        let width = Term::stdout()
            .size_checked()
            .map_or(UNLIMITED, |(_, columns)| columns.into());
        Self { width }
    }

    /// Shows the GPUs and their MIG devices.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn list(&self, node: &Node, profiles: bool) -> Result<()> {
        print(&list::text(node, profiles, self.width))
    }

    /// The same for a program.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn list_json(&self, node: &Node) -> Result<()> {
        print(&json::pretty(&list::json(node))?)
    }

    /// Shows the servers and clients of these devices; of all where none is named.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn status(&self, node: &Node, devices: &[String], columns: &[StatusColumn]) -> Result<()> {
        let view = StatusView::new(self.width, columns);
        print(&status::text(node, devices, &view, None))
    }

    /// The same for a program.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn status_json(&self, node: &Node, devices: &[String]) -> Result<()> {
        print(&json::pretty(&status::json(node, devices))?)
    }

    /// What `status_json` prints, as a JSON schema.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn status_schema(&self) -> Result<()> {
        print(&json::pretty(&status::schema())?)
    }

    /// Whether a person sits before a terminal.
    pub fn is_for_a_person(&self) -> bool {
        self.width != UNLIMITED
    }

    /// How the lines of logs are shown here.
    pub fn log_view(&self) -> LogView {
        LogView::new(self.is_for_a_person().then_some(self.width))
    }

    /// Shows lines of a daemon's logs.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn logs(&self, view: &mut LogView, entries: &[Entry]) -> Result<()> {
        print(&view.text(entries))
    }

    /// Says what is to be known about the lines that were shown.
    pub fn explain_logs(&self, view: &mut LogView) {
        let explanation = view.explanation();
        if !explanation.is_empty() {
            say(&format!("\n{explanation}"));
        }
    }

    /// Lines of a daemon's logs for a program, an object each.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn logs_json(&self, lines: &[LogLine]) -> Result<()> {
        print(&logs_json::of(lines)?)
    }

    /// Shows what will happen.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn plan(&self, plan: &Plan) -> Result<()> {
        print(&plan::text(plan))
    }

    /// Says which foreign daemons serve what a plan starts daemons for.
    pub fn beside(&self, plan: &Plan) {
        let text = beside::text(plan);
        if !text.is_empty() {
            say(text.trim_end());
        }
    }

    /// Shows whom a plan would disturb, and what is in its way.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn consequences(&self, plan: &Plan) -> Result<()> {
        print(&plan::consequences(plan))
    }

    /// Shows whose work is about to be ended, and with which signal their processes.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn kill(&self, of: &Kill, signal: Option<&str>) -> Result<()> {
        print(&kill::text(of, signal))
    }

    /// A plan for a program.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn plan_json(&self, plan: &Plan) -> Result<()> {
        print(&json::pretty(&plan_json::of(plan))?)
    }

    /// The outcome of a change as JSON: the plan, what is there now, and last whether anything was changed.
    ///
    /// # Errors
    /// When standard output cannot be written.
    pub fn outcome_json(&self, node: &Node, plan: &Plan, changed: bool) -> Result<()> {
        let outcome = plan_json::Outcome {
            plan: plan_json::of(plan),
            status: serde_json::to_value(status::json(node, &[]))?,
            changed,
        };
        print(&json::pretty(&outcome)?)
    }

    /// Shows what a profile makes of a node that is not there; of one it does not fit, only for
    /// programs: a person gets the error.
    ///
    /// # Errors
    /// When standard output cannot be written.
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

    /// Shows what becomes of each model that a profile can meet.
    ///
    /// # Errors
    /// When standard output cannot be written.
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

    /// Shows the catalog.
    ///
    /// # Errors
    /// When standard output cannot be written.
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

    /// Prints text that was made elsewhere.
    ///
    /// # Errors
    /// When standard output cannot be written.
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

    /// Says something that is no result: on standard error.
    pub fn note(&self, text: &str) {
        note(text);
    }

    /// Has the user agree to a plan; one that disturbs nothing needs no agreement.
    ///
    /// # Errors
    /// When the user does not agree, or there is nobody to ask.
    pub fn confirm(
        &self,
        plan: &Plan,
        allowed: Allowed,
        consent: Consent,
    ) -> Result<(), NoConsent> {
        let disturbs = plan::disturbances(plan, allowed);
        if disturbs.is_empty() {
            return Ok(());
        }
        self.agree(&disturbs, consent)
    }

    /// Has the user agree to something that is said in words.
    ///
    /// # Errors
    /// When the user does not agree, or there is nobody to ask.
    pub fn agree(&self, disturbs: &str, consent: Consent) -> Result<(), NoConsent> {
        if consent == Consent::Given {
            return Ok(());
        }
        let disturbs = disturbs.to_owned();
        if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return Err(match consent {
                Consent::AskAgain => NoConsent::Outgrown(disturbs),
                _ => NoConsent::NobodyToAsk(disturbs),
            });
        }
        note(&format!("This will {disturbs}."));
        // A line and not a key: "maybe" is no yes, and the cursor is never hidden.
        match ask("Go on? [y/N]").as_ref().map(Option::as_deref) {
            Ok(Some("y" | "Y" | "yes")) => Ok(()),
            Ok(_) => Err(NoConsent::Declined),
            Err(error) => Err(NoConsent::Failed(error.to_string())),
        }
    }

    /// A progress bar for a plan, on standard error, if that is a terminal.
    pub fn progress(&self, plan: &Plan) -> Bar {
        Bar::new(plan)
    }
}

impl Default for Ui {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a plan is not carried out though it could be.
#[derive(Debug, thiserror::Error)]
pub enum NoConsent {
    /// The user said no.
    #[error("nothing was changed")]
    Declined,
    /// There is no terminal, and no `--yes`.
    #[error("this would {0}, and there is no terminal to ask on")]
    NobodyToAsk(String),
    /// There is no terminal, and what was agreed to was less.
    #[error("it would now {0}, which the plan shown before did not: nothing was changed")]
    Outgrown(String),
    /// The terminal did not work.
    #[error("cannot ask on the terminal: {0}")]
    Failed(String),
}

/// Says something that is no result, from outside the story of a command.
pub fn note(text: &str) {
    say(&harmless_lines(text));
}

/// Shows an error and what to do about it. Both may quote what users wrote: a log, an answer, a path.
pub fn error(text: &str, hints: &[String]) {
    let head = style("error").red().bold().for_stderr();
    say(&format!("{head}: {}", harmless_lines(text)));
    for hint in hints {
        let head = style("hint").cyan().bold().for_stderr();
        say(&format!("{head}: {}", harmless_lines(hint)));
    }
}

fn say(text: &str) {
    // Nobody can be told that standard error is closed.
    let _ = writeln!(io::stderr(), "{text}");
}

fn print(text: &str) -> Result<()> {
    match io::stdout()
        .write_all(text.as_bytes())
        .and_then(|()| io::stdout().flush())
    {
        Ok(()) => Ok(()),
        // Whoever read the output has seen enough. A change that was asked for goes on.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => bail!("cannot write to standard output: {error}"),
    }
}
