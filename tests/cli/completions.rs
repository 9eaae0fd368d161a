use crate::common::{Sim, shell};
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

#[test]
fn completions_that_cannot_be_written_are_an_error() {
    let sim = Sim::with("a100-80gb", 1);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let ran = shell(format!("{program} completions bash > /dev/full")).ended(1);
    assert!(
        ran.stderr.contains("cannot write to standard output"),
        "{}",
        ran.stderr
    );
}
