//! Makes cargo build the programs, which cargo does for the integration tests of the same package only. The suite is in a
//! separate package. This target has the suite's name, so that `cargo test --test suite` also builds the programs.

fn main() {}
