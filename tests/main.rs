//! All tests of the package in one program: it is linked once, and its tests share the cores until the last one ends.

#![allow(clippy::too_many_lines, reason = "a test tells one story")]

mod apply;
mod cli;
mod completion;
mod fuzz;
mod host;
mod kubernetes;
mod package;
mod planner;
mod scenarios;
mod slurm;
mod source_tree;
mod truth;
