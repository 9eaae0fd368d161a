//! Metrics of the plugin over HTTP, in the text format of Prometheus.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
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
use tokio::sync::watch::Receiver;
use tokio::task::{JoinHandle, yield_now};
use tokio::time::{sleep, timeout};

use super::offer::{OfferedDevice, ResourceOffers};
use crate::host::{FileError, lock};
use crate::render::{report, warn};

/// The pause before the plugin tries again to listen at its address.
const BIND_PAUSE: Duration = Duration::from_secs(3);

/// The connections that are served at once. Each is for one request, so the oldest gives way to a new one.
const MAX_CONNECTIONS: usize = 16;

/// The time that a connection may last.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// The time and the most bytes of a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_HEAD_BYTES: usize = 8 << 10;

/// The facts that other tasks find out.
pub struct KubeletFacts {
    offers: Receiver<ResourceOffers>,
    /// The resources that the plugin serves, and whether the kubelet has registered each.
    registered: Mutex<BTreeMap<String, bool>>,
    /// The shares of each resource that pods hold; `None` while the kubelet does not list them.
    pub used_shares: Mutex<Option<BTreeMap<String, usize>>>,
}

impl KubeletFacts {
    pub fn new(offers: Receiver<ResourceOffers>) -> Self {
        Self {
            offers,
            registered: Mutex::default(),
            used_shares: Mutex::default(),
        }
    }

    pub fn note_registration(&self, resource: &str, is_registered: bool) {
        lock(&self.registered).insert(resource.to_owned(), is_registered);
    }
}

/// Answers requests for metrics at an address, without end. The address may come up late, or be in use for a time.
pub async fn keep_metrics(address: SocketAddr, facts: Arc<KubeletFacts>) {
    let mut said = None;
    let listener = loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) => error,
        };
        let problem = bind_problem(address, error);
        if said.as_ref() != Some(&problem) {
            warn(&problem);
            said = Some(problem);
        }
        sleep(BIND_PAUSE).await;
    };
    if let Ok(address) = listener.local_addr() {
        report(&format!("metrics: http://{address}/metrics"));
    }
    answer_requests(&listener, &facts).await;
}

fn bind_problem(address: SocketAddr, error: io::Error) -> String {
    let remedy = if error.kind() == io::ErrorKind::AddrInUse {
        let port = address.port();
        format!("; run `ss -ltnp 'sport = :{port}'` to find the program that listens there")
    } else {
        String::new()
    };
    let (error, pause) = (FileError::from(error), BIND_PAUSE.as_secs());
    format!(
        "cannot serve metrics at {address}: {error}; trying again every {pause} seconds{remedy}"
    )
}

async fn answer_requests(listener: &TcpListener, facts: &Arc<KubeletFacts>) {
    let mut connections: VecDeque<JoinHandle<()>> = VecDeque::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is free, for example.
            sleep(Duration::from_millis(100)).await;
            continue;
        };
        connections.retain(|connection| !connection.is_finished());
        if connections.len() == MAX_CONNECTIONS
            && let Some(oldest) = connections.pop_front()
        {
            oldest.abort();
        }
        let facts = Arc::clone(facts);
        connections.push_back(tokio::spawn(async move {
            let _ = timeout(CONNECTION_TIMEOUT, serve_connection(stream, &facts)).await;
        }));
        // A request that has arrived is answered before the next connection is accepted.
        yield_now().await;
    }
}

async fn serve_connection(stream: TcpStream, facts: &KubeletFacts) {
    let service = service_fn(async |request: Request<_>| {
        Ok::<_, Infallible>(answer_request(&request, || render_metrics(facts)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .keep_alive(false)
        .header_read_timeout(HEAD_TIMEOUT)
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
            "use GET to read metrics\n".to_owned(),
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
    let offers = facts.offers.borrow().clone();
    let registered = lock(&facts.registered).clone();
    let used = lock(&facts.used_shares).clone();
    let resources: BTreeSet<&String> = offers
        .devices
        .iter()
        .map(|offered| &offered.resource)
        .chain(registered.keys())
        .collect();
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
        "Shares that a new pod can get.",
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
