//! `mig-mps logs`

use std::io;

use clap::Args;

use super::lines::Lines;
use crate::error::{CommandError, Context as _, ExitStatus, Result};
use crate::host::Environment;
use crate::mps::{Entry, Folder, LogDir, LogFile, LogLine, Past, Woken, merge};
use crate::node::{Detail, DeviceLogs, Logs, NoSuchDevice, observe};
use crate::render::{LogView, Ui};

/// The flags of `logs`.
#[derive(Args, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub struct LogsArgs {
    /// The device: its name, its UUID, or the unique beginning of that; also of one whose daemon has ended
    device: String,
    /// Go on showing what is added, until Ctrl-C (exit status 130)
    #[arg(long, short)]
    follow: bool,
    /// How many lines to begin with, the last ones; all of them with "all" [default: 40 on a terminal, else all]
    #[arg(long, short = 'n', value_name = "N")]
    lines: Option<Lines>,
    /// Only server.log: what the MPS server and its clients write
    #[arg(long, conflicts_with = "control")]
    server: bool,
    /// Only control.log: what the control daemon writes
    #[arg(long)]
    control: bool,
    /// Show control sessions line by line, with every answer
    #[arg(long)]
    sessions: bool,
    /// Print JSON, an object a line
    ///
    /// It has time, file, tag, pid, text, kind (session, benign, ordinary, refusal, fault, unknown) and meaning; what
    /// a line does not have is null.
    #[arg(long)]
    json: bool,
}

/// How many lines a person is shown.
const ENOUGH: usize = 40;

/// How much is written at once.
const CHUNK: usize = 4096;

/// Shows the logs of a device's daemon.
///
/// # Errors
/// Where there is no such device, or its logs cannot be read.
pub fn run(args: &LogsArgs, environment: &Environment, ui: &Ui) -> Result<ExitStatus> {
    let device = find(&args.device, environment, ui)?;
    let title = device.title();
    let Some(path) = &device.path else {
        return Err(CommandError::failed(format_args!(
            "where the logs of {title} ({}) lie is not known: its daemon is dead, and was another user's; that \
             user's mig-mps logs finds them",
            device.uuid
        )));
    };
    let open = || LogDir::open(path).context(format!("cannot read the logs of {title}"));
    let dir = open()?;
    let logs = readable(&dir, args, ui)?;
    let lines = match args.lines {
        Some(Lines::Last(number)) => Some(number),
        Some(Lines::All) => None,
        None => ui.is_for_a_person().then_some(ENOUGH),
    };
    let mut output = Output {
        args,
        ui,
        view: ui.log_view(),
        folder: Folder::default(),
    };
    // Lines of the files: what is shown of them is fewer where sessions are put together.
    let raw = output.enough(&dir, &logs, lines)?;
    if !args.follow {
        let pasts = read(&dir, &logs, raw, false)?;
        output.begin(pasts, raw, lines, &dir)?;
        return Ok(ExitStatus::Done);
    }
    let (pasts, mut follower) = dir.follow(&logs, raw)?;
    output.begin(pasts, raw, lines, &open()?)?;
    loop {
        match follower.wait(io::stdout())? {
            Woken::Lines(new) => output.show(new)?,
            Woken::ReaderGone => return Ok(ExitStatus::Done),
            Woken::DirectoryGone => {
                return Err(CommandError::failed(format_args!(
                    "{} was removed or moved away: a daemon that is started there again has new logs",
                    path.display()
                )));
            }
        }
    }
}

/// Finds a device's logs by what is recorded and by what lies there; only then the driver is asked, who may not
/// answer where something is wrong.
fn find(word: &str, environment: &Environment, ui: &Ui) -> Result<DeviceLogs> {
    let logs = Logs::read(environment);
    for hidden in &logs.hidden {
        ui.note(hidden);
    }
    let unknown = match logs.of(word) {
        Ok(found) => return Ok(found.clone()),
        Err(unknown @ NoSuchDevice::Unknown { .. }) => unknown,
        Err(ambiguous) => return Err(ambiguous.into()),
    };
    let node = match observe(environment, Detail::Clients) {
        Ok(node) => node,
        Err(error) => {
            ui.note(&format!(
                "The driver does not say what devices there are: {error}. Without it only devices with a record or a \
                 log are known."
            ));
            return Err(unknown.into());
        }
    };
    let Ok(names) = node.resolve(&[word.to_owned()]) else {
        return Err(unknown.into());
    };
    let device = node
        .devices()
        .find(|device| names.contains(&node.name_of(device)));
    let Some(device) = device else {
        return Err(unknown.into());
    };
    if let Ok(found) = logs.of(&device.uuid) {
        return Ok(found.clone());
    }
    let elsewhere = node.managed_by(&names[0], "logs");
    Err(CommandError::failed(format_args!(
        "{} ({}) has no logs: mig-mps has started no daemon for it; {}",
        names[0],
        device.uuid,
        elsewhere.unwrap_or_else(|| "status shows who else serves it".to_owned())
    )))
}

