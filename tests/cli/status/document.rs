//! The calls that `status` makes, and its output in terminals.

use testkit::{Ran, Sim, assert_contains};

/// `status` does not show what a GPU could offer beyond what it has.
#[test]
fn nvml_is_asked_for_no_more_than_is_shown() {
    let sim = Sim::with("a100-80gb", 2);
    let sevenths =
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 7 } ]\n";
    sim.up(sevenths, &[]).ended(0);
    let calls = |args: &[&str]| {
        let before = sim.node.events().len();
        Ran::of(sim.command(args).env("SIMNODE_EVENTS", "all")).ended(0);
        let events = sim.node.events().split_off(before);
        let calls = events
            .into_iter()
            .filter(|event| event.what.starts_with("nvml"));
        calls.map(|event| event.what).collect::<Vec<String>>()
    };
    let status = calls(&["status"]);
    for needless in [
        "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
        "nvmlDeviceGetGpuInstanceRemainingCapacity",
        "nvmlGpuInstanceGetComputeInstanceProfileInfo",
        "nvmlDeviceGetGpuInstances",
    ] {
        assert!(!status.iter().any(|call| call == needless), "{needless}");
    }
    // 9 for each MIG device and 4 for its processes and memory; 14 for each GPU; 4 for the driver.
    assert!(status.len() <= 14 * 14 + 2 * 15 + 4, "{}", status.len());
    let list = calls(&["list"]);
    assert!(status.len() < list.len(), "{} {}", status.len(), list.len());
}

#[test]
fn status_fits_terminals_from_80_to_200_columns() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let outside = sim.outside("0.2");
    for columns in [80, 100, 132, 160, 200] {
        let ran = sim.in_columns("status", columns);
        for line in ran.stdout.lines() {
            assert!(
                console::measure_text_width(line.trim_end()) <= columns,
                "{columns}: {line}"
            );
        }
        assert_contains(&ran.stdout, "OUTSIDE MPS");
    }
    let only = sim
        .run(&["status", "0.2", "--columns=state,name,state"])
        .ended(0)
        .stdout;
    assert!(only.starts_with("STATE  NAME\nready  0.2\n"), "{only}");
    sim.run(&["status", "--columns", "colour"]).ended(2);
    drop((client, outside));
}

#[test]
fn no_color_means_no_colours() {
    let sim = Sim::small();
    let coloured = sim.in_terminal("TERM=xterm", "status", 120);
    assert_contains(&coloured.stdout, "\u{1b}[");
    let plain = sim.in_terminal("TERM=xterm NO_COLOR=1", "status", 120);
    assert!(!plain.stdout.contains("\u{1b}["), "{}", plain.stdout);
}
