//! The trace of a command: NVML calls, control commands and programs, on standard error and in a file.

use std::fmt::{self, Write as _};
use std::fs::File;
use std::io;
use std::sync::Mutex;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::{FmtContext, layer};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use super::format::escaped;
use super::output::on_stderr;

/// The kinds of events, by target.
const TARGETS: [&str; 4] = ["nvml", "mps", "program", "mig_mps"];

/// Traces to standard error, to a file, or both.
pub fn trace(on_stderr: bool, file: Option<File>) {
    if !on_stderr && file.is_none() {
        return;
    }
    let filter = |targets: &[&'static str]| -> Targets {
        let targets = targets.iter().map(|target| (*target, LevelFilter::DEBUG));
        targets.collect()
    };
    let terminal = on_stderr.then(|| {
        layer()
            .event_format(Form { has_time: false })
            .with_writer(io::stderr)
            .with_filter(filter(&TARGETS[..3]))
    });
    let file = file.map(|file| {
        layer()
            .event_format(Form { has_time: true })
            .with_writer(Mutex::new(file))
            .with_filter(filter(&TARGETS))
    });
    // It fails only where another one is set.
    let _ = tracing_subscriber::registry()
        .with(terminal)
        .with(file)
        .try_init();
}

/// A line for each event. Its text may quote others: a path, an answer.
struct Form {
    /// True with time, level and process id.
    has_time: bool,
}

impl<S, N> FormatEvent<S, N> for Form
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
        write!(line, "{target}: {}", escaped(&text))?;
        if self.has_time {
            writeln!(writer, "{line}")
        } else {
            writeln!(writer, "{}", on_stderr(&line))
        }
    }
}
