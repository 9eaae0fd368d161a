//! The two streams that the program prints to, its pager, and the trace of a command.
//!
//! | function | standard … | wrapped on a terminal | escaped | silenced by `-q` |
//! |---|---|---|---|---|
//! | `print` | output | no | no | no |
//! | `print_lines` | output | yes | no | no |
//! | `print_paged` | output, on a terminal in a pager | no | no | no |
//! | `report` | error | yes | yes | yes |
//! | `report_always` | error | yes | yes | no |
//! | `note`, `warn` | error | yes | yes | yes |
//! | `print_error` | error | yes | yes | no |
//! | `print_styled_note` | error | yes | no | yes |
//! | `print_styled_note_always` | error | yes | no | no |
//!
//! What is not escaped here may have colors; who prints it escapes the text of others in it.

use std::borrow::Cow;
use std::env;
use std::fmt::{self, Write as _};
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Error, Result};
use console::{Term, style};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::format::{escape_lines, escape_text, wrap_lines};
use crate::host::FileError;

/// True for a terminal that can only add lines.
pub(super) fn is_dumb() -> bool {
    env::var("TERM").as_deref() == Ok("dumb")
}

/// True if only errors are wanted.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Leaves out everything but errors, and what a command prints to standard output.
pub fn set_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// True if only errors are wanted.
pub fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Prints the progress or the result of a command to standard error, wrapped and escaped; nothing with `-q`.
pub fn report(text: &str) {
    if !is_quiet() {
        report_always(text);
    }
}

/// Prints a message to standard error, wrapped and escaped, also with `-q`.
pub(super) fn report_always(text: &str) {
    print_styled_note_always(&escape_lines(text));
}

/// Prints a note to standard error, wrapped and escaped; nothing with `-q`. One sentence has no full stop.
pub fn note(text: &str) {
    let head = style("note").bold().for_stderr();
    print_styled_note(&format!("{head}: {}", escape_lines(text)));
}

/// Prints a warning to standard error, wrapped and escaped; nothing with `-q`. One sentence has no full stop.
pub fn warn(text: &str) {
    let head = style("warning").yellow().bold().for_stderr();
    print_styled_note(&format!("{head}: {}", escape_lines(text)));
}

/// Wraps lines between words if standard error is a terminal.
pub(super) fn wrap_for_stderr(text: &str) -> Cow<'_, str> {
    match Term::stderr().size_checked() {
        Some((_, columns)) if is_watched() => Cow::Owned(wrap_lines(text, columns.into())),
        _ => Cow::Borrowed(text),
    }
}

/// Prints an error and its hints to standard error, wrapped and escaped, also with `-q`. Both may quote text of users: a
/// log, an answer, a path.
pub fn print_error(text: &str, hints: &[String]) {
    tracing::error!("{text}");
    let head = style("error").red().bold().for_stderr();
    print_styled_note_always(&format!("{head}: {}", escape_lines(text)));
    for hint in hints {
        let head = style("hint").cyan().bold().for_stderr();
        print_styled_note_always(&format!("{head}: {}", escape_lines(hint)));
    }
}

/// Prints text that is safe for a terminal to standard error, wrapped and not escaped; nothing with `-q`.
pub fn print_styled_note(text: &str) {
    if !is_quiet() {
        print_styled_note_always(text);
    }
}

/// Prints text that is safe for a terminal to standard error, wrapped and not escaped, also with `-q`.
pub fn print_styled_note_always(text: &str) {
    // If standard error is closed, there is nowhere to report it.
    let _ = writeln!(io::stderr(), "{}", wrap_for_stderr(text));
}

/// The width of the terminal, if standard output is one.
pub fn terminal_width() -> Option<usize> {
    let (_, columns) = Term::stdout().size_checked()?;
    Some(columns.into())
}

/// The width for output. A program or a log gets every column.
pub fn output_width() -> usize {
    terminal_width().unwrap_or(usize::MAX)
}

/// True if somebody reads the messages on a terminal.
pub fn is_watched() -> bool {
    console::user_attended_stderr()
}

/// Prints lines to standard output, wrapped between words if it is a terminal, and not escaped.
pub fn print_lines(lines: &str) -> Result<()> {
    print(&format!("{}\n", wrap_lines(lines, output_width())))
}

/// Prints text to standard output.
pub fn print(text: &str) -> Result<()> {
    finish_printing(io::stdout().write_all(text.as_bytes()))
}

/// Writes out what was printed to standard output. Returns an error if that or the printing failed.
pub fn finish_printing(result: io::Result<()>) -> Result<()> {
    match result.and_then(|()| io::stdout().flush()) {
        Ok(()) => Ok(()),
        // The reader has exited. A change goes on all the same.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => {
            Err(Error::new(FileError::from(error)).context("cannot write to standard output"))
        }
    }
}

/// The pager where `PAGER` names none, and the options it gets where `LESS` has none: quit if the text fits, keep
/// colors, leave the screen as it is.
const PAGER: &str = "less";
const LESS: &str = "FRX";

/// Prints text to standard output as it is, on a terminal in a pager, unless there is none or `PAGER` is empty.
pub fn print_paged(text: &str) -> Result<()> {
    if !io::stdout().is_terminal() {
        return print(text);
    }
    let pager = env::var("PAGER").unwrap_or_else(|_| PAGER.to_owned());
    let mut words = pager.split_whitespace();
    let Some(program) = words.next() else {
        return print(text);
    };
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::piped());
    if env::var_os("LESS").is_none() {
        command.env("LESS", LESS);
    }
    let Ok(mut child) = command.spawn() else {
        return print(text);
    };
    if let Some(mut stdin) = child.stdin.take() {
        // The reader may quit before the end.
        let _ = stdin.write_all(text.as_bytes());
    }
    child.wait()?;
    Ok(())
}

/// The kinds of events, by target.
const TARGETS: [&str; 4] = ["nvml", "mps", "program", "mig_mps"];

/// Traces to standard error, to a file, or both.
pub fn start_tracing(on_stderr: bool, file: Option<File>) {
    if !on_stderr && file.is_none() {
        return;
    }
    let to_stderr = on_stderr.then(|| {
        layer()
            .event_format(TraceForm { has_time: false })
            .with_writer(io::stderr)
            .with_filter(filter_of(&TARGETS[..3]))
    });
    let to_file = file.map(|file| {
        layer()
            .event_format(TraceForm { has_time: true })
            .with_writer(Mutex::new(file))
            .with_filter(filter_of(&TARGETS))
    });
    // It fails only where another one is set.
    let _ = tracing_subscriber::registry()
        .with(to_stderr)
        .with(to_file)
        .try_init();
}

fn filter_of(targets: &[&'static str]) -> Targets {
    targets
        .iter()
        .map(|target| (*target, LevelFilter::DEBUG))
        .collect()
}

/// A line for each event. Its text may quote others: a path, an answer.
struct TraceForm {
    /// True with time, level and process id.
    has_time: bool,
}

impl<S, N> FormatEvent<S, N> for TraceForm
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        let mut line = String::new();
        let metadata = event.metadata();
        if self.has_time {
            let now = jiff::Timestamp::now();
            let level = if *metadata.level() == Level::ERROR {
                "error"
            } else {
                "debug"
            };
            write!(line, "{now:.3} {} {level} ", std::process::id())?;
        }
        let target = metadata.target().split("::").next().unwrap_or_default();
        write!(line, "{target}: {}", escape_text(&text))?;
        if self.has_time {
            writeln!(writer, "{line}")
        } else {
            writeln!(writer, "{}", wrap_for_stderr(&line))
        }
    }
}
