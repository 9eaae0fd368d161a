use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A monitoring service that is known to keep GPUs open: exactly these are ever stopped, and nothing
/// else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit(pub(super) &'static str);

impl Unit {
    /// All of them. What restarts another comes before it, so that none is stopped and at once
    /// started anew.
    pub const ALL: [Self; 9] = [
        // Exporters of metrics, by the names their packages give them.
        Self("nvidia-dcgm-exporter.service"),
        Self("dcgm-exporter.service"),
        Self("prometheus-nvidia-exporter.service"),
        Self("nvidia_gpu_exporter.service"),
        // NVIDIA's system management on DGX, which asks DCGM.
        Self("nvsm.service"),
        // DCGM's daemon (nv-hostengine), by its present name and its name before version 2.
        Self("nvidia-dcgm.service"),
        Self("dcgm.service"),
        // Where it is used it starts nvidia-persistenced again whenever its socket is missing.
        Self("nvidia-persistenced.path"),
        Self("nvidia-persistenced.service"),
    ];

    /// The one with that name, if it is one of them.
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

impl Serialize for Unit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0)
    }
}

/// A journal cannot bring in another unit.
impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name)
            .ok_or_else(|| de::Error::custom(format!("{name} is no known monitoring unit")))
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
