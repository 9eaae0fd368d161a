//! The directory `after-change` of a run directory: the last change of the set of devices, and the programs that have
//! followed it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::record::DeviceRecord;
use super::run_dir::{PRIVATE_MODE, RunDir, half_made, load_json, write_json};
use crate::failure::Problem;
use crate::host::{Directory, FileResult};

/// The file with the document of the change. Like the next one, it is written under the lock of the node.
const DOCUMENT: &str = "document.json";
const CHANGE: &str = "change.json";

/// The file that is written under the lock of the process that runs the programs.
const RESULTS: &str = "results.json";

/// The last change of the set of devices.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct NotedChange {
    /// Identifies the change; `None` if there was none.
    at: Option<Timestamp>,
    /// The devices and instances of mig-mps afterwards, as its files have them.
    devices: BTreeSet<String>,
    /// All devices that the driver showed afterwards; `None` if it did not answer.
    #[serde(default)]
    shown: Option<BTreeSet<String>>,
}

/// The programs that have run after a change, each with its failure.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Results {
    change: Option<Timestamp>,
    programs: BTreeMap<String, Option<Problem>>,
    /// The files that do not run, of which a command has said so.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    passed_over: BTreeSet<String>,
}

/// The directory `after-change`.
pub struct AfterChange(pub Directory);

impl AfterChange {
    /// The file whose lock allows to run programs.
    pub const LOCK: &str = "lock";

    /// Opens the directory, or makes it.
    pub fn open_or_create(run_dir: &RunDir) -> FileResult<Self> {
        Directory::open_or_create(&Self::path(run_dir), 0o700).map(Self)
    }

    /// Opens the directory; returns `None` if it does not exist.
    pub fn open_if_there(run_dir: &RunDir) -> FileResult<Option<Self>> {
        Ok(Directory::open_if_there(&Self::path(run_dir))?.map(Self))
    }

    fn path(run_dir: &RunDir) -> PathBuf {
        run_dir.path().join("after-change")
    }

    /// Returns the time of the last change, which identifies it.
    pub fn last_change(&self) -> Option<Timestamp> {
        self.load::<NotedChange>(CHANGE).at
    }

    /// Returns the document of the last change.
    pub fn read_document(&self) -> FileResult<String> {
        let mut text = String::new();
        if let Some(mut file) = self.0.open_file(DOCUMENT)? {
            file.read_to_string(&mut text)?;
        }
        Ok(text)
    }

    /// True if the devices of mig-mps are not those after the last change that was noted.
    pub fn has_unnoted_change(&self, run_dir: &RunDir) -> FileResult<bool> {
        Ok(self.load::<NotedChange>(CHANGE).devices != describe_devices(run_dir)?)
    }

    /// True if the devices that the driver shows are not those after the last change that was noted.
    pub fn has_unnoted_devices(&self, shown: Option<&BTreeSet<String>>) -> bool {
        shown.is_some() && self.load::<NotedChange>(CHANGE).shown.as_ref() != shown
    }

    /// Notes a change of the set of devices, with its document. The caller holds the lock of the node.
    pub fn note_change(
        &self,
        run_dir: &RunDir,
        shown: Option<BTreeSet<String>>,
        document: &str,
    ) -> FileResult<()> {
        let text = document.as_bytes();
        self.0
            .replace_file(DOCUMENT, &half_made(DOCUMENT), text, PRIVATE_MODE)?;
        let change = NotedChange {
            at: Some(Timestamp::now()),
            devices: describe_devices(run_dir)?,
            shown,
        };
        write_json(&self.0, CHANGE, &change, PRIVATE_MODE)
    }

    /// Returns the programs that have run after a change, each with its failure.
    pub fn load_results(&self, change: Timestamp) -> BTreeMap<String, Option<Problem>> {
        self.results_after(change).programs
    }

    /// Records that a program has run after a change.
    pub fn write_result(
        &self,
        change: Timestamp,
        program: String,
        failure: Option<Problem>,
    ) -> FileResult<()> {
        let mut results = self.results_after(change);
        results.programs.insert(program, failure);
        write_json(&self.0, RESULTS, &results, PRIVATE_MODE)
    }

    /// Returns the files that do not run, of which a command has said so after a change.
    pub fn load_passed_over(&self, change: Timestamp) -> BTreeSet<String> {
        self.results_after(change).passed_over
    }

    /// Records that a command has said which files do not run after a change.
    pub fn write_passed_over(
        &self,
        change: Timestamp,
        files: impl IntoIterator<Item = String>,
    ) -> FileResult<()> {
        let mut results = self.results_after(change);
        results.passed_over.extend(files);
        write_json(&self.0, RESULTS, &results, PRIVATE_MODE)
    }

    fn results_after(&self, change: Timestamp) -> Results {
        let results: Results = self.load(RESULTS);
        let change = Some(change);
        if results.change == change {
            return results;
        }
        Results {
            change,
            ..Results::default()
        }
    }

    /// A file that cannot be read is like a missing one: the programs run once more.
    fn load<T: DeserializeOwned + Default>(&self, name: &str) -> T {
        load_json(&self.0, name).ok().flatten().unwrap_or_default()
    }
}

/// Describes what programs may have written down of each device with a record, and what mig-mps has made on the GPUs.
fn describe_devices(run_dir: &RunDir) -> FileResult<BTreeSet<String>> {
    let (records, _) = run_dir.load_records()?;
    let describe = |record: &DeviceRecord| {
        let DeviceRecord {
            name,
            uuid,
            key,
            profile,
            boot_id,
            ..
        } = record;
        let clients = record.settings.share.map(|share| share.clients);
        json!([name, uuid, key.gpu, profile, clients, boot_id]).to_string()
    };
    let node = run_dir.load_node()?;
    let made = node.created.iter().map(|made| json!([made, node.boot_id]));
    let switched_on = node.switched_on.iter().map(|gpu| json!([gpu]));
    let of_gpus = made.chain(switched_on).map(|one| one.to_string());
    Ok(records.iter().map(describe).chain(of_gpus).collect())
}
