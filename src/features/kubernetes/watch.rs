//! Finds out what there is to offer, again and again.
//!
//! The daemons are watched without the driver: their records, processes and logs, and a control session where these have
//! changed. The driver is asked less often, in a process of its own: it may hang, and a process that has it open keeps
//! GPUs from being reset.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::watch::{Receiver, Sender, channel};

use super::offer::{OfferedDevice, ResourceOffers, resource_for};
use crate::client::{ClientOptions, ContainerDevice};
use crate::commands::env::container_device;
use crate::error::{ErrorContext as _, Result};
use crate::host::{Environment, Pid, RunError, format_count, join_words, lock, run};
use crate::node::{
    Detail, Device, DeviceState, Node, Presence, Served, observe, observe_records,
    observe_without_driver,
};
use crate::render::{note, print, report};
use crate::settings::Serve;
use crate::state::DeviceRecord;

/// The time between two looks at the daemons, unless the first one takes longer.
const DAEMON_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The time that a daemon may take to answer, which is one or two milliseconds for a real one. A daemon may hang while
/// another one is waited for, and each may be asked twice: the kubelet knows it within 5 s.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

/// The time between two questions to the driver, unless devices have changed, and the time that an answer may take.
const HARDWARE_PERIOD: Duration = Duration::from_secs(30);
const HARDWARE_TIMEOUT: Duration = Duration::from_secs(20);

/// The facts about a device that the driver tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
struct DriverFacts {
    /// The reason why no program can use it.
    ill: Option<String>,
    memory_mib: Option<u64>,
}

/// The devices by UUID, as the driver sees them; or the reason why it says nothing.
type Hardware = Result<BTreeMap<String, DriverFacts>, String>;

/// Asks the driver. It may never answer.
fn read_hardware(environment: &Environment) -> Hardware {
    let node = observe(environment, Detail::GEOMETRY).map_err(|error| error.to_string())?;
    let seen = node.devices.iter().filter_map(|device| {
        let served = device.served.as_ref()?;
        let ill = match &device.presence {
            Presence::There => None,
            Presence::MadeAgain => Some("the device was created again".to_owned()),
            Presence::Gone => Some("the device does not exist".to_owned()),
            Presence::Unseen(unseen) => Some(unseen.reason()),
        };
        let facts = DriverFacts {
            ill,
            memory_mib: memory_mib(&node, device),
        };
        Some((served.record.uuid.clone(), facts))
    });
    Ok(seen.collect())
}

fn memory_mib(node: &Node, device: &Device) -> Option<u64> {
    if let Some(part) = &device.part {
        return Some(part.memory_mib);
    }
    if device.key.instance.is_some() {
        return None;
    }
    let gpu = node.gpu_with_uuid(&device.key.gpu)?;
    Some(gpu.memory?.total >> 20)
}

/// Asks the driver in another process, within a limit. The kernel may not end a process that hangs in the driver: `stuck`
/// is then its pid, and none is started beside it.
fn query_hardware(environment: &Environment, stuck: &mut Option<Pid>) -> Hardware {
    let late = || Err(format!("no answer within {} s", HARDWARE_TIMEOUT.as_secs()));
    if stuck.is_some_and(|pid| !environment.host.has_ended(pid)) {
        return late();
    }
    *stuck = None;
    let mut helper = Command::new(&environment.helper);
    helper.arg("--hardware").envs(std::env::vars_os());
    match run(&helper, "", HARDWARE_TIMEOUT) {
        Ok(output) => serde_json::from_str(&output.stdout)
            .unwrap_or_else(|_| Err(output.stderr.trim().to_owned())),
        Err(RunError::Unkillable { pid, .. }) => {
            *stuck = Some(pid);
            late()
        }
        Err(_) => late(),
    }
}

/// Prints what the driver says, for the plugin that has started this process.
pub fn report_hardware(environment: &Environment) -> Result<()> {
    let hardware = serde_json::to_string(&read_hardware(environment));
    Ok(print(&hardware.unwrap_or_default())?)
}

/// The facts about a device that change with its record alone.
struct KnownDevice {
    record: DeviceRecord,
    numa_node: Option<u32>,
    container: Result<ContainerDevice, String>,
}

/// Finds out what there is to offer.
pub struct OfferWatcher<'a> {
    environment: &'a Environment,
    hardware: Arc<Mutex<Hardware>>,
    known: BTreeMap<String, KnownDevice>,
    /// The last offers.
    offers: ResourceOffers,
}

impl<'a> OfferWatcher<'a> {
    pub fn new(environment: &'a Environment) -> Self {
        Self {
            environment,
            hardware: Arc::new(Mutex::new(Ok(BTreeMap::new()))),
            known: BTreeMap::new(),
            offers: ResourceOffers::default(),
        }
    }

