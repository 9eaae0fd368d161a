//! The state of every GPU of the machine, which must be the same before and after.

use nvml_wrapper_sys::bindings::nvmlDevice_t;

use crate::node::Node;
use crate::partition::{self, Instance};
use crate::raw::{Answer, Nvml};

const NOT_SUPPORTED: u32 = 3;

/// One GPU at one moment.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) index: u32,
    pub(crate) uuid: String,
    pub(crate) name: String,
    /// In force, and pending; or why there is none.
    pub(crate) mig: Answer<(u32, u32)>,
    pub(crate) compute_mode: Answer<u32>,
    persistence: Answer<u32>,
    pub(crate) instances: Answer<Vec<Instance>>,
    /// The pids that NVML lists.
    pub(crate) processes: Answer<Vec<u32>>,
}

/// Every GPU.
pub(crate) fn of(node: &Node) -> Vec<Gpu> {
    let session = node.open();
    let nvml = &session.0;
    let gpus = session
        .gpus()
        .unwrap_or_else(|code| panic!("GPUs cannot be listed: {}", nvml.error_string(code)));
    (0..)
        .zip(gpus)
        .map(|(index, gpu)| {
            let mig = nvml.mig_mode(gpu);
            Gpu {
                index,
                uuid: nvml.uuid(gpu).expect("a UUID"),
                name: nvml.name(gpu).expect("a name"),
                compute_mode: nvml.compute_mode(gpu),
                persistence: nvml.persistence_mode(gpu),
                // A GPU without MIG has none.
                instances: match mig {
                    Ok((1, _)) => partition::read(nvml, gpu),
                    _ => Ok(Vec::new()),
                },
                processes: processes(nvml, gpu),
                mig,
            }
        })
        .collect()
}

/// Compute and graphics processes, and MPS clients.
fn processes(nvml: &Nvml, gpu: nvmlDevice_t) -> Answer<Vec<u32>> {
    // A GPU without graphics, and a driver that does not tell clients apart, may have but the first list.
    let list = |answer| match answer {
        Err(NOT_SUPPORTED) => Ok(Vec::new()),
        answer => answer,
    };
    let lists = [
        nvml.processes(gpu)?,
        list(nvml.mps_processes(gpu))?,
        list(nvml.graphics_processes(gpu))?,
    ];
    let mut pids: Vec<u32> = lists.into_iter().flatten().map(|(pid, ..)| pid).collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

impl Gpu {
    /// Settings and geometry, a line each.
    pub(crate) fn lines(&self) -> Vec<String> {
        let index = self.index;
        let setting = |name: &str, value: &Answer<u32>| match value {
            Ok(value) => format!("GPU {index} {name} {value}"),
            Err(code) => format!("GPU {index} {name}: code {code}"),
        };
        let mut lines = vec![
            format!("GPU {index} {} {}", self.uuid, self.name),
            setting("MIG mode", &self.mig.map(|(current, _)| current)),
            setting("MIG mode pending", &self.mig.map(|(_, pending)| pending)),
            setting("compute mode", &self.compute_mode),
            setting("persistence mode", &self.persistence),
        ];
        match &self.instances {
            Ok(all) => lines.extend(all.iter().map(|one| format!("GPU {index} {one}"))),
            Err(code) => lines.push(format!("GPU {index} instances: code {code}")),
        }
        lines
    }

    /// Ids and UUIDs, which the driver chooses.
    pub(crate) fn identities(&self) -> Vec<String> {
        let instances = self.instances.iter().flatten();
        instances
            .flat_map(|gi| gi.compute.iter().map(move |ci| (gi, ci)))
            .map(|(gi, ci)| {
                format!(
                    "GPU {} at {}: GI {} CI {} {}",
                    self.index, gi.place.0, gi.id, ci.id, ci.uuid
                )
            })
            .collect()
    }
}

/// The lines of all.
pub(crate) fn lines(gpus: &[Gpu], of_each: impl Fn(&Gpu) -> Vec<String>) -> Vec<String> {
    gpus.iter().flat_map(of_each).collect()
}

/// The lines that only one of two lists has, marked as by `diff`.
pub(crate) fn difference(before: &[String], after: &[String]) -> Vec<String> {
    let lost = before.iter().filter(|line| !after.contains(line));
    let new = after.iter().filter(|line| !before.contains(line));
    lost.map(|line| format!("- {line}"))
        .chain(new.map(|line| format!("+ {line}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::difference;

    #[test]
    fn a_difference_names_both_sides() {
        let lines = |text: &str| -> Vec<String> { text.lines().map(Into::into).collect() };
        assert_eq!(difference(&lines("a\nb"), &lines("b\na")), [""; 0]);
        assert_eq!(difference(&lines("a\nb"), &lines("b\nc")), ["- a", "+ c"]);
    }
}
