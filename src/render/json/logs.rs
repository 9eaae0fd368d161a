use anyhow::Result;
use jiff::tz::TimeZone;
use schemars::JsonSchema;
use serde::Serialize;

use super::line;
use crate::mps::{Kind, LogLine};

/// A line of the output of `mig-mps logs --json`: one object for each line of a log.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "log_line")]
pub struct LogLineDocument<'a> {
    /// The device's name; its UUID if the name is not known.
    device: &'a str,
    /// The time with its offset from UTC, as in RFC 3339; that of the line before if the line has none, and null if no
    /// line before has one.
    #[schemars(extend("format" = "date-time"))]
    time: Option<String>,
    /// The name of the file.
    file: &'static str,
    /// The word in brackets, such as `Control`.
    tag: Option<&'a str>,
    /// The process id of the writer; null if the line has none.
    pid: Option<u32>,
    /// The text.
    text: &'a str,
    /// The kind of the line.
    kind: LogKind,
    /// The meaning; null where the text says it all.
    meaning: Option<&'static str>,
}

/// The kind of a line.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "log_kind")]
enum LogKind {
    /// Of a control session.
    Session,
    /// Harmless, and reads like an error.
    Benign,
    /// Of everyday operation.
    Ordinary,
    /// A client was refused.
    Refusal,
    /// A fault.
    Fault,
    /// Not known to this version.
    Unknown,
}

impl From<Kind> for LogKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Chatter => Self::Session,
            Kind::Benign => Self::Benign,
            Kind::Ordinary => Self::Ordinary,
            Kind::Refusal => Self::Refusal,
            Kind::Fault => Self::Fault,
            Kind::Unknown => Self::Unknown,
        }
    }
}

impl LogLineDocument<'_> {
    /// Formats lines of a device's logs as JSON, one object each. The logs have local time.
    pub fn lines(device: &str, lines: &[LogLine]) -> Result<String> {
        let zone = TimeZone::system();
        let mut text = String::new();
        for logged in lines {
            let meaning = logged.meaning();
            let time = logged.at.and_then(|at| at.to_zoned(zone.clone()).ok());
            text += &line(&LogLineDocument {
                device,
                time: time.map(|time| time.strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string()),
                file: logged.file.name(),
                tag: logged.tag.as_deref(),
                pid: logged.pid,
                text: &logged.text,
                kind: meaning.kind.into(),
                meaning: meaning.why,
            })?;
        }
        Ok(text)
    }
}
