//! Every message of the program, provoked in the real binary and kept in one file that can be read from top to bottom.
//!
//! - `messages.txt` has the messages by topic. `cargo renew` writes it anew.
//! - A message of the sources that is not in that file must be in the table of `unprovoked.rs`, with the reason.

mod book;
mod literals;
mod stage;
mod topics;
mod unprovoked;

use std::fs;
use std::path::Path;

use testkit::is_shipped;

const MESSAGES: &str = "tests/errors/messages.txt";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn the_shipped_messages() {
    if testkit::is_root("the_shipped_messages") {
        is_shipped(MESSAGES, &book::text(topics::TOPICS));
    }
}

#[test]
fn every_message_of_the_sources_is_provoked_or_excused() {
    let messages = fs::read_to_string(root().join(MESSAGES)).unwrap();
    let pieces = literals::fixed_pieces(&root().join("src"));
    let faults = unprovoked::faults(&pieces, &messages);
    assert!(faults.is_empty(), "\n{}", faults.concat());
    assert!(!messages.contains(book::NOTHING), "a scene says nothing");
}
