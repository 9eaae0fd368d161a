//! The test of one GPU: commands of mig-mps, and what they show.

use std::cell::RefCell;
use std::path::Path;
use std::time::Instant;

use super::finding::{TestFinding, Verdict};
use super::plan::TestedGpu;
use crate::commands::give_back::{error_line, run_in_selftest};
use crate::geometry::GpuInstanceProfile;
use crate::host::Environment;
use crate::node::{Detail, Device, Gpu, Node, Observer};

/// What may be done to a GPU.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct Abilities {
    pub(super) quick: bool,
    pub(super) may_reset: bool,
    pub(super) may_stop_holders: bool,
}

/// A value, or the reason why a check did not hold.
pub(super) type CheckResult<T = ()> = Result<T, Verdict>;

/// Fails a check unless the condition is true.
pub(super) fn ensure(is_held: bool, otherwise: impl FnOnce() -> String) -> CheckResult {
    if is_held {
        Ok(())
    } else {
        Err(Verdict::Differs(otherwise()))
    }
}

/// The test of one GPU.
pub(super) struct Tester<'a> {
    /// With the run directory of the self-test.
    pub(super) environment: &'a Environment,
    observer: &'a RefCell<Observer<'a>>,
    /// The directory of the self-test's daemons.
    pub(super) directory: &'a Path,
    pub(super) gpu: &'a TestedGpu,
    pub(super) abilities: Abilities,
    findings: Vec<TestFinding>,
}

impl<'a> Tester<'a> {
    pub(super) fn new(
        environment: &'a Environment,
        observer: &'a RefCell<Observer<'a>>,
        directory: &'a Path,
        gpu: &'a TestedGpu,
        abilities: Abilities,
    ) -> Self {
        Self {
            environment,
            observer,
            directory,
            gpu,
            abilities,
            findings: Vec::new(),
        }
    }

    /// Makes every check and returns what was found.
    pub(super) fn test(mut self) -> Vec<TestFinding> {
        let gpu = self.gpu;
        if let Some([what, why]) = gpu.left_out {
            self.leave_out(what, why);
        }
        if !gpu.gpu.instances.is_empty() && !self.destroy_instances() {
            self.leave_out("the rest", "the GPU still has instances");
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
        if self.environment.interrupt.is_interrupted() {
            self.note_left_out("the rest", "the self-test was interrupted");
        }
        self.findings
    }

    /// Destroys the instances that the GPU has. They are made again at the end, which the user has agreed to.
    fn destroy_instances(&mut self) -> bool {
        self.check("instances destroyed", |tester| {
            tester.apply_profile_with(&["--destroy-unmanaged"], "false", "devices = []")?;
            let (gpu, _) = tester.observe_gpu()?;
            ensure(gpu.instances.is_empty(), || {
                "it still has instances".to_owned()
            })?;
            Ok(None)
        })
    }

    /// Makes a check, which may return a figure, and shows its outcome. Returns true if it held. After an interrupt no check is
    /// made.
    pub(super) fn check(
        &mut self,
        what: impl Into<String>,
        act: impl FnOnce(&Self) -> CheckResult<Option<String>>,
    ) -> bool {
        if self.environment.interrupt.is_interrupted() {
            return false;
        }
        let begun = Instant::now();
        let (verdict, figure) = match act(self) {
            Ok(figure) => (Verdict::Held, figure),
            Err(verdict) => (verdict, None),
        };
        let is_held = verdict == Verdict::Held;
        let finding = TestFinding {
            took: Some(begun.elapsed()),
            figure,
            ..TestFinding::new(self.gpu.under_test.index, what, verdict)
        };
        finding.print_line();
        self.findings.push(finding);
        is_held
    }

    /// Notes the profiles that the driver has offered in the last check.
    pub(super) fn note_offers(&mut self, offers: &[GpuInstanceProfile]) {
        if let Some(last) = self.findings.last_mut() {
            last.offers = offers.to_vec();
        }
    }

    /// Notes that something is not tested. After an interrupt, one note is about all the rest.
    pub(super) fn leave_out(&mut self, what: &str, why: &str) {
        if self.environment.interrupt.is_interrupted() {
            return;
        }
        self.note_left_out(what, why);
    }

    fn note_left_out(&mut self, what: &str, why: &str) {
        let index = self.gpu.under_test.index;
        let finding = TestFinding::new(index, what, Verdict::NotTested(why.to_owned()));
        finding.print_line();
        self.findings.push(finding);
    }

    /// Runs mig-mps with the daemons of the self-test.
    pub(super) fn run(&self, words: &[&str], input: &str) -> CheckResult {
        let failed = |why: String| Verdict::Differs(format!("mig-mps {}: {why}", words.join(" ")));
        // A GPU cannot be reset while this process has it open.
        let run = || run_in_selftest(self.environment, self.directory, words, input);
        let output = self.observer.borrow().with_nvml_closed(run);
        let output = output.map_err(|error| failed(error.to_string()))?;
        let output = output.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            Ok(())
        } else {
            Err(failed(error_line(&output)))
        }
    }

    /// Applies a profile to the GPU: `mps` is its table of settings, `block` what its block has beside `select`.
    pub(super) fn apply_profile(&self, mps: &str, block: &str) -> CheckResult {
        self.apply_profile_with(&[], mps, block)
    }

    fn apply_profile_with(&self, options: &[&str], mps: &str, block: &str) -> CheckResult {
        let uuid = &self.gpu.under_test.uuid;
        let profile = format!("mps = {mps}\n[[gpu]]\nselect = {{ uuid = \"{uuid}\" }}\n{block}\n");
        let mut words = [&["up", "-", "--yes"], options].concat();
        words.extend(self.abilities.may_reset.then_some("--reset"));
        words.extend(self.abilities.may_stop_holders.then_some("--stop-holders"));
        self.run(&words, &profile)
    }

    /// Takes a snapshot of the node, with the daemons of the self-test.
    pub(super) fn observe(&self, detail: Detail) -> CheckResult<Node> {
        let node = self.observer.borrow_mut().observe(detail);
        node.map_err(|error| Verdict::Differs(format!("the node cannot be observed: {error}")))
    }

    /// Returns the GPU and its devices as the driver shows them.
    pub(super) fn observe_gpu(&self) -> CheckResult<(Gpu, Vec<Device>)> {
        let node = self.observe(Detail::OFFERS)?;
        let gpu = node.gpu_with_uuid(&self.gpu.under_test.uuid);
        let gpu =
            gpu.ok_or_else(|| Verdict::Differs("the driver does not show the GPU".to_owned()))?;
        Ok((gpu.clone(), node.devices_of(gpu).cloned().collect()))
    }
}
