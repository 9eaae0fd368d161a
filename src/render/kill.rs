//! The clients that a kill terminates.

use std::fmt::Write as _;

use super::format::{count, fitted};
use super::output::width;
use crate::plan::{Kill, Signal};

/// Lists these clients, describes the effect, and counts the clients that go on.
pub(super) fn text(kill: &Kill) -> String {
    let number = kill.victims.len();
    let clients = count(number, "client");
    let mut out = match kill.signal.map(Signal::name) {
        Some(signal) if kill.has_fault => {
            let processes = if number == 1 { "process" } else { "processes" };
            format!("This sends {signal} to {number} {processes}:\n")
        }
        Some(signal) if number == 1 => {
            format!("This ends the work of {clients} and sends its process {signal}:\n")
        }
        Some(signal) => {
            format!("This ends the work of {clients} and sends their processes {signal}:\n")
        }
        None => format!("This ends the work of {clients}:\n"),
    };
    for victim in &kill.victims {
        let _ = writeln!(out, "  {}", victim.client);
    }
    if kill.has_fault {
        let _ = writeln!(
            out,
            "{} had a GPU fault: its clients' work has ended, and it serves again when all their processes have.",
            kill.name
        );
    } else {
        match kill.others {
            0 => {}
            1 => out.push_str("1 other client goes on.\n"),
            others => {
                let _ = writeln!(out, "{others} other clients go on.");
            }
        }
    }
    fitted(&out, width()) + "\n"
}

/// Describes it in a question.
pub(super) fn phrase(kill: &Kill) -> String {
    let number = kill.victims.len();
    let work = format!(
        "end the work of {} on {}",
        count(number, "client"),
        kill.name
    );
    let processes = if number == 1 {
        "its process"
    } else {
        "their processes"
    };
    match kill.signal {
        Some(signal) => format!("{work} and send {processes} {}", signal.name()),
        None => work,
    }
}
