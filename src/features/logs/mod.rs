//! `mig-mps logs`
//!
//! Follows and merges the logs of daemons, without their control sessions.

mod follow;
mod report;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use clap::Args;

use crate::commands::Context;
use crate::commands::args::{DeviceArgs, LineCount, line_count};
use crate::error::{CommandError, ErrorContext as _, Result, command_error, usage_error};
use crate::failure::ExitStatus;
use crate::host::{Environment, FileResult};
use crate::mps::{LineKind, LogDir, LogFile, LogLine, LogTail, is_query};
use crate::node::{Detail, DeviceLogs, Logs, NoSuchDevice, Node, observe};
use crate::render::format::shorten_list;
use crate::render::{examples_and_statuses, note, print, print_styled_note, terminal_width, warn};

use follow::{FollowEvent, Follower, merge_by_time};
use report::{LogView, Omission};

pub use report::LogLineDocument;

/// Show and explain the logs of a device
///
/// Merges control.log and server.log by time, and marks and explains faults (!!) and refusals (!). Leaves out the queries
/// of control sessions and, on a terminal, harmless lines that read like errors. The daemon may have ended. Changes
/// nothing and does not take the lock.
#[derive(Args, Debug)]
#[command(after_help = examples_and_statuses(&[
    ("mig-mps logs 0.0", "Show the last lines of device 0.0"),
    ("mig-mps logs 0.0 --server -n all", "Show the whole server.log"),
    ("mig-mps logs --follow", "Follow the logs of all devices"),
], &[("130", "ended by Ctrl-C")]))]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct LogsArgs {
    #[command(flatten)]
    devices: DeviceArgs,
    /// Show new lines until you press Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// Show the last N lines, or all [default: 40 on a terminal]
    #[arg(long, short = 'n', value_name = "N", value_parser = line_count)]
    lines: Option<LineCount>,
    /// Show only server.log (MPS server and clients)
    #[arg(long, conflicts_with = "control")]
    server: bool,
    /// Show only control.log (control daemon)
    #[arg(long)]
    control: bool,
    /// Also show harmless lines and the queries of control sessions
    #[arg(long, alias = "sessions")]
    all: bool,
    /// Print one JSON object for each line
    #[arg(long)]
    json: bool,
}

/// The number of lines on a terminal.
const TERMINAL_LINES: usize = 40;

/// The number of lines that are written at once.
const LINES_PER_WRITE: usize = 4096;

/// Shows the logs of devices' daemons.
pub fn run(args: &LogsArgs, context: &Context<'_>) -> Result<ExitStatus> {
    let devices = find_logs(&args.devices, context.environment)?;
    let mut view = LogView::new(terminal_width());
    let [device] = devices.as_slice() else {
        if args.follow {
            let names: Vec<&str> = devices.iter().map(DeviceLogs::title).collect();
            let what = format!("--follow accepts one device, not {}", names.join(", "));
            let error = usage_error(what);
            return Err(error.with_hint("use --follow with one device in each terminal"));
        }
        for (nth, device) in devices.iter().enumerate() {
            if !args.json {
                let gap = if nth > 0 { "\n" } else { "" };
                print(&format!("{gap}==> {} <==\n", device.title()))?;
            }
            view.begin_device();
            show_logs(device, args, &mut view)?;
        }
        if let Some(count) = view.count_omissions() {
            print_styled_note(&format!("\n{count}"));
        }
        return Ok(ExitStatus::Done);
    };
    show_logs(device, args, &mut view)
}

/// Shows the logs of a device's daemon.
fn show_logs(device: &DeviceLogs, args: &LogsArgs, view: &mut LogView) -> Result<ExitStatus> {
    let title = device.title();
    let Some(path) = &device.path else {
        return Err(command_error(format_args!(
            "the log directory of {title} ({}) is unknown: its daemon is dead and belonged to another user",
            device.uuid
        ))
        .with_hint("run `mig-mps logs` as that user"));
    };
    let dir = open_log_directory(path, title)?;
    let logs = readable_logs(&dir, args)?;
    let lines = args
        .lines
        .unwrap_or_else(|| terminal_width().map(|_| TERMINAL_LINES));
    let mut output = LogOutput { args, title, view };
    // Lines of the files, of which not all are shown.
    let file_lines = output.lines_to_read(&dir, &logs, lines)?;
    if !args.follow {
        let tails = read_tails(&dir, &logs, file_lines, false)?;
        output.show_existing(tails, file_lines, lines, &dir)?;
        if device.is_dead {
            note(&format!(
                "the daemon of device {title} has died; a daemon that was ended by SIGKILL, or by the kernel for lack of \
                 memory, logs nothing about it"
            ));
        }
        return Ok(ExitStatus::Done);
    }
    let (tails, mut follower) = Follower::start(dir, &logs, file_lines)?;
    output.show_existing(tails, file_lines, lines, &open_log_directory(path, title)?)?;
    loop {
        match follower.wait(io::stdout())? {
            FollowEvent::Lines(new) => {
                let lines = output.take_last(new, None);
                output.print_lines(&lines)?;
            }
            FollowEvent::ReaderGone => return Ok(ExitStatus::Done),
            FollowEvent::DirectoryGone => {
                return Err(command_error(format_args!(
                    "{} was removed or moved away",
                    path.display()
                ))
                .with_hint("run this command again; a daemon that starts there has new logs"));
            }
        }
    }
}

