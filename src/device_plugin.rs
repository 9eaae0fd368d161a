//! The program mig-mps-device-plugin: the same as `main` of mig-mps.

use std::process::ExitCode;

fn main() -> ExitCode {
    mig_mps::cli::device_plugin()
}
