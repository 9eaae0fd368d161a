//! Seeds of the fuzzer, and what it has found: `fixtures/fuzz` says how to find more.

mod targets;

use std::env;
use std::fs;
use std::process::{Command, Output};

use testkit::{assert_contains, repository, write_program};

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

/// Runs the script for one target, with a fuzzer in the place of the one that it builds.
fn run_with(fuzzer: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let cargo = format!(
        "#!/bin/sh\nfor triple; do :; done\nmkdir -p \"$CARGO_TARGET_DIR/$triple/release\"\n\
         printf '%s\\n' '#!/bin/sh' '{fuzzer}' > \"$CARGO_TARGET_DIR/$triple/release/any\"\n\
         chmod +x \"$CARGO_TARGET_DIR/$triple/release/any\"\n"
    );
    let programs = directory.path().join("programs");
    fs::create_dir(&programs).unwrap();
    write_program(programs.join("cargo"), cargo);
    let path = format!("{}:{}", programs.display(), env::var("PATH").unwrap());
    let script = repository().join("fixtures/fuzz/run.sh");
    let mut command = Command::new(script);
    command.args(["1", "profile"]).env("PATH", path);
    command.env("CARGO_TARGET_DIR", directory.path());
    command.output().unwrap()
}

/// Also where the last lines match nothing that the script looks for, and where a signal ends the fuzzer.
#[test]
fn the_script_fails_with_the_fuzzer() {
    let ended = run_with("echo stat::number_of_executed_units: 7");
    assert!(ended.status.success(), "{ended:?}");
    assert_contains(&String::from_utf8_lossy(&ended.stdout), "units: 7");
    assert!(run_with("exit 0").status.success());
    for fuzzer in [
        "echo panicked; exit 77",
        "exit 1",
        "echo SUMMARY >&2; kill -ABRT $$",
    ] {
        let ended = run_with(fuzzer);
        assert!(!ended.status.success(), "{fuzzer}: {ended:?}");
    }
}
