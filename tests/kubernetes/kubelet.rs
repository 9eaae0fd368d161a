//! A kubelet of the tests: it behaves towards device plugins as one of Kubernetes 1.36 was seen to do.

use std::collections::BTreeMap;
use std::fs;
use std::future::Future;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::Duration;

use mig_mps::internals::kubernetes::v1::pod_resources_lister_server::{
    PodResourcesLister, PodResourcesListerServer,
};
use mig_mps::internals::kubernetes::v1::{
    ContainerDevices, ContainerResources, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources,
};
use mig_mps::internals::kubernetes::v1beta1::device_plugin_client::DevicePluginClient;
use mig_mps::internals::kubernetes::v1beta1::registration_server::{
    Registration, RegistrationServer,
};
use mig_mps::internals::kubernetes::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, Device, DevicePluginOptions, Empty,
    PreStartContainerRequest, PreferredAllocationRequest, RegisterRequest,
};
use testkit::{Sim, eventually};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Handle};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};

/// The time that a call may take in a test.
const LIMIT: Duration = Duration::from_secs(120);

/// The time that the kubelet waits for the socket of a plugin that registers.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

/// A plugin that has registered.
#[derive(Clone)]
pub(crate) struct Registered {
    /// Its options, as it answers them.
    pub(crate) options: DevicePluginOptions,
    /// The devices in its last list; none after the end of its stream.
    pub(crate) devices: Vec<Device>,
    /// True until its stream ends.
    pub(crate) is_connected: bool,
    /// The lists that it has sent.
    pub(crate) lists: usize,
    pub(crate) client: DevicePluginClient<Channel>,
    listening: Option<AbortHandle>,
}

/// The facts of a kubelet that its calls share.
#[derive(Default)]
struct Shared {
    plugins: Mutex<BTreeMap<String, Registered>>,
    /// The number of registrations, those that were refused included.
    registrations: Mutex<usize>,
    /// The pods that hold shares: name, resource and share.
    pods: Mutex<Vec<[String; 3]>>,
    /// The error of every registration from now on.
    refusal: Mutex<Option<String>>,
    /// True if it does not connect to the next plugin that registers.
    forgets: Mutex<bool>,
}

/// A kubelet that can be started and ended.
pub(crate) struct Kubelet {
    directory: PathBuf,
    runtime: Handle,
    _ends_runtime: mpsc::Sender<()>,
    shared: Arc<Shared>,
    serving: Vec<JoinHandle<()>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

impl Kubelet {
    /// One on this node, which has not been started.
    pub(crate) fn of(sim: &Sim) -> Self {
        let (ends, ended) = mpsc::channel::<()>();
        let (give, take) = mpsc::channel();
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            give.send(runtime.handle().clone()).unwrap();
            // Until the other end is dropped.
            runtime.block_on(async {
                while ended.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        });
        Self {
            directory: sim.machine("var/lib/kubelet/device-plugins"),
            runtime: take.recv().unwrap(),
            _ends_runtime: ends,
            shared: Arc::default(),
            serving: Vec::new(),
        }
    }

    /// The same, started.
    pub(crate) fn on(sim: &Sim) -> Self {
        let mut kubelet = Self::of(sim);
        kubelet.start();
        kubelet
    }

