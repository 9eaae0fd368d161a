use crate::common::Sim;
use crate::shipped::is_shipped;

/// `cargo renew` writes the files under `completions/` as the program prints them.
#[test]
fn the_shipped_completions_are_up_to_date() {
    let sim = Sim::with("a100-80gb", 1);
    for shell in ["bash", "zsh", "fish"] {
        let printed = sim.run(&["completions", shell]).ended(0).stdout;
        is_shipped(&format!("completions/mig-mps.{shell}"), &printed);
    }
}
