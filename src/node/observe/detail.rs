/// The amount of detail of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// GPUs, instances, and which daemons run; no profiles of GPUs whose MIG mode is off.
    Geometry,
    /// Geometry, the profiles that every GPU offers, and how many instances of each would fit now.
    Offers,
    /// Geometry, servers, clients, the processes on each device, and MPS programs that mig-mps does not manage, but
    /// only profiles in use. A control session costs the daemon log lines and 1 to 2 ms: one is opened only if NVML and
    /// `/proc` leave a question open.
    Status,
    /// Geometry, servers and clients, with every daemon asked: enough to see which clients a change would disrupt.
    Clients,
    /// `Clients`, and the daemons' current settings: enough to plan changes of daemons.
    Settings,
    /// `Settings`, and the profiles that every GPU offers: enough to plan changes of instances.
    Plan,
}

impl Detail {
    /// True if GPUs are asked for all their profiles even if MIG mode is off.
    pub(super) fn reads_offers(self) -> bool {
        matches!(self, Self::Offers | Self::Plan)
    }

    /// True if GPUs are asked how many more instances fit.
    pub(super) fn reads_capacity(self) -> bool {
        self == Self::Offers
    }

    /// True if all instances are read, and not only those that hold MIG devices.
    pub(super) fn reads_all_instances(self) -> bool {
        self != Self::Status
    }

    /// True if GPUs are asked whether MIG mode changes without a reset.
    pub(super) fn reads_resetless(self) -> bool {
        self != Self::Status
    }

    pub(super) fn reads_utilization(self) -> bool {
        self == Self::Status
    }

    /// True if the processes on each device are read, and with them servers and clients.
    pub(super) fn reads_processes(self) -> bool {
        !matches!(self, Self::Geometry | Self::Offers)
    }

    /// True if daemons are asked for their current settings.
    pub(super) fn reads_settings(self) -> bool {
        self != Self::Clients
    }

    /// True if root asks the daemons of users too: to change them, although their answers are the users'.
    pub(super) fn asks_daemons_of_users(self) -> bool {
        matches!(self, Self::Settings | Self::Plan)
    }

    /// True if a daemon is asked only if NVML and `/proc` leave a question open, and nothing changed since its last
    /// answer. A plan needs current answers.
    pub(super) fn avoids_sessions(self) -> bool {
        self == Self::Status
    }

    pub(super) fn finds_outside_mps(self) -> bool {
        self == Self::Status
    }

    pub(super) fn measures_logs(self) -> bool {
        self == Self::Status
    }

    /// True if the snapshot is retried when records change meanwhile. A planner holds the lock; a reader takes none.
    pub(super) fn is_retried(self) -> bool {
        self == Self::Status
    }
}
