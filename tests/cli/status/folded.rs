//! Many devices in `status`: equal ones share a row, what needs attention comes first, and the last line is a verdict.

use insta::assert_snapshot;
use testkit::{Sim, assert_contains, plain};

/// Four A30s with four devices each, all alike.
fn full_node() -> Sim {
    let sim = Sim::with("a30", 4);
    let profile = r#"
        [[gpu]]
        select = { all = true }
        devices = [ { profile = "1g", count = 4 } ]
    "#;
    sim.up(profile, &["--yes", "--reset"]).ended(0);
    sim
}

fn in_terminal(sim: &Sim, typed: &str) -> String {
    plain(&sim.in_80_columns(typed).stdout)
}

/// The names in the first column of the table of devices.
fn names(text: &str) -> Vec<&str> {
    let rows = text.lines().skip_while(|line| !line.starts_with("NAME"));
    rows.skip(1)
        .take_while(|line| !line.is_empty() && !line.starts_with("not shown"))
        .filter_map(|line| line.split("  ").next())
        .collect()
}

#[test]
fn equal_idle_devices_share_a_row_and_others_come_first() {
    let sim = full_node();
    assert_snapshot!(in_terminal(&sim, "status"), @"
    profile profile.toml, applied N ago by USER

    NAME                 PROFILE  STATE  USER  CLIENTS  MEMORY GIB  SERVE
    0.0, 0.1 … 3.3 (16)  1g.6gb   ready  -           0     0.0/5.8  one-at-a-time
    not shown: gpu (widen the terminal, or use --columns)
    Equal idle devices share a row: --all shows each.

    16 devices on 4 GPUs: all ready, no clients, no problems.
    ");
    let client = sim.client("2.1");
    sim.kill_daemon("3.2");
    let shown = in_terminal(&sim, "status");
    assert_eq!(names(&shown), ["3.2", "2.1", "0.0, 0.1 … 3.3 (14)"]);
    drop(client);
}

#[test]
fn many_clients_are_summed_up_by_user_elsewhere() {
    let sim = Sim::whole("serve = \"all\"");
    let remark = "--by-user shows a row for each user.";
    let mut clients: Vec<_> = (0..16).map(|_| sim.client("0")).collect();
    assert!(!in_terminal(&sim, "status").contains(remark));
    clients.push(sim.client("0"));
    assert_contains(&in_terminal(&sim, "status"), remark);
    // A program that reads it needs no advice.
    assert!(!sim.run(&["status"]).ended(0).stdout.contains(remark));
    assert_contains(&in_terminal(&sim, "status --by-user"), "root");
}

#[test]
fn each_device_has_a_row_where_it_is_looked_for() {
    let sim = full_node();
    for typed in ["status --all", "status '*'", "status --columns name,state"] {
        assert_eq!(names(&in_terminal(&sim, typed)).len(), 16, "{typed}");
    }
    let piped = sim.run(&["status"]).ended(0).stdout;
    assert_eq!(names(&piped).len(), 16);
    assert_eq!(sim.status()["devices"].as_array().unwrap().len(), 16);
    // A few devices have a row each.
    assert_eq!(names(&in_terminal(&sim, "status --gpu 0")).len(), 4);
    sim.run(&[
        "down",
        "--gpu",
        "1",
        "--gpu",
        "2",
        "--gpu",
        "3",
        "--destroy-mig",
        "--yes",
    ])
    .ended(0);
    assert_eq!(names(&in_terminal(&sim, "status")).len(), 4);
}

#[test]
fn devices_with_problems_and_those_in_use_are_filtered() {
    let sim = full_node();
    assert_contains(
        &in_terminal(&sim, "status --problems"),
        "No device has a problem.",
    );
    assert_contains(
        &in_terminal(&sim, "status --busy"),
        "No device is known to be in use.",
    );
    let client = sim.client("2.1");
    sim.kill_daemon("3.2");
    for (option, name) in [("--problems", "3.2"), ("--busy", "2.1")] {
        assert_eq!(names(&sim.run(&["status", option]).ended(0).stdout), [name]);
        let json = sim.run(&["status", option, "--json"]).json();
        assert_eq!(json["devices"].as_array().unwrap().len(), 1);
        assert_eq!(json["devices"][0]["name"], name);
        // All problems are told.
        assert_eq!(json["problems"].as_array().unwrap().len(), 1);
    }
    sim.run(&["status", "--busy", "--problems"]).ended(2);
    drop(client);
}

#[test]
fn equal_gpus_are_drawn_once() {
    let sim = full_node();
    assert_snapshot!(in_terminal(&sim, "status --map"), @"
    profile profile.toml, applied N ago by USER

    GPUs 0-3  NVIDIA A30  4 equal GPUs; GPU 0 is shown
              |0.0             |0.1             |0.2             |0.3             |
              |1g.6gb          |1g.6gb          |1g.6gb          |1g.6gb          |
      state   |ready           |ready           |ready           |ready           |
      clients |0               |0               |0               |0               |
      memory  |----------------|----------------|----------------|----------------|
      GiB     |0.0/5.8         |0.0/5.8         |0.0/5.8         |0.0/5.8         |

    16 devices on 4 GPUs: all ready, no clients, no problems.
    ");
    let client = sim.client("2.1");
    let titles = |typed: &str| -> Vec<String> {
        let shown = in_terminal(&sim, typed);
        let titles = shown.lines().filter(|line| line.starts_with("GPU"));
        titles
            .map(|line| line.split("  ").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(titles("status --map"), ["GPU 2", "GPUs 0-1,3"]);
    let each = ["GPU 0", "GPU 1", "GPU 2", "GPU 3"];
    assert_eq!(titles("status --map --all"), each);
    drop(client);
}

/// The last line of `status`.
fn verdict(sim: &Sim, args: &[&str]) -> String {
    let ran = sim.run(&[&["status"], args].concat()).ended(0);
    ran.stdout.lines().last().unwrap().to_owned()
}

#[test]
fn the_last_line_is_a_verdict() {
    let sim = full_node();
    let is = |expected: &str| assert_eq!(verdict(&sim, &[]), expected);
    is("16 devices on 4 GPUs: all ready, no clients, no problems.");
    let client = sim.client("2.1");
    is("16 devices on 4 GPUs: all ready, 1 client of root, no problems.");
    sim.kill_daemon("3.2");
    is(
        "16 devices on 4 GPUs: 15 ready, 1 dead, 1 client of root, 1 problem (details: `mig-mps doctor`).",
    );
    assert_eq!(
        verdict(&sim, &["3.2"]),
        "1 device on 1 GPU: dead, 1 problem (details: `mig-mps doctor`)."
    );
    sim.run(&["heal"]).ended(0);
    sim.run(&["down", "3.2", "0.0"]).ended(0);
    is(
        "16 devices on 4 GPUs: 14 ready, 2 stopped, 1 client of root, the node differs from its profile (next: `mig-mps plan`).",
    );
    drop(client);
    sim.run(&["down"]).ended(0);
    is("16 devices on 4 GPUs: all without a daemon, no problems.");
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    is("no devices on 4 GPUs: MIG is on without devices on GPUs 0-3 (next: `mig-mps up`).");
    // A program reads the columns that it has named.
    let ran = sim.run(&["status", "--columns", "name"]).ended(0);
    assert!(!ran.stdout.contains("problems"), "{}", ran.stdout);
}

/// Four devices or more of which the same is said share a sentence.
#[test]
fn findings_that_say_the_same_share_a_sentence() {
    let sim = full_node();
    let said = |text: &str| {
        let shown = sim.run(&["status"]).ended(0).stdout;
        let lines: Vec<String> = shown
            .lines()
            .filter(|line| line.contains(text))
            .map(str::to_owned)
            .collect();
        lines
    };
    sim.run(&["down", "0.0", "1.0"]).ended(0);
    assert_eq!(said("[device-stopped]").len(), 2);
    sim.run(&["start", "0.0", "1.0"]).ended(0);
    sim.run(&["down", "2.*"]).ended(0);
    let lines = said("[device-stopped]");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("2.0, 2.1, 2.2, 2.3: stopped by "),
        "{lines:?}"
    );
    assert_contains(&lines[0], "run `mig-mps start DEVICE` to start it again");
    for device in ["1.0", "1.1", "1.2", "1.3", "3.0"] {
        sim.kill_daemon(device);
    }
    let lines = said("[daemon-dead]");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0].starts_with("1.0, 1.1, 1.2, 1.3, 3.0: its daemon has died"),
        "{lines:?}"
    );
    assert_contains(&verdict(&sim, &[]), "5 problems");
}

/// What is not known is not taken for fine.
#[test]
fn a_verdict_says_what_cannot_be_seen() {
    let sim = full_node();
    sim.node.fault("nvmlInit_v2").fails(9).unwrap();
    let shown = sim.run(&["status"]).ended(0).stdout;
    let last = shown.lines().last().unwrap();
    assert!(
        last.starts_with("16 devices on 4 GPUs: the driver does not answer, "),
        "{shown}"
    );
    sim.node.fault("nvmlInit_v2").fails(9).unwrap();
    let filtered = sim.run(&["status", "--problems"]).ended(0).stdout;
    assert_contains(
        &filtered,
        "No problem was found on the devices that can be seen.",
    );
}
