//! The series of metrics, the text format of Prometheus, and alert rules.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::node::{Device, DeviceState, Fault, Node, Served, Severity};

/// Alert rules, in YAML.
pub const ALERTS: &str = include_str!("alerts.yml");

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    Counter,
    Gauge,
}

/// Metrics under construction.
#[derive(Debug, Default)]
pub struct Metrics {
    text: String,
}

/// The samples of one metric.
#[derive(Debug)]
pub struct Samples {
    name: &'static str,
    text: String,
}

impl Metrics {
    /// Adds a metric with its samples. One without samples is left out.
    pub fn add(
        &mut self,
        name: &'static str,
        kind: MetricKind,
        help: &str,
        fill: impl FnOnce(&mut Samples),
    ) {
        let mut samples = Samples {
            name,
            text: String::new(),
        };
        fill(&mut samples);
        if samples.text.is_empty() {
            return;
        }
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        };
        let _ = write!(
            self.text,
            "# HELP {name} {help}\n# TYPE {name} {kind}\n{}",
            samples.text
        );
    }

    pub fn into_text(self) -> String {
        self.text
    }
}

impl Samples {
    pub fn push(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let _ = match labels.as_slice() {
            [] => writeln!(self.text, "{} {value}", self.name),
            labels => writeln!(self.text, "{}{{{}}} {value}", self.name, labels.join(",")),
        };
    }
}

fn escaped(value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"");
    value.replace('\n', r"\n")
}

/// The differences between the node and a profile.
#[derive(Debug)]
pub struct Drift {
    /// True if there is any.
    pub is_any: bool,
    /// The names of the devices whose daemons differ.
    pub devices: BTreeSet<String>,
}

/// A device under a name that no other has: Prometheus refuses a sample that is given twice.
struct Named<'a> {
    name: String,
    device: &'a Device,
}

/// Returns the metrics of a node. Series of facts that are unknown are left out.
pub fn metrics(node: &Node, drift: Option<&Drift>) -> String {
    let mut metrics = Metrics::default();
    of_node(&mut metrics, node, drift);
    of_versions(&mut metrics, node);
    of_problems(&mut metrics, node);
    let devices = named(node.shown(&[]));
    of_devices(&mut metrics, node, &devices);
    of_clients(&mut metrics, node, &devices);
    of_memory(&mut metrics, node, &devices);
    of_history(&mut metrics, &devices, drift);
    metrics.into_text()
}

fn named(devices: Vec<&Device>) -> Vec<Named<'_>> {
    let mut taken = BTreeSet::new();
    let mut named = Vec::new();
    for device in devices {
        let is_free = taken.insert(device.name.clone());
        let name = if is_free { &device.name } else { &device.uuid };
        named.push(Named {
            name: name.clone(),
            device,
        });
    }
    named
}

fn of_node(metrics: &mut Metrics, node: &Node, drift: Option<&Drift>) {
    gauge_of_node(
        metrics,
        "mig_mps_driver_answers",
        "1 if the NVIDIA driver answers; otherwise devices are known by their records alone.",
        Some((!node.has_no_driver()).into()),
    );
    gauge_of_node(
        metrics,
        "mig_mps_change_in_progress",
        "1 while a change of the node is in progress.",
        is_changing(node).map(u64::from),
    );
    gauge_of_node(
        metrics,
        "mig_mps_change_interrupted",
        "1 if a change was interrupted; the next up or down continues it.",
        is_interrupted(node).map(u64::from),
    );
    gauge_of_node(
        metrics,
        "mig_mps_drift",
        "1 if the node is not as the profile says.",
        drift.map(|drift| drift.is_any.into()),
    );
    let unmanaged = count(node.unmanaged.len()).filter(|_| node.unseen_daemons().is_none());
    gauge_of_node(
        metrics,
        "mig_mps_unmanaged_daemons",
        "MPS daemons and servers that mig-mps did not start.",
        unmanaged,
    );
}

