//! The test of one GPU: commands of mig-mps, and what they show.

use std::path::Path;
use std::time::Instant;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::finding::{Finding, Verdict};
use super::plan::TestedGpu;
use crate::commands::give_back::{error_line, run_in_selftest};
use crate::geometry::{Engines, Placement};
use crate::host::Environment;

/// What may be done to a GPU.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct Abilities {
    pub(super) quick: bool,
    pub(super) may_reset: bool,
    pub(super) may_stop_holders: bool,
}

/// A value, or the reason why a check did not hold.
pub(super) type Checked<T = ()> = Result<T, Verdict>;

/// Fails a check unless the condition is true.
pub(super) fn ensure(is_held: bool, otherwise: impl FnOnce() -> String) -> Checked {
    if is_held {
        Ok(())
    } else {
        Err(Verdict::Differs(otherwise()))
    }
}

/// A GPU as `list --offers --json` shows it.
#[derive(Debug, Deserialize)]
pub(super) struct ListedGpu {
    pub(super) mig: Option<ListedMode>,
    pub(super) gpu_instances: Vec<ListedInstance>,
    pub(super) devices: Vec<ListedDevice>,
    pub(super) profiles: Vec<ListedProfile>,
}

#[derive(Debug, Deserialize)]
pub(super) struct ListedMode {
    pub(super) current: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct ListedInstance {
    pub(super) profile_id: u32,
    pub(super) placement: Placement,
}

#[derive(Debug, Deserialize)]
pub(super) struct ListedDevice {
    pub(super) uuid: String,
    pub(super) gpu_instance_id: u32,
    pub(super) compute_instance_id: u32,
    pub(super) multiprocessors: u32,
}

#[derive(Clone, Debug, Deserialize)]
pub(super) struct ListedProfile {
    pub(super) profile: String,
    pub(super) profile_id: u32,
    pub(super) slices: u32,
    pub(super) multiprocessors: Option<u32>,
    pub(super) memory_total_bytes: Option<u64>,
    pub(super) engines: Option<Engines>,
    pub(super) most: u32,
    pub(super) placements: Vec<Placement>,
}

#[derive(Debug, Deserialize)]
struct List {
    // A GPU that is not tested may be in another mode, where instances are null.
    gpus: Vec<Value>,
}

/// The test of one GPU.
pub(super) struct Tester<'a> {
    pub(super) environment: &'a Environment,
    /// The directory of the self-test's daemons.
    pub(super) directory: &'a Path,
    pub(super) gpu: &'a TestedGpu,
    pub(super) abilities: Abilities,
    findings: Vec<Finding>,
}

impl<'a> Tester<'a> {
    pub(super) fn new(
        environment: &'a Environment,
        directory: &'a Path,
        gpu: &'a TestedGpu,
        abilities: Abilities,
    ) -> Self {
        Self {
            environment,
            directory,
            gpu,
            abilities,
            findings: Vec::new(),
        }
    }

    /// Makes every check and returns what was found.
    pub(super) fn test(mut self) -> Vec<Finding> {
        let gpu = self.gpu;
        if let Some([what, why]) = gpu.left_out {
            self.leave_out(what, why);
        }
        if !gpu.gpu.instances.is_empty() && !self.clear() {
            return self.findings;
        }
        // A GPU begins in the mode that it has.
        let parts: [fn(&mut Self); 2] = if gpu.gpu.in_mig_mode() {
            [Self::test_mig, Self::test_whole]
        } else {
            [Self::test_whole, Self::test_mig]
        };
        for part in parts {
            part(&mut self);
        }
        if self.environment.interrupt.is_asked() {
            self.leave_out("the rest", "the self-test was interrupted");
        }
        self.findings
    }

    /// Destroys the instances that the GPU has. They are made again at the end, which the user has agreed to.
    fn clear(&mut self) -> bool {
        self.check("instances destroyed", |tester| {
            tester.up_with(&["--destroy-unmanaged"], "false", "devices = []")?;
            let gpu = tester.listed()?;
            ensure(gpu.gpu_instances.is_empty(), || {
                "there are instances".to_owned()
            })?;
            Ok(None)
        })
    }

    /// Makes a check, which may return a figure, and shows its outcome. Returns true if it held. After an interrupt no check is
    /// made.
    pub(super) fn check(
        &mut self,
        what: impl Into<String>,
        act: impl FnOnce(&Self) -> Checked<Option<String>>,
    ) -> bool {
        if self.environment.interrupt.is_asked() {
            return false;
        }
        let begun = Instant::now();
        let (verdict, figure) = match act(self) {
            Ok(figure) => (Verdict::Held, figure),
            Err(verdict) => (verdict, None),
        };
        let is_held = verdict == Verdict::Held;
        let finding = Finding {
            took: Some(begun.elapsed()),
            figure,
            ..Finding::of(self.gpu.under_test.index, what, verdict)
        };
        finding.show();
        self.findings.push(finding);
        is_held
    }

    /// Notes that something is not tested.
    pub(super) fn leave_out(&mut self, what: &str, why: &str) {
        let index = self.gpu.under_test.index;
        let finding = Finding::of(index, what, Verdict::NotTested(why.to_owned()));
        finding.show();
        self.findings.push(finding);
    }

    /// Runs mig-mps with the daemons of the self-test, and returns what it prints.
    pub(super) fn run(&self, words: &[&str], input: &str) -> Checked<String> {
        let failed = |why: String| Verdict::Differs(format!("mig-mps {}: {why}", words.join(" ")));
        let output = run_in_selftest(self.environment, self.directory, words, input)
            .map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(output.stdout)
        } else {
            Err(failed(error_line(&output)))
        }
    }

    /// Runs mig-mps and reads the document that it prints.
    pub(super) fn read<T: DeserializeOwned>(&self, words: &[&str]) -> Checked<T> {
        let text = self.run(words, "")?;
        serde_json::from_str(&text)
            .map_err(|error| Verdict::Differs(format!("mig-mps {}: {error}", words.join(" "))))
    }

    /// Applies a profile to the GPU: `mps` is its table of settings, `block` what its block has beside `select`.
    pub(super) fn up(&self, mps: &str, block: &str) -> Checked {
        self.up_with(&[], mps, block)
    }

    fn up_with(&self, options: &[&str], mps: &str, block: &str) -> Checked {
        let uuid = &self.gpu.under_test.uuid;
        let profile = format!("mps = {mps}\n[[gpu]]\nselect = {{ uuid = \"{uuid}\" }}\n{block}\n");
        let mut words = [&["up", "-", "--yes"], options].concat();
        words.extend(self.abilities.may_reset.then_some("--reset"));
        words.extend(self.abilities.may_stop_holders.then_some("--stop-holders"));
        self.run(&words, &profile).map(drop)
    }

    /// Returns the GPU as `list` shows it.
    pub(super) fn listed(&self) -> Checked<ListedGpu> {
        let list: List = self.read(&["list", "--offers", "--json"])?;
        let mut gpus = list.gpus.into_iter();
        let gpu = gpus.find(|gpu| gpu["uuid"] == *self.gpu.under_test.uuid);
        let gpu = gpu.ok_or_else(|| Verdict::Differs("mig-mps list lacks the GPU".to_owned()))?;
        serde_json::from_value(gpu)
            .map_err(|error| Verdict::Differs(format!("mig-mps list --json: {error}")))
    }
}