/// The logs that are wanted and can be read; what cannot is said to be so.
fn readable(dir: &LogDir, args: &LogsArgs, ui: &Ui) -> Result<Vec<LogFile>> {
    let wanted: &[LogFile] = match (args.control, args.server) {
        (true, _) => &[LogFile::Control],
        (_, true) => &[LogFile::Server],
        (false, false) => &LogFile::ALL,
    };
    let mut readable = Vec::new();
    let mut errors = Vec::new();
    for &log in wanted {
        match dir.last(log, Some(0), false) {
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
        ui.note(&format!("not shown: {error}"));
    }
    Ok(readable)
}

fn read(
    dir: &LogDir,
    logs: &[LogFile],
    lines: Option<usize>,
    followed: bool,
) -> io::Result<Vec<Past>> {
    let read = |&log: &LogFile| dir.last(log, lines, followed);
    logs.iter().map(read).collect()
}

/// Where lines go.
struct Output<'a> {
    args: &'a LogsArgs,
    ui: &'a Ui,
    view: LogView,
    folder: Folder,
}

impl Output<'_> {
    fn folds(&self) -> bool {
        !self.args.sessions && !self.args.json
    }

    /// How many lines of each log make so many on the screen.
    fn enough(
        &self,
        dir: &LogDir,
        logs: &[LogFile],
        lines: Option<usize>,
    ) -> Result<Option<usize>> {
        let Some(lines) = lines.filter(|lines| self.folds() && *lines > 0) else {
            return Ok(lines);
        };
        let mut raw = lines;
        loop {
            let pasts = read(dir, logs, Some(raw), self.args.follow)?;
            let is_all = pasts.iter().all(|past| is_whole(past, Some(raw)));
            let entries = self.folder.clone().take(joined(pasts, Some(raw)));
            // One more than wanted: the first may have more sessions than were read.
            if is_all || entries.len() > lines {
                return Ok(Some(raw));
            }
            raw = raw.saturating_mul(8);
        }
    }

    /// Shows what has been written, and says what is to be known about it.
    fn begin(
        &mut self,
        pasts: Vec<Past>,
        raw: Option<usize>,
        lines: Option<usize>,
        dir: &LogDir,
    ) -> Result<()> {
        for cut in pasts.iter().filter_map(|past| past.cut.as_ref()) {
            self.ui.note(&format!("older lines are left out: {cut}"));
        }
        let is_empty = |past: &Past| past.lines.is_empty() && past.cut.is_none();
        let is_empty = pasts.iter().all(is_empty);
        if is_empty && lines != Some(0) {
            self.ui
                .note(&format!("{} has no lines yet.", dir.path().display()));
        }
        let mut new = joined(pasts, raw);
        if self.args.json {
            let skipped = skipped(new.len(), lines);
            return self.show(new.split_off(skipped));
        }
        let mut entries = self.entries(new);
        if !self.args.follow {
            entries.extend(self.folder.rest());
        }
        self.print(&entries[skipped(entries.len(), lines)..])
    }

    /// Shows lines that are new.
    fn show(&mut self, lines: Vec<LogLine>) -> Result<()> {
        if self.args.json {
            let mut chunks = lines.chunks(CHUNK);
            return Ok(chunks.try_for_each(|lines| self.ui.logs_json(lines))?);
        }
        let entries = self.entries(lines);
        self.print(&entries)
    }

    fn entries(&mut self, lines: Vec<LogLine>) -> Vec<Entry> {
        if !self.folds() {
            return lines.into_iter().map(Entry::Line).collect();
        }
        let mut entries = self.folder.take(lines);
        entries.extend(self.folder.rest_if_closed());
        entries
    }

    fn print(&mut self, entries: &[Entry]) -> Result<()> {
        for entries in entries.chunks(CHUNK) {
            self.ui.logs(&mut self.view, entries)?;
        }
        self.ui.explain_logs(&mut self.view);
        Ok(())
    }
}

/// How many come before the last so many.
fn skipped(all: usize, lines: Option<usize>) -> usize {
    lines.map_or(0, |lines| all.saturating_sub(lines))
}

/// Whether so many lines asked for were more than there are.
fn is_whole(past: &Past, asked: Option<usize>) -> bool {
    asked.is_none_or(|asked| past.lines.len() < asked || past.cut.is_some())
}

/// The lines of the logs by time, from where on all of them are known.
fn joined(pasts: Vec<Past>, asked: Option<usize>) -> Vec<LogLine> {
    let begins = pasts.iter().filter(|past| !is_whole(past, asked));
    let from = begins
        .filter_map(|past| past.lines.first().and_then(|line| line.at))
        .max();
    let all = pasts.into_iter().map(|past| past.lines);
    let mut lines = all.reduce(merge).unwrap_or_default();
    // Which of the two is oldest is told by the time; a clock may be set back later on.
    let skipped = lines.iter().position(|line| line.at >= from).unwrap_or(0);
    lines.split_off(skipped)
}