    /// Returns the offers once, the driver asked first.
    pub fn observe_once(mut self) -> Result<ResourceOffers> {
        *lock(&self.hardware) = query_hardware(self.environment, &mut None);
        self.update_offers()?;
        Ok(self.offers)
    }

    /// Takes a snapshot of the daemons, and makes the offers of it. A daemon of which nothing has changed since its last
    /// answer is not asked.
    fn update_offers(&mut self) -> Result<()> {
        let mut node = observe_records(self.environment)?;
        node.detail = Detail {
            outside_mps: false,
            ..Detail::STATUS
        };
        observe_without_driver(self.environment, &mut node, ANSWER_TIMEOUT);
        let hardware = lock(&self.hardware).clone();
        // What `down` is about to take is no longer offered.
        let served: Vec<_> = node
            .devices
            .iter()
            .filter_map(|device| Some((device, device.served.as_ref()?)))
            .filter(|(_, served)| !served.record.leaving)
            .collect();
        let records: Vec<_> = served.iter().map(|(_, served)| &served.record).collect();
        let mut offers = ResourceOffers::default();
        for (device, served) in &served {
            let record = &served.record;
            let resource = match resource_for(record, &records) {
                Ok(resource) => resource,
                Err(why) => {
                    offers.refused.push((record.name.clone(), why));
                    continue;
                }
            };
            // A group that is missing may be made.
            let is_known = |known: &KnownDevice| known.record == *record && known.container.is_ok();
            if !self.known.get(&record.uuid).is_some_and(is_known) {
                let limits = ClientOptions::default();
                let gpus = record.gpu_positions();
                let container = container_device(self.environment, served, &limits, &gpus);
                let numa_node = self.environment.host.numa_node_of(&record.key.gpu);
                let known = KnownDevice {
                    record: record.clone(),
                    numa_node: numa_node.ok().flatten(),
                    container: container.map_err(|error| error.to_string()),
                };
                self.known.insert(record.uuid.clone(), known);
            }
            let known = &self.known[&record.uuid];
            let by_driver = self.driver_facts(&hardware, &record.uuid);
            offers.devices.push(OfferedDevice {
                name: record.name.clone(),
                uuid: record.uuid.clone(),
                resource,
                shares: served.share_count().unwrap_or(1),
                ill: by_driver.ill.or_else(|| self.daemon_problem(&node, device)),
                memory_mib: by_driver.memory_mib,
                numa_node: known.numa_node,
                container: known.container.clone(),
            });
        }
        self.known
            .retain(|uuid, _| records.iter().any(|record| record.uuid == *uuid));
        self.offers = offers;
        Ok(())
    }

    /// Returns the facts that the driver tells about a device. Its memory stays as it was while the driver does not answer.
    fn driver_facts(&self, hardware: &Hardware, uuid: &str) -> DriverFacts {
        match hardware {
            Ok(seen) => seen.get(uuid).cloned().unwrap_or_default(),
            Err(why) => {
                let before = self
                    .offers
                    .devices
                    .iter()
                    .find(|offered| offered.uuid == uuid);
                DriverFacts {
                    ill: Some(format!("the driver does not answer: {why}")),
                    memory_mib: before.and_then(|offered| offered.memory_mib),
                }
            }
        }
    }

    /// Says which pods have to wait for others: a line for each resource. One share has no second user.
    fn remark_on_users(&self) {
        let mut remarks = BTreeSet::new();
        for offered in &self.offers.devices {
            let Some(serve) = self
                .known
                .get(&offered.uuid)
                .and_then(|known| known.record.settings.serve.as_ref())
            else {
                continue;
            };
            let is_for_one = offered.shares == 1 && *serve == Serve::OneAtATime;
            if !is_for_one && let Some(limits) = serve.limits_of_pods() {
                remarks.insert(format!(
                    "{}, serve = \"{serve}\": {limits}",
                    offered.resource
                ));
            }
        }
        for remark in remarks {
            note(&remark);
        }
    }

    /// Returns the reason why the daemon of a device takes no clients. One that cannot be asked for a moment is as it was.
    fn daemon_problem(&self, node: &Node, device: &Device) -> Option<String> {
        let state = node.state_of(device);
        match state {
            DeviceState::Ready | DeviceState::NoServerYet => None,
            DeviceState::Busy | DeviceState::Hidden => {
                let before = self
                    .offers
                    .devices
                    .iter()
                    .find(|offered| offered.uuid == device.uuid);
                match before {
                    Some(offered) => offered.ill.clone(),
                    None => Some("its daemon has not been asked yet".to_owned()),
                }
            }
            _ => {
                let served = device.served.as_ref();
                if let Some(why) = served.and_then(Served::closed_reason) {
                    return Some(why);
                }
                let ailment = served.and_then(|served| served.state.outage_reason());
                let by_state = || format!("its state is \"{state}\"");
                Some(ailment.map_or_else(by_state, str::to_owned))
            }
        }
    }

