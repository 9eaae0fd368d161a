//! The program: parse, dispatch, exit status.

use std::process::ExitCode;

fn main() -> ExitCode {
    mig_mps::cli::main()
}
