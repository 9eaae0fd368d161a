use crate::common::{Sim, shell};

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
