//! Keeps `pods.json` current: the pods that hold shares, as the kubelet lists them. A change of the node has to know of those
//! that run nothing at the moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch::Receiver;
use tokio::time::sleep;

use super::metrics::KubeletFacts;
use super::offer::{DOMAIN, ResourceOffers, device_of};
use super::registration::{Kubelet, call_kubelet};
use super::v1::pod_resources_lister_client::PodResourcesListerClient;
use super::v1::{ContainerDevices, ListPodResourcesRequest, PodResources};
use crate::host::{Environment, lock};
use crate::render::warn;
use crate::state::RunDir;
use crate::state::record::{PodShare, PodsFile};

/// The time between two questions to the kubelet.
const POD_POLL_INTERVAL: Duration = Duration::from_secs(5);

/// The time that the kubelet may take to answer.
const KUBELET_ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The most bytes of an answer, as the kubelet has it for its own clients.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Writes the pods that hold shares, again and again.
pub async fn keep_pods(
    kubelet: Kubelet,
    environment: &'static Environment,
    offers: Receiver<ResourceOffers>,
    facts: Arc<KubeletFacts>,
) {
    let run_dir = RunDir::at(&environment.roots_run_dir());
    let mut said = None;
    loop {
        let pods = list_pods(&kubelet).await;
        *lock(&facts.used_shares) = pods.as_deref().ok().map(used_shares);
        let problem = match pods {
            Ok(pods) => write_pods_file(&run_dir, environment, &pods, &offers.borrow()).err(),
            Err(why) => Some(format!("the kubelet does not list them: {why}")),
        };
        if problem != said
            && let Some(why) = &problem
        {
            warn(&format!(
                "a change of the node cannot take pods without programs into account: {why}"
            ));
        }
        said = problem;
        sleep(POD_POLL_INTERVAL).await;
    }
}

async fn list_pods(kubelet: &Kubelet) -> Result<Vec<PodResources>, String> {
    let call = async |channel| {
        let client = PodResourcesListerClient::new(channel);
        let mut client = client.max_decoding_message_size(MAX_ANSWER_BYTES);
        client.list(ListPodResourcesRequest {}).await
    };
    let listed = call_kubelet(&kubelet.pods, KUBELET_ANSWER_TIMEOUT, call).await?;
    Ok(listed.pod_resources)
}

fn write_pods_file(
    run_dir: &RunDir,
    environment: &Environment,
    pods: &[PodResources],
    offers: &ResourceOffers,
) -> Result<(), String> {
    let boot_id = environment.host.boot_id();
    let file = PodsFile {
        boot_id: boot_id.map_err(|error| error.to_string())?,
        at: Timestamp::now(),
        pods: pod_shares(pods, offers),
    };
    run_dir.write_pods(&file).map_err(|error| error.to_string())
}

/// Returns the shares of our devices among everything that pods hold.
fn pod_shares(pods: &[PodResources], offers: &ResourceOffers) -> Vec<PodShare> {
    let mut shares = Vec::new();
    for pod in pods {
        for share in held_devices(pod).flat_map(|held| &held.device_ids) {
            if let Some(device) = offers.device_named(device_of(share)) {
                shares.push(PodShare {
                    pod: format!("{}/{}", pod.namespace, pod.name),
                    device: device.uuid.clone(),
                });
            }
        }
    }
    shares.sort();
    shares.dedup();
    shares
}

/// Returns the shares of our resources that a pod holds.
fn held_devices(pod: &PodResources) -> impl Iterator<Item = &ContainerDevices> {
    pod.containers
        .iter()
        .flat_map(|one| &one.devices)
        .filter(|held| {
            let domain = held.resource_name.split_once('/');
            domain.is_some_and(|(domain, _)| domain == DOMAIN)
        })
}

/// Returns the number of shares of each resource that pods hold.
fn used_shares(pods: &[PodResources]) -> BTreeMap<String, usize> {
    let mut shares: BTreeMap<String, BTreeSet<&String>> = BTreeMap::new();
    for held in pods.iter().flat_map(held_devices) {
        // The containers of a pod may have the same share one after the other.
        shares
            .entry(held.resource_name.clone())
            .or_default()
            .extend(&held.device_ids);
    }
    shares
        .into_iter()
        .map(|(resource, shares)| (resource, shares.len()))
        .collect()
}
