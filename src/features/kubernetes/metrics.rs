//! Metrics of the plugin over HTTP, in the text format of Prometheus.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

use super::offer::{OfferedDevice, ResourceOffers};
use crate::error::{Result, command_error};
use crate::host::{FileError, lock};
use crate::render::note;

/// The connections that are served at once; others are closed.
const MAX_CONNECTIONS: usize = 16;

/// The time that a connection may last, and the most bytes of a request's head.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_HEAD_BYTES: usize = 8 << 10;

/// The facts that other tasks find out.
#[derive(Default)]
pub struct KubeletFacts {
    /// The offers; `None` until the plugin serves a kubelet.
    pub offers: Mutex<Option<Receiver<ResourceOffers>>>,
    /// The resources that the plugin serves, and whether the kubelet has registered each.
    pub registered: Mutex<BTreeMap<String, bool>>,
    /// The shares of each resource that pods hold; `None` while the kubelet does not list them.
    pub used_shares: Mutex<Option<BTreeMap<String, usize>>>,
}

impl KubeletFacts {
    pub fn note_registration(&self, resource: &str, is_registered: bool) {
        lock(&self.registered).insert(resource.to_owned(), is_registered);
    }
}

/// Listens at an address for those who read the metrics.
pub async fn listen(address: SocketAddr) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    let listener = bound.map_err(|error| {
        let is_taken = error.kind() == io::ErrorKind::AddrInUse;
        let error = FileError::from(error);
        let error = command_error(format_args!("cannot serve metrics at {address}: {error}"));
        if is_taken {
            let port = address.port();
            return error.with_hint(format!(
                "choose another port, or end the program that listens there: ss -ltnp 'sport = :{port}'"
            ));
        }
        error.with_hint("choose an address of this node, such as 127.0.0.1:9400 or [::]:9400")
    })?;
    if let Ok(address) = listener.local_addr() {
        note(&format!("metrics: http://{address}/metrics"));
    }
    Ok(listener)
}

/// Answers requests for metrics, without end.
pub async fn serve_metrics(listener: TcpListener, facts: Arc<KubeletFacts>) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is free, for example.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&free).try_acquire_owned() else {
            continue;
        };
        let facts = Arc::clone(&facts);
        tokio::spawn(async move {
            let _place = place;
            let _ = timeout(CONNECTION_TIMEOUT, serve_connection(stream, &facts)).await;
        });
    }
}

async fn serve_connection(stream: TcpStream, facts: &KubeletFacts) {
    let service = service_fn(async |request: Request<_>| {
        Ok::<_, Infallible>(answer_request(&request, || render_metrics(facts)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    let _ = connection.await;
}

fn answer_request<B>(
    request: &Request<B>,
    metrics: impl FnOnce() -> String,
) -> Response<Full<Bytes>> {
    let is_read = [Method::GET, Method::HEAD].contains(request.method());
    let (status, text) = match request.uri().path() {
        "/metrics" if is_read => (StatusCode::OK, metrics()),
        "/metrics" => (
            StatusCode::METHOD_NOT_ALLOWED,
            "metrics are read with GET\n".to_owned(),
        ),
        _ => (StatusCode::NOT_FOUND, "the path is /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

/// Renders the metrics. What is not known has no series.
fn render_metrics(facts: &KubeletFacts) -> String {
    let offers = lock(&facts.offers).clone();
    let offers = offers.map_or_else(ResourceOffers::default, |offers| offers.borrow().clone());
    let registered = lock(&facts.registered).clone();
    let used = lock(&facts.used_shares).clone();
    let offered = offers.devices.iter().map(|offered| &offered.resource);
    let resources: BTreeSet<&String> = offered.chain(registered.keys()).collect();
    let count_shares = |resource: &str, is_counted: fn(&OfferedDevice) -> bool| {
        let devices = offers.devices_for(resource);
        devices
            .filter(|offered| is_counted(offered))
            .map(|offered| offered.shares as usize)
            .sum::<usize>()
    };
    let mut text = String::new();
    let mut add = |name: &str, help: &str, value: &dyn Fn(&str) -> Option<usize>| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
        for resource in &resources {
            if let Some(value) = value(resource) {
                let _ = writeln!(text, "{name}{{resource=\"{resource}\"}} {value}");
            }
        }
    };
    add(
        "mig_mps_plugin_registered",
        "1 if the kubelet has registered the resource.",
        &|resource| Some(registered.get(resource).copied().unwrap_or_default().into()),
    );
    add(
        "mig_mps_plugin_shares",
        "Shares of the resource.",
        &|resource| Some(count_shares(resource, |_| true)),
    );
    add(
        "mig_mps_plugin_healthy_shares",
        "Shares that a new pod can have.",
        &|resource| Some(count_shares(resource, |offered| offered.ill.is_none())),
    );
    if let Some(used) = &used {
        add(
            "mig_mps_plugin_used_shares",
            "Shares that pods hold.",
            &|resource| Some(used.get(resource).copied().unwrap_or_default()),
        );
    }
    text
}
