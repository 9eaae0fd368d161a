//! The models and the built-in profiles, and the model that a word means.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::{LazyLock, OnceLock};

use include_dir::{Dir, include_dir};
use serde::Deserialize;
use thiserror::Error;

use super::model::{Incomplete, Model};
use super::no_mig::names_gpu_without_mig;
use crate::host::closest_match;

/// A file for each model, named for its key.
static FILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/catalog/models");

/// The file of a model. A file is parsed when its model is asked for: to parse all takes longer than most commands take.
struct ModelFile {
    text: &'static str,
    /// The part before the first table, with all names of the model.
    names: &'static str,
    model: OnceLock<Model>,
}

impl ModelFile {
    fn load_model(&self) -> &Model {
        self.model.get_or_init(|| parse_catalog_file(self.text))
    }
}

static MODELS: LazyLock<Vec<ModelFile>> = LazyLock::new(|| {
    let files = FILES.files();
    let of_file = |text: &'static str| ModelFile {
        text,
        names: text.split("\n[").next().unwrap_or_default(),
        model: OnceLock::new(),
    };
    files
        .map(|file| of_file(file.contents_utf8().unwrap_or_default()))
        .collect()
});

/// The models without a file.
#[derive(Deserialize)]
struct Others {
    model: Vec<Incomplete>,
}

static OTHERS: LazyLock<Others> =
    LazyLock::new(|| parse_catalog_file(include_str!("incomplete.toml")));

fn parse_catalog_file<'a, T: Deserialize<'a>>(text: &'a str) -> T {
    toml::from_str(text).expect("the file is in the form of the catalog")
}

/// Every model that can be planned for, by key.
pub fn models() -> impl ExactSizeIterator<Item = &'static Model> + Clone {
    MODELS.iter().map(ModelFile::load_model)
}

/// The models that may have this name; the files of the others are not parsed.
pub(super) fn models_with(name: &str) -> impl Iterator<Item = &'static Model> {
    MODELS
        .iter()
        .filter(move |file| file.names.contains(name))
        .map(ModelFile::load_model)
}

/// The models of which too little is known.
pub fn incomplete() -> &'static [Incomplete] {
    &OTHERS.model
}

/// True if some model, also one of which too little is known, has a product name with that property.
pub fn has_product(is_it: impl Fn(&str) -> bool) -> bool {
    let complete = models().flat_map(Model::products_or_default);
    let incomplete = incomplete().iter().flat_map(|model| &model.product_names);
    complete.chain(incomplete.map(String::as_str)).any(is_it)
}

/// The model with that key or alias.
pub fn named(word: &str) -> Option<&'static Model> {
    models_with(word)
        .find(|model| model.key == word || model.aliases.iter().any(|alias| alias == word))
}

/// The model with that product name; `None` for a name that no model has, or several.
pub fn model_with_product(product: &str) -> Option<&'static Model> {
    let mut found =
        models_with(product).filter(|model| model.product_names.iter().any(|name| name == product));
    let first = found.next()?;
    found.next().is_none().then_some(first)
}

/// NVML's names for the boards with that device id, and that subsystem id where one is given.
///
/// More names than one where several boards have the id, or where nobody has published which name
/// of its model it goes with. None where the catalog does not know the id.
pub fn products_of(device: PciId, subsystem: Option<PciId>) -> Vec<&'static str> {
    let mut products: BTreeSet<&String> = BTreeSet::new();
    for model in models().filter(|model| model.pci_device_ids.contains(&device)) {
        if !model.boards.iter().any(|board| board.device == device) {
            products.extend(&model.product_names);
        }
        for board in &model.boards {
            if board.device == device && may_have_subsystem(&board.subsystems, subsystem) {
                products.insert(&board.product);
            }
        }
    }
    for model in incomplete() {
        let is_device = model.pci_device_ids.contains(&device);
        if is_device && may_have_subsystem(&model.pci_subsystems, subsystem) {
            products.extend(&model.product_names);
        }
    }
    products.into_iter().map(String::as_str).collect()
}

/// True if a board with one of the known subsystem ids may have this one. Either may be unknown.
fn may_have_subsystem(known: &[PciId], subsystem: Option<PciId>) -> bool {
    subsystem.is_none_or(|subsystem| known.is_empty() || known.contains(&subsystem))
}

/// The reason why a word means no model.
#[derive(Debug, Error)]
#[error("{0}")]
pub struct UnknownModel(String);

/// Returns the model that a word means: its key or alias, or some of the words of one model's key or product name.
/// Capital letters make no difference.
pub fn find_model(word: &str) -> Result<&'static Model, UnknownModel> {
    let lower = word.to_lowercase();
    if let Some(model) = named(&lower) {
        return Ok(model);
    }
    if let Some(model) = incomplete().iter().find(|model| model.key == lower) {
        return Err(UnknownModel(format!(
            "too little is known of {} (no published data on {}); on a machine with that GPU, NVML reports it",
            model.key,
            model.missing.join(", ")
        )));
    }
    let mut wanted = split_words(&lower);
    let mut candidates: Vec<&Model> = models().filter(|model| has_words(model, &wanted)).collect();
    if candidates.is_empty() {
        // NVIDIA's lists also have the number of the form: H100-SXM5-80GB.
        let is_form = |word: &str| matches!(word, "sxm2" | "sxm3" | "sxm4" | "sxm5" | "sxm6");
        wanted
            .iter_mut()
            .filter(|word| is_form(word))
            .for_each(|word| word.truncate("sxm".len()));
        candidates = models().filter(|model| has_words(model, &wanted)).collect();
    }
    if let [one] = candidates.as_slice() {
        return Ok(one);
    }
    let keys: Vec<&str> = candidates.iter().map(|model| model.key.as_str()).collect();
    Err(UnknownModel(
        if keys.is_empty() && names_gpu_without_mig(&wanted) {
            format!(
                "\"{word}\" has no MIG, so it has no layouts to calculate; on a machine with this GPU, \
                 `mig-mps up whole-gpu` shares it through MPS; `mig-mps check --models` lists the models with MIG"
            )
        } else if keys.is_empty() {
            let near =
                suggest_key(word, &wanted).map(|near| format!(" (did you mean \"{near}\"?)"));
            format!(
                "no model with MIG has the name \"{word}\"{}; `mig-mps check --models` lists all models",
                near.unwrap_or_default()
            )
        } else {
            format!("\"{word}\" is ambiguous: write one of {}", keys.join(", "))
        },
    ))
}