/// Adds a gauge of the whole node, if it is known.
fn gauge_of_node(metrics: &mut Metrics, name: &'static str, help: &str, value: Option<u64>) {
    metrics.add(name, MetricKind::Gauge, help, |samples| {
        if let Some(value) = value {
            samples.push(&[], value);
        }
    });
}

/// True while a change is in progress; `None` if a journal cannot be read.
fn is_changing(node: &Node) -> Option<bool> {
    let is_any = !node.under_way.is_empty();
    (is_any || sees_journals(node)).then_some(is_any)
}

/// True if a change was interrupted; `None` if a journal cannot be read.
fn is_interrupted(node: &Node) -> Option<bool> {
    let is_any = !node.interrupted.is_empty();
    (is_any || sees_journals(node)).then_some(is_any)
}

fn sees_journals(node: &Node) -> bool {
    !node.may_be_changing() && node.unseen_daemons().is_none()
}

fn of_versions(metrics: &mut Metrics, node: &Node) {
    metrics.add(
        "mig_mps_build_info",
        MetricKind::Gauge,
        "The version of mig-mps.",
        |samples| samples.push(&[("version", env!("CARGO_PKG_VERSION"))], 1),
    );
    metrics.add(
        "mig_mps_driver_info",
        MetricKind::Gauge,
        "The version of the NVIDIA driver.",
        |samples| {
            if !node.has_no_driver() {
                samples.push(&[("version", &node.driver)], 1);
            }
        },
    );
}

fn of_problems(metrics: &mut Metrics, node: &Node) {
    let findings = node.findings(&[]);
    metrics.add(
        "mig_mps_problems",
        MetricKind::Gauge,
        "Problems and remarks of status, by their id.",
        |samples| {
            for fault in Fault::all().iter().filter(|fault| fault.is_in_status) {
                let (mut count, mut is_known) = (0, node.hides(fault).is_none());
                for finding in findings.iter().filter(|finding| finding.id == fault.id) {
                    match finding.severity {
                        Severity::Unknown => is_known = false,
                        _ => count += 1,
                    }
                }
                // Where not all was checked, no problem is no proof that there is none.
                if count > 0 || is_known {
                    samples.push(&[("id", &fault.id)], count);
                }
            }
        },
    );
}

