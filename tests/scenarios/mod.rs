//! Scenarios: text files of commands and what they say, which a person reads from top to bottom. README.md says how they
//! are written.

mod blocks;
mod engine;
mod literals;
mod wording;

use std::collections::BTreeSet;
use std::fs;

use testkit::repository;

/// A test for each file of a folder, and one that none is forgotten.
macro_rules! scenarios {
    ($($folder:ident: $($name:ident)*;)*) => {
        $(mod $folder {
            $(#[test]
            fn $name() {
                crate::scenarios::engine::run_file(concat!(stringify!($folder), "/", stringify!($name), ".txt"));
            })*

            #[test]
            fn every_file_is_run() {
                crate::scenarios::engine::are_all(stringify!($folder), &[$(stringify!($name)),*]);
            }
        })*
    };
}

scenarios! {
    commands: advise check down export first_use import init list mistakes share status;
    documents: operating profiles readme recipes running tutorial upgrades;
    messages: advise after_change clients convert daemons devices directories driver health history job joint left_out limits machines mig mistyped no_new plan private profile programs
        ready reset run selftest slurm systemd usage;
}

/// The texts of all scenarios of messages.
fn messages() -> String {
    texts_of("messages")
}

/// The texts of all scenarios of commands.
fn commands() -> String {
    texts_of("commands")
}

fn texts_of(folder: &str) -> String {
    let files = fs::read_dir(repository().join("tests/scenarios").join(folder)).unwrap();
    let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap());
    texts.collect()
}

/// The list is read here, too: a piece that is provoked now, or is in no source any more, is not to stay there.
#[test]
fn every_message_of_the_sources_is_provoked_or_excused() {
    let listed = engine::parse(include_str!("unprovoked.txt"));
    let excused: BTreeSet<String> = listed.into_iter().flat_map(|part| part.body).collect();
    let mut pieces = literals::fixed_pieces(&repository().join("src"));
    let messages = messages();
    pieces.retain(|piece, _| !messages.contains(piece));
    let unknown: Vec<_> = excused
        .iter()
        .filter(|piece| !pieces.contains_key(*piece))
        .collect();
    assert!(
        unknown.is_empty(),
        "provoked, or in no source: {unknown:#?}"
    );
    pieces.retain(|piece, _| !excused.contains(piece));
    assert!(pieces.is_empty(), "no scenario provokes: {pieces:#?}");
}

/// A value of the wrong kind is described in the words of its file, not of the program's types.
#[test]
fn no_message_names_a_type_of_rusts() {
    let words = ["u32", "f64", "struct", "sequence", "expected a map", "Err("];
    let messages = messages();
    let named = words.iter().filter(|word| messages.contains(**word));
    assert_eq!(named.count(), 0);
}