fn open_log_directory(path: &Path, title: &str) -> Result<LogDir> {
    LogDir::open(path)
        .context(format!("cannot read the logs of {title}"))
        .map_err(|error| {
            error.with_hint(format!("run `mig-mps restart {title}` to create new logs"))
        })
}

/// Finds the logs that the command line means, each once.
fn find_logs(args: &DeviceArgs, environment: &Environment) -> Result<Vec<DeviceLogs>> {
    if args.is_empty() {
        let error = usage_error("no device is selected");
        return Err(
            error.with_hint("run `mig-mps logs DEVICE`, or `mig-mps logs --gpu N` for a whole GPU")
        );
    }
    let logs = Logs::find_all(environment);
    for hidden in &logs.hidden {
        note(hidden);
    }
    let mut all: Vec<DeviceLogs> = Vec::new();
    for word in &args.words {
        all.extend(find_by_word(word, &logs, environment)?);
    }
    for word in &args.gpus {
        let gpu = match word.parse() {
            Ok(index) => index,
            Err(_) => observe(environment, Detail::GEOMETRY)?.gpu_index(word)?,
        };
        all.extend(logs.on_gpu(gpu)?.into_iter().cloned());
    }
    let mut seen = BTreeSet::new();
    all.retain(|device| seen.insert(device.uuid.clone()));
    Ok(all)
}

/// Finds logs by the records and by the log directories. Only then asks the driver, which may not answer when something
/// is wrong.
fn find_by_word(word: &str, logs: &Logs, environment: &Environment) -> Result<Vec<DeviceLogs>> {
    let unknown = match logs.find_by_word(word) {
        Ok(found) => return Ok(found.into_iter().cloned().collect()),
        Err(unknown @ NoSuchDevice::Unknown { .. }) => {
            let mut unknown = CommandError::from(unknown);
            if let Some(hint) = logs.hint_for(word) {
                unknown.hints = vec![hint];
            }
            unknown
        }
        Err(ambiguous) => return Err(ambiguous.into()),
    };
    let node = match observe(environment, Detail::CLIENTS) {
        Ok(node) => node,
        Err(error) => {
            warn(&format!(
                "the driver does not report the devices: {error}. Only devices with a record or a log are known."
            ));
            return Err(unknown);
        }
    };
    let names = match node.resolve_words(&[word.to_owned()]) {
        Ok(names) => names,
        // The devices are those of `status`.
        Err(error @ NoSuchDevice::Unknown { .. }) => {
            let mut error = CommandError::from(error);
            error.hints.extend(deleted_devices_hint(logs, &node));
            return Err(error);
        }
        Err(_) => return Err(unknown),
    };
    let device = node
        .devices
        .iter()
        .find(|device| device.exists() && names.contains(&device.name));
    let Some(device) = device else {
        return Err(unknown);
    };
    if let Ok(found) = logs.find_by_word(&device.uuid) {
        let mut found: Vec<DeviceLogs> = found.into_iter().cloned().collect();
        for logs in &mut found {
            logs.name.get_or_insert_with(|| names[0].clone());
        }
        return Ok(found);
    }
    let elsewhere = node.command_as_owner(&names[0], "logs");
    Err(command_error(format_args!(
        "device {} ({}) has no logs: mig-mps has started no daemon for it",
        names[0], device.uuid
    ))
    .with_hint(
        elsewhere.unwrap_or_else(|| "run `mig-mps status` to see who else serves it".to_owned()),
    ))
}

/// Names the deleted devices whose logs are kept; `None` if there are none.
fn deleted_devices_hint(logs: &Logs, node: &Node) -> Option<String> {
    let deleted = logs.of_deleted_devices(node);
    let titles: Vec<&str> = deleted.into_iter().map(DeviceLogs::title).collect();
    (!titles.is_empty()).then(|| {
        format!(
            "run `mig-mps logs` with one of the deleted devices whose logs are kept: {}",
            shorten_list(&titles)
        )
    })
}

/// Returns the wanted logs that can be read, and names the others.
fn readable_logs(dir: &LogDir, args: &LogsArgs) -> Result<Vec<LogFile>> {
    let wanted: &[LogFile] = match (args.control, args.server) {
        (true, _) => &[LogFile::Control],
        (_, true) => &[LogFile::Server],
        (false, false) => &LogFile::ALL,
    };
    let mut readable = Vec::new();
    let mut errors = Vec::new();
    for &log in wanted {
        match dir.read_tail(log, Some(0), false) {
            Ok(_) => readable.push(log),
            Err(error) => errors.push(error),
        }
    }
    if readable.is_empty()
        && let Some(error) = errors.pop()
    {
        return Err(error).context("cannot read the logs");
    }
    for error in errors {
        note(&format!("not shown: {error}"));
    }
    Ok(readable)
}

