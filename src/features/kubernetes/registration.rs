//! Keeps a resource registered at the kubelet.
//!
//! A kubelet that starts removes the sockets of all plugins, and knows no plugin. It also forgets a plugin whose stream of
//! devices ends. So the socket is made and registered again whenever one of these has happened.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Response, Status};

use super::metrics::KubeletFacts;
use super::offer::ResourceOffers;
use super::plugin::{OPTIONS, Plugin, Streams};
use super::v1beta1::RegisterRequest;
use super::v1beta1::device_plugin_server::DevicePluginServer;
use super::v1beta1::registration_client::RegistrationClient;
use crate::host::{Environment, FileError, FileResult, shorten_command, to_printable};
use crate::render::report;

/// The version of the protocol.
const PROTOCOL_VERSION: &str = "v1beta1";

/// The time between two looks at the kubelet's socket.
pub const SOCKET_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The time that a registration may take: the kubelet calls the plugin meanwhile, and gives up after 10 s.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(15);

/// The time that the kubelet may take to open its stream after a registration.
const STREAM_TIMEOUT: Duration = Duration::from_secs(10);

/// The pauses between registrations that fail, or do not last.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The calls that the kubelet may have open on one connection.
const MAX_CONCURRENT_CALLS: u32 = 64;

/// The directories of a kubelet.
#[derive(Clone, Debug)]
pub struct Kubelet {
    pub plugins: PathBuf,
    /// The socket at which it lists the pods with their devices.
    pub pods: PathBuf,
}

impl Kubelet {
    /// Returns that of a kubelet with this directory.
    pub fn in_directory(directory: &Path) -> Self {
        Self {
            plugins: directory.join("device-plugins"),
            pods: directory.join("pod-resources/kubelet.sock"),
        }
    }

    fn registration_socket(&self) -> PathBuf {
        self.plugins.join("kubelet.sock")
    }

    /// Removes a socket of this program, such as one that a plugin left that was killed.
    pub fn remove_socket(&self, endpoint: &str) {
        let path = self.plugins.join(endpoint);
        if fs::symlink_metadata(&path).is_ok_and(|found| found.file_type().is_socket()) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the name of the socket with this number. That of a resource may be too long for a socket's path.
pub fn endpoint_name(number: usize) -> String {
    format!("mig-mps-{number}.sock")
}

/// Tells one socket from another that was made later under its name: inode numbers are used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark(u64, u64, i64, i64);

impl Mark {
    fn from_path(path: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path).ok()?;
        Some(Self(
            found.dev(),
            found.ino(),
            found.ctime(),
            found.ctime_nsec(),
        ))
    }
}

/// A socket at which the plugin serves.
struct Socket {
    path: PathBuf,
    mark: Option<Mark>,
    streams: Receiver<Streams>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
}

impl Socket {
    /// Makes the socket again, and serves there.
    fn bind_and_serve(plugin: Plugin, kubelet: &Kubelet, endpoint: &str) -> FileResult<Self> {
        kubelet.remove_socket(endpoint);
        let path = kubelet.plugins.join(endpoint);
        let listener = UnixListener::bind(&path)?;
        let (mark, streams) = (Mark::from_path(&path), plugin.watch_streams());
        let serving = Server::builder()
            .max_concurrent_streams(MAX_CONCURRENT_CALLS)
            .serve_with_incoming(
                DevicePluginServer::new(plugin),
                UnixListenerStream::new(listener),
            );
        Ok(Self {
            path,
            mark,
            streams,
            serving: tokio::spawn(serving),
        })
    }

