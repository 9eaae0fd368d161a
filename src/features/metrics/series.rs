//! The series of metrics, the text format of Prometheus, and alert rules.

use std::collections::BTreeSet;
use std::fmt::{Display, Write as _};
use std::time::{SystemTime, UNIX_EPOCH};

use super::clients::{ClientSum, clients_by_user};
use crate::host::format_ranges;
use crate::node::{Device, DeviceState, Fault, Node, Served, Severity};
use crate::settings::{Reported, Serve};

/// Alert rules, in YAML.
pub const ALERTS: &str = include_str!("alerts.yml");

/// The samples of one metric.
#[derive(Debug)]
struct Samples {
    name: &'static str,
    text: String,
}

impl Samples {
    fn push(&mut self, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escape_label(value)))
            .collect();
        let _ = match labels.as_slice() {
            [] => writeln!(self.text, "{} {value}", self.name),
            labels => writeln!(self.text, "{}{{{}}} {value}", self.name, labels.join(",")),
        };
    }

    fn push_for(&mut self, device: &str, value: impl Display) {
        self.push(&[("device", device)], value);
    }
}

fn escape_label(value: &str) -> String {
    let value = value.replace('\\', r"\\").replace('"', "\\\"");
    value.replace('\n', r"\n")
}

/// The drift of the node from a profile.
#[derive(Debug)]
pub enum Drift {
    /// The two could not be compared.
    Unknown,
    Known {
        /// True if they differ.
        is_any: bool,
        /// The names of the devices whose daemons differ.
        devices: BTreeSet<String>,
    },
}

/// A device under a name that no other has: Prometheus refuses a sample that is given twice.
struct NamedDevice<'a> {
    name: String,
    device: &'a Device,
}

/// The facts that metrics show.
struct Facts<'a> {
    node: &'a Node,
    /// `None` if no profile was named.
    drift: Option<&'a Drift>,
    devices: Vec<NamedDevice<'a>>,
}

/// A metric. It is a counter if its name ends in `_total`, and else a gauge.
struct Metric {
    name: &'static str,
    help: &'static str,
    values: Values,
}

