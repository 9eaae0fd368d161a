//! The text format of Prometheus, and alert rules for our metrics.

use std::fmt::{Display, Write as _};

/// Alert rules, in YAML.
pub const ALERTS: &str = include_str!("alerts.yml");

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
        kind: Kind,
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
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_metric_has_help_type_and_samples_or_is_left_out() {
        let mut metrics = Metrics::default();
        metrics.add("a_bytes", Kind::Gauge, "Bytes.", |samples| {
            samples.push(&[], 7);
            samples.push(&[("device", "a\"b\\c\nd"), ("user", "x")], 0.5);
        });
        metrics.add("b_total", Kind::Counter, "Nothing.", |_| {});
        let expected = r#"# HELP a_bytes Bytes.
# TYPE a_bytes gauge
a_bytes 7
a_bytes{device="a\"b\\c\nd",user="x"} 0.5
"#;
        assert_eq!(metrics.into_text(), expected);
    }
}
