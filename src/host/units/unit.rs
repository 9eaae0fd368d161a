use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// A monitoring service that is known to keep GPUs open. No other service is ever stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Unit(pub(super) &'static str);

impl Unit {
    /// All units. A unit that restarts another one comes before it, so that no stopped unit is restarted at once.
    pub const ALL: [Self; 9] = [
        // Exporters of metrics, by the names of their packages.
        Self("nvidia-dcgm-exporter.service"),
        Self("dcgm-exporter.service"),
        Self("prometheus-nvidia-exporter.service"),
        Self("nvidia_gpu_exporter.service"),
        // NVIDIA's system management on DGX, which queries DCGM.
        Self("nvsm.service"),
        // DCGM's daemon (nv-hostengine), by its current name and its name before version 2.
        Self("nvidia-dcgm.service"),
        Self("dcgm.service"),
        // Restarts nvidia-persistenced whenever its socket is missing.
        Self("nvidia-persistenced.path"),
        Self("nvidia-persistenced.service"),
    ];

    /// Returns the unit with this name, if it is a known one.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.0 == name)
    }

    /// `nvidia-dcgm.service`
    pub fn name(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// Refuses other units, which a forged journal could name.
impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name)
            .ok_or_else(|| de::Error::custom(format!("{name} is not a known monitoring unit")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_unit_can_be_named() {
        assert_eq!(Unit::named("sshd.service"), None);
        assert_eq!(Unit::named("nvidia-dcgm"), None);
        assert!(serde_json::from_str::<Unit>("\"sshd.service\"").is_err());
        let text = serde_json::to_string(&Unit::named("nvsm.service").unwrap()).unwrap();
        assert_eq!(text, "\"nvsm.service\"");
        assert_eq!(
            serde_json::from_str::<Unit>(&text).unwrap().name(),
            "nvsm.service"
        );
    }
}
