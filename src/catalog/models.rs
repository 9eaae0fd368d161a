use std::collections::BTreeSet;
use std::sync::LazyLock;

use include_dir::{Dir, include_dir};
use serde::Deserialize;

use super::model::{Incomplete, Model};
use super::pci::PciId;

/// A file for each model, named for its key.
static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/catalog/models");

static MODELS: LazyLock<Vec<Model>> = LazyLock::new(|| {
    let files = FILES.files();
    let texts = files.map(|file| file.contents_utf8().unwrap_or_default());
    texts.map(read).collect()
});

/// The models without a file.
#[derive(Deserialize)]
struct Others {
    model: Vec<Incomplete>,
}

static OTHERS: LazyLock<Others> = LazyLock::new(|| read(include_str!("incomplete.toml")));

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> T {
    toml::from_str(text).expect("the file is in the form of the catalog")
}

/// Every model that can be planned for, by key.
pub fn models() -> &'static [Model] {
    &MODELS
}

/// The models of which too little is known.
pub fn incomplete() -> &'static [Incomplete] {
    &OTHERS.model
}

/// True if some model, also one of which too little is known, has a product name with that property.
pub fn has_product(is_it: impl Fn(&str) -> bool) -> bool {
    let complete = models()
        .iter()
        .flat_map(|model| match model.product_names.as_slice() {
            [] => vec![model.product()],
            names => names.iter().map(String::as_str).collect(),
        });
    let incomplete = incomplete().iter().flat_map(|model| &model.product_names);
    complete.chain(incomplete.map(String::as_str)).any(is_it)
}

/// The model with that key or alias.
pub fn named(word: &str) -> Option<&'static Model> {
    models()
        .iter()
        .find(|model| model.key == word || model.aliases.iter().any(|alias| alias == word))
}

/// The model with that product name; `None` for a name that no model has, or several.
pub fn of_product(product: &str) -> Option<&'static Model> {
    let is_it = |model: &&Model| model.product_names.iter().any(|name| name == product);
    let mut found = models().iter().filter(is_it);
    found.next().filter(|_| found.next().is_none())
}

/// NVML's names for the boards with that device id, and that subsystem id where one is given.
///
/// More names than one where several boards have the id, or where nobody has published which name
/// of its model it goes with. None where the catalog does not know the id.
pub fn products_of(device: PciId, subsystem: Option<PciId>) -> Vec<&'static str> {
    let fits = |known: &[PciId]| {
        subsystem.is_none_or(|subsystem| known.is_empty() || known.contains(&subsystem))
    };
    let mut products: BTreeSet<&String> = BTreeSet::new();
    let models = models().iter();
    for model in models.filter(|model| model.pci_device_ids.contains(&device)) {
        let boards = || model.boards.iter().filter(|board| board.device == device);
        if boards().next().is_none() {
            products.extend(&model.product_names);
        }
        let boards = boards().filter(|board| fits(&board.subsystems));
        products.extend(boards.map(|board| &board.product));
    }
    for model in incomplete() {
        if model.pci_device_ids.contains(&device) && fits(&model.pci_subsystems) {
            products.extend(&model.product_names);
        }
    }
    products.into_iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::catalog::Evidence;

    #[test]
    fn every_file_is_a_model_named_for_its_key() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/catalog/models");
        let names = fs::read_dir(folder).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        let keys = models().iter().map(|model| format!("{}.toml", model.key));
        let keys: Vec<String> = keys.collect();
        let why = "cargo does not notice a new file: run cargo clean -p mig-mps -p simnode";
        assert_eq!(names, keys, "{why}");
    }

    #[test]
    fn every_model_is_found_by_its_key_and_its_aliases() {
        let mut seen = BTreeSet::new();
        for model in models() {
            for name in model.aliases.iter().chain([&model.key]) {
                assert!(seen.insert(name), "{name} twice");
                assert_eq!(named(name).unwrap().key, model.key);
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

    fn products(device: &str, subsystem: Option<&str>) -> Vec<&'static str> {
        products_of(
            device.parse().unwrap(),
            subsystem.map(|id| id.parse().unwrap()),
        )
    }

    #[test]
    fn an_id_means_its_boards_and_no_others_of_the_model() {
        assert_eq!(products("0x20B510DE", None), ["NVIDIA A100 80GB PCIe"]);
        assert_eq!(
            products("0x20b210de", None),
            ["NVIDIA A100-SXM4-80GB", "NVIDIA PG509-210"]
        );
        let sxm = products("0x20B210DE", Some("0x147F10DE"));
        assert_eq!(sxm, ["NVIDIA A100-SXM4-80GB"]);
        assert_eq!(products("0x20B210DE", Some("0x999910DE")), [""; 0]);
        assert_eq!(products("0x233510DE", None), ["NVIDIA H200"]);
        assert_eq!(products("0x1EB810DE", None), [""; 0]);
    }

    #[test]
    fn boards_have_names_and_ids_of_their_model() {
        for model in models() {
            for board in &model.boards {
                let product = &board.product;
                assert!(model.product_names.contains(product), "{product}");
                assert!(model.pci_device_ids.contains(&board.device), "{product}");
            }
        }
    }
}