fn of_devices(metrics: &mut Metrics, node: &Node, devices: &[Named<'_>]) {
    metrics.add(
        "mig_mps_device_info",
        MetricKind::Gauge,
        "A device, with its UUID, GPU and profile, and the users that it serves.",
        |samples| {
            for Named { name, device } in devices {
                let gpu = device.gpu.map(|index| index.to_string());
                let serve = device
                    .served
                    .as_ref()
                    .map(|served| &served.record.settings.serve)
                    .and_then(|serve| Some(serve.as_ref()?.to_string()));
                let labels = [
                    ("device", name.as_str()),
                    ("uuid", &device.uuid),
                    ("gpu", &gpu.unwrap_or_default()),
                    ("profile", device.profile().unwrap_or_default()),
                    ("serve", &serve.unwrap_or_default()),
                ];
                samples.push(&labels, 1);
            }
        },
    );
    metrics.add(
        "mig_mps_device_state",
        MetricKind::Gauge,
        "1 for the state that a device has, 0 for the others.",
        |samples| {
            for Named { name, device } in devices {
                let is = node.state_of(device);
                for state in DeviceState::ALL {
                    let labels = [("device", name.as_str()), ("state", &state.to_string())];
                    samples.push(&labels, u8::from(state == is));
                }
            }
        },
    );
}

/// Adds a gauge with a sample for each device for which it is known.
fn gauge(
    metrics: &mut Metrics,
    devices: &[Named<'_>],
    name: &'static str,
    help: &str,
    value: impl Fn(&Device) -> Option<u64>,
) {
    metrics.add(name, MetricKind::Gauge, help, |samples| {
        for Named { name, device } in devices {
            if let Some(value) = value(device) {
                push(samples, name, value);
            }
        }
    });
}

fn push(samples: &mut Samples, device: &str, value: impl std::fmt::Display) {
    samples.push(&[("device", device)], value);
}

fn count(number: usize) -> Option<u64> {
    number.try_into().ok()
}

fn of_clients(metrics: &mut Metrics, node: &Node, devices: &[Named<'_>]) {
    gauge(
        metrics,
        devices,
        "mig_mps_device_clients",
        "MPS clients of a device.",
        |device| {
            let known = device.known()?;
            count(known.clients.listed().len())
        },
    );
    gauge(
        metrics,
        devices,
        "mig_mps_device_client_limit",
        "The most MPS clients that a device accepts, where that is known.",
        |device| device.alive()?.client_limit.map(u64::from),
    );
    gauge(
        metrics,
        devices,
        "mig_mps_device_clients_waiting",
        "Programs that wait in cuInit until those of another user have exited.",
        |device| {
            let known = device.known()?;
            count(known.waiting.len())
        },
    );
    gauge(
        metrics,
        devices,
        "mig_mps_device_clients_over_memory_limit",
        "MPS clients that use more memory than the device lets each client have.",
        |device| {
            let known = device.known()?;
            let mut clients = known.clients.listed().iter();
            let is_seen = clients.all(|client| client.memory.is_some());
            count(known.clients_over_limit().count()).filter(|_| is_seen)
        },
    );
    gauge(
        metrics,
        devices,
        "mig_mps_device_outside_mps_programs",
        "Programs that compute on a device without being clients of its daemon.",
        |device| {
            let is_seen = node.detail.outside_mps && !node.has_no_driver();
            count(device.outside_mps.len()).filter(|_| is_seen)
        },
    );
}

fn of_memory(metrics: &mut Metrics, node: &Node, devices: &[Named<'_>]) {
    gauge(
        metrics,
        devices,
        "mig_mps_device_memory_used_bytes",
        "Device memory in use.",
        |device| Some(device.memory()?.used),
    );
    gauge(
        metrics,
        devices,
        "mig_mps_device_memory_size_bytes",
        "All device memory.",
        |device| Some(device.memory()?.total),
    );
    metrics.add(
        "mig_mps_device_utilization_ratio",
        MetricKind::Gauge,
        "Share of the driver's last sampling period in which the GPU was busy; no driver reports it for MIG devices.",
        |samples| {
            for Named { name, device } in devices {
                if let Some(percent) = node.utilization(device) {
                    push(samples, name, f64::from(percent) / 100.0);
                }
            }
        },
    );
}

fn of_history(metrics: &mut Metrics, devices: &[Named<'_>], drift: Option<&Drift>) {
    gauge(
        metrics,
        devices,
        "mig_mps_device_drift",
        "1 if the daemon of a device is not as the profile says.",
        |device| Some(drift?.devices.contains(&device.name).into()),
    );
    gauge(
        metrics,
        devices,
        "mig_mps_device_last_change_timestamp_seconds",
        "The time at which mig-mps last changed a device, in seconds since 1970.",
        |device| last_change(device.served.as_ref()?),
    );
    metrics.add(
        "mig_mps_device_restarts_total",
        MetricKind::Counter,
        "Restarts of a device since up has made it, by restart, heal or up.",
        |samples| {
            for Named { name, device } in devices {
                if let Some(served) = &device.served {
                    push(samples, name, served.record.restarts);
                }
            }
        },
    );
}

fn last_change(served: &Served) -> Option<u64> {
    let at: SystemTime = served.run_dir.recorded_at(&served.record.uuid)?;
    Some(at.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_help_type_and_samples_or_is_left_out() {
        let mut metrics = Metrics::default();
        metrics.add("a_bytes", MetricKind::Gauge, "Bytes.", |samples| {
            samples.push(&[], 7);
            samples.push(&[("device", "a\"b\\c\nd"), ("user", "x")], 0.5);
        });
        metrics.add("b_total", MetricKind::Counter, "Nothing.", |_| {});
        let expected = r#"# HELP a_bytes Bytes.
# TYPE a_bytes gauge
a_bytes 7
a_bytes{device="a\"b\\c\nd",user="x"} 0.5
"#;
        assert_eq!(metrics.into_text(), expected);
    }
}
