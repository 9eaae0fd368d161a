//! Configurations of mig-parted in the files that carry them: their own, manifests of Kubernetes, values of Helm.

use std::path::Path;

use serde_saphyr::Spanned;

use super::mig_parted::Spec;
use super::yaml::{Excerpt, YamlNode};
use crate::host::read_text_from;
use crate::profile::ProfileError;

/// The key by which a text is one of mig-parted's.
const CONFIGS_KEY: &str = "mig-configs";

/// Where Kubernetes keeps copies of the manifest: annotations and managed fields.
const METADATA_KEY: &str = "metadata";

/// Texts in texts: a manifest of Argo CD contains values of Helm, which contain the text of a `ConfigMap`.
const MAX_NESTING: usize = 4;

/// The most texts of a file that are read: more than any has.
const MAX_TEXTS: usize = 256;

/// A text of mig-parted's in a file.
#[derive(Debug)]
pub struct ConfigText {
    /// The key whose value it is.
    key: Option<String>,
    /// The line where it starts.
    line: usize,
    spec: Spec,
}

/// The texts of mig-parted's in a file.
#[derive(Debug, Default)]
pub struct ConfigTexts {
    pub texts: Vec<ConfigText>,
    /// The mistakes in other texts, and in configurations of these names.
    pub faults: Vec<(Option<String>, ProfileError)>,
    /// The number of texts that were read.
    count: usize,
}

impl ConfigTexts {
    /// Finds them; `path` is for messages only.
    pub fn find(path: &Path, text: String) -> Self {
        let mut found = Self::default();
        found.collect_texts(&Excerpt::whole(path, text), None, MAX_NESTING);
        found
    }

    fn collect_texts(&mut self, text: &Excerpt, key: Option<&str>, depth: usize) {
        let documents = text
            .documents()
            .into_iter()
            .filter(|document| document.text().contains(CONFIGS_KEY));
        for document in documents {
            match document.parse::<Spanned<YamlNode>>() {
                Ok(node) if has_configs(&node.value) => self.add_text(document, key),
                // Words about configurations.
                Ok(node) if node.value.as_text().is_some() => {}
                Ok(node) => self.walk_node(&document, &node, key, depth),
                Err(error) => self.faults.push((None, error)),
            }
        }
    }

    fn add_text(&mut self, text: Excerpt, key: Option<&str>) {
        let line = text.line_number();
        match Spec::parse(text) {
            Ok(mut spec) => {
                let faults = std::mem::take(&mut spec.faults).into_iter();
                self.faults
                    .extend(faults.map(|(name, error)| (Some(name), error)));
                self.texts.push(ConfigText {
                    key: key.map(str::to_owned),
                    line,
                    spec,
                });
            }
            Err(error) => self.faults.push((None, error)),
        }
    }

    fn walk_node(
        &mut self,
        document: &Excerpt,
        node: &Spanned<YamlNode>,
        key: Option<&str>,
        depth: usize,
    ) {
        match &node.value {
            value if has_configs(value) && self.count < MAX_TEXTS => {
                self.count += 1;
                if let Some(mapping) = document.mapping_at(node) {
                    self.add_text(mapping, key);
                }
            }
            YamlNode::Map(entries) => {
                let entries = entries.iter().map(|(name, value)| (name.as_text(), value));
                for (name, value) in entries.filter(|(name, _)| *name != Some(METADATA_KEY)) {
                    self.walk_node(document, value, name.or(key), depth);
                }
            }
            YamlNode::List(items) => {
                for item in items {
                    self.walk_node(document, item, key, depth);
                }
            }
            YamlNode::Text(text)
                if depth > 0 && self.count < MAX_TEXTS && text.contains(CONFIGS_KEY) =>
            {
                self.count += 1;
                let text = document.scalar_at(node, text, key.unwrap_or_default());
                self.collect_texts(&text, key, depth - 1);
            }
            YamlNode::Text(_) | YamlNode::Other => {}
        }
    }

    /// True if the file has no text that could be one.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && self.faults.is_empty()
    }

    /// Takes the mistake in the configuration that is meant, or the first one.
    pub fn into_fault(mut self, wanted: Option<&str>) -> Option<ProfileError> {
        let is_meant =
            |(name, _): &(Option<String>, _)| wanted.is_some() && name.as_deref() == wanted;
        let meant = self.faults.iter().position(is_meant);
        let nth = meant.or((!self.faults.is_empty()).then_some(0))?;
        Some(self.faults.swap_remove(nth).1)
    }

    /// The configurations that can be chosen.
    pub fn choices(&self) -> Vec<ConfigChoice<'_>> {
        let mut choices = Vec::new();
        for text in &self.texts {
            let same_key = self.texts.iter().filter(|other| other.key == text.key);
            let place = match &text.key {
                Some(key) if same_key.count() == 1 => key.clone(),
                _ => format!("line {}", text.line),
            };
            choices.extend(text.spec.configs.keys().map(|name| ConfigChoice {
                place: place.clone(),
                name,
                spec: &text.spec,
            }));
        }
        choices
    }
}

fn has_configs(value: &YamlNode) -> bool {
    match value {
        YamlNode::Map(entries) => entries
            .iter()
            .any(|(key, _)| key.as_text() == Some(CONFIGS_KEY)),
        _ => false,
    }
}

/// A configuration that can be chosen.
#[derive(Clone, Debug)]
pub struct ConfigChoice<'a> {
    /// Where it is: the key of its text if no other text has that key, else the line.
    pub place: String,
    pub name: &'a str,
    pub spec: &'a Spec,
}

impl ConfigChoice<'_> {
    /// The word that means it alone.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.place, self.name)
    }
}

/// The words for `--config` with a file; `None` if it has no configuration that can be read.
pub fn configuration_names(path: &Path) -> Option<Vec<String>> {
    let (path, text) = read_text_from(path);
    let found = ConfigTexts::find(path, text.ok()?);
    let choices = found.choices();
    let word = |choice: &ConfigChoice<'_>| {
        let same = choices.iter().filter(|other| other.name == choice.name);
        match same.count() {
            1 => choice.name.to_owned(),
            _ => choice.full_name(),
        }
    };
    let words: Vec<String> = choices.iter().map(word).collect();
    Some(words).filter(|words| !words.is_empty())
}
