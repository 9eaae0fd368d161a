//! What the user wants: the profile file, read and checked, without any GPU at hand.
//!
//! The file's form is TOML; here it has become types. Everything that can be wrong with a
//! profile by itself is found on loading, and every error points at file, line and column.

mod assignment;
mod diagnostic;
mod mps;
mod name;
mod schema;
mod selector;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use crate::geometry::{ComputeName, ProfileName};
use crate::host::read_text;
use crate::settings::{MemoryLimit, Serve, Settings};

pub use assignment::Assignment;
pub use diagnostic::{ProfileError, Source, Span, nearest};
pub use name::{NameTemplate, Names, is_device_name};
pub use selector::Selector;

/// A profile file, checked.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The file's text, for errors that are found only when the profile meets a node.
    pub source: Arc<Source>,
    /// The profile's own name.
    pub name: Option<String>,
    /// Every place where the file says whose clients are served: not everyone may serve everybody.
    pub serves: Vec<(Serve, Span)>,
    /// In the file's order: the first block that selects a GPU has it.
    pub blocks: Vec<Block>,
}

/// What is wanted of the GPUs that one `[[gpu]]` block selects.
#[derive(Clone, Debug)]
pub struct Block {
    /// Which GPUs.
    pub select: Selector,
    /// Where the selector stands in the file.
    pub span: Span,
    /// Whole or in parts.
    pub want: Want,
}

/// What a selected GPU shall be.
#[derive(Clone, Debug)]
pub enum Want {
    /// Not partitioned: one device, the whole GPU.
    Whole(WholeGpu),
    /// Partitioned with MIG into these devices and nothing else.
    Parts(Vec<Part>),
}

/// A whole GPU as one device (`mig = false`).
#[derive(Clone, Debug)]
pub struct WholeGpu {
    /// The device's name, if the profile gives one, and where it stands.
    pub name: Option<(String, Span)>,
    /// How its daemon shall serve.
    pub settings: Settings,
}

/// One entry of `devices`.
#[derive(Clone, Debug)]
pub struct Part {
    /// The devices' name, if the profile gives one, and where it stands.
    pub name: Option<(String, Span)>,
    /// Which GPU instance profile.
    pub profile: ProfileName,
    /// Where the profile name stands.
    pub span: Span,
    /// The start of its placement, if pinned.
    pub at: Option<u32>,
    /// How many of them.
    pub count: u32,
    /// The compute instances that share each of them; empty for the one that has all its SMs.
    pub compute: Vec<ComputeName>,
    /// How the daemons shall serve.
    pub settings: Settings,
}

impl Profile {
    /// Whether some GPU shall be partitioned.
    pub fn partitions(&self) -> bool {
        let mut wants = self.blocks.iter().map(|block| &block.want);
        wants.any(|want| matches!(want, Want::Parts(_)))
    }

    /// The memory limits that it gives to clients, each once.
    pub fn memory_limits(&self) -> BTreeSet<MemoryLimit> {
        let settings = self.blocks.iter().flat_map(|block| match &block.want {
            Want::Whole(whole) => vec![&whole.settings],
            Want::Parts(parts) => parts.iter().map(|part| &part.settings).collect(),
        });
        let limits = settings.filter_map(|settings| settings.pinned_memory_limit);
        limits.collect()
    }

    /// Reads and checks a profile file.
    ///
    /// # Errors
    /// A [`ProfileError`]: exit status 2.
    pub fn load(path: &Path) -> Result<Self, ProfileError> {
        let text = std::fs::File::open(path).and_then(read_text);
        let text = text.map_err(|error| ProfileError::Unreadable {
            path: path.to_owned(),
            error,
        })?;
        Self::parse(path, text)
    }

    /// Checks a profile's text; `path` is for messages only.
    ///
    /// # Errors
    /// A [`ProfileError`]: exit status 2.
    pub fn parse(path: &Path, text: String) -> Result<Self, ProfileError> {
        schema::read(&Arc::new(Source::new(path, text)))
    }

    /// An error at a place in this profile.
    pub fn error(&self, span: Span, message: impl Into<String>) -> ProfileError {
        self.source.error(span, message)
    }
}
