//! The profiles that were applied: they outlast a reboot, and the files that they were read from.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::run_dir::{PUBLIC_MODE, load_json, write_json};
use crate::host::{
    Directory, Environment, FileError, FileResult, Uid, caller, check_trusted_program, to_printable,
};
use crate::profile::{Profile, ProfileError};

/// The file in a state directory.
const HISTORY_FILE: &str = "profiles.json";

/// The number of profiles that are kept: the applied one, and nine before it.
const MAX_PROFILES: usize = 10;

/// The most bytes of their texts together. JSON may double them, and a file of more than 1 MiB is not read.
const MAX_TEXT_BYTES: usize = 400 << 10;

/// A profile that was applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct AppliedProfile {
    /// The name that it gives itself.
    pub name: Option<String>,
    /// The path of its file, the name of a built-in profile, or `standard input`.
    pub path: String,
    pub at: Timestamp,
    /// The name of the user who applied it.
    pub by: String,
    /// The number of devices that had a daemon then.
    pub devices: usize,
    /// The id of the boot in which it was applied; `None` if an older mig-mps recorded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_id: Option<String>,
    /// The GPUs of each joint device, by name: those that it got, or if it was left out, had when this text was applied before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub joint: JointDevices,
    pub text: String,
}

/// The GPUs of joint devices by name, in the order of their indices.
pub type JointDevices = BTreeMap<String, Vec<RecordedGpu>>;

/// A GPU of a joint device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct RecordedGpu {
    pub uuid: String,
    /// Its index at that time.
    pub index: Option<u32>,
}

impl AppliedProfile {
    /// Returns its name, or that of its file; of the file that is applied at boot, the path.
    pub fn title(&self) -> &str {
        let path = Path::new(&self.path);
        let file = path.file_name().and_then(OsStr::to_str);
        match (&self.name, file) {
            (Some(name), _) => name,
            (None, Some(file)) if !path.ends_with("etc/mig-mps/profile.toml") => file,
            _ => &self.path,
        }
    }

    /// Reads and checks its text.
    pub fn parse_profile(&self) -> Result<Profile, ProfileError> {
        Profile::parse(Path::new(&self.path), self.text.clone())
    }
}

/// The end of an applied profile: its last device was taken down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TakenDown {
    pub at: Timestamp,
    /// The name of the user who did it.
    pub by: String,
}

/// The content of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Content {
    /// The number of the last one. They count up from 1.
    last_number: u64,
    /// The last one first.
    applied: Vec<AppliedProfile>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    taken_down: Option<TakenDown>,
}

/// The profiles that were applied to the devices of one user.
#[derive(Clone, Debug)]
pub struct ProfileHistory {
    directory: PathBuf,
    content: Content,
}

impl ProfileHistory {
    /// Reads the history in a state directory, which need not exist. Refuses one that another user than root and the caller can
    /// change.
    pub fn load(directory: &Path) -> FileResult<Self> {
        let opened = Directory::open_if_there(directory)?;
        let content = opened.map_or(Ok(None), |opened| {
            load_json::<Content>(&opened, HISTORY_FILE)
        })?;
        if content.is_some() {
            // Its profiles can be applied again.
            check_trusted_program(&directory.join(HISTORY_FILE))?;
        }
        let mut content = content.unwrap_or_default();
        // Root's is shown to every user. Who applied a profile has chosen its name and path, and a directory service the name
        // of the user.
        for profile in &mut content.applied {
            profile.name = profile.name.as_deref().map(to_printable);
            profile.path = to_printable(&profile.path);
            profile.by = to_printable(&profile.by);
        }
        if let Some(taken_down) = &mut content.taken_down {
            taken_down.by = to_printable(&taken_down.by);
        }
        Ok(Self {
            directory: directory.to_owned(),
            content,
        })
    }

    /// Returns the hint for a history whose file is damaged, or which another user can have written. Its profiles could be
    /// applied, so the file is never to be taken over.
    pub fn hint_for(error: &FileError) -> Option<String> {
        let is_to_go = error.has_fault() || error.kind() == ErrorKind::InvalidData;
        let path = error
            .path()
            .filter(|path| is_to_go && path.ends_with(HISTORY_FILE))?;
        let hint = format!("examine {} and remove it", path.display());
        let directory = path
            .parent()
            .and_then(|directory| fs::metadata(directory).ok());
        let is_own = directory.is_some_and(|directory| Uid(directory.uid()) == caller());
        Some(if is_own || caller() == Uid::ROOT {
            hint
        } else {
            format!("ask the administrator to {hint}")
        })
    }

