//! Commands for root, as the caller has to type them.

use std::ffi::OsString;

use super::{Uid, caller, quoted};
use crate::config::{LOG_DIR, RUN_DIR};

/// Returns the remedy for what only root may do: this command line with sudo in front. Root needs no sudo.
pub fn as_root() -> String {
    if caller() == Uid::ROOT {
        "root of a container may lack the privilege: run it on the host".to_owned()
    } else {
        format!("run it as root: {}", with_sudo())
    }
}

/// Returns a command, or a text with commands in backticks, without the sudo that root does not need.
pub fn without_needless_sudo(text: &str) -> String {
    if caller() == Uid::ROOT {
        let text = text.strip_prefix("sudo ").unwrap_or(text);
        text.replace("`sudo ", "`")
    } else {
        text.to_owned()
    }
}

/// Returns this command line with sudo in front, to be pasted into a shell: `sudo mig-mps up 'my profile.toml'`.
pub fn with_sudo() -> String {
    // sudo takes no variable of the caller over.
    let variables = [RUN_DIR, LOG_DIR].into_iter().filter_map(|name| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some(format!("{name}={}", quoted(&value.to_string_lossy())))
    });
    let words = std::env::args_os().skip(1);
    let words = words.map(|word: OsString| quoted(&word.to_string_lossy()));
    let program = ["sudo".to_owned()].into_iter().chain(variables);
    let line: Vec<String> = program.chain(["mig-mps".to_owned()]).chain(words).collect();
    line.join(" ")
}
