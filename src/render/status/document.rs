//! `status --json` and its schema.

use schemars::JsonSchema;
use serde::Serialize;

use super::device::Device;
use super::program::{Client, Outside, UnmanagedDaemon};
use super::row::rows;
use crate::node::{self, Node, Problem, Served};
use crate::render::json::{VERSION, Version};

/// The output of `mig-mps status --json`.
///
/// `null` means unknown or not there; it is never 0.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "status")]
pub struct Status {
    version: Version,
    /// The driver's version.
    driver: String,
    /// True if there is a problem; null if none was found, and not everything was read. `status` reads everything, and
    /// with `--exit-code` its exit status is then 3.
    degraded: Option<bool>,
    /// The devices with a daemon, and those without.
    devices: Vec<Device>,
    /// The clients of these devices.
    clients: Vec<Client>,
    /// Programs that wait in cuInit until another user's programs have exited.
    waiting: Vec<Client>,
    /// Programs that compute on a device without being clients of a daemon; null if they were not searched for.
    outside_mps: Option<Vec<Outside>>,
    /// MPS daemons and servers that mig-mps did not start; null if they were not searched for.
    unmanaged: Option<Vec<UnmanagedDaemon>>,
    /// The problems of the devices and of the node.
    problems: Vec<Remark>,
    /// Facts worth knowing that are no problems.
    remarks: Vec<Remark>,
    /// The facts that are hidden from the caller, as sentences.
    hidden: Vec<String>,
}

/// A problem or a remark.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "remark")]
struct Remark {
    /// Its id, which `mig-mps doctor --explain` explains. Ids never change.
    id: &'static str,
    /// The device's name; null if it is about the node.
    device: Option<String>,
    /// The problem or remark, as a sentence.
    what: String,
}

impl From<Problem> for Remark {
    fn from(problem: Problem) -> Self {
        Self {
            id: problem.id.name(),
            what: problem.what(),
            device: problem.device,
        }
    }
}

impl Status {
    /// Returns the status of these devices, or of all if none is named.
    pub fn of(node: &Node, devices: &[String]) -> Self {
        let rows = rows(node, devices);
        let of_all = |wanted: fn(&Served) -> &[node::Client]| {
            rows.iter()
                .filter_map(|row| Some((row, row.served?)))
                .flat_map(|(row, served)| {
                    wanted(served).iter().map(|client| Client::of(row, client))
                })
                .collect()
        };
        let problems = node.problems(devices);
        let is_all = node.detail.is_for_show();
        let outside = node.outside_mps.iter();
        let unmanaged = node.unmanaged.iter();
        Self {
            version: VERSION,
            driver: node.driver.clone(),
            degraded: match problems.is_empty() {
                true if !is_all => None,
                is_well => Some(!is_well),
            },
            clients: of_all(|served| served.clients.listed()),
            waiting: of_all(|served| &served.waiting),
            devices: rows.iter().map(Device::of).collect(),
            outside_mps: (is_all && !node.has_no_driver).then(|| {
                outside
                    .map(|outside| Outside::of(node, outside))
                    .filter(|outside| devices.is_empty() || devices.contains(&outside.device))
                    .collect()
            }),
            unmanaged: node.detail.reads_processes().then(|| {
                unmanaged
                    .map(|unmanaged| UnmanagedDaemon::of(node, unmanaged))
                    .collect()
            }),
            problems: problems.into_iter().map(Remark::from).collect(),
            remarks: node
                .remarks(devices)
                .into_iter()
                .map(Remark::from)
                .collect(),
            hidden: node.unseen(),
        }
    }
}
