//! Documents: JSON, the README, the manual and its pictures, completion scripts.

mod completions;
mod handout;
mod help;
mod json;
mod json_extremes;
mod lab;
mod man;
mod pictures;
mod readme;
mod stable;