    /// The path of a socket in its directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The names of the sockets in its directory.
    pub(crate) fn sockets(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).unwrap().map(Result::unwrap);
        let sockets = entries.filter(|entry| entry.file_type().unwrap().is_socket());
        let mut names: Vec<String> = sockets
            .map(|entry| entry.file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Starts it: all sockets of plugins are removed, and its own is made anew.
    pub(crate) fn start(&mut self) {
        fs::create_dir_all(&self.directory).unwrap();
        for name in self.sockets() {
            fs::remove_file(self.path(&name)).unwrap();
        }
        let pods = self.directory.with_file_name("pod-resources");
        fs::create_dir_all(&pods).unwrap();
        let pods = pods.join("kubelet.sock");
        let _ = fs::remove_file(&pods);
        let (path, directory) = (self.path("kubelet.sock"), self.directory.clone());
        let (shared, lister) = (Arc::clone(&self.shared), Lister(Arc::clone(&self.shared)));
        let (ready, is_ready) = mpsc::channel();
        let pods_ready = ready.clone();
        let listing = self.runtime.spawn(async move {
            let incoming = UnixListenerStream::new(UnixListener::bind(pods).unwrap());
            pods_ready.send(()).unwrap();
            let service = PodResourcesListerServer::new(lister);
            let server = Server::builder().serve_with_incoming(service, incoming);
            server.await.unwrap();
        });
        let registering = self.runtime.spawn(async move {
            let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
            ready.send(()).unwrap();
            let service = RegistrationServer::new(Registrar { directory, shared });
            let server = Server::builder().serve_with_incoming(service, incoming);
            server.await.unwrap();
        });
        self.serving = vec![listing, registering];
        for _ in &self.serving {
            is_ready.recv_timeout(LIMIT).unwrap();
        }
    }

    /// Ends it, with all its connections. Its socket stays, as after a crash.
    pub(crate) fn end(&mut self) {
        for serving in self.serving.drain(..) {
            serving.abort();
        }
        for (_, plugin) in std::mem::take(&mut *locked(&self.shared.plugins)) {
            plugin.listening.unwrap().abort();
        }
    }

    /// Closes the stream of a plugin's devices and goes on.
    pub(crate) fn close_stream(&self, resource: &str) {
        let plugin = self.plugin(resource);
        plugin.listening.unwrap().abort();
        let mut plugins = locked(&self.shared.plugins);
        let plugin = plugins.get_mut(resource).unwrap();
        (plugin.is_connected, plugin.devices) = (false, Vec::new());
    }

    /// Refuses registrations with these words from now on, or takes them again.
    pub(crate) fn refuse(&self, words: Option<&str>) {
        *locked(&self.shared.refusal) = words.map(str::to_owned);
    }

    /// Takes the next registration, and does not connect to the plugin.
    pub(crate) fn forget_next(&self) {
        *locked(&self.shared.forgets) = true;
    }

    /// Has a pod hold a share of a resource, whether or not it runs a program.
    pub(crate) fn admit(&self, pod: &str, resource: &str, share: &str) {
        locked(&self.shared.pods).push([pod, resource, share].map(str::to_owned));
    }

    /// Forgets a pod.
    pub(crate) fn delete(&self, pod: &str) {
        locked(&self.shared.pods).retain(|[name, ..]| name != pod);
    }

    /// The number of registrations so far.
    pub(crate) fn registrations(&self) -> usize {
        *locked(&self.shared.registrations)
    }

    /// The plugin of a resource.
    pub(crate) fn plugin(&self, resource: &str) -> Registered {
        locked(&self.shared.plugins)[resource].clone()
    }

    /// The shares of every resource with their health: `mig-mps.io/gpu 0::0 Healthy`.
    pub(crate) fn shares(&self) -> Vec<String> {
        let mut shares = Vec::new();
        for (resource, plugin) in &*locked(&self.shared.plugins) {
            let devices = plugin.devices.iter();
            shares.extend(
                devices.map(|device| format!("{resource} {} {}", device.id, device.health)),
            );
        }
        shares
    }

    /// Waits until it knows these shares, and no others.
    #[track_caller]
    pub(crate) fn await_shares(&self, expected: &[&str]) {
        eventually("the kubelet knows the shares", || {
            let shares = self.shares();
            if shares == expected {
                Ok(())
            } else {
                Err(format!("{shares:#?}"))
            }
        });
    }

    /// Runs a future beside the kubelet, and waits for it.
    #[track_caller]
    pub(crate) fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let (give, take) = mpsc::channel();
        self.runtime.spawn(async move {
            let _ = give.send(work.await);
        });
        take.recv_timeout(LIMIT).expect("an answer")
    }

    /// Allocates these shares to a container, as at the admission of a pod.
    #[track_caller]
    pub(crate) fn allocate(
        &self,
        resource: &str,
        shares: &[&str],
    ) -> Result<ContainerAllocateResponse, Status> {
        let mut client = self.plugin(resource).client;
        let devices_ids = shares.iter().map(|share| (*share).to_owned()).collect();
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest { devices_ids }],
        };
        let response = self.wait(async move { client.allocate(request).await })?;
        let mut responses = response.into_inner().container_responses;
        assert_eq!(responses.len(), 1);
        Ok(responses.remove(0))
    }

    /// Asks whether a container with these shares may start, as before every start of it, the first one included. It asks
    /// only a plugin that wants that.
    #[track_caller]
    pub(crate) fn start_container(&self, resource: &str, shares: &[&str]) -> Result<(), Status> {
        let mut plugin = self.plugin(resource);
        if !plugin.options.pre_start_required {
            return Ok(());
        }
        let request = PreStartContainerRequest {
            devices_ids: shares.iter().map(|share| (*share).to_owned()).collect(),
        };
        let answer = self.wait(async move { plugin.client.pre_start_container(request).await });
        answer.map(drop)
    }

    /// Asks which of these shares a container is to have.
    #[track_caller]
    pub(crate) fn preferred(
        &self,
        resource: &str,
        available: &[&str],
        must_include: &[&str],
        size: i32,
    ) -> Result<Vec<String>, Status> {
        let mut client = self.plugin(resource).client;
        let owned = |shares: &[&str]| shares.iter().map(|share| (*share).to_owned()).collect();
        let request = PreferredAllocationRequest {
            container_requests: vec![ContainerPreferredAllocationRequest {
                available_device_i_ds: owned(available),
                must_include_device_i_ds: owned(must_include),
                allocation_size: size,
            }],
        };
        let response = self.wait(async move { client.get_preferred_allocation(request).await })?;
        let mut responses = response.into_inner().container_responses;
        assert_eq!(responses.len(), 1);
        Ok(responses.remove(0).device_i_ds)
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        self.end();
    }
}