    /// Passes each change of the offers on, until nobody takes them.
    fn publish_changes(mut self, to: &Sender<ResourceOffers>, devices_changed: &mpsc::Sender<()>) {
        while !to.is_closed() {
            let begun = Instant::now();
            let before = self.offers.clone();
            if let Err(error) = self.update_offers() {
                // What is not seen is not taken for healthy.
                for offered in &mut self.offers.devices {
                    offered.ill = Some(format!("its daemon cannot be seen: {error}"));
                }
            }
            if self.offers != before {
                note_changes(&before, &self.offers);
                if device_uuids(&before) != device_uuids(&self.offers)
                    && devices_changed.send(()).is_err()
                {
                    return;
                }
                let _ = to.send(self.offers.clone());
            }
            thread::sleep(DAEMON_POLL_INTERVAL.saturating_sub(begun.elapsed()));
        }
    }
}

fn device_uuids(offers: &ResourceOffers) -> Vec<&str> {
    offers
        .devices
        .iter()
        .map(|offered| offered.uuid.as_str())
        .collect()
}

/// Says what has changed: a line for each resource, and one for each device whose health did.
fn note_changes(before: &ResourceOffers, now: &ResourceOffers) {
    let all = before.devices.iter().chain(&now.devices);
    let resources: BTreeSet<&str> = all.map(|offered| offered.resource.as_str()).collect();
    for resource in resources {
        let [was, is] = [before, now].map(|offers| describe_shares(offers, resource));
        if was != is {
            report(&format!("{resource}: {is}"));
        }
    }
    for offered in &now.devices {
        let was = before.device_named(&offered.name);
        match (&offered.ill, was.map(|was| &was.ill)) {
            (Some(why), was) if was != Some(&offered.ill) => {
                report(&format!("device {} is unhealthy: {why}", offered.name));
            }
            (None, Some(Some(_))) => report(&format!("device {} is healthy", offered.name)),
            _ => {}
        }
    }
    for (name, why) in now
        .refused
        .iter()
        .filter(|one| !before.refused.contains(one))
    {
        note(&format!("device {name} is not offered: {why}"));
    }
}

/// `8 shares of 0.4 and 0.5`
fn describe_shares(offers: &ResourceOffers, resource: &str) -> String {
    let (mut shares, mut names) = (0, Vec::new());
    for offered in offers.devices_for(resource) {
        shares += offered.shares as usize;
        names.push(offered.name.as_str());
    }
    match names.as_slice() {
        [] => "no device".to_owned(),
        names => format!(
            "{} of {}",
            format_count(shares, "share"),
            join_words(names, "and")
        ),
    }
}

/// Watches the node in threads of their own; the first offers are there when it returns.
pub fn start_watching(environment: &'static Environment) -> Result<Receiver<ResourceOffers>> {
    let (to, offers) = channel(ResourceOffers::default());
    let (devices_changed, changes) = mpsc::channel();
    let mut watch = OfferWatcher::new(environment);
    let mut stuck = None;
    *lock(&watch.hardware) = query_hardware(environment, &mut stuck);
    let hardware = Arc::clone(&watch.hardware);
    spawn_thread("driver", move || {
        watch_hardware(environment, &hardware, &changes, stuck);
    })?;
    watch.update_offers()?;
    note_changes(&ResourceOffers::default(), &watch.offers);
    watch.remark_on_users();
    let _ = to.send(watch.offers.clone());
    spawn_thread("daemons", move || {
        watch.publish_changes(&to, &devices_changed);
    })?;
    Ok(offers)
}

fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map(drop).context("cannot watch the node")
}

/// Asks the driver at times, and when devices have changed, but not while a change may have to reset GPUs.
fn watch_hardware(
    environment: &Environment,
    hardware: &Mutex<Hardware>,
    changes: &mpsc::Receiver<()>,
    mut stuck: Option<Pid>,
) {
    loop {
        match changes.recv_timeout(HARDWARE_PERIOD) {
            Ok(()) | Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        while observe_records(environment).is_ok_and(|node| !node.under_way.is_empty()) {
            thread::sleep(DAEMON_POLL_INTERVAL);
        }
        // The answer is for all changes until now.
        while changes.try_recv().is_ok() {}
        let seen = query_hardware(environment, &mut stuck);
        *lock(hardware) = seen;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_alone_hangs_in_the_driver() {
        let own = Pid(std::process::id());
        let mut stuck = Some(own);
        let hardware = query_hardware(&Environment::read(), &mut stuck);
        assert_eq!(hardware, Err("no answer within 20 s".to_owned()));
        assert_eq!(stuck, Some(own));
    }
}
