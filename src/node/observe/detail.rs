/// The amount of detail of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// GPUs, instances, and which daemons run; no profiles of GPUs whose MIG mode is off.
    #[default]
    Geometry,
    /// Geometry, the profiles that every GPU offers, and how many instances of each would fit now.
    Offers,
    /// Geometry, servers, clients, the processes on each device, and MPS programs that mig-mps does not manage, but
    /// only profiles in use. A control session costs the daemon log lines and 1 to 2 ms: one is opened only if NVML and
    /// `/proc` leave a question open.
    Status,
    /// `Status`, and the profiles that every GPU offers: enough to draw a GPU with its free slices.
    Map,
    /// `Status`, with every daemon asked, all GPU instances, and the facts about GPUs that only `doctor` needs.
    Doctor,
    /// Geometry, servers and clients, with every daemon asked: enough to see which clients a change would disrupt.
    Clients,
    /// `Clients`, and the daemons' current settings: enough to plan changes of daemons.
    Settings,
    /// `Settings`, and the profiles that every GPU offers: enough to plan changes of instances.
    Plan,
}

impl Detail {
    /// True if the snapshot is for people to see: everything is read, and daemons are asked only if need be.
    pub fn is_for_show(self) -> bool {
        matches!(self, Self::Status | Self::Map | Self::Doctor)
    }

    /// True if GPUs are asked for all their profiles, whatever their MIG mode and instances.
    pub(super) fn reads_offers(self) -> bool {
        matches!(self, Self::Offers | Self::Map | Self::Plan)
    }

    /// True if the processes on each device are read, and with them servers and clients.
    pub fn reads_processes(self) -> bool {
        !matches!(self, Self::Geometry | Self::Offers)
    }
}
