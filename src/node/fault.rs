//! The faults that a node can have, and findings about them.

use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;

use super::Node;
use crate::cuda::CudaError;
use crate::host::{is_shell_safe, strip_needless_sudo};
use crate::nvml::Code;

/// Something that can be wrong: a row of `faults.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The id, or the number of an error of CUDA. It never changes.
    pub id: String,
    pub subject: FaultSubject,
    #[serde(rename = "fault")]
    pub meaning: String,
    /// The reason why it matters; of an error, its causes.
    pub why: String,
    /// The remedy in general.
    pub remedy: String,
    /// The way in which `status` reports it; `None` if only `doctor` does.
    pub status: Option<StatusList>,
    #[serde(default)]
    needs: Vec<EvidenceSource>,
    /// Other names of an error, and what programs print for it.
    #[serde(default)]
    messages: Vec<String>,
}

/// The list of `status` in which a fault stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatusList {
    /// With `--exit-code` the exit status is 3.
    Problem,
    Remark,
}

/// The part of the node that a fault concerns, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FaultSubject {
    Driver,
    Gpus,
    Daemons,
    Directories,
    Surroundings,
    /// An error that programs get.
    Cuda,
    /// An error that NVML returns.
    Nvml,
}

/// Something without which nothing is known of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum EvidenceSource {
    /// The records of every run directory.
    Records,
    /// The driver's answer.
    Driver,
}

static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        fault: Vec<Fault>,
    }
    let file: File =
        toml::from_str(include_str!("faults.toml")).expect("the file has a row for each fault");
    let mut faults = file.fault;
    for fault in &mut faults {
        if let Ok(code) = fault.id.parse() {
            fault.meaning = format!("CUDA {}: {}", CudaError(code), fault.meaning);
        } else if let Some(code) = fault.nvml_code() {
            fault.meaning = format!(
                "NVML error {} ({}): {}",
                code.0,
                code.description(),
                fault.meaning
            );
        }
    }
    faults
});

/// Returns the number of an error in a sentence that a program printed, such as `connection failed (error 805)`.
fn error_number_in(sentence: &str) -> Option<&str> {
    let words = sentence.split(|c: char| !c.is_ascii_alphanumeric());
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    let is_number = |word: &str| word.chars().all(|c| c.is_ascii_digit());
    words.windows(2).find_map(|pair| {
        let [before, number] = pair else { return None };
        (before.eq_ignore_ascii_case("error") && is_number(number)).then_some(*number)
    })
}

impl Fault {
    /// Returns every fault, by subject.
    pub fn all() -> &'static [Self] {
        &FAULTS
    }

    /// True if it has this id, or is the error of CUDA of this name, in the spelling of the driver's or of the runtime's
    /// interface: `CUDA_ERROR_LAUNCH_FAILED`, `cudaErrorLaunchFailed`. Errors are also known by what programs print.
    pub fn is_called(&self, word: &str) -> bool {
        let plain = |name: &str| name.replace(['_', '-', ' '], "").to_lowercase();
        let name = self
            .id
            .parse()
            .ok()
            .map(CudaError)
            .and_then(CudaError::name);
        let code = self.nvml_code();
        let mut said = code
            .map(Code::description)
            .into_iter()
            .chain(self.messages.iter().map(String::as_str));
        self.id == word
            || name.is_some_and(|name| plain(name) == plain(word))
            || code.is_some_and(|code| plain(word) == code.0.to_string())
            || code.is_some() && plain(&self.id) == plain(word)
            || said.any(|said| word.to_lowercase().contains(&said.to_lowercase()))
            || error_number_in(word).is_some_and(|number| self.is_called(number))
    }

    /// Returns the code of an error of NVML, whose id is `nvml-19`.
    fn nvml_code(&self) -> Option<Code> {
        let number = self.id.strip_prefix("nvml-")?;
        number.parse().ok().map(Code)
    }

    /// True for an error that a program gets, which no check finds.
    pub fn is_error(&self) -> bool {
        matches!(self.subject, FaultSubject::Cuda | FaultSubject::Nvml)
    }
}

impl FaultSubject {
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Gpus => "gpus",
            Self::Daemons => "daemons",
            Self::Directories => "directories",
            Self::Surroundings => "surroundings",
            Self::Cuda => "cuda",
            Self::Nvml => "nvml",
        }
    }
}

/// A verdict, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    Ok,
    /// It cannot be seen.
    Unknown,
    /// It works, and may stop working.
    Warn,
    /// It does not work.
    Fail,
}

impl Severity {
    pub const ALL: [Self; 4] = [Self::Fail, Self::Warn, Self::Unknown, Self::Ok];

    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// A fact that concerns a fault, with its verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The id of the fault.
    pub id: &'static str,
    pub severity: Severity,
    /// The device's name; `None` if it concerns the node.
    pub device: Option<String>,
    /// The fact, as a sentence.
    pub seen: String,
    /// The remedy in words, with its commands in backticks.
    pub remedy: Option<String>,
    /// True if a table of `status` shows it already.
    pub is_listed: bool,
    /// True if it is unknown because users other than root may not see it.
    pub is_hidden: bool,
}