    /// True if the kubelet reaches the plugin there.
    fn is_there(&self) -> bool {
        Mark::from_path(&self.path) == self.mark && !self.serving.is_finished()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// Serves a resource at a socket and keeps it registered, without end.
pub async fn keep_registered(
    resource: String,
    environment: &'static Environment,
    kubelet: Kubelet,
    endpoint: String,
    offers: Receiver<ResourceOffers>,
    facts: Arc<KubeletFacts>,
) {
    facts.note_registration(&resource, false);
    let mut socket: Option<Socket> = None;
    let mut pause = FIRST_PAUSE;
    let mut said = String::new();
    // Says each thing once, until another one has happened.
    let mut say = |what: String| {
        if said != what {
            report(&format!("{resource}: {what}"));
            said = what;
        }
    };
    loop {
        let Some(mark) = Mark::from_path(&kubelet.registration_socket()) else {
            say("waiting for the kubelet".to_owned());
            sleep(SOCKET_POLL_INTERVAL).await;
            continue;
        };
        socket = socket.filter(Socket::is_there);
        let serving = if let Some(serving) = &socket {
            serving
        } else {
            let plugin = Plugin::new(resource.clone(), environment, offers.clone());
            match Socket::bind_and_serve(plugin, &kubelet, &endpoint) {
                Ok(new) => socket.insert(new),
                Err(error) => {
                    say(format!("cannot create the socket {endpoint}: {error}"));
                    wait_before_retry(&mut pause, &kubelet, mark).await;
                    continue;
                }
            }
        };
        let begun = Instant::now();
        let before = *serving.streams.borrow();
        if let Err(why) = register_resource(&resource, &kubelet, &endpoint).await {
            say(format!("the kubelet does not register it: {why}"));
            wait_before_retry(&mut pause, &kubelet, mark).await;
            continue;
        }
        say("registered".to_owned());
        facts.note_registration(&resource, true);
        let ended = wait_until_lost(serving, before, &kubelet, mark).await;
        facts.note_registration(&resource, false);
        say(ended.to_owned());
        if begun.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        if Mark::from_path(&kubelet.registration_socket()) == Some(mark) && serving.is_there() {
            wait_before_retry(&mut pause, &kubelet, mark).await;
        }
    }
}

/// Waits, and longer the next time, but not longer than until the kubelet has another socket.
async fn wait_before_retry(pause: &mut Duration, kubelet: &Kubelet, mark: Mark) {
    let until = Instant::now() + *pause;
    *pause = LONGEST_PAUSE.min(*pause * 2);
    while Instant::now() < until {
        if Mark::from_path(&kubelet.registration_socket()) != Some(mark) {
            *pause = FIRST_PAUSE;
            return;
        }
        sleep(SOCKET_POLL_INTERVAL.min(until - Instant::now())).await;
    }
}

/// Registers the resource. The kubelet calls the plugin before it answers.
async fn register_resource(
    resource: &str,
    kubelet: &Kubelet,
    endpoint: &str,
) -> Result<(), String> {
    let request = RegisterRequest {
        version: PROTOCOL_VERSION.to_owned(),
        endpoint: endpoint.to_owned(),
        resource_name: resource.to_owned(),
        options: Some(OPTIONS),
    };
    let call = async |channel| RegistrationClient::new(channel).register(request).await;
    call_kubelet(&kubelet.registration_socket(), REGISTRATION_TIMEOUT, call)
        .await
        .map(drop)
}

/// Calls the kubelet at one of its sockets. Returns its answer, or the reason why there is none within the limit.
pub async fn call_kubelet<T>(
    socket: &Path,
    limit: Duration,
    call: impl AsyncFnOnce(Channel) -> Result<Response<T>, Status>,
) -> Result<T, String> {
    let asking = async {
        let path = format!("unix:{}", socket.display());
        let channel = Endpoint::from_shared(path).map_err(|error| error.to_string())?;
        let channel = channel
            .connect()
            .await
            .map_err(|error| innermost_message(&error))?;
        call(channel)
            .await
            .map(Response::into_inner)
            .map_err(|status| shorten_command(&to_printable(status.message())).into_owned())
    };
    let asked = timeout(limit, asking).await;
    asked.unwrap_or_else(|_| Err(format!("no answer within {} s", limit.as_secs())))
}

/// Returns the words of the error that is behind an error of tonic.
fn innermost_message(error: &(dyn std::error::Error + 'static)) -> String {
    match error.source() {
        Some(source) => innermost_message(source),
        None => match error.downcast_ref::<io::Error>() {
            Some(error) => FileError::from(error).to_string(),
            None => error.to_string(),
        },
    }
}

/// Waits until the registration is lost, and says by what.
async fn wait_until_lost(
    serving: &Socket,
    before: Streams,
    kubelet: &Kubelet,
    mark: Mark,
) -> &'static str {
    let registered = Instant::now();
    loop {
        let streams = *serving.streams.borrow();
        if Mark::from_path(&kubelet.registration_socket()) != Some(mark) {
            return "the kubelet was restarted";
        }
        if !serving.is_there() {
            return "the socket was removed";
        }
        if streams.open == 0 && streams.ended > before.ended {
            return "the kubelet has closed the stream of devices";
        }
        if streams.open == 0 && registered.elapsed() > STREAM_TIMEOUT {
            return "the kubelet has not asked for devices";
        }
        let mut changes = serving.streams.clone();
        changes.mark_unchanged();
        let _ = timeout(SOCKET_POLL_INTERVAL, changes.changed()).await;
    }
}
