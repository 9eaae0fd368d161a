use std::fs;
use std::path::Path;

use crate::common::Sim;

/// The files under `completions/` are what the program prints. To renew them:
/// `for s in bash zsh fish; do cargo run -q -- completions $s > completions/mig-mps.$s; done`
#[test]
fn the_shipped_completions_are_up_to_date() {
    let sim = Sim::with("a100-80gb", 1);
    for shell in ["bash", "zsh", "fish"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("completions/mig-mps")
            .with_extension(shell);
        let printed = sim.run(&["completions", shell]).ended(0).stdout;
        assert_eq!(
            fs::read_to_string(&path).unwrap(),
            printed,
            "{} is not",
            path.display()
        );
    }
}
