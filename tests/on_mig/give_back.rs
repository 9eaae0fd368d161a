//! The GPU as it was found: daemons ended, mode and instances restored, whatever went wrong before.

use std::fmt::Debug;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::node::Node;
use crate::partition::{self, Instance};
use crate::raw::{Answer, Nvml};
use crate::refusal::Subject;
use crate::transcript::Transcript;

const IN_USE: u32 = 19;

/// The time that a process which has just ended may hold its instance.
const PATIENCE: Duration = Duration::from_secs(60);

/// Restore mode and instances by NVML. Returns what could not be done.
pub(crate) fn give_back(node: &Node, subject: &Subject, transcript: &Transcript) -> Vec<String> {
    let session = node.open();
    let nvml = &session.0;
    let giver = Giver { nvml, transcript };
    // A mode change may have changed handles.
    let result = match nvml.by_uuid(&subject.uuid) {
        Ok(gpu) => giver.restore(gpu, subject),
        Err(code) => Err(format!("{}: code {code}", subject.uuid)),
    };
    result.err().into_iter().collect()
}

struct Giver<'a> {
    nvml: &'a Nvml,
    transcript: &'a Transcript,
}

impl Giver<'_> {
    fn restore(&self, gpu: nvmlDevice_t, subject: &Subject) -> Result<(), String> {
        let mode = self.tell("MIG mode", || self.nvml.mig_mode(gpu))?;
        if mode.0 == 1 && !self.is_as_it_was(gpu, &subject.instances) {
            self.tell("destroy all instances", || partition::clear(self.nvml, gpu))?;
        }
        let wanted = u32::from(subject.was_in_mig_mode);
        if mode != (wanted, wanted) {
            let activation = self.tell(&format!("set MIG mode {wanted}"), || {
                match self.nvml.set_mig_mode(gpu, wanted) {
                    Ok(IN_USE) => Err(IN_USE),
                    other => other,
                }
            })?;
            if activation != 0 {
                return Err(format!(
                    "MIG mode {wanted} is pending: activation status {activation}, the GPU wants a reset or the machine a reboot"
                ));
            }
        }
        if !subject.was_in_mig_mode || self.is_as_it_was(gpu, &subject.instances) {
            return Ok(());
        }
        for instance in &subject.instances {
            self.tell(&format!("make {instance}"), || {
                partition::make(self.nvml, gpu, instance)
            })?;
        }
        Ok(())
    }

    fn is_as_it_was(&self, gpu: nvmlDevice_t, wanted: &[Instance]) -> bool {
        let shown = |instances: &[Instance]| -> Vec<String> {
            instances.iter().map(ToString::to_string).collect()
        };
        partition::read(self.nvml, gpu).is_ok_and(|instances| shown(&instances) == shown(wanted))
    }

    /// Do it, again while it is in use, and note how it went.
    fn tell<T: Debug>(&self, what: &str, mut act: impl FnMut() -> Answer<T>) -> Result<T, String> {
        let begin = Instant::now();
        let mut answer = act();
        while matches!(answer, Err(IN_USE)) && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(100));
            answer = act();
        }
        let took = begin.elapsed().as_secs_f64();
        self.transcript
            .add(&format!("NVML: {what}: {answer:?}  [{took:.3} s]"));
        answer.map_err(|code| format!("{what}: {}", self.nvml.error_string(code)))
    }
}
