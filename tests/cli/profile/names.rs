//! Names of instance profiles that nobody has seen yet, names without a memory, and GPUs that do not tell theirs.

use testkit::{Sim, assert_contains};

const ALL: &str = "[[gpu]]\nselect = { all = true }\n";

#[test]
fn a_name_that_cannot_be_read_takes_away_itself() {
    let sim = Sim::with("a100-80gb-new-names", 1);
    let offers = sim.run(&["list", "--offers"]).ended(0).stdout;
    assert_contains(
        &offers,
        "  1g.10gb+me  20   14   9.5     1     1  0, 1, 2, 3, 4, 5, 6\n  profile 15  15   14  19.5     4     4  0-1, 2-3, 4-5, 6-7\n",
    );
    // The others are as ever.
    sim.up(
        &format!("{ALL}devices = [ {{ profile = \"3g.40gb\" }}, {{ profile = \"1g\" }} ]\n"),
        &["--yes"],
    )
    .ended(0);
    // It can be had by its id.
    let profile = format!(
        "{ALL}devices = [ {{ profile = \"profile 15\", count = 2, mps = {{ share = 2 }} }}, {{ profile = \"3g\" }} ]\n"
    );
    sim.up(&profile, &["--yes", "--force"]).ended(0);
    sim.up_does_nothing(&profile);
    let status = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&status, "profile 15");
    let exported = sim.run(&["export"]).ended(0).stdout;
    assert_contains(&exported, "profile = \"profile 15\"");
    sim.up_does_nothing(&exported);
    let doctor = sim.run(&["doctor"]).stdout;
    assert_contains(
        &doctor,
        "GPU 0: mig-mps cannot read the driver's names for profile 15",
    );
    assert_contains(&doctor, "nvidia-smi mig -i 0 -lgip");
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
}

/// As on a Jetson Thor, whose GPU shares the machine's memory.
#[test]
fn names_without_a_memory_are_names() {
    let sim = Sim::with("rtx-pro-6000-96gb-0gb", 1);
    let offers = sim.run(&["list", "--offers"]).ended(0).stdout;
    assert_contains(&offers, "1g.0gb+me");
    let profile = format!(
        "{ALL}devices = [ {{ profile = \"2g.0gb+gfx\", mps = false }}, \
         {{ name = \"rest\", profile = \"1g.0gb+me\", mps = {{ serve = \"all\", share = 4 }} }} ]\n"
    );
    sim.up(&profile, &["--yes"]).ended(0);
    sim.up_does_nothing(&profile);
    let rest = sim.device("rest");
    assert_eq!(rest["pinned_memory_limit"], serde_json::Value::Null);
    sim.run(&["verify", "rest"]).ended(0);
    assert_contains(
        &sim.run(&["doctor", "--all"]).stdout,
        "its instance profiles can be read",
    );
}

/// The next profile query of the node fails, which is one of its first GPU.
fn silence(sim: &Sim) {
    let fault = sim.node.fault("nvmlDeviceGetGpuInstanceProfileInfoV");
    fault.nth(1).fails(999).unwrap();
}

#[test]
fn a_gpu_that_does_not_tell_its_profiles_takes_away_itself() {
    let sim = Sim::with("a100-80gb", 2);
    let one = "[[gpu]]\nselect = { index = [1] }\ndevices = [ { profile = \"2g\" } ]\n";
    let both = format!("{ALL}devices = [ {{ profile = \"2g\" }} ]\n");
    silence(&sim);
    let list = sim.run(&["list", "--offers"]).ended(0).stdout;
    assert_contains(&list, "not seen: nvmlDevice");
    assert_contains(&list, "3g.40gb");
    silence(&sim);
    let doctor = sim.run(&["doctor"]).ended(3).stdout;
    assert_contains(
        &doctor,
        ": its instance profiles cannot be read: nvmlDevice",
    );
    assert_contains(&doctor, "[profile-names]");
    silence(&sim);
    let path = sim.profile(&both);
    let plan = sim.run(&["plan", path.to_str().unwrap()]).ended(0);
    assert_contains(&plan.stderr, "this GPU stays as it is");
    assert_contains(&plan.stdout, "+ create 2g.20gb at slices 0-1");
    silence(&sim);
    sim.up(one, &["--yes"]).ended(0);
    sim.up(&both, &["--yes"]).ended(0);
    // Its daemons go on, and are known.
    silence(&sim);
    let status = sim.run(&["status", "--exit-code"]).ended(3).stdout;
    assert_contains(&status, "0.0");
    assert_contains(&status, ": its GPU cannot be read: nvmlDevice");
}
