//! Completion in real shells, each in a terminal of its own, on a simulated node.

mod candidates;
mod shell;
mod terminal;
mod wanted;
