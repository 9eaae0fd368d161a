use std::fmt;

use thiserror::Error;

use crate::geometry::SliceMap;
use crate::node::Client;
use crate::profile::ProfileError;

/// Why there is no plan. Nothing has been touched.
#[derive(Debug, Error)]
pub enum Refusal {
    /// The profile does not suit this node. Exit status 2.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// What is asked for does not fit. Exit status 5.
    #[error("{profile}\nGPU {gpu}: {wanted} does not fit: {why}\n  {map}")]
    Infeasible {
        /// Where the profile asks for it.
        profile: Box<ProfileError>,
        /// The GPU's index.
        gpu: u32,
        /// What was asked for.
        wanted: String,
        /// What lies on the GPU and stays.
        map: Box<SliceMap>,
        /// What is missing.
        why: String,
        /// The nearest request that fits.
        nearest: Option<String>,
    },
    /// Something that is there would have to go. Exit status 4.
    #[error("{what}")]
    InTheWay {
        /// What, and where.
        what: String,
        /// What to do about it.
        hint: String,
    },
    /// Clients would be disturbed. Exit status 4.
    #[error("{}", in_use(clients))]
    InUse {
        /// Who.
        clients: Vec<ClientOf>,
        /// What to do about it.
        hint: String,
    },
}

/// A client and the device it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientOf {
    /// The device's name.
    pub device: String,
    /// The client.
    pub client: Client,
    /// Whose it is.
    pub user: String,
}

impl fmt::Display for ClientOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.client.command.as_deref().unwrap_or("hidden");
        write!(
            f,
            "{}: pid {} ({}, {command})",
            self.device, self.client.pid, self.user
        )
    }
}

fn in_use(clients: &[ClientOf]) -> String {
    let count = match clients.len() {
        1 => "1 client is".to_owned(),
        n => format!("{n} clients are"),
    };
    let list: Vec<String> = clients
        .iter()
        .map(|client| format!("\n  {client}"))
        .collect();
    format!("{count} still running:{}", list.concat())
}

impl Refusal {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Profile(_) => None,
            Self::Infeasible { nearest, .. } => nearest
                .as_ref()
                .map(|nearest| format!("{nearest} would fit")),
            Self::InTheWay { hint, .. } | Self::InUse { hint, .. } => Some(hint.clone()),
        }
    }
}
