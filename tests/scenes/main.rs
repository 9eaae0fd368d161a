//! Scenes: text files of commands and what they say, which a person reads from top to bottom. README.md says how they
//! are written.

#[path = "../cli/common.rs"]
#[allow(dead_code, reason = "shared with the tests of the command line")]
mod common;

mod blocks;
mod engine;
mod literals;
mod unprovoked;

use std::fs;
use std::path::Path;

/// A test for each file of a folder, and one that none is forgotten.
macro_rules! scenes {
    ($($folder:ident: $($name:ident)*;)*) => {
        $(mod $folder {
            $(#[test]
            fn $name() {
                crate::engine::play(concat!(stringify!($folder), "/", stringify!($name), ".txt"));
            })*

            #[test]
            fn every_file_is_played() {
                crate::engine::are_all(stringify!($folder), &[$(stringify!($name)),*]);
            }
        })*
    };
}

scenes! {
    documents: operating profiles readme running;
    messages: clients convert daemons devices directories driver limits mig plan profile programs ready reset run slurm systemd
        usage;
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The texts of all scenes of messages.
fn messages() -> String {
    let files = fs::read_dir(root().join("tests/scenes/messages")).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    texts.collect()
}

#[test]
fn every_message_of_the_sources_is_provoked_or_excused() {
    let pieces = literals::fixed_pieces(&root().join("src"));
    let faults = unprovoked::faults(&pieces, &messages());
    assert!(faults.is_empty(), "\n{}", faults.concat());
}

/// A value of the wrong kind is described in the words of its file, not of the program's types.
#[test]
fn no_message_names_a_type_of_rusts() {
    let words = ["u32", "f64", "struct", "sequence", "expected a map", "Err("];
    let messages = messages();
    let named = words.iter().filter(|word| messages.contains(**word));
    assert_eq!(named.count(), 0);
}
