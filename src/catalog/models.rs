use std::sync::LazyLock;

use super::files;
use super::incomplete::Incomplete;
use super::model::Model;

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let texts = files::FILES.iter().map(|(_, text)| text);
    texts.map(|text| Model::read(text)).collect()
});

static INCOMPLETE: LazyLock<Vec<Incomplete>> =
    LazyLock::new(|| Incomplete::read(files::INCOMPLETE));

/// Every model that can be planned for, by key.
pub fn models() -> &'static [Model] {
    &MODELS
}

/// The models of which too little is known.
pub fn incomplete() -> &'static [Incomplete] {
    &INCOMPLETE
}

/// The model with that key or alias.
pub fn named(word: &str) -> Option<&'static Model> {
    models()
        .iter()
        .find(|model| model.key == word || model.aliases.iter().any(|alias| alias == word))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::catalog::Evidence;

    #[test]
    fn every_model_is_found_by_its_key_and_its_aliases() {
        assert_eq!(models().len(), files::FILES.len());
        let mut seen = BTreeSet::new();
        for (names, _) in &files::FILES {
            for name in *names {
                assert!(seen.insert(*name), "{name} twice");
                assert_eq!(named(name).unwrap().key, names[0]);
            }
        }
        assert!(named("a100").is_none());
    }

    #[test]
    fn what_a_model_offers_is_what_its_file_says() {
        let a100 = named("a100-80gb").unwrap().offers();
        let names: Vec<String> = a100.iter().map(|offer| offer.name.to_string()).collect();
        assert_eq!(
            names.join(" "),
            "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"
        );
        assert_eq!(a100[4].id.0, 9);
        assert_eq!((a100[4].multiprocessors, a100[4].memory_mib), (42, 40192));
        for model in models() {
            for offer in model.offers() {
                let name = format!("{} {}", model.key, offer.name);
                assert!(offer.most > 0 && !offer.placements.is_empty(), "{name}");
                assert!(offer.multiprocessors >= offer.slices, "{name}");
                assert!(offer.memory_mib > 4096, "{name}");
            }
        }
    }

    #[test]
    fn every_entry_says_how_sure_it_is() {
        let h200 = named("h200").unwrap();
        assert_eq!(h200.profiles_known(), Evidence::Measured);
        assert_eq!(h200.placements_known(), Evidence::Measured);
        let a800 = named("a800-80gb").unwrap();
        assert_eq!(a800.placements_known(), Evidence::Derived);
        for model in incomplete() {
            assert!(!model.missing.is_empty(), "{}", model.key);
            assert!(named(&model.key).is_none(), "{}", model.key);
        }
    }
}
