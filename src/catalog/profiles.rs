//! The built-in profiles: the files under `profiles/`.

use std::path::Path;

use include_dir::{Dir, include_dir};

static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/profiles");

/// A built-in profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    pub name: &'static str,
    pub text: &'static str,
}

impl BuiltIn {
    /// Returns every built-in profile, by name.
    pub fn all() -> Vec<Self> {
        let profile = |(path, text): (&'static Path, &'static str)| {
            let name = path.file_stem()?.to_str()?;
            (path.extension()? == "toml").then_some(Self { name, text })
        };
        let files = FILES.files();
        let texts = files.filter_map(|file| Some((file.path(), file.contents_utf8()?)));
        let mut all: Vec<Self> = texts.filter_map(profile).collect();
        all.sort_by_key(|profile| profile.name);
        all
    }

    /// Returns the built-in profile with that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|profile| profile.name == name)
    }

    /// The first sentence of its text, which says what it makes.
    pub fn summary(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches("# ").trim_end_matches('.')
    }
}