/// `0.2: its daemon has died: … [daemon-dead]`
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(device) = &self.device {
            write!(f, "{device}: ")?;
        }
        write!(f, "{} [{}]", self.describe_with_remedy(), self.id)
    }
}

impl Finding {
    pub fn new(id: &'static str, severity: Severity, seen: impl Into<String>) -> Self {
        debug_assert!(Fault::all().iter().any(|fault| fault.id == id), "{id}");
        Self {
            id,
            severity,
            device: None,
            seen: seen.into(),
            remedy: None,
            is_listed: false,
            is_hidden: false,
        }
    }

    pub fn ok(id: &'static str, seen: impl Into<String>) -> Self {
        Self::new(id, Severity::Ok, seen)
    }

    /// A problem.
    pub fn fail(id: &'static str, seen: impl Into<String>) -> Self {
        Self::new(id, Severity::Fail, seen)
    }

    /// A remark.
    pub fn warn(id: &'static str, seen: impl Into<String>) -> Self {
        Self::new(id, Severity::Warn, seen)
    }

    pub fn unknown(id: &'static str, why: impl Into<String>) -> Self {
        Self::new(id, Severity::Unknown, why)
    }

    /// Something that only root may see.
    pub fn hidden(id: &'static str, why: impl Into<String>) -> Self {
        Self {
            is_hidden: true,
            ..Self::unknown(id, why)
        }
    }

    /// Says which device it concerns.
    pub fn on_device(self, device: &str) -> Self {
        let device = Some(device.to_owned());
        Self { device, ..self }
    }

    /// Adds a remedy in words, with its commands in backticks.
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        let remedy = Some(remedy.into());
        Self { remedy, ..self }
    }

    /// Adds a command as its remedy.
    pub fn with_command(self, command: impl Into<String>) -> Self {
        let command = strip_needless_sudo(&command.into());
        self.with_remedy(format!("`{command}`"))
    }

    /// Adds a command with a path that a user may have chosen, unless a shell would interpret the path.
    pub fn with_path_command(self, path: &str, command: impl Into<String>) -> Self {
        if is_shell_safe(path) {
            self.with_command(command)
        } else {
            self
        }
    }

    /// True if `status` lists it where the row of its fault says: a problem is no remark, and a remark no problem.
    pub(super) fn matches_fault_table(&self) -> bool {
        let list = match self.severity {
            Severity::Fail => StatusList::Problem,
            Severity::Warn => StatusList::Remark,
            Severity::Unknown | Severity::Ok => return true,
        };
        let fault = Fault::all().iter().find(|fault| fault.id == self.id);
        fault.is_some_and(|fault| fault.status == Some(list))
    }

    pub(super) fn mark_listed(self) -> Self {
        Self {
            is_listed: true,
            ..self
        }
    }

    /// Describes it with its remedy, in one sentence.
    pub fn describe_with_remedy(&self) -> String {
        let Some(remedy) = &self.remedy else {
            return self.seen.clone();
        };
        let is_divided = self.seen.contains(": ");
        let mark = if is_divided { ";" } else { ":" };
        format!("{}{mark} {remedy}", self.seen)
    }

    /// Returns the first command of the remedy that can be pasted as it is: it has several words, or is the whole remedy.
    pub fn remedy_command(&self) -> Option<&str> {
        let remedy = self.remedy.as_deref()?;
        let mut quoted = remedy.split('`').skip(1).step_by(2);
        quoted.find(|text| text.contains(' ') || text.len() + 2 == remedy.len())
    }
}

/// The reason why much is unknown without a driver.
pub const NO_DRIVER: &str = "the driver does not answer";

impl Node {
    /// Returns the reason why nothing is known of a fault here.
    pub fn hidden_reason(&self, fault: &Fault) -> Option<&str> {
        fault.needs.iter().find_map(|source| match source {
            EvidenceSource::Records => self.unseen_daemons(),
            EvidenceSource::Driver => self.has_no_driver().then_some(NO_DRIVER),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_fault_is_described_in_full_under_an_id_of_its_own() {
        let mut ids = BTreeSet::new();
        for fault in Fault::all() {
            for text in [&fault.meaning, &fault.why, &fault.remedy] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{fault:?}");
            }
            let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(fault.id.chars().all(is_plain), "{fault:?}");
            assert!(ids.insert(&fault.id), "{fault:?}");
        }
        assert!(Fault::all().is_sorted_by_key(|fault| fault.subject as u8));
    }

    #[test]
    fn a_remedy_follows_in_the_same_sentence_and_gives_its_command() {
        let old = Finding::fail("earlier-boot", "it is old").on_device("0.2");
        let old = old.with_remedy("`up` starts it, `mig-mps down 0.2` removes it");
        let text = "0.2: it is old: `up` starts it, `mig-mps down 0.2` removes it [earlier-boot]";
        assert_eq!(old.to_string(), text);
        assert_eq!(old.remedy_command(), Some("mig-mps down 0.2"));
        let divided = Finding::fail("device-hung", "it hangs: so").with_remedy("end it");
        assert_eq!(divided.describe_with_remedy(), "it hangs: so; end it");
        assert_eq!(divided.remedy_command(), None);
        let short = Finding::fail("kernel-module", "it is old").with_command("reboot");
        assert_eq!(short.remedy_command(), Some("reboot"));
    }
}