fn read_tails(
    dir: &LogDir,
    logs: &[LogFile],
    lines: Option<usize>,
    followed: bool,
) -> FileResult<Vec<LogTail>> {
    logs.iter()
        .map(|log| dir.read_tail(*log, lines, followed))
        .collect()
}

/// Shows lines of logs in the wanted form.
struct LogOutput<'a> {
    args: &'a LogsArgs,
    /// The device's name, or its UUID.
    title: &'a str,
    view: &'a mut LogView,
}

impl LogOutput<'_> {
    /// Returns the reason why a line is not shown; `None` if it is.
    fn omission(&self, line: &LogLine) -> Option<Omission> {
        if self.args.all || self.args.json {
            None
        } else if is_query_or_answer(line) {
            Some(Omission::Session)
        } else {
            // What reads the output without a terminal, such as grep, gets these lines.
            let is_harmless = line.meaning().kind == LineKind::Benign;
            (is_harmless && self.view.is_on_terminal()).then_some(Omission::Harmless)
        }
    }

    /// Returns the last lines that are shown, and remembers which are left out among them.
    fn take_last(&mut self, all: Vec<LogLine>, most: Option<usize>) -> Vec<LogLine> {
        let mut shown = Vec::new();
        for line in all.into_iter().rev() {
            match self.omission(&line) {
                Some(omission) => self.view.add_omission(omission),
                None if most.is_some_and(|most| shown.len() >= most) => break,
                None => shown.push(line),
            }
        }
        shown.reverse();
        shown
    }

    /// Returns the number of lines of each log that make the wanted number on the screen.
    fn lines_to_read(
        &self,
        dir: &LogDir,
        logs: &[LogFile],
        lines: Option<usize>,
    ) -> Result<Option<usize>> {
        let Some(lines) = lines.filter(|lines| *lines > 0) else {
            return Ok(lines);
        };
        let mut file_lines = lines;
        loop {
            let tails = read_tails(dir, logs, Some(file_lines), self.args.follow)?;
            let is_all = tails.iter().all(|tail| has_all(tail, Some(file_lines)));
            let merged = merge_tails(tails, Some(file_lines));
            let shown = merged.iter().filter(|line| self.omission(line).is_none());
            if is_all || shown.count() >= lines {
                return Ok(Some(file_lines));
            }
            file_lines = file_lines.saturating_mul(8);
        }
    }

    /// Shows the lines that exist, and notes about them.
    fn show_existing(
        &mut self,
        tails: Vec<LogTail>,
        file_lines: Option<usize>,
        lines: Option<usize>,
        dir: &LogDir,
    ) -> Result<()> {
        for cut in tails.iter().filter_map(|tail| tail.cut.as_ref()) {
            note(&format!("older lines are left out: {cut}"));
        }
        let is_empty = tails
            .iter()
            .all(|tail| tail.lines.is_empty() && tail.cut.is_none());
        if is_empty && lines != Some(0) {
            let path = dir.path();
            let lack = if path.join(LogFile::Control.name()).exists() {
                "has no lines yet"
            } else {
                "has no control.log; run `mig-mps doctor` to check whether a running daemon has lost its logs \
                 [logs-gone]"
            };
            note(&format!("{} {lack}", path.display()));
        }
        let new = self.take_last(merge_tails(tails, file_lines), lines);
        self.print_lines(&new)
    }

    fn print_lines(&mut self, lines: &[LogLine]) -> Result<()> {
        for lines in lines.chunks(LINES_PER_WRITE) {
            if self.args.json {
                print(&LogLineDocument::render_lines(self.title, lines)?)?;
            } else {
                print(&self.view.render_lines(lines))?;
            }
        }
        let explanation = self.view.explain_new_lines();
        if !explanation.is_empty() {
            print_styled_note(&format!("\n{explanation}"));
        }
        Ok(())
    }
}

/// True for what control sessions write that change nothing: regular queries by `status` make up most of a control.log.
fn is_query_or_answer(line: &LogLine) -> bool {
    let command = line.text.trim().strip_prefix("Cmd:").map(str::trim);
    line.file == LogFile::Control
        && line.meaning().kind == LineKind::Chatter
        && command.is_none_or(is_query)
}

/// True if the log has no more lines than were asked for.
fn has_all(tail: &LogTail, asked: Option<usize>) -> bool {
    asked.is_none_or(|asked| tail.lines.len() < asked || tail.cut.is_some())
}

/// Merges the logs by time, from the moment since which all are known.
fn merge_tails(tails: Vec<LogTail>, asked: Option<usize>) -> Vec<LogLine> {
    let from = tails
        .iter()
        .filter(|tail| !has_all(tail, asked))
        .filter_map(|tail| tail.lines.first()?.at)
        .max();
    let mut lines = tails
        .into_iter()
        .map(|tail| tail.lines)
        .reduce(merge_by_time)
        .unwrap_or_default();
    // Sorted by time only up to here: the clock may be set back later on.
    let skipped = lines.iter().position(|line| line.at >= from).unwrap_or(0);
    lines.split_off(skipped)
}
