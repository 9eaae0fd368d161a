//! mig-parted's own configuration files: each configuration imported, planned and made on every model that it suits.

use std::collections::BTreeMap;
use std::path::Path;

use mig_mps::internals::convert::{Excerpt, ImportOptions, import, mig_parted};
use mig_mps::internals::plan::Plan;
use simnode::catalog::Model;

use super::mig_parted_config::{FILES, Geometry, geometry, read, suits, wanted};
use super::model;
use super::testbed::{self, Testbed};

/// The GPUs of a node: the files list indices up to 7.
const GPUS: u32 = 8;

/// The geometry that a node has.
fn made(testbed: &Testbed) -> BTreeMap<u32, Geometry> {
    let gpus = &testbed.node.gpus;
    let modes = gpus.iter().map(|gpu| (gpu.index, gpu.in_mig_mode()));
    let mut devices = Vec::new();
    for gpu in gpus {
        for instance in &gpu.instances {
            let profile = gpu.profile(instance.profile).unwrap();
            for compute in &instance.compute {
                let name = if compute.slices < profile.slices {
                    format!("{}c.{}", compute.slices, profile.name)
                } else {
                    profile.name.to_string()
                };
                devices.push((gpu.index, name));
            }
        }
    }
    geometry(modes, devices)
}

/// Imports a configuration, and makes it on a node with GPUs of one model.
fn import_and_make(
    spec: &mig_parted::Spec,
    name: &str,
    wanted: &BTreeMap<u32, Geometry>,
    model: &'static Model,
) {
    for exact in [false, true] {
        let options = ImportOptions {
            serve_whole: false,
            exact,
        };
        let imported = import(spec, name, options).unwrap();
        let text = imported.draft.to_string();
        let case = format!("{name} on {}:\n{text}", model.key);
        let profile = testbed::parse(&text);
        let mut testbed = Testbed::new(model, GPUS as usize);
        let plan = testbed
            .plan(&profile)
            .unwrap_or_else(|no| panic!("{case}{no}"));
        testbed.carry_out(&plan);
        assert_eq!(testbed.plan(&profile).ok(), Some(Plan::default()), "{case}");
        let mut made = made(&testbed);
        made.retain(|gpu, _| wanted.contains_key(gpu));
        assert_eq!(made, *wanted, "{case}");
        if exact {
            assert_eq!(
                imported.notes.iter().find(|note| note.contains("SMs")),
                None
            );
        }
    }
}

#[test]
fn the_configurations_of_mig_parted_make_what_they_say() {
    let mut counts = Vec::new();
    let mut unused = Vec::new();
    for (file, yaml) in FILES {
        let spec =
            mig_parted::Spec::parse(Excerpt::whole(Path::new(file), yaml.to_owned())).unwrap();
        let configs = read(yaml).mig_configs;
        let mut cases = 0;
        for (name, entries) in &configs {
            let mut is_used = false;
            for model in model::keys().into_iter().map(model::named) {
                let wanted = wanted(entries, model, GPUS);
                if !suits(&wanted, model) {
                    continue;
                }
                is_used = true;
                import_and_make(&spec, name, &wanted, model);
                cases += 1;
            }
            if !is_used {
                unused.push(name.clone());
            }
        }
        println!("{file}: {} configurations, {cases} cases", configs.len());
        counts.push((configs.len(), cases));
    }
    assert_eq!(counts, [(64, 204), (24, 97), (34, 121), (7, 58), (9, 9)]);
    // A GB200 of 189 GB, which two of the files name, is not in the catalog.
    let gb200 = ["all-3g.95gb", "all-4g.95gb", "all-7g.189gb"];
    assert_eq!(unused, [gb200, gb200].concat(), "for no model");
}
