//! `mig-mps status`

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use clap::Args;

use super::Context;
use super::args::{DeviceArgs, duration};
use super::give_back::report_selftest;
use crate::error::{ErrorContext as _, Result, command_error, usage_error};
use crate::failure::{ExitStatus, Failure as _, Problem};
use crate::host::{Environment, to_printable};
use crate::node::{Applied, Detail, Node, Observer};
use crate::plan;
use crate::render::status::{self, Filter, Form, Status, StatusColumn, View, may_show_utilization};
use crate::render::{Screen, examples_and_statuses, print_json};
use crate::state::{ProfileHistory, RunDir};

/// Show devices, their MPS servers and clients, and problems
///
/// Also shows programs that run outside MPS, with the likely cause, and MPS daemons that mig-mps did not start.
/// Reports each problem with its remedy. Changes nothing and does not take the lock.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps status --watch", "Refresh until you press q"),
    ("mig-mps status --by-user", "Show who uses the devices"),
    ("mig-mps status --problems --exit-code", "Check the node in a script"),
], &[("3", "there is a problem (with --exit-code)")]))]
pub struct StatusArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Refresh every SECONDS, and mark changes [default: 2]
    #[arg(
        long,
        help_heading = "View",
        value_name = "SECONDS",
        num_args = 0..=1,
        default_missing_value = "2",
        require_equals = true,
        value_parser = interval,
        conflicts_with_all = ["json", "exit_code"],
    )]
    watch: Option<Duration>,
    /// Show these columns, separated by commas
    #[arg(
        long,
        help_heading = "View",
        value_delimiter = ',',
        value_name = "COLUMNS",
        conflicts_with = "json"
    )]
    columns: Vec<StatusColumn>,
    #[command(flatten)]
    form: FormArgs,
    #[command(flatten)]
    rows: RowArgs,
    /// Exit with status 3 if there is a problem
    #[arg(long)]
    exit_code: bool,
}

/// The form in which devices are shown; a table without one.
#[derive(Args, Debug)]
struct FormArgs {
    /// Draw the slices of each GPU, with the devices on them
    #[arg(long, help_heading = "View", conflicts_with_all = ["json", "columns"])]
    map: bool,
    /// Show a row for each user
    #[arg(
        long,
        help_heading = "View",
        aliases = ["users", "by-users", "clients"],
        conflicts_with_all = ["json", "columns", "map"]
    )]
    by_user: bool,
}

/// The devices that get a row.
#[derive(Args, Debug)]
struct RowArgs {
    /// Show equal idle devices in separate rows
    #[arg(long, help_heading = "Filter")]
    all: bool,
    /// Show only devices with a problem
    #[arg(long, help_heading = "Filter", conflicts_with = "busy")]
    problems: bool,
    /// Show only devices that a program uses or waits for
    #[arg(long, help_heading = "Filter")]
    busy: bool,
}

impl StatusArgs {
    /// Returns what is shown of these devices, or of all if none is named.
    fn view<'a>(&'a self, devices: &'a [String]) -> View<'a> {
        let filter = match (self.rows.problems, self.rows.busy) {
            (true, _) => Some(Filter::Problems),
            (_, true) => Some(Filter::InUse),
            _ => None,
        };
        View {
            devices,
            filter,
            form: match (self.form.map, self.form.by_user) {
                (true, _) => Form::Map,
                (_, true) => Form::Users,
                _ => Form::Table(&self.columns),
            },
            // Who names devices or filters them, and a program, looks for each.
            is_folded: !self.rows.all
                && filter.is_none()
                && devices.is_empty()
                && self.columns.is_empty()
                && std::io::stdout().is_terminal(),
        }
    }

    fn detail(&self) -> Detail {
        Detail {
            // A map draws the free slices, too.
            offers: self.form.map,
            utilization: self.json || !self.form.map && may_show_utilization(&self.columns),
            ..Detail::STATUS
        }
    }
}

/// Shows MPS servers and their clients.
pub fn run(args: &StatusArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let environment = context.environment;
    if let Some(every) = args.watch {
        return watch_status(args, environment, every);
    }
    let node = observe_with_profile(args, &mut Observer::new(environment), environment)?;
    let devices = args.devices.resolve_names(&node)?;
    if args.json {
        print_json(&Status::from_node(&node, args.view(&devices)))?;
    } else {
        status::print(&node, args.view(&devices))?;
        report_selftest(environment);
    }
    if args.exit_code && !node.problems(&devices).is_empty() {
        return Ok(ExitStatus::Drift);
    }
    Ok(ExitStatus::Done)
}

/// Takes a snapshot of the node, with the profile that was applied.
fn observe_with_profile(
    args: &StatusArgs,
    observer: &mut Observer<'_>,
    environment: &Environment,
) -> Result<Node> {
    let mut node = observer.observe(args.detail())?;
    // Columns that were asked for may be read by a program.
    if args.columns.is_empty() {
        node.applied = applied_profile(environment, &node);
    }
    Ok(node)
}

