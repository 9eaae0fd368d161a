//! The program: parse, dispatch, exit status.

fn main() {
    mig_mps::cli::main()
}
