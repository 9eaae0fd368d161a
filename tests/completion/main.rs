//! Completion in real shells, each in a terminal of its own, on a simulated node.

mod candidates;
#[path = "../cli/common.rs"]
#[allow(dead_code, reason = "shared with the tests of the command line")]
mod common;
mod shell;
mod terminal;
mod wanted;
