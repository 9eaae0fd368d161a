use std::iter::Sum;
use std::ops::Add;

/// What a change does to what is there. Less sorts lower: plans are compared by clients disturbed,
/// then GPU instances destroyed, then daemons restarted (DESIGN 5.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Harm {
    /// Programs that lose their device, or cannot be told not to.
    pub clients: u32,
    /// GPU instances destroyed.
    pub gpu_instances: u32,
    /// Living daemons ended or restarted.
    pub daemons: u32,
    /// Compute instances destroyed, those of destroyed GPU instances included.
    pub compute_instances: u32,
    /// Settings changed under clients, which disturbs nobody: it only decides between what is equal otherwise,
    /// so that a node that is as wanted stays so.
    pub changes: u32,
}

impl Harm {
    /// No harm.
    pub const NONE: Self = Self {
        clients: 0,
        gpu_instances: 0,
        daemons: 0,
        compute_instances: 0,
        changes: 0,
    };
}

impl Add for Harm {
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

impl Sum for Harm {
    fn sum<I: Iterator<Item = Self>>(harms: I) -> Self {
        harms.fold(Self::NONE, Self::add)
    }
}