/// Reads which profile was applied, and judges whether the node differs from it.
pub(super) fn applied_profile(environment: &Environment, node: &Node) -> Applied {
    let history = match ProfileHistory::load_for_caller(environment) {
        Ok(history) => history,
        Err(error) => {
            return Applied::Unreadable(Problem {
                hint: ProfileHistory::hint_for(&error).or_else(|| error.hint()),
                ..Problem::without_hint(to_printable(&error.to_string()))
            });
        }
    };
    let Some(profile) = history.last_applied() else {
        return Applied::Nothing;
    };
    let at_boot = ProfileHistory::boot_profile(Some(&history), environment);
    Applied::Known {
        profile: Box::new(profile.clone()),
        taken_down: history.taken_down().cloned(),
        differs: has_drifted(environment, node, &history),
        is_of_earlier_boot: profile
            .boot_id
            .as_ref()
            .is_some_and(|boot_id| *boot_id != node.boot_id),
        is_default: !matches!(at_boot, Ok(Some(text)) if text != profile.text),
    }
}

/// Plans the applied profile on this snapshot; `None` where the caller could not apply it.
fn has_drifted(environment: &Environment, node: &Node, history: &ProfileHistory) -> Option<bool> {
    let run_dir = RunDir::at(&environment.directories().ok()?.run);
    let is_callers = run_dir
        .owner()
        .is_none_or(|owner| owner == environment.caller);
    if !is_callers || !history.belongs_to_caller(environment) || !history.is_in_force() {
        return None;
    }
    let profile = history.last_applied()?.parse_profile().ok()?;
    plan::differs_from_profile(node, &profile, &run_dir, environment.caller)
}

/// Shows the status again and again until the user quits.
fn watch_status(
    args: &StatusArgs,
    environment: &Environment,
    every: Duration,
) -> Result<ExitStatus> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let error = command_error("status --watch needs a terminal");
        return Err(error.with_hint("use `mig-mps status --json` in programs"));
    }
    let mut observer = Observer::new(environment);
    // What is wrong from the start is said where it stays to be read.
    let first = observe_with_profile(args, &mut observer, environment)?;
    if let Err(unknown) = args.devices.resolve_names(&first) {
        // A device may be called 5: only a mistake tells that none was meant.
        let seconds = args
            .devices
            .words
            .iter()
            .rfind(|word| interval(word).is_ok());
        return match seconds {
            Some(seconds) => {
                Err(unknown).context(format!("put an = before the seconds: --watch={seconds}"))
            }
            None => Err(unknown.into()),
        };
    }
    check_watch_argument(&args.devices.words)?;
    let mut screen = Screen::enter().context("cannot draw on the terminal")?;
    let mut seen: Result<Node, String> = Ok(first);
    loop {
        let head = header_line(every);
        match &seen {
            Ok(node) => match args.devices.resolve_names(node) {
                Ok(devices) => screen.show_status(&head, node, args.view(&devices))?,
                Err(gone) => screen.show_problem(&head, &gone.to_string())?,
            },
            Err(trouble) => screen.show_problem(&head, trouble)?,
        }
        // Not with NVML open: that would keep every GPU from being reset.
        let quit = observer.with_nvml_closed(|| screen.wait_for_key(Instant::now() + every))??;
        if let Some(status) = quit {
            return Ok(status);
        }
        // The driver may be loaded again, and then the node can be read again.
        seen = observe_with_profile(args, &mut observer, environment)
            .map_err(|error| error.to_string());
    }
}

/// Refuses `--watch 1` on a node with a device 1.
fn check_watch_argument(devices: &[String]) -> Result<()> {
    let words: Vec<String> = std::env::args_os()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let Some([_, word]) = words.windows(2).find(|pair| {
        pair[0] == "--watch" && interval(&pair[1]).is_ok() && devices.contains(&pair[1])
    }) else {
        return Ok(());
    };
    let what = format!("--watch {word} is ambiguous: every {word} s, or device {word}");
    let error = usage_error(what);
    Err(error.with_hint(format!(
        "run `mig-mps status --watch={word}`, or `mig-mps status {word} --watch`"
    )))
}

fn header_line(every: Duration) -> String {
    let now = jiff::Zoned::now().strftime("%H:%M:%S");
    format!(
        "mig-mps status  {now}  every {} s  q quits",
        every.as_secs_f64()
    )
}

/// Parses an interval such as `2`, `0.5` or `1m`; at least a tenth of a second.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration(text)?;
    if !(Duration::from_millis(100)..=Duration::from_secs(86400)).contains(&interval) {
        return Err("it must be between 0.1 and 86400 seconds".to_owned());
    }
    Ok(interval)
}
