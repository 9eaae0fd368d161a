use clap::ValueEnum;

use crate::render::table::Column;

/// A column of the devices table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatusColumn {
    /// The device's name
    Name,
    /// Its GPU's index
    Gpu,
    /// What it is of the GPU
    Profile,
    /// How its daemon is
    State,
    /// Whose server it has
    User,
    /// How many clients, of how many where that is known
    Clients,
    /// The active thread percentage
    Threads,
    /// Device memory
    Memory,
    /// How busy the GPU is; n/a for MIG devices
    Util,
    /// The daemon's process id
    Daemon,
    /// The servers' process ids
    Server,
    /// For how long it has been served
    Since,
    /// Whose clients it serves
    Serve,
    /// The device's UUID
    Device,
}

impl StatusColumn {
    /// How it is headed and aligned, and when it is left out for want of room.
    pub(super) fn column(self) -> Column {
        match self {
            Self::Name => Column::left("NAME", 0),
            Self::Gpu => Column::right("GPU", 5),
            Self::Profile => Column::left("PROFILE", 0),
            Self::State => Column::left("STATE", 0),
            Self::User => Column::left("USER", 3),
            Self::Clients => Column::right("CLIENTS", 0),
            Self::Threads => Column::right("THREADS", 6),
            Self::Memory => Column::right("MEMORY GIB", 1),
            Self::Util => Column::right("UTIL", 7),
            Self::Daemon => Column::right("DAEMON", 2),
            Self::Server => Column::right("SERVER", 1),
            Self::Since => Column::right("SINCE", 8).restless(),
            Self::Serve => Column::left("SERVE", 9),
            Self::Device => Column::left("DEVICE", 10),
        }
    }
}