    /// Reads the history that concerns the caller: of the caller's own devices if a profile is applied to them, else of
    /// root's.
    pub fn load_for_caller(environment: &Environment) -> FileResult<Self> {
        let mut all = Vec::new();
        for directory in environment.state_dirs() {
            all.push(Self::load(&directory)?);
        }
        let best = all.iter().position(Self::is_in_force);
        let best = best.or_else(|| all.iter().position(|one| one.last_applied().is_some()));
        Ok(all.swap_remove(best.unwrap_or_default()))
    }

    /// Reads the history that the caller's own changes continue: the caller's if there is one, else root's.
    pub fn load_for_changes(environment: &Environment) -> FileResult<Self> {
        if let Ok(own) = environment.state_dir() {
            let own = Self::load(&own)?;
            if own.last_applied().is_some() {
                return Ok(own);
            }
        }
        Self::load_for_caller(environment)
    }

    /// Returns the text of the profile that is applied at boot, if it is to be taken where none is named: before what root
    /// applied, and after what a plain user applied.
    pub fn boot_profile(
        history: Option<&Self>,
        environment: &Environment,
    ) -> FileResult<Option<String>> {
        let has_own = history
            .is_some_and(|history| history.is_in_force() && history.belongs_to_caller(environment));
        if has_own && !environment.is_root() {
            return Ok(None);
        }
        environment.host.boot_profile().read()
    }

    /// True if `up` without a profile has one, and it is the one that was applied last, if any was.
    pub fn is_default(&self, environment: &Environment) -> bool {
        let applied = self.last_applied().map(|applied| applied.text.as_str());
        match Self::boot_profile(Some(self), environment) {
            Ok(Some(at_boot)) => applied.is_none_or(|applied| applied == at_boot),
            Ok(None) => applied.is_some(),
            Err(_) => false,
        }
    }

    /// True if it is of the caller's own devices.
    pub fn belongs_to_caller(&self, environment: &Environment) -> bool {
        environment
            .state_dir()
            .is_ok_and(|own| own == self.directory)
    }

    /// True if a profile is applied, and its devices were not all taken down.
    pub fn is_in_force(&self) -> bool {
        self.last_applied().is_some() && self.content.taken_down.is_none()
    }

    /// Returns the profile that was applied last.
    pub fn last_applied(&self) -> Option<&AppliedProfile> {
        self.content.applied.first()
    }

    /// Returns the profiles with joint devices, the last one first.
    pub fn profiles_with_joint_devices(&self) -> Vec<AppliedProfile> {
        self.content
            .applied
            .iter()
            .filter(|applied| !applied.joint.is_empty())
            .cloned()
            .collect()
    }

    /// Returns every profile with its number, the last one first.
    pub fn numbered_profiles(&self) -> impl Iterator<Item = (u64, &AppliedProfile)> {
        let numbers = (0..=self.content.last_number).rev();
        numbers.zip(&self.content.applied)
    }

    /// Returns who took the last device of the applied profile down, and when.
    pub fn taken_down(&self) -> Option<&TakenDown> {
        self.content.taken_down.as_ref()
    }

    /// Adds a profile that was applied to the history in a directory. One of the same text as the last one takes its
    /// place.
    pub fn record_profile(directory: &Path, new: AppliedProfile) -> FileResult<()> {
        if new.text.len() > MAX_TEXT_BYTES {
            let why = format!("it is larger than {} KiB", MAX_TEXT_BYTES >> 10);
            return Err(FileError::new(ErrorKind::InvalidInput, why));
        }
        let opened = Directory::open_or_create(directory, 0o755)?;
        opened.check_owner_among(&[caller()])?;
        let mut history = match Self::load(directory) {
            // What is damaged or another user's must not keep later profiles from being recorded.
            Err(error)
                if [ErrorKind::InvalidData, ErrorKind::PermissionDenied]
                    .contains(&error.kind()) =>
            {
                opened.rename(HISTORY_FILE, &opened, format!("{HISTORY_FILE}.unreadable"))?;
                Self::load(directory)?
            }
            found => found?,
        };
        let applied = &mut history.content.applied;
        match applied.first_mut() {
            Some(last) if last.text == new.text => *last = new,
            _ => {
                applied.insert(0, new);
                history.content.last_number += 1;
            }
        }
        while applied.len() > MAX_PROFILES || text_bytes(applied) > MAX_TEXT_BYTES {
            applied.pop();
        }
        history.content.taken_down = None;
        history.write(&opened)
    }

