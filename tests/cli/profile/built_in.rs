//! The ready-made profiles fit the models they say they are for.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use mig_mps::internals::catalog;
use mig_mps::internals::profile::{Profile, Want};

use testkit::{repository, without_gpu};

fn ready_made() -> Vec<PathBuf> {
    let dir = repository().join("profiles");
    let mut paths: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 7, "{paths:?}");
    paths
}

/// The models that a profile is for.
fn claimed(profile: &Profile) -> BTreeSet<&str> {
    let models = profile.models.iter().map(|(key, _)| key.as_str());
    let models: BTreeSet<&str> = models.collect();
    if models.is_empty() {
        let all = catalog::models();
        return all.map(|model| model.key.as_str()).collect();
    }
    models
}

#[test]
fn every_profile_fits_the_models_it_claims_and_no_others() {
    for path in ready_made() {
        let text = fs::read_to_string(&path).unwrap();
        let profile = Profile::parse(&path, text).unwrap();
        let claimed = claimed(&profile);
        let file = path.to_str().unwrap();
        for key in &claimed {
            assert!(
                catalog::models().any(|model| model.key == *key),
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
        // By its path and by its name.
        let name = path.file_stem().unwrap().to_str().unwrap();
        for profile in [file, name] {
            let all = without_gpu(&["check", profile], "");
            assert_eq!(all.status, 0, "{profile}: {}", all.stderr);
        }
    }
}

#[test]
fn every_profile_says_whose_clients_it_serves_and_is_in_the_manual() {
    let manual = repository().join("src/manual/profile.md");
    let manual = fs::read_to_string(manual).unwrap();
    for path in ready_made() {
        let file = path.file_name().unwrap().to_str().unwrap();
        let name = file.trim_end_matches(".toml");
        assert!(manual.contains(&format!("| `{name}` |")), "{file}");
        let text = fs::read_to_string(&path).unwrap();
        let profile = Profile::parse(&path, text.clone()).unwrap();
        assert_eq!(format!("{}.toml", profile.name.clone().unwrap()), file);
        let left_open = text.contains("is left to the default");
        let every_device = profile.blocks.iter().flat_map(|block| match &block.want {
            Want::Whole(whole) => vec![&whole.settings],
            Want::Parts(parts) => parts.iter().map(|part| &part.settings).collect(),
        });
        let every_device = { every_device }.all(|settings| {
            let settings = settings.as_ref();
            settings.is_some_and(|settings| settings.serve.is_some())
        });
        assert!(left_open != every_device, "{file}");
    }
}

/// The product names of a fleet lead to the blocks they are meant for: `H200` is in `GH200` too.
#[test]
fn the_mixed_fleet_goes_by_memory() {
    let file = repository().join("profiles/mixed-fleet.toml");
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
