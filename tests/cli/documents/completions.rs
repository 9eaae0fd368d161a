use testkit::{Sim, assert_contains, shell};

#[test]
fn completions_that_cannot_be_written_are_an_error() {
    let sim = Sim::with("a100-80gb", 1);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let ran = shell(format!("{program} completions bash > /dev/full")).ended(1);
    assert_contains(&ran.stderr, "cannot write to standard output");
}

#[test]
fn help_and_version_that_cannot_be_written_are_an_error() {
    let sim = Sim::with("a100-80gb", 1);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    for words in ["--version", "--help", "-h", "up --help", "run --help"] {
        let ran = shell(format!("{program} {words} > /dev/full")).ended(1);
        let said = "error: cannot write to standard output: No space left on device\n";
        assert!(ran.stderr.starts_with(said), "{words}: {}", ran.stderr);
        shell(format!("{program} {words} > /dev/null")).ended(0);
        // A reader that has seen enough is no error.
        let ran = shell(format!("{program} {words} | true")).ended(0);
        assert_eq!(ran.stderr, "", "{words}");
    }
    assert!(shell(program).ended(2).stderr.contains("You run this node"));
}
