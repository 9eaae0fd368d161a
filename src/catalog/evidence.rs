use std::fmt;

use serde::Deserialize;

/// The evidence for a fact of the catalog, the surest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Evidence {
    /// Read through NVML on such a GPU by this project.
    #[serde(rename = "real")]
    Measured,
    /// In a listing from such a GPU that somebody published.
    #[serde(rename = "real-thirdparty")]
    Seen,
    /// In NVIDIA's documents.
    #[serde(rename = "vendor-doc")]
    Documented,
    /// In NVIDIA's published source code or configuration files.
    #[serde(alias = "vendor-config")]
    VendorCode,
    /// Concluded from models of its family.
    Derived,
    /// In NVIDIA's mock of the GPU for tests, which is wrong elsewhere.
    Mock,
}

impl Evidence {
    /// Every kind with its meaning.
    pub const MEANINGS: [(Self, &'static str); 6] = [
        (Self::Measured, "read through NVML by this project"),
        (Self::Seen, "in a listing that somebody published"),
        (Self::Documented, "in NVIDIA's documents"),
        (Self::VendorCode, "in NVIDIA's source code or configuration"),
        (Self::Derived, "concluded from its family"),
        (Self::Mock, "in NVIDIA's mock for tests"),
    ];
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Measured => "measured",
            Self::Seen => "seen",
            Self::Documented => "documented",
            Self::VendorCode => "vendor code",
            Self::Derived => "derived",
            Self::Mock => "mock",
        })
    }
}

/// The `provenance` of one value.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Provenance {
    pub(super) confidence: Evidence,
}
