//! Names that another device had before: scripts go by them.

use testkit::{Sim, assert_contains};

fn of(devices: &str) -> String {
    format!("[[gpu]]\nselect = {{ all = true }}\ndevices = [ {devices} ]\n")
}

#[test]
fn a_default_name_that_another_device_takes_is_named() {
    let before = of("{ profile = \"1g\", at = 0 }, { profile = \"1g\", at = 1 }");
    let sim = Sim::with("a100-80gb", 2);
    let first = sim.up(&before, &["--yes"]).ended(0);
    assert!(!first.stderr.contains("check scripts"), "{}", first.stderr);
    let after = of("{ profile = \"4g\", at = 0 }");
    let remark = "0.0 and 1.0 were 1g.10gb and will be 4g.40gb; check scripts that use these names";
    let path = sim.profile(&after);
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert_contains(&plan.stderr, remark);
    let json = sim.run(&["plan", path.to_str().unwrap(), "--json"]).json();
    assert_contains(&json["remarks"].to_string(), remark);
    let up = sim.up(&after, &["--yes"]).ended(0);
    assert_eq!(up.stderr.matches(remark).count(), 1, "{}", up.stderr);
    sim.up_does_nothing(&after);
    // The same size somewhere else is the same to a script.
    let moved =
        of("{ profile = \"3g\", at = 4 }, { name = \"a-{gpu}\", profile = \"1g\", at = 0 }");
    let other = sim.up(&moved, &["--yes"]).ended(0);
    assert!(!other.stderr.contains("check scripts"), "{}", other.stderr);
    // Also after `down`: mig-mps made it.
    sim.run(&["down"]).ended(0);
    let whole = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    let whole = sim.up(whole, &["--yes"]).ended(0);
    assert!(!whole.stderr.contains("check scripts"), "{}", whole.stderr);
}

#[test]
fn a_given_name_on_another_device_is_named_too() {
    let swapped = |large: &str, small: &str| {
        of(&format!(
            "{{ name = \"{large}\", profile = \"3g\", at = 0 }}, {{ name = \"{small}\", profile = \"1g\", at = 4 }}"
        ))
    };
    let sim = Sim::served("a100-80gb", 1, &swapped("a", "b"));
    let up = sim.up(&swapped("b", "a"), &["--yes"]).ended(0);
    assert_contains(
        &up.stderr,
        "b was 1g.10gb and will be 3g.40gb; check scripts that use this name",
    );
    assert_contains(&up.stderr, "a was 3g.40gb and will be 1g.10gb;");
    let whole = "[[gpu]]\nselect = { all = true }\nmig = false\nname = \"a\"\n";
    let up = sim.up(whole, &["--yes"]).ended(0);
    assert_contains(
        &up.stderr,
        "a was 1g.10gb and will be a whole NVIDIA A100-SXM4-80GB; check",
    );
}

#[test]
fn what_others_made_had_no_name_of_ours() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(&of(""), &["--yes"]).ended(0);
    sim.foreign_instance(0, 0);
    let path = sim.profile(&of("{ profile = \"4g\", at = 0 }"));
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert!(!plan.stderr.contains("check scripts"), "{}", plan.stderr);
}