/// Returns the model that was probably meant: one of whose words none is missing, or else one that is nearly spelled so.
fn suggest_key(word: &str, wanted: &[String]) -> Option<&'static str> {
    let keys: Vec<&str> = models().map(|model| model.key.as_str()).collect();
    keys.iter()
        .copied()
        .filter(|key| split_words(key).iter().all(|word| wanted.contains(word)))
        .max_by_key(|key| key.len())
        .or_else(|| closest_match(word, keys.iter().copied()))
}

/// True if one name of a model has all these words.
fn has_words(model: &Model, wanted: &[String]) -> bool {
    let mut names = model
        .product_names
        .iter()
        .chain([&model.key])
        .map(|name| split_words(&name.to_lowercase()));
    !wanted.is_empty() && names.any(|name| wanted.iter().all(|word| name.contains(word)))
}

fn split_words(text: &str) -> Vec<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// A PCI device or subsystem id as NVML gives it: `device << 16 | vendor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciId(pub u32);

impl FromStr for PciId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.strip_prefix("0x")
            .or_else(|| text.strip_prefix("0X"))
            // No sign, which Rust would read too.
            .filter(|digits| digits.len() <= 8 && digits.chars().all(|c| c.is_ascii_hexdigit()))
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .map(Self)
            .ok_or_else(|| {
            format!("\"{text}\" is not a PCI id: expected one like \"0x20B210DE\", the device's id before the vendor's")
        })
    }
}

impl fmt::Display for PciId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{:08X}", self.0)
    }
}

impl<'de> Deserialize<'de> for PciId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

static PROFILES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/profiles");

/// A built-in profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuiltIn {
    pub name: &'static str,
    pub text: &'static str,
}

impl BuiltIn {
    /// Returns every built-in profile, by name.
    pub fn all() -> Vec<Self> {
        let mut all: Vec<Self> = PROFILES
            .files()
            .filter_map(|file| {
                let name = file.path().file_name()?.to_str()?.strip_suffix(".toml")?;
                let text = file.contents_utf8()?;
                Some(Self { name, text })
            })
            .collect();
        all.sort_by_key(|profile| profile.name);
        all
    }

    /// Returns the built-in profile with that name.
    pub fn find_by_name(name: &str) -> Option<Self> {
        Self::all().into_iter().find(|profile| profile.name == name)
    }

    /// The first sentence of its text, which says what it makes.
    pub fn summary(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches("# ").trim_end_matches('.')
    }
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
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let keys: Vec<String> = models()
            .map(|model| format!("{}.toml", model.key))
            .collect();
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
        assert_eq!(
            (a100[4].multiprocessors, a100[4].memory_mib),
            (Some(42), 40192)
        );
        for model in models() {
            for offer in model.offers() {
                let name = format!("{} {}", model.key, offer.name);
                assert!(offer.most > 0 && !offer.placements.is_empty(), "{name}");
                assert!(
                    offer.multiprocessors.is_none_or(|sms| sms >= offer.slices),
                    "{name}"
                );
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

    #[test]
    fn a_word_means_the_one_model_that_has_it() {
        for (word, key) in [
            ("a100-80gb", "a100-80gb"),
            ("A100-80GB", "a100-80gb"),
            ("A30", "a30-24gb"),
            ("H100-SXM5-80GB", "h100-80gb-sxm"),
            ("NVIDIA H200 NVL", "h200-141gb-nvl"),
        ] {
            assert_eq!(find_model(word).unwrap().key, key, "{word}");
        }
        let several = find_model("A100").unwrap_err().to_string();
        assert!(several.contains("a100-40gb, a100-80gb"), "{several}");
        assert!(!several.contains("h100"), "{several}");
        for without in [
            "l4",
            "Tesla T4",
            "V100",
            "rtx 4090",
            "RTX3080Ti",
            "NVIDIA A40",
        ] {
            let unknown = find_model(without).unwrap_err().to_string();
            assert!(unknown.contains("has no MIG"), "{unknown}");
        }
        for none in ["", "-", "x100", "h", "é"] {
            let unknown = find_model(none).unwrap_err().to_string();
            assert!(
                unknown.contains("no model with MIG has the name"),
                "{unknown}"
            );
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        for wrong in ["", "0x", "20B210DE", "0x20B210DE0", "0x20B2:10DE", "0x+1"] {
            assert!(wrong.parse::<PciId>().is_err(), "{wrong}");
        }
        assert_eq!(
            "0x20b210de".parse::<PciId>().unwrap().to_string(),
            "0x20B210DE"
        );
    }
}
