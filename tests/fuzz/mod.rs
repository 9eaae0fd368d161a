//! Seeds of the fuzzer, and what it has found: `fixtures/fuzz` says how to find more.

mod targets;

use std::fs;

use testkit::repository;

use targets::TARGETS;

#[test]
fn what_was_found_stays_mended() {
    for (name, target) in TARGETS {
        let directory = repository().join("fixtures/fuzz/seeds").join(name);
        let seeds: Vec<_> = fs::read_dir(&directory).unwrap().collect();
        assert!(!seeds.is_empty(), "no seeds in {}", directory.display());
        for seed in seeds {
            target(&fs::read(seed.unwrap().path()).unwrap());
        }
    }
}
