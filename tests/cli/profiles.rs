//! The ready-made profiles fit the models they say they are for.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use mig_mps::internals::catalog;
use mig_mps::internals::profile::{Profile, Want};

use crate::common::without_gpu;

fn ready_made() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles");
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 7, "{paths:?}");
    paths
}

/// What stands behind `# models:`: keys of the catalog, or `all`.
fn claimed(text: &str) -> BTreeSet<&str> {
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("# models: "));
    let words: BTreeSet<&str> = lines.flat_map(|line| line.split(", ")).collect();
    if words == BTreeSet::from(["all"]) {
        return catalog::models()
            .iter()
            .map(|model| model.key.as_str())
            .collect();
    }
    words
}

#[test]
fn every_profile_fits_the_models_it_claims_and_no_others() {
    for path in ready_made() {
        let text = fs::read_to_string(&path).unwrap();
        let claimed = claimed(&text);
        let file = path.to_str().unwrap();
        assert!(!claimed.is_empty(), "{file} claims no model");
        for key in &claimed {
            assert!(
                catalog::models().iter().any(|model| model.key == *key),
                "{file}: {key}"
            );
        }
        for model in catalog::models() {
            let ran = without_gpu(&["check", file, "--gpu", &format!("{}:2", model.key)], "");
            let fits = ran.status == 0;
            assert_eq!(
                fits,
                claimed.contains(model.key.as_str()),
                "{file} on {}: {}",
                model.key,
                ran.stderr
            );
        }
        // Every block is for some model, and one that claims them all suits them all.
        let all = without_gpu(&["check", file], "");
        assert_eq!(
            all.status == 0,
            claimed.len() == catalog::models().len(),
            "{file}: {}",
            all.stderr
        );
    }
}

#[test]
fn every_profile_says_whose_clients_it_serves_and_is_in_the_manual() {
    let manual = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/manual/profile.md");
    let manual = fs::read_to_string(manual).unwrap();
    for path in ready_made() {
        let file = path.file_name().unwrap().to_str().unwrap();
        assert!(manual.contains(&format!("| `profiles/{file}` |")), "{file}");
        let text = fs::read_to_string(&path).unwrap();
        let profile = Profile::parse(&path, text.clone()).unwrap();
        assert_eq!(format!("{}.toml", profile.name.clone().unwrap()), file);
        let left_open = text.contains("is left to the default");
        let every_device = profile.blocks.iter().all(|block| match &block.want {
            Want::Whole(whole) => whole.settings.serve.is_some(),
            Want::Parts(parts) => parts.iter().all(|part| part.settings.serve.is_some()),
        });
        assert!(left_open != every_device, "{file}");
    }
}

/// The product names of a fleet lead to the blocks they are meant for: `H200` is in `GH200` too.
#[test]
fn the_mixed_fleet_goes_by_memory() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("profiles/mixed-fleet.toml");
    let judged = without_gpu(&["check", file.to_str().unwrap(), "--json"], "").json();
    let models = |block: usize| -> Vec<String> {
        let models = judged["blocks"][block]["models"].as_array().unwrap().iter();
        models
            .map(|one| one["model"].as_str().unwrap().to_owned())
            .collect()
    };
    for (block, most, least) in [(0, u64::MAX, 140), (1, 99, 80), (2, 40, 40)] {
        for key in models(block) {
            let gib = catalog::named(&key).unwrap().memory_gib().unwrap();
            assert!(
                (least..=most).contains(&gib),
                "block {block}: {key} has {gib}"
            );
        }
        assert!(!models(block).is_empty());
    }
    // Whatever has MIG and a name is partitioned.
    assert_eq!(models(4), ["h100-64gb-sxm"]);
}
