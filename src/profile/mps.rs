//! The `[mps]` tables: settings of daemons, each inherited from the table around it.

use std::fmt::Display;
use std::str::FromStr;

use toml::Spanned;

use super::check::Check;
use super::diagnostic::{ProfileError, Span, nearest, quoted};
use super::schema::Mps;
use crate::settings::{ClientPriority, ComputeMode, Percentage, Serve, Server, Settings};

/// Settings that a table inherits from those around it.
#[derive(Clone, Default)]
pub(super) struct Inherited {
    pub(super) settings: Settings,
    /// The place of `compute-mode`: a MIG device has none.
    compute_mode: Option<Span>,
}

/// Removes an inherited limit.
const NO_LIMIT: &str = "none";
/// Removes an inherited set of CPUs.
const ALL_CPUS: &str = "all";

/// Well above the most clients of a device with any known driver: 48, and 60 from CUDA 13.1.
const MOST_CLIENTS: i64 = 1024;
/// Enough for a daemon with one server and a few clients.
const LEAST_FILES: i64 = 256;
/// The limit of Linux by default (`fs.nr_open`).
const MOST_FILES: i64 = 1 << 30;

impl Inherited {
    /// The settings of a MIG device.
    pub(super) fn in_mig(self, check: &Check<'_>) -> Result<Settings, ProfileError> {
        match self.compute_mode {
            Some(span) => Err(check
                .at(
                    span,
                    "compute-mode is for whole GPUs: in MIG mode the driver refuses exclusive-process",
                )
                .with_hint("write it into the mps of a [[gpu]] block with mig = false")),
            None => Ok(self.settings),
        }
    }
}

impl Check<'_> {
    /// Returns the settings of a table within others.
    pub(super) fn settings(
        &self,
        around: &Inherited,
        mps: Option<&Mps>,
    ) -> Result<Inherited, ProfileError> {
        let mut inherited = around.clone();
        let Some(mps) = mps else {
            return Ok(inherited);
        };
        let settings = &mut inherited.settings;
        if let Some(serve) = &mps.serve {
            settings.serve = Some(self.serve(serve)?);
        }
        if let Some(server) = &mps.server {
            settings.server = match server.get_ref().as_str() {
                "eager" => Server::Eager,
                "lazy" => Server::Lazy,
                _ => return Err(self.unknown_word(server, "server", &["eager", "lazy"])),
            };
        }
        if let Some(percentage) = &mps.active_thread_percentage {
            settings.active_thread_percentage =
                Percentage::new(*percentage.get_ref()).ok_or_else(|| {
                    let message = "active-thread-percentage must be from 0.1 to 100";
                    self.error(percentage.span(), message)
                })?;
        }
        if let Some(limit) = &mps.pinned_memory_limit {
            settings.pinned_memory_limit = self.unless(limit, "pinned-memory-limit", NO_LIMIT)?;
        }
        if let Some(priority) = &mps.client_priority {
            settings.client_priority = match priority.get_ref().as_str() {
                "normal" => ClientPriority::Normal,
                "below-normal" => ClientPriority::BelowNormal,
                _ => {
                    let known = &ClientPriority::WORDS;
                    return Err(self.unknown_word(priority, "client-priority", known));
                }
            };
        }
        if let Some(cpus) = &mps.cpus {
            settings.cpus = self.unless(cpus, "cpus", ALL_CPUS)?;
        }
        if let Some(mode) = &mps.compute_mode {
            if mode.get_ref() != "exclusive-process" {
                return Err(self.unknown_word(mode, "compute-mode", &ComputeMode::WORDS));
            }
            settings.compute_mode = Some(ComputeMode::ExclusiveProcess);
            inherited.compute_mode = Some(mode.span().into());
        }
        if let Some(most) = &mps.max_clients {
            let most = self.number(most, "max-clients", 1..=MOST_CLIENTS)?;
            settings.max_clients = u32::try_from(most).ok();
        }
        if let Some(files) = &mps.nofile {
            settings.nofile = Some(self.number(files, "nofile", LEAST_FILES..=MOST_FILES)?);
        }
        Ok(inherited)
    }

    fn serve(&self, written: &Spanned<String>) -> Result<Serve, ProfileError> {
        let word = written.get_ref();
        let serve: Serve = word.parse().map_err(|_| {
            let error = self.unknown_word(written, "serve", &Serve::WORDS);
            match word.split_once(':') {
                Some((kind, name)) if !name.is_empty() => match nearest(kind, ["user", "group"]) {
                    Some(near) => error.with_hint(format!("did you mean \"{near}:{name}\"?")),
                    None => error,
                },
                _ => error,
            }
        })?;
        let place = (serve.clone(), written.span().into());
        self.serves.borrow_mut().push(place);
        Ok(serve)
    }

    /// Reads a value, or the word that removes an inherited one.
    fn unless<T: FromStr<Err: Display>>(
        &self,
        written: &Spanned<String>,
        key: &str,
        none: &str,
    ) -> Result<Option<T>, ProfileError> {
        let text = written.get_ref();
        if text == none {
            return Ok(None);
        }
        let parsed = text.parse().map_err(|why: T::Err| {
            self.error(written.span(), format!("{key} = \"{text}\": {why}"))
        });
        parsed.map(Some)
    }

    fn number(
        &self,
        written: &Spanned<i64>,
        key: &str,
        allowed: std::ops::RangeInclusive<i64>,
    ) -> Result<u64, ProfileError> {
        let number = *written.get_ref();
        let (least, most) = (allowed.start(), allowed.end());
        u64::try_from(number)
            .ok()
            .filter(|_| allowed.contains(&number))
            .ok_or_else(|| {
                let message = format!("{key} must be from {least} to {most}");
                self.error(written.span(), message)
            })
    }

    fn unknown_word(&self, word: &Spanned<String>, key: &str, known: &[&str]) -> ProfileError {
        let written = word.get_ref();
        let error = self.error(
            word.span(),
            format!("{key} = \"{written}\" is not one of {}", quoted(known)),
        );
        match nearest(written, known.iter().copied()) {
            Some(near) => error.with_hint(format!("did you mean \"{near}\"?")),
            None => error,
        }
    }
}