/// The values of a metric. Those of facts that are unknown are left out.
enum Values {
    /// One for the whole node.
    Node(fn(&Facts<'_>) -> Option<u64>),
    /// One for each device.
    Devices(fn(&Facts<'_>, &Device) -> Option<u64>),
    /// One for each device: the ratio of a percentage.
    Percentages(fn(&Facts<'_>, &Device) -> Option<f64>),
    /// One for each user and workload with clients on a device.
    Users(fn(&ClientSum) -> Option<u64>),
    /// Some with labels of their own.
    Labeled(fn(&Facts<'_>, &mut Samples)),
}

const METRICS: &[Metric] = &[
    Metric {
        name: "mig_mps_driver_answers",
        help: "1 if the NVIDIA driver answers; otherwise only the records of devices are known.",
        values: Values::Node(|facts| Some((!facts.node.has_no_driver()).into())),
    },
    Metric {
        name: "mig_mps_change_in_progress",
        help: "1 while a change of the node is in progress.",
        values: Values::Node(|facts| by_journals(facts.node, !facts.node.under_way.is_empty())),
    },
    Metric {
        name: "mig_mps_change_interrupted",
        help: "1 if a change was interrupted; the next up or down continues it.",
        values: Values::Node(|facts| by_journals(facts.node, !facts.node.interrupted.is_empty())),
    },
    Metric {
        name: "mig_mps_unmanaged_daemons",
        help: "MPS daemons and servers that mig-mps did not start.",
        values: Values::Node(|facts| {
            if facts.node.unseen_daemons().is_some() {
                return None;
            }
            to_u64(facts.node.unmanaged.len())
        }),
    },
    Metric {
        name: "mig_mps_build_info",
        help: "The version of mig-mps.",
        values: Values::Labeled(|_, samples| {
            samples.push(&[("version", env!("CARGO_PKG_VERSION"))], 1);
        }),
    },
    Metric {
        name: "mig_mps_driver_info",
        help: "The version of the NVIDIA driver.",
        values: Values::Labeled(|facts, samples| {
            if !facts.node.has_no_driver() {
                samples.push(&[("version", &facts.node.driver)], 1);
            }
        }),
    },
    Metric {
        name: "mig_mps_problems",
        help: "Problems and remarks of status, by their id.",
        values: Values::Labeled(count_problems),
    },
    Metric {
        name: "mig_mps_gpu_fault",
        help: "1 if the driver reports this fault of a GPU, by the id that problems have, 0 if it reports none.",
        values: Values::Labeled(describe_health),
    },
    Metric {
        name: "mig_mps_device_info",
        help: "A device, with its UUID, GPU and profile, and the users that it serves.",
        values: Values::Labeled(describe_devices),
    },
    Metric {
        name: "mig_mps_device_state",
        help: "1 for the state that a device has, 0 for the others.",
        values: Values::Labeled(|facts, samples| {
            for NamedDevice { name, device } in &facts.devices {
                let is = facts.node.state_of(device);
                for state in DeviceState::ALL {
                    let labels = [("device", name.as_str()), ("state", &state.to_string())];
                    samples.push(&labels, u8::from(state == is));
                }
            }
        }),
    },
    Metric {
        name: "mig_mps_device_clients",
        help: "MPS clients of a device.",
        values: Values::Devices(|_, device| {
            to_u64(device.daemon_with_known_clients()?.clients.as_slice().len())
        }),
    },
    Metric {
        name: "mig_mps_device_client_limit",
        help: "The most MPS clients that a device accepts, where that is known.",
        values: Values::Devices(|_, device| device.live_daemon()?.client_limit().map(u64::from)),
    },
    Metric {
        name: "mig_mps_device_clients_waiting",
        help: "Programs that wait in cuInit until those of another user have exited.",
        values: Values::Devices(|_, device| {
            to_u64(device.daemon_with_known_clients()?.waiting.len())
        }),
    },
    Metric {
        name: "mig_mps_device_clients_over_memory_limit",
        help: "MPS clients that use more memory than the device allows for each client.",
        values: Values::Devices(|_, device| {
            let known = device.daemon_with_known_clients()?;
            let is_seen = known
                .clients
                .as_slice()
                .iter()
                .all(|client| client.memory.is_some());
            if !is_seen {
                return None;
            }
            to_u64(known.clients_over_limit().count())
        }),
    },
    Metric {
        name: "mig_mps_device_client_active_thread_ratio",
        help: "Share of a device's SMs that each MPS client may use.",
        values: Values::Percentages(|_, device| {
            let served = device.live_daemon()?;
            let answered = served
                .answered
                .as_ref()
                .and_then(Reported::active_thread_percentage);
            Some(answered.unwrap_or(served.record.settings.active_thread_percentage.as_f64()))
        }),
    },
    Metric {
        name: "mig_mps_device_client_memory_limit_bytes",
        help: "The most device memory that each MPS client may allocate, where there is a limit.",
        values: Values::Devices(|_, device| memory_limit(device.live_daemon()?)),
    },
    Metric {
        name: "mig_mps_device_settings_read_back",
        help: "1 if the limits were read from the daemon of the device, 0 if they are the configured ones.",
        values: Values::Devices(|_, device| Some(device.live_daemon()?.is_read_back().into())),
    },
    Metric {
        name: "mig_mps_device_user_clients",
        help: "MPS clients of a device by user, and by Slurm job, pod or container.",
        values: Values::Users(|sum| Some(sum.clients)),
    },
    Metric {
        name: "mig_mps_device_user_memory_used_bytes",
        help: "Device memory that the MPS clients of a user, Slurm job, pod or container use.",
        values: Values::Users(|sum| sum.memory),
    },
    Metric {
        name: "mig_mps_device_outside_mps_programs",
        help: "Programs that compute on a device without being clients of its daemon.",
        values: Values::Devices(|facts, device| {
            let is_seen = facts.node.detail.outside_mps && device.processes.is_some();
            if !is_seen {
                return None;
            }
            to_u64(device.outside_mps.len())
        }),
    },
    Metric {
        name: "mig_mps_device_memory_used_bytes",
        help: "Device memory in use.",
        values: Values::Devices(|_, device| Some(device.memory()?.used)),
    },
    Metric {
        name: "mig_mps_device_memory_size_bytes",
        help: "Total device memory.",
        values: Values::Devices(|_, device| Some(device.memory()?.total)),
    },
    Metric {
        name: "mig_mps_device_utilization_ratio",
        help: "Share of the driver's last sampling period in which the GPU was busy; no driver reports it for MIG devices.",
        values: Values::Percentages(|facts, device| {
            facts.node.gpu_utilization(device).map(f64::from)
        }),
    },
    Metric {
        name: "mig_mps_device_last_change_timestamp_seconds",
        help: "The time at which mig-mps last changed a device, in seconds since 1970.",
        values: Values::Devices(|_, device| last_change(device.served.as_ref()?)),
    },
    Metric {
        name: "mig_mps_device_restarts_total",
        help: "Restarts of a device since up created it, by restart, heal or up.",
        values: Values::Devices(|_, device| Some(device.served.as_ref()?.record.restarts)),
    },
];

/// Those of the drift.
const DRIFT_METRICS: &[Metric] = &[
    Metric {
        name: "mig_mps_drift_known",
        help: "1 if the node could be compared with the profile; otherwise there is no drift series.",
        values: Values::Node(|facts| Some(matches!(facts.drift?, Drift::Known { .. }).into())),
    },
    Metric {
        name: "mig_mps_drift",
        help: "1 if the node does not match the profile.",
        values: Values::Node(|facts| match facts.drift? {
            Drift::Known { is_any, .. } => Some((*is_any).into()),
            Drift::Unknown => None,
        }),
    },
    Metric {
        name: "mig_mps_device_drift",
        help: "1 if the daemon of a device does not match the profile.",
        values: Values::Devices(|facts, device| match facts.drift? {
            Drift::Known { devices, .. } => Some(devices.contains(&device.name).into()),
            Drift::Unknown => None,
        }),
    },
];

/// Returns the metrics of a node. One without samples is left out.
pub fn render_metrics(node: &Node, drift: Option<&Drift>) -> String {
    let facts = Facts::new(node, drift);
    let all = METRICS.iter().chain(DRIFT_METRICS);
    all.map(|metric| metric.render(&facts)).collect()
}

/// Returns those of the drift alone.
pub fn render_drift_metrics(node: &Node, drift: &Drift) -> String {
    let facts = Facts::new(node, Some(drift));
    DRIFT_METRICS
        .iter()
        .map(|metric| metric.render(&facts))
        .collect()
}

impl<'a> Facts<'a> {
    fn new(node: &'a Node, drift: Option<&'a Drift>) -> Self {
        Self {
            node,
            drift,
            devices: with_unique_names(node.devices_to_show(&[])),
        }
    }
}

impl Metric {
    fn render(&self, facts: &Facts<'_>) -> String {
        let name = self.name;
        let mut samples = Samples {
            name,
            text: String::new(),
        };
        match self.values {
            Values::Node(value) => {
                if let Some(value) = value(facts) {
                    samples.push(&[], value);
                }
            }
            Values::Devices(value) => {
                for NamedDevice { name, device } in &facts.devices {
                    if let Some(value) = value(facts, device) {
                        samples.push_for(name, value);
                    }
                }
            }
            Values::Percentages(value) => {
                for NamedDevice { name, device } in &facts.devices {
                    if let Some(percentage) = value(facts, device) {
                        samples.push_for(name, to_ratio(percentage));
                    }
                }
            }
            Values::Users(value) => {
                for NamedDevice { name, device } in &facts.devices {
                    for (user, sum) in clients_by_user(device) {
                        if let Some(value) = value(&sum) {
                            samples.push(&user.labels(name), value);
                        }
                    }
                }
            }
            Values::Labeled(fill) => fill(facts, &mut samples),
        }
        if samples.text.is_empty() {
            return String::new();
        }
        let kind = if name.ends_with("_total") {
            "counter"
        } else {
            "gauge"
        };
        format!(
            "# HELP {name} {}\n# TYPE {name} {kind}\n{}",
            self.help, samples.text
        )
    }
}

fn with_unique_names(devices: Vec<&Device>) -> Vec<NamedDevice<'_>> {
    let mut taken = BTreeSet::new();
    let mut named = Vec::new();
    for device in devices {
        let is_free = taken.insert(device.name.clone());
        let name = if is_free { &device.name } else { &device.uuid };
        named.push(NamedDevice {
            name: name.clone(),
            device,
        });
    }
    named
}

/// Returns a fact about changes; `None` if there is none to be seen, and a journal cannot be read.
fn by_journals(node: &Node, is_any: bool) -> Option<u64> {
    let are_seen = !node.may_be_changing() && node.unseen_daemons().is_none();
    (is_any || are_seen).then(|| is_any.into())
}

fn to_u64(number: usize) -> Option<u64> {
    number.try_into().ok()
}

fn count_problems(facts: &Facts<'_>, samples: &mut Samples) {
    let node = facts.node;
    let findings = node.findings(&[]);
    for fault in Fault::all().iter().filter(|fault| fault.status.is_some()) {
        let (mut count, mut is_known) = (0, node.hidden_reason(fault).is_none());
        for finding in findings.iter().filter(|finding| finding.id == fault.id) {
            match finding.severity {
                // What is ok was judged by another sign.
                Severity::Unknown | Severity::Ok => is_known = false,
                Severity::Warn | Severity::Fail => count += 1,
            }
        }
        // Where not all was checked, no problem is no proof that there is none.
        if count > 0 || is_known {
            samples.push(&[("id", &fault.id)], count);
        }
    }
}

fn describe_health(facts: &Facts<'_>, samples: &mut Samples) {
    for gpu in &facts.node.gpus {
        let index = gpu.index.to_string();
        for sign in gpu.health_signs() {
            let labels = [
                ("gpu", index.as_str()),
                ("uuid", &gpu.uuid),
                ("id", sign.id),
            ];
            if let Some(is_there) = sign.is_there {
                samples.push(&labels, u8::from(is_there));
            }
        }
    }
}

fn describe_devices(facts: &Facts<'_>, samples: &mut Samples) {
    for NamedDevice { name, device } in &facts.devices {
        let gpus = format_ranges(device.gpu_indices());
        let serve = device.serve_setting().map(Serve::to_string);
        let labels = [
            ("device", name.as_str()),
            ("uuid", &device.uuid),
            ("gpu", &gpus),
            ("profile", device.profile_name().unwrap_or_default()),
            ("serve", &serve.unwrap_or_default()),
        ];
        samples.push(&labels, 1);
    }
}

/// Rounds to what a percentage with four decimals says: 33.3 % is 0.333, and not 0.33299999999999996.
fn to_ratio(percentage: f64) -> f64 {
    (percentage * 1e4).round() / 1e6
}

/// Returns the memory limit that the daemon has answered with if it is another, since answers are rounded.
fn memory_limit(served: &Served) -> Option<u64> {
    let settings = &served.record.settings;
    let answered = served.answered.as_ref();
    let limit = match answered.filter(|answered| answered.has_other_memory_limit(settings)) {
        Some(other) => other.memory_limit()?.lower_bound(),
        None => settings.pinned_memory_limit?,
    };
    Some(limit.bytes())
}

fn last_change(served: &Served) -> Option<u64> {
    let at: SystemTime = served.run_dir.recorded_at(&served.record.uuid)?;
    Some(at.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manual_has_each_metric_once() {
        let manual = include_str!("../../manual/monitoring.md");
        let (_, section) = manual.split_once("\n## Metrics\n").unwrap();
        let (section, _) = section.split_once("\n## ").unwrap();
        for metric in METRICS.iter().chain(DRIFT_METRICS) {
            let name = format!("`{}`", metric.name);
            assert_eq!(section.matches(&name).count(), 1, "{name}");
        }
    }

    /// A state that somebody adds is put into a rule, or is fine.
    #[test]
    fn every_state_has_an_alert_or_is_fine() {
        let fine = [
            DeviceState::Ready,
            DeviceState::NoServerYet,
            DeviceState::Starting,
            DeviceState::Busy,
            DeviceState::Hidden,
            DeviceState::Closing,
            DeviceState::Stopped,
            DeviceState::NoDaemon,
        ];
        let (_, states) = ALERTS.split_once("state=~\"").unwrap();
        let (states, _) = states.split_once('"').unwrap();
        for state in DeviceState::ALL {
            let word = state.to_string();
            // A problem that concerns devices without a daemon, too, is counted by its id.
            let problem = format!("id=\"{}\"", word.replace(' ', "-"));
            let has_alert = states.split('|').any(|one| one == word) || ALERTS.contains(&problem);
            assert_eq!(has_alert, !fine.contains(&state), "{word}");
        }
    }

    #[test]
    fn a_ratio_has_no_digits_that_its_percentage_lacks() {
        let ratios = [100.0, 33.3, 0.1, 29.0].map(|percentage| to_ratio(percentage).to_string());
        assert_eq!(ratios, ["1", "0.333", "0.001", "0.29"]);
    }

    #[test]
    fn a_metric_has_help_type_and_samples_or_is_left_out() {
        let node = Node::default();
        let facts = Facts {
            node: &node,
            drift: None,
            devices: Vec::new(),
        };
        let with = Metric {
            name: "a_bytes",
            help: "Bytes.",
            values: Values::Labeled(|_, samples| {
                samples.push(&[], 7);
                samples.push(&[("device", "a\"b\\c\nd"), ("user", "x")], 0.5);
            }),
        };
        let expected = r#"# HELP a_bytes Bytes.
# TYPE a_bytes gauge
a_bytes 7
a_bytes{device="a\"b\\c\nd",user="x"} 0.5
"#;
        assert_eq!(with.render(&facts), expected);
        let without = Metric {
            name: "b_total",
            help: "Nothing.",
            values: Values::Node(|_| None),
        };
        assert_eq!(without.render(&facts), "");
    }
}
