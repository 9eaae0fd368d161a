//! The CDI files of a node: those of mig-mps, and those of NVIDIA's toolkit, which nobody writes again when instances change.

use std::fs;
use std::path::PathBuf;

use crate::host::{Host, quote_for_shell, read_configuration};

/// The kind of NVIDIA's entries in CDI files.
pub const NVIDIA_KIND: &str = "nvidia.com/gpu";

/// The directories of CDI files.
const CDI_DIRECTORIES: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

/// The service that writes NVIDIA's file again.
const REFRESH_SERVICE: &str = "nvidia-cdi-refresh.service";

/// The CDI files of a node, with their texts.
#[derive(Debug)]
pub struct CdiFiles(Vec<(PathBuf, String)>);

impl CdiFiles {
    /// Reads them, as far as they can be read.
    pub fn load(host: &Host) -> Self {
        let mut files = Vec::new();
        for directory in CDI_DIRECTORIES {
            let entries = fs::read_dir(host.under_root(directory));
            for entry in entries.into_iter().flatten().flatten() {
                let path = PathBuf::from(directory).join(entry.file_name());
                let text = read_configuration(&entry.path());
                files.extend(text.ok().map(|text| (path, text)));
            }
        }
        Self(files)
    }

    /// True if a file of this kind has this text.
    pub fn contain_text(&self, kind: &str, text: &str) -> bool {
        self.of_kind(kind).any(|(_, file)| file.contains(text))
    }

    /// Returns the file of NVIDIA's toolkit that lacks one of these devices, by their UUIDs. A file that names devices by
    /// numbers alone is not judged.
    pub fn find_stale<'d>(&self, uuids: impl IntoIterator<Item = &'d str>) -> Option<StaleCdi> {
        let has_uuids = |text: &str| text.contains("GPU-") || text.contains("MIG-");
        let (path, text) = self
            .of_kind(NVIDIA_KIND)
            .find(|(_, text)| has_uuids(text))?;
        let devices = uuids
            .into_iter()
            .filter(|uuid| !self.contain_text(NVIDIA_KIND, uuid))
            .count();
        (devices > 0).then(|| StaleCdi {
            path: path.clone(),
            devices,
            is_by_uuid: !text.contains("name: \"0"),
        })
    }

    fn of_kind(&self, kind: &str) -> impl Iterator<Item = &(PathBuf, String)> {
        self.0.iter().filter(move |(_, file)| file.contains(kind))
    }
}

/// A file of NVIDIA's toolkit that lacks devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StaleCdi {
    pub path: PathBuf,
    /// The number of devices that it lacks.
    pub devices: usize,
    /// True if it names devices by UUIDs alone.
    is_by_uuid: bool,
}

impl StaleCdi {
    /// Returns the command that writes the file again.
    pub fn refresh_command(&self, host: &Host) -> String {
        if host
            .enabled_units()
            .iter()
            .any(|unit| unit == REFRESH_SERVICE)
        {
            return format!("sudo systemctl restart {REFRESH_SERVICE}");
        }
        let path = quote_for_shell(&self.path.to_string_lossy());
        let strategy = if self.is_by_uuid {
            " --device-name-strategy=uuid"
        } else {
            ""
        };
        format!("sudo nvidia-ctk cdi generate{strategy} --output={path}")
    }
}