/// The service at which plugins register.
struct Registrar {
    directory: PathBuf,
    shared: Arc<Shared>,
}

/// The service that lists pods with their devices.
struct Lister(Arc<Shared>);

#[tonic::async_trait]
impl PodResourcesLister for Lister {
    async fn list(
        &self,
        _: Request<ListPodResourcesRequest>,
    ) -> Result<Response<ListPodResourcesResponse>, Status> {
        let pods = locked(&self.0.pods);
        let pods = pods.iter().map(|[pod, resource, share]| {
            let (namespace, name) = pod.split_once('/').unwrap();
            let devices = ContainerDevices {
                resource_name: resource.clone(),
                device_ids: vec![share.clone()],
            };
            let container = ContainerResources {
                name: "main".to_owned(),
                devices: vec![devices],
            };
            PodResources {
                name: name.to_owned(),
                namespace: namespace.to_owned(),
                containers: vec![container],
            }
        });
        Ok(Response::new(ListPodResourcesResponse {
            pod_resources: pods.collect(),
        }))
    }
}

/// Connects to a socket, for which it waits as long as a kubelet does.
async fn dial(path: &Path) -> Result<Channel, Status> {
    let dialling = async {
        let endpoint = Endpoint::from_shared(format!("unix:{}", path.display())).unwrap();
        loop {
            if let Ok(channel) = endpoint.connect().await {
                return channel;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let dialled = tokio::time::timeout(DIAL_LIMIT, dialling).await;
    dialled.map_err(|_| Status::unknown("failed to dial device plugin: context deadline exceeded"))
}

/// True for the name of an extended resource.
fn is_resource(name: &str) -> bool {
    let Some((domain, name)) = name.split_once('/') else {
        return false;
    };
    let is_lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".-".contains(c);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    domain.chars().all(is_lower)
        && !domain.ends_with("kubernetes.io")
        && name.len() <= 63
        && name.chars().all(is_plain)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn register(&self, request: Request<RegisterRequest>) -> Result<Response<Empty>, Status> {
        let request = request.into_inner();
        *locked(&self.shared.registrations) += 1;
        if let Some(words) = &*locked(&self.shared.refusal) {
            return Err(Status::new(Code::Unknown, words));
        }
        if std::mem::take(&mut *locked(&self.shared.forgets)) {
            return Ok(Response::new(Empty {}));
        }
        let resource = request.resource_name;
        if request.version != "v1beta1" {
            return Err(Status::unknown(format!(
                "requested API version {:?} is not supported by kubelet. Supported version is [\"v1beta1\"]",
                request.version
            )));
        }
        if !is_resource(&resource) {
            return Err(Status::unknown(format!(
                "the ResourceName {resource:?} is invalid"
            )));
        }
        let mut client =
            DevicePluginClient::new(dial(&self.directory.join(request.endpoint)).await?);
        // These count, and not those of the request.
        let options = client
            .get_device_plugin_options(Empty {})
            .await?
            .into_inner();
        let plugin = Registered {
            options,
            devices: Vec::new(),
            is_connected: true,
            lists: 0,
            client: client.clone(),
            listening: None,
        };
        locked(&self.shared.plugins).insert(resource.clone(), plugin);
        let shared = Arc::clone(&self.shared);
        let name = resource.clone();
        let listening = tokio::spawn(async move {
            let Ok(stream) = client.list_and_watch(Empty {}).await else {
                return;
            };
            let mut stream = stream.into_inner();
            while let Ok(Some(list)) = stream.message().await {
                if let Some(plugin) = locked(&shared.plugins).get_mut(&name) {
                    plugin.devices = list.devices;
                    plugin.lists += 1;
                }
            }
            if let Some(plugin) = locked(&shared.plugins).get_mut(&name) {
                (plugin.is_connected, plugin.devices) = (false, Vec::new());
            }
        });
        let mut plugins = locked(&self.shared.plugins);
        if let Some(plugin) = plugins.get_mut(&resource) {
            plugin.listening = Some(listening.abort_handle());
        }
        Ok(Response::new(Empty {}))
    }
}
