//! The outcome of one check of a self-test.

use std::time::Duration;

use crate::geometry::GpuInstanceProfile;
use crate::render::format::escape_text;
use crate::render::{format_time_taken, output_width, print, wrap_behind};

/// The outcome of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Held,
    /// It is not as the catalog, the manual or the command has it.
    Differs(String),
    /// The check was not made, with the reason.
    NotTested(String),
}

/// A check of a GPU with its outcome.
#[derive(Clone, Debug)]
pub(super) struct TestFinding {
    /// The index of the GPU.
    pub(super) gpu: u32,
    pub(super) what: String,
    pub(super) verdict: Verdict,
    /// The time that the check took.
    pub(super) took: Option<Duration>,
    /// A figure that the check has measured.
    pub(super) figure: Option<String>,
    /// The profiles that the driver has offered, for the report only.
    pub(super) offers: Vec<GpuInstanceProfile>,
}

impl TestFinding {
    pub(super) fn new(gpu: u32, what: impl Into<String>, verdict: Verdict) -> Self {
        Self {
            gpu,
            what: what.into(),
            verdict,
            took: None,
            figure: None,
            offers: Vec::new(),
        }
    }

    /// `ok            410 ms  GPU 0: 1g.10gb at slice 3`
    pub(super) fn to_line(&self) -> String {
        self.head_and_text().concat()
    }

    fn head_and_text(&self) -> [String; 2] {
        let (word, detail) = match &self.verdict {
            Verdict::Held => ("ok", self.figure.as_ref()),
            Verdict::Differs(why) => ("differs", Some(why)),
            Verdict::NotTested(why) => ("not tested", Some(why)),
        };
        let took = self.took.map(format_time_taken).unwrap_or_default();
        let detail = detail
            .map(|detail| format!(": {detail}"))
            .unwrap_or_default();
        [
            format!("{word:<10}  {took:>7}  "),
            format!("GPU {}: {}{detail}", self.gpu, self.what),
        ]
    }

    /// Prints the line at once: a self-test takes minutes.
    pub(super) fn print_line(&self) {
        // A closed standard output must not keep GPUs from being given back.
        let [head, text] = self.head_and_text();
        let _ = print(&wrap_behind(&head, &escape_text(&text), output_width()));
    }
}
