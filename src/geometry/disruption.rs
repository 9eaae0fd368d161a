use std::iter::Sum;
use std::ops::Add;

/// The disruption that a change causes. Less sorts lower: plans are compared by clients disrupted,
/// then GPU instances destroyed, then daemons restarted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Disruption {
    /// Programs that lose their device, or may.
    pub clients: u32,
    /// GPU instances destroyed.
    pub gpu_instances: u32,
    /// Running daemons stopped or restarted.
    pub daemons: u32,
    /// Compute instances destroyed, those of destroyed GPU instances included.
    pub compute_instances: u32,
    /// Settings changed under clients. This disrupts nobody, and only breaks ties, so that a node without drift stays
    /// unchanged.
    pub changes: u32,
}

impl Disruption {
    /// No disruption.
    pub const NONE: Self = Self {
        clients: 0,
        gpu_instances: 0,
        daemons: 0,
        compute_instances: 0,
        changes: 0,
    };
}

impl Add for Disruption {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            clients: self.clients + other.clients,
            gpu_instances: self.gpu_instances + other.gpu_instances,
            daemons: self.daemons + other.daemons,
            compute_instances: self.compute_instances + other.compute_instances,
            changes: self.changes + other.changes,
        }
    }
}

impl Sum for Disruption {
    fn sum<I: Iterator<Item = Self>>(disruptions: I) -> Self {
        disruptions.fold(Self::NONE, Self::add)
    }
}
