//! Keeps `pods.json` current: the pods that hold shares, as the kubelet lists them. A change of the node has to know of those
//! that run nothing at the moment.

use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};
use tonic::transport::Endpoint;

use super::offer::{DOMAIN, Offers, device_of};
use super::registration::{Kubelet, said_by};
use super::v1::pod_resources_lister_client::PodResourcesListerClient;
use super::v1::{ListPodResourcesRequest, PodResources};
use crate::host::{Environment, bounded, printable};
use crate::render::note;
use crate::state::RunDir;
use crate::state::record::{PodShare, PodsFile};

/// The time between two questions to the kubelet.
const PERIOD: Duration = Duration::from_secs(5);

/// The time that the kubelet may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// Writes the pods that hold shares, again and again.
pub async fn keep_pods(
    kubelet: Kubelet,
    environment: &'static Environment,
    offers: Receiver<Offers>,
) {
    let run_dir = RunDir::at(&environment.roots_run_dir());
    let mut said = None;
    loop {
        let written = match list(&kubelet).await {
            Ok(pods) => write(&run_dir, environment, &pods, &offers.borrow()),
            Err(why) => Err(why),
        };
        let problem = written.err();
        if problem != said
            && let Some(why) = &problem
        {
            note(&format!(
                "a change of the node will not know of pods without programs: the kubelet does not list them: {why}"
            ));
        }
        said = problem;
        sleep(PERIOD).await;
    }
}

async fn list(kubelet: &Kubelet) -> Result<Vec<PodResources>, String> {
    let listing = async {
        let path = format!("unix:{}", kubelet.pods.display());
        let channel = Endpoint::from_shared(path).map_err(|error| error.to_string())?;
        let channel = channel.connect().await.map_err(|error| said_by(&error))?;
        let mut client = PodResourcesListerClient::new(channel);
        let listed = client.list(ListPodResourcesRequest {}).await;
        listed
            .map(|response| response.into_inner().pod_resources)
            .map_err(|status| bounded(&printable(status.message())).into_owned())
    };
    let listed = timeout(LIMIT, listing).await;
    listed.unwrap_or_else(|_| Err(format!("no answer within {} s", LIMIT.as_secs())))
}

fn write(
    run_dir: &RunDir,
    environment: &Environment,
    pods: &[PodResources],
    offers: &Offers,
) -> Result<(), String> {
    let boot_id = environment.host.boot_id();
    let file = PodsFile {
        boot_id: boot_id.map_err(|error| error.to_string())?,
        at: Timestamp::now(),
        pods: shares(pods, offers),
    };
    run_dir.write_pods(&file).map_err(|error| error.to_string())
}

/// Returns the shares of our devices among everything that pods hold.
fn shares(pods: &[PodResources], offers: &Offers) -> Vec<PodShare> {
    let mut shares = Vec::new();
    for pod in pods {
        let devices = pod.containers.iter().flat_map(|one| &one.devices);
        let ours = devices.filter(|held| {
            let domain = held.resource_name.split_once('/');
            domain.is_some_and(|(domain, _)| domain == DOMAIN)
        });
        for share in ours.flat_map(|held| &held.device_ids) {
            let mut offered = offers.devices.iter();
            if let Some(device) = offered.find(|one| one.name == device_of(share)) {
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
