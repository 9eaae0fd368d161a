//! Files of the repository that the program prints.

use std::fs;
use std::path::Path;

/// Asserts that a file of the repository is what the program prints; `cargo renew` makes it so.
#[track_caller]
pub(crate) fn is_shipped(path: &str, printed: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    if std::env::var_os("RENEW").is_some() {
        fs::write(&file, printed).unwrap();
    }
    let shipped = fs::read_to_string(&file).unwrap();
    assert!(
        shipped == printed,
        "{path} is out of date: run `cargo renew`"
    );
}
