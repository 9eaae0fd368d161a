//! Answers the kubelet's calls about one resource, from what was found out before: the kubelet waits for an answer with
//! all pods of the node.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::Duration;

use tokio::sync::watch::{Receiver, Sender, channel};
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Request, Response, Status};

use super::offer::{OfferedDevice, ResourceOffers, device_of};
use super::v1beta1::device_plugin_server::DevicePlugin;
use super::v1beta1::{
    AllocateRequest, AllocateResponse, ContainerPreferredAllocationRequest,
    ContainerPreferredAllocationResponse, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreStartContainerResponse, PreferredAllocationRequest,
    PreferredAllocationResponse,
};
use crate::client::admission::{NO_LONGER_SERVED, check_admission};
use crate::host::Environment;

/// The time for which a container waits for a change of the node before it is refused. The kubelet tries again.
const CHANGE_TIMEOUT: Duration = Duration::from_millis(500);

/// The plugin of one resource.
#[derive(Clone)]
pub struct Plugin {
    pub resource: String,
    pub environment: &'static Environment,
    pub offers: Receiver<ResourceOffers>,
    streams: Sender<Streams>,
}

/// The streams of devices that the kubelet has opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streams {
    pub open: usize,
    /// The number of streams that have ended.
    pub ended: usize,
}

/// A stream that is open.
struct OpenStream(Sender<Streams>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.send_modify(|streams| {
            streams.open -= 1;
            streams.ended += 1;
        });
    }
}

impl Plugin {
    pub fn new(
        resource: String,
        environment: &'static Environment,
        offers: Receiver<ResourceOffers>,
    ) -> Self {
        let (streams, _) = channel(Streams::default());
        Self {
            resource,
            environment,
            offers,
            streams,
        }
    }

    /// Returns the streams, to see them end.
    pub fn watch_streams(&self) -> Receiver<Streams> {
        self.streams.subscribe()
    }

    /// Refuses more than one share: two may be of two GPUs, and an MPS client has one.
    fn check_single_share(&self, shares: usize) -> Result<(), Status> {
        if shares <= 1 {
            return Ok(());
        }
        let resource = &self.resource;
        Err(Status::invalid_argument(format!(
            "a container can have one share of {resource}, not {shares}, because several shares could be on different \
             GPUs"
        )))
    }

    /// Refuses a share of a device that would not take a client now. A container that the kubelet starts again has asked for
    /// nothing: it would run outside MPS, and keep doing so.
    async fn check_ready(&self, share: &str) -> Result<(), Status> {
        let name = device_of(share);
        let offers = self.offers.borrow().clone();
        let mut devices = offers.devices_for(&self.resource);
        let Some(offered) = devices.find(|offered| offered.name == name) else {
            return Err(unhealthy_status(name, NO_LONGER_SERVED));
        };
        let (environment, uuid) = (self.environment, offered.uuid.clone());
        // The last offers may be a second old.
        let now = move || check_admission(environment, &uuid, CHANGE_TIMEOUT);
        let now = tokio::task::spawn_blocking(now).await;
        let now = now.map_err(|error| Status::internal(error.to_string()))?;
        now.map_err(|why| unhealthy_status(name, &why))?;
        match &offered.ill {
            Some(why) => Err(unhealthy_status(name, why)),
            None => Ok(()),
        }
    }

    /// Chooses the share of a device of which the most shares are free.
    fn choose_share(
        &self,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<ContainerPreferredAllocationResponse, Status> {
        let size = usize::try_from(request.allocation_size).unwrap_or_default();
        self.check_single_share(size)?;
        let available = &request.available_device_i_ds;
        let mut free: HashMap<&str, usize> = HashMap::new();
        for share in available {
            *free.entry(device_of(share)).or_default() += 1;
        }
        let must = request.must_include_device_i_ds.first();
        // Of several that are equal, the last one is the greatest.
        let freest = || {
            let from_last = available.iter().rev();
            from_last.max_by_key(|share| free[device_of(share)])
        };
        let chosen = must.or_else(freest);
        Ok(ContainerPreferredAllocationResponse {
            device_i_ds: chosen.cloned().into_iter().take(size).collect(),
        })
    }
}

#[tonic::async_trait]
impl DevicePlugin for Plugin {
    async fn get_device_plugin_options(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<DevicePluginOptions>, Status> {
        Ok(Response::new(OPTIONS))
    }

    type ListAndWatchStream =
        Pin<Box<dyn Stream<Item = Result<ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(
        &self,
        _: Request<Empty>,
    ) -> Result<Response<Self::ListAndWatchStream>, Status> {
        self.streams.send_modify(|streams| streams.open += 1);
        let open = OpenStream(self.streams.clone());
        let resource = self.resource.clone();
        let mut last = None;
        // A reader that is slow misses what was overtaken: there is no queue.
        let stream = WatchStream::new(self.offers.clone()).filter_map(move |offers| {
            let _ends_with_the_stream = &open;
            let response = ListAndWatchResponse {
                devices: offers
                    .devices_for(&resource)
                    .flat_map(OfferedDevice::kubelet_devices)
                    .collect(),
            };
            let is_new = last.as_ref() != Some(&response);
            last = Some(response.clone());
            is_new.then_some(Ok(response))
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<PreferredAllocationRequest>,
    ) -> Result<Response<PreferredAllocationResponse>, Status> {
        let requests = &request.get_ref().container_requests;
        let container_responses = requests
            .iter()
            .map(|request| self.choose_share(request))
            .collect::<Result<_, _>>()?;
        Ok(Response::new(PreferredAllocationResponse {
            container_responses,
        }))
    }

    async fn allocate(
        &self,
        request: Request<AllocateRequest>,
    ) -> Result<Response<AllocateResponse>, Status> {
        let offers = self.offers.borrow().clone();
        let mut container_responses = Vec::new();
        for request in &request.get_ref().container_requests {
            self.check_single_share(request.devices_ids.len())?;
            let Some(share) = request.devices_ids.first() else {
                return Err(Status::invalid_argument("the request names no share"));
            };
            let mut devices = offers.devices_for(&self.resource);
            let Some(offered) = devices.find(|offered| offered.has_share(share)) else {
                let resource = &self.resource;
                return Err(Status::not_found(format!(
                    "mig-mps serves no share {share:?} of {resource} on this node"
                )));
            };
            let answer = offered.allocation_response(&self.environment.host);
            container_responses.push(answer.map_err(Status::failed_precondition)?);
        }
        Ok(Response::new(AllocateResponse {
            container_responses,
        }))
    }

    async fn pre_start_container(
        &self,
        request: Request<PreStartContainerRequest>,
    ) -> Result<Response<PreStartContainerResponse>, Status> {
        for share in &request.get_ref().devices_ids {
            self.check_ready(share).await?;
        }
        Ok(Response::new(PreStartContainerResponse {}))
    }
}

fn unhealthy_status(name: &str, why: &str) -> Status {
    Status::failed_precondition(format!("device {name} is not healthy: {why}"))
}

/// The options of the plugin.
pub const OPTIONS: DevicePluginOptions = DevicePluginOptions {
    pre_start_required: true,
    get_preferred_allocation_available: true,
};
