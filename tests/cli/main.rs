//! Runs the real program on simulated nodes and looks at what a user sees.

mod check;
mod common;
mod completions;
mod compute_mode;
mod down;
mod environment;
mod errors;
mod export;
mod failures;
mod import;
mod launch;
mod list;
mod live;
mod logs;
mod mig_parted;
mod profiles;
mod readme;
mod review;
mod settings;
mod sight;
mod status;
mod status_json;
mod up;
mod users;
mod watch;
