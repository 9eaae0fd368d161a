//! Finds the model that a word means.

use thiserror::Error;

use super::model::{Incomplete, Model};
use super::models::{incomplete, models, named};
use crate::host::nearest;

/// The reason why a word means no model.
#[derive(Debug, Error)]
pub enum UnknownModel {
    #[error(
        "too little is known of {}: nobody has published {}; on a machine with that GPU, NVML tells",
        .0.key,
        .0.missing.join(", ")
    )]
    Incomplete(&'static Incomplete),
    #[error("\"{word}\" can be {}: write one of these", keys(candidates))]
    Several {
        word: String,
        candidates: Vec<&'static Model>,
    },
    #[error("no model is called \"{0}\"{hint}; mig-mps check --models lists all", hint = near(.0))]
    None(String),
}

fn near(word: &str) -> String {
    let keys = models().iter().map(|model| model.key.as_str());
    let near = nearest(word, keys).map(|near| format!(" (did you mean \"{near}\"?)"));
    near.unwrap_or_default()
}

fn keys(models: &[&Model]) -> String {
    let keys: Vec<&str> = models.iter().map(|model| model.key.as_str()).collect();
    keys.join(", ")
}

/// Returns the model that a word means: its key or alias, or some of the words of one model's key or product name.
/// Capital letters make no difference.
pub fn find(word: &str) -> Result<&'static Model, UnknownModel> {
    let lower = word.to_lowercase();
    if let Some(model) = named(&lower) {
        return Ok(model);
    }
    if let Some(model) = incomplete().iter().find(|model| model.key == lower) {
        return Err(UnknownModel::Incomplete(model));
    }
    let wanted = words(&lower);
    let is_meant = |model: &&Model| {
        let names = model.product_names.iter().chain([&model.key]);
        let names = names.map(|name| words(&name.to_lowercase()));
        !wanted.is_empty() && { names }.any(|name| wanted.iter().all(|word| name.contains(word)))
    };
    let candidates: Vec<&Model> = models().iter().filter(is_meant).collect();
    match candidates.as_slice() {
        [] => Err(UnknownModel::None(word.to_owned())),
        [one] => Ok(one),
        _ => Err(UnknownModel::Several {
            word: word.to_owned(),
            candidates,
        }),
    }
}

fn words(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_the_one_model_that_has_it() {
        for (word, key) in [
            ("a100-80gb", "a100-80gb"),
            ("A100-80GB", "a100-80gb"),
            ("A30", "a30-24gb"),
            ("NVIDIA H200 NVL", "h200-141gb-nvl"),
        ] {
            assert_eq!(find(word).unwrap().key, key, "{word}");
        }
        let several = find("A100").unwrap_err().to_string();
        assert!(several.contains("a100-40gb, a100-80gb"), "{several}");
        assert!(!several.contains("h100"), "{several}");
        for none in ["", "-", "v100", "h"] {
            let unknown = find(none).unwrap_err().to_string();
            assert!(unknown.contains("no model is called"), "{unknown}");
        }
    }
}
