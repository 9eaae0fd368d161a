//! The devices of a profile, before and after they have names.

use super::Place;
use super::setting_change::{self, SettingChange};
use crate::geometry::Placement;
use crate::host::Uid;
use crate::node::{Gpu, Served};
use crate::profile::{NameTemplate, Span};
use crate::settings::{Serve, Settings};

/// A device that the profile asks for.
pub(super) struct Slot<'a> {
    /// Its GPU's index.
    pub(super) gpu: u32,
    /// Its entry in the block: `{n}` counts entry by entry.
    pub(super) entry: usize,
    pub(super) place: Place,
    /// The name the profile gives, or the default one.
    pub(super) template: String,
    /// Where that name, or else the block, stands in the profile.
    pub(super) span: Span,
    pub(super) serve: Serve,
    pub(super) settings: &'a Settings,
    /// Its UUID, if the device is there and stays.
    pub(super) device: Option<&'a str>,
    /// Who serves it now, if the device is there and stays.
    pub(super) served: Option<&'a Served>,
    /// Its name, once it has been given.
    pub(super) name: String,
}

impl Slot<'_> {
    pub(super) fn template(&self) -> NameTemplate<'_> {
        NameTemplate(&self.template)
    }
}

/// The name and settings that an entry asks for.
pub(super) struct DaemonSpec<'a> {
    pub(super) gpu: u32,
    pub(super) template: NameTemplate<'a>,
    pub(super) serve: Serve,
    pub(super) settings: &'a Settings,
}

impl DaemonSpec<'_> {
    /// Returns a difference that needs a restart, in words.
    pub(super) fn difference(&self, served: &Served) -> Option<String> {
        let record = &served.record;
        let has = &record.settings;
        if !self.template.makes(self.gpu, &record.name) {
            let wanted = self.template.fill(self.gpu, 0);
            return Some(format!("it is called {}, not {wanted}", record.name));
        }
        if has.serve.as_ref() != Some(&self.serve) {
            let is = has
                .serve
                .as_ref()
                .map_or_else(|| "?".to_owned(), ToString::to_string);
            return Some(format!("serve is \"{is}\", not \"{}\"", self.serve));
        }
        setting_change::needs_restart(served, self.settings).or_else(|| {
            let because = "the GPU's compute mode is no longer exclusive-process";
            served.mode_is_lost().then(|| because.to_owned())
        })
    }

    /// Returns the differences that can change while the daemon runs.
    pub(super) fn changes(&self, served: &Served) -> Vec<SettingChange> {
        setting_change::changes(served, self.settings)
    }
}

/// The users that a device serves, with the default if the profile has none.
pub(super) fn serve(settings: &Settings, caller: Uid) -> Serve {
    settings.serve.clone().unwrap_or(if caller == Uid::ROOT {
        Serve::OneAtATime
    } else {
        Serve::Own
    })
}

/// `0.4`, or `0.4.c1` where several compute instances share a GPU instance.
pub(super) fn default_name(gpu: &Gpu, placement: Placement, nth: usize, of: usize) -> String {
    if of > 1 {
        format!("{}.{}.c{nth}", gpu.index, placement.start)
    } else {
        format!("{}.{}", gpu.index, placement.start)
    }
}
