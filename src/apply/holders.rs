use super::{Cause, Shared};
use crate::host::{Holder, Holders, Pid};
use crate::node::Gpu;

impl Shared<'_> {
    /// Who uses a GPU or MIG device: whoever NVML lists there, then whoever has the GPU's device node
    /// open. It is for an error: what cannot be found out is left out.
    pub(super) fn holders_of(&self, gpu: Option<&Gpu>, device: &str) -> Vec<Holder> {
        let uuid = device.to_owned();
        let processes = self.nvml.supervise(move |nvml| nvml.read_processes(&uuid));
        let mut holders: Vec<Holder> = processes
            .map(|processes| processes.compute)
            .unwrap_or_default()
            .iter()
            .filter_map(|usage| self.site.environment.host.holder(Pid(usage.pid)))
            .collect();
        for holder in self.open_by(gpu).unwrap_or_default().seen {
            if holders.iter().all(|other| other.pid != holder.pid) {
                holders.push(holder);
            }
        }
        holders
    }

    /// Who has the GPU's device node open, if that can be found out. Its number may have changed with
    /// the MIG mode.
    pub(super) fn open_by(&self, gpu: Option<&Gpu>) -> Option<Holders> {
        let uuid = gpu?.uuid.clone();
        let minor = self.nvml.supervise(move |nvml| nvml.minor_number(&uuid));
        self.site.environment.host.holders(minor.ok()?).ok()
    }

    /// Stops the known monitoring units among the holders of a GPU; `false` where there are none.
    /// They are in the journal before the first is stopped, and are started again at the end.
    pub(super) fn stop_units(&self, holders: &Holders) -> Result<bool, Cause> {
        let units = self.site.environment.units()?;
        let holding = units.holding(holders)?;
        self.journal.stopping(&holding)?;
        for unit in &holding {
            units.stop(*unit)?;
        }
        Ok(!holding.is_empty())
    }
}
