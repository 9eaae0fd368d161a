//! All tests of the package in one program: it is linked once, and its tests share the cores until the last one ends.

mod apply;
mod cli;
mod completion;
mod errors;
mod fuzz;
mod host;
mod house;
mod package;
mod planner;
mod slurm;
mod truth;
