use std::collections::BTreeSet;
use std::sync::Arc;

use super::diagnostic::{ProfileError, Source, Span};
use super::selector::Selector;
use crate::geometry::{ComputeName, ProfileName};
use crate::settings::{MemoryLimit, Serve, Settings};

/// A checked profile file.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The file's text, for errors that only planning finds.
    pub source: Arc<Source>,
    /// The profile's own name.
    pub name: Option<String>,
    /// The GPU models it is for, with their places; empty if it does not say.
    pub models: Vec<(String, Span)>,
    /// True for a CDI file, false for none, with its place; `None` leaves that as it is.
    pub cdi: Option<(bool, Span)>,
    /// Every `serve` that a device has, with its places: the caller decides which are allowed.
    pub serves: Vec<(Serve, Span)>,
    /// The blocks in the file's order: the first that selects a GPU applies.
    pub blocks: Vec<Block>,
}

/// A `[[gpu]]` block.
#[derive(Clone, Debug)]
pub struct Block {
    /// The selector of the GPUs.
    pub select: Selector,
    /// The selector's place in the file.
    pub span: Span,
    /// The devices it asks for.
    pub want: Want,
}

/// The devices that a block asks for.
#[derive(Clone, Debug)]
pub enum Want {
    /// Not partitioned: one device, the whole GPU.
    Whole(WholeGpu),
    /// Partitioned with MIG into these devices and nothing else; MIG mode without instances if there are none.
    Parts(Vec<DeviceEntry>),
}

/// A whole GPU as one device (`mig = false`).
#[derive(Clone, Debug)]
pub struct WholeGpu {
    /// The device's name, if the profile gives one, and its place in the file.
    pub name: Option<(String, Span)>,
    /// The settings of its daemon; `None` for no daemon.
    pub settings: Option<Settings>,
}

/// One entry of `devices`.
#[derive(Clone, Debug)]
pub struct DeviceEntry {
    /// The devices' name, if the profile gives one, and its place in the file.
    pub name: Option<(String, Span)>,
    /// The GPU instance profile.
    pub profile: ProfileName,
    /// The profile name's place in the file.
    pub span: Span,
    /// The start of its placement, if pinned.
    pub at: Option<u32>,
    /// The number of GPU instances.
    pub count: u32,
    /// The compute instances that share each GPU instance; empty for a single one with all SMs.
    pub compute: Vec<ComputeName>,
    /// The settings of the daemons; `None` for no daemons.
    pub settings: Option<Settings>,
}

impl Profile {
    /// True if a block partitions its GPUs.
    pub fn partitions(&self) -> bool {
        let mut wants = self.blocks.iter().map(|block| &block.want);
        wants.any(|want| matches!(want, Want::Parts(_)))
    }

    /// The settings of all daemons.
    pub fn settings(&self) -> impl Iterator<Item = &Settings> {
        let settings = self.blocks.iter().flat_map(|block| match &block.want {
            Want::Whole(whole) => vec![&whole.settings],
            Want::Parts(parts) => parts.iter().map(|part| &part.settings).collect(),
        });
        settings.flatten()
    }

    /// Drops each `serve` that every table inside overrides: it holds for no device.
    pub(super) fn forget_overridden_serves(&mut self) {
        let mut serves = std::mem::take(&mut self.serves);
        serves.retain(|(serve, _)| {
            let mut settings = self.settings();
            settings.any(|settings| settings.serve.as_ref() == Some(serve))
        });
        self.serves = serves;
    }

    /// Returns the memory limits of all devices, each once.
    pub fn memory_limits(&self) -> BTreeSet<MemoryLimit> {
        let limits = self
            .settings()
            .filter_map(|settings| settings.pinned_memory_limit);
        limits.collect()
    }

    /// Returns the number of the line on which a block begins.
    pub fn line(&self, block: usize) -> usize {
        self.source.line(self.blocks[block].span)
    }

    /// Names a block by its place and selector: `line 12: { all = true }`.
    pub fn heading(&self, block: usize) -> String {
        let select = self.source.written(self.blocks[block].span);
        let first_line = select.lines().next().unwrap_or_default();
        format!("line {}: {first_line}", self.line(block))
    }

    /// Returns an error at a place in this profile.
    pub fn error(&self, span: Span, message: impl Into<String>) -> ProfileError {
        self.source.error(span, message)
    }
}
