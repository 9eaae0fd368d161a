//! The program mig-mps-device-plugin: the same as `main` of mig-mps.

fn main() {
    mig_mps::cli::device_plugin()
}