    /// Notes that the last device of the applied profile was taken down by this user.
    pub fn record_take_down(directory: &Path, by: String) -> FileResult<()> {
        let mut history = Self::load(directory)?;
        if !history.is_in_force() {
            return Ok(());
        }
        let at = Timestamp::now();
        history.content.taken_down = Some(TakenDown { at, by });
        history.write(&Directory::open(directory)?)
    }

    fn write(&self, opened: &Directory) -> FileResult<()> {
        write_json(opened, HISTORY_FILE, &self.content, PUBLIC_MODE)?;
        // It is to outlast a crash of the machine.
        match opened.open_file(HISTORY_FILE)? {
            Some(file) => Ok(file.sync_all()?),
            None => Ok(()),
        }
    }
}

fn text_bytes(profiles: &[AppliedProfile]) -> usize {
    profiles.iter().map(|profile| profile.text.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(text: &str) -> AppliedProfile {
        AppliedProfile {
            name: None,
            path: "/etc/lab.toml".to_owned(),
            at: Timestamp::UNIX_EPOCH,
            by: "alice".to_owned(),
            devices: 3,
            boot_id: None,
            joint: JointDevices::new(),
            text: text.to_owned(),
        }
    }

    fn texts(history: &ProfileHistory) -> Vec<(u64, usize)> {
        let all = history.numbered_profiles();
        all.map(|(number, one)| (number, one.text.len())).collect()
    }

    #[test]
    fn ten_profiles_are_kept_and_fewer_large_ones() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("state");
        for length in 1..=12 {
            ProfileHistory::record_profile(&directory, profile(&"#".repeat(length))).unwrap();
        }
        let history = ProfileHistory::load(&directory).unwrap();
        assert_eq!(texts(&history).len(), MAX_PROFILES);
        assert_eq!(texts(&history)[0], (12, 12));
        assert_eq!(texts(&history)[9], (3, 3));
        // All that is escaped still fits.
        let large = "\"".repeat(MAX_TEXT_BYTES / 2);
        ProfileHistory::record_profile(&directory, profile(&large)).unwrap();
        ProfileHistory::record_profile(&directory, profile(&format!("{large}\""))).unwrap();
        let history = ProfileHistory::load(&directory).unwrap();
        assert_eq!(texts(&history), [(14, MAX_TEXT_BYTES / 2 + 1)]);
        let larger = profile(&"#".repeat(MAX_TEXT_BYTES + 1));
        let error = ProfileHistory::record_profile(&directory, larger).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 400 KiB");
        assert_eq!(texts(&ProfileHistory::load(&directory).unwrap()).len(), 1);
    }

    #[test]
    fn the_same_text_again_takes_the_place_of_the_last() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path();
        for text in ["a", "b", "b"] {
            ProfileHistory::record_profile(directory, profile(text)).unwrap();
        }
        let by = "bob".to_owned();
        ProfileHistory::record_take_down(directory, by).unwrap();
        let history = ProfileHistory::load(directory).unwrap();
        assert_eq!(texts(&history), [(2, 1), (1, 1)]);
        assert!(!history.is_in_force());
        assert_eq!(history.taken_down().unwrap().by, "bob");
        ProfileHistory::record_profile(directory, profile("b")).unwrap();
        assert!(ProfileHistory::load(directory).unwrap().is_in_force());
    }

    #[test]
    fn a_damaged_file_is_put_aside_and_a_newer_one_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path();
        let file = directory.join(HISTORY_FILE);
        std::fs::write(&file, "{").unwrap();
        assert_eq!(
            ProfileHistory::load(directory).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        ProfileHistory::record_profile(directory, profile("a")).unwrap();
        assert!(directory.join("profiles.json.unreadable").exists());
        let newer = std::fs::read_to_string(&file).unwrap();
        let newer = newer.replace("\"version\": 1", "\"version\": 2");
        std::fs::write(&file, &newer).unwrap();
        let error = ProfileHistory::record_profile(directory, profile("b")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), newer);
    }

    #[test]
    fn a_profile_is_called_by_its_name_or_its_file() {
        let mut one = profile("");
        assert_eq!(one.title(), "lab.toml");
        one.path = "/etc/mig-mps/profile.toml".to_owned();
        assert_eq!(one.title(), "/etc/mig-mps/profile.toml");
        one.path = "standard input".to_owned();
        assert_eq!(one.title(), "standard input");
        one.name = Some("training".to_owned());
        assert_eq!(one.title(), "training");
    }
}
