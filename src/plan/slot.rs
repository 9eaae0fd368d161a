//! The devices of a profile, before and after they have names.

use super::action::SettingChange;
use super::{Place, setting_change};
use crate::node::Served;
use crate::profile::{NameTemplate, Span};
use crate::settings::Settings;

/// The reason to stop the daemon of a device that stays.
pub(super) const NO_DAEMON: &str = "the profile wants no daemon for it";

/// A device that the profile asks for.
pub(super) struct Slot<'a> {
    /// Its GPU's index.
    pub(super) gpu: u32,

    /// Its entry in the block: `{n}` counts entry by entry.
    pub(super) entry: usize,

    pub(super) place: Place,

    /// The name that the profile gives, or the default one. A template until the names are given.
    pub(super) name: String,

    /// Where that name, or else the block, stands in the profile.
    pub(super) span: Span,

    /// The settings of its daemon, with `serve` always set; `None` for no daemon.
    pub(super) settings: Option<&'a Settings>,

    /// Its UUID, if the device is there and stays.
    pub(super) device: Option<&'a str>,

    /// Who serves it now, if the device is there and stays.
    pub(super) served: Option<&'a Served>,
}

impl Slot<'_> {
    pub(super) fn template(&self) -> NameTemplate<'_> {
        NameTemplate(&self.name)
    }

    /// Returns the settings that can change while its daemon runs, and must.
    pub(super) fn changes(&self, served: &Served) -> Vec<SettingChange> {
        let changes = |settings| setting_change::changes(served, settings);
        self.settings.map(changes).unwrap_or_default()
    }

    /// Returns a difference that needs a restart, in words.
    pub(super) fn difference(&self, served: &Served) -> Option<String> {
        let record = &served.record;
        let Some(settings) = self.settings else {
            return Some(NO_DAEMON.to_owned());
        };
        if !self.template().makes(self.gpu, &record.name) {
            let wanted = self.template().fill(self.gpu, 0);
            return Some(format!("it is called {}, not {wanted}", record.name));
        }
        let in_words = |settings: &Settings| match &settings.serve {
            Some(serve) => serve.to_string(),
            None => "?".to_owned(),
        };
        if record.settings.serve != settings.serve {
            let (is, wanted) = (in_words(&record.settings), in_words(settings));
            return Some(format!("serve is \"{is}\", not \"{wanted}\""));
        }
        setting_change::needs_restart(served, settings).or_else(|| {
            let because = "the GPU's compute mode is no longer exclusive-process";
            served.mode_is_lost().then(|| because.to_owned())
        })
    }
}
