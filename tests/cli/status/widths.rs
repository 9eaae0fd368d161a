//! Lines that fit a terminal of 80 columns, and devices in one order.

use console::{measure_text_width, strip_ansi_codes};
use insta::assert_snapshot;
use mig_mps::internals::manual::TOPICS;
use testkit::{ONE_EACH, Ran, Sim, assert_contains, plain, without_gpu};

/// A terminal with colours.
const TERMINAL: &str = "TERM=xterm-256color";

/// Fails if a line of what was shown on a terminal is cut by it.
#[track_caller]
fn assert_fits(ran: &Ran) -> String {
    // A terminal ends a line with both characters.
    let shown = strip_ansi_codes(&ran.stdout).replace("\r\n", "\n");
    for line in shown.lines() {
        assert!(measure_text_width(line) <= 80, "{line}\nin\n{shown}");
    }
    shown
}

/// True for a line that is too long only because it cannot be broken: of a code block, or one long word.
fn is_code(line: &str, chapter: &str) -> bool {
    let line = line.trim();
    let is_in_block = chapter.lines().any(|own| own.trim() == line);
    is_in_block || !line.contains(' ')
}

#[test]
fn chapters_are_refilled_for_the_terminal_and_for_a_pipe() {
    let sim = Sim::with("a100-80gb", 1);
    for topic in &TOPICS {
        let piped = without_gpu(&["help", topic.name], "").ended(0).stdout;
        let help = format!("help {}", topic.name);
        let shown = sim.in_terminal(TERMINAL, &help, 80);
        assert!(shown.stdout.contains("\u{1b}[1m"), "{}", topic.name);
        // Without colors, code stands between marks.
        let plain = sim.in_terminal(&format!("{TERMINAL} NO_COLOR=1"), &help, 80);
        assert_eq!(plain.stdout.replace("\r\n", "\n"), piped, "{}", topic.name);
        assert!(!piped.contains('\u{1b}'), "{piped}");
        for line in piped.lines() {
            assert!(
                measure_text_width(line) <= 80 || is_code(line, topic.text),
                "{}: {line}",
                topic.name
            );
            assert!(!line.starts_with("|--") && !line.contains("]("), "{line}");
        }
        let wide = sim.in_terminal(TERMINAL, &format!("help {}", topic.name), 160);
        for line in strip_ansi_codes(&wide.stdout).lines() {
            assert!(
                measure_text_width(line) <= 100 || is_code(line, topic.text),
                "{}: {line}",
                topic.name
            );
        }
    }
}

#[test]
fn a_chapter_is_text_and_not_markdown() {
    let shown = without_gpu(&["help", "checking"], "").ended(0).stdout;
    assert_snapshot!(shown, @r#"
    Checking profiles

    Use `mig-mps check` to test whether profiles fit your GPUs or other GPUs before
    you apply them. The command also shows how each GPU would be partitioned. The
    command plans as `up` does, but assumes empty GPUs. It does not change the node
    and does not require root.

    On a node with GPUs, `check` tests the profile on these GPUs and verifies that
    the users and groups in the profile exist. To see how the node itself would
    change, use `mig-mps plan`. With `--gpu`, `check` tests the profile on a
    hypothetical node with GPU models from the catalog. You can then run `check` on
    a machine without a driver:

    $ mig-mps check balanced --gpu a100-80gb
    GPU 0  a100-80gb  NVIDIA A100-SXM4-80GB
      |1g   |1g   |2g.20gb    |3g.40gb                |
      PROFILE  AT   SMS   GIB  SERVE          SERVER  THREADS  LIMIT  CLIENTS  NAMES
      1g.10gb  0     14   9.5  one-at-a-time  eager      100%      -        -  0.0
      1g.10gb  1     14   9.5  one-at-a-time  eager      100%      -        -  0.1
      2g.20gb  2-3   28  19.5  one-at-a-time  eager      100%      -        -  0.2
      3g.40gb  4-7   42  39.2  one-at-a-time  eager      100%      -        -  0.4
    It fits: 4 devices on 1 GPU.

    LIMIT is `pinned-memory-limit`. CLIENTS is `max-clients`, or the number of
    clients that the device accepts if that number is smaller. A `?` stands for a
    value that only a driver can report.

    With `--models`, or on a machine without a GPU, `check` tests each block on
    every model that its selector can match. If the profile lists models in
    `models`, the command tests each block on these models instead. Without a
    profile, `check --models` lists the models, the certainty of each entry, and the
    models about which too little is known.

    Remarks

    A remark does not change the exit status. For example, `check` prints a remark
    if a layout leaves part of its GPU unused, although another layout has an
    instance of at least the same size for each of its instances. The remark
    suggests the closest layout that uses the most of the GPU:

      $ mig-mps check quarters.toml --gpu a100-80gb:4 | tail -n 1
      note: GPUs 0-3: 4 × 1g.20gb uses 56 of 98 SMs; 3 × 2g.20gb + 1 × 1g.20gb uses
        all
      It fits: 16 devices on 4 GPUs.

    If the number of SMs of a model is unpublished, `check` compares compute slices
    instead. If all compute slices are in use, `check` compares memory slices,
    because a `1g` instance can have two memory slices. This remark is omitted for
    equal devices that use all compute slices. The commands `plan`, `up` and `init`
    print the same remarks on the instances that they create. Another remark reports
    a memory limit that is larger than the memory of its device.

    If a block selects no GPU, `check` reports the block, but the block may be
    intended for other nodes. If a block partitions GPUs of a product that neither
    this node nor the catalog has, `check` reports an error, because a block with
    `all = true` would otherwise hide a typing error.

    In a repository of profiles

    If you pass several profiles to `check`, the exit status is the highest of their
    exit statuses: 2 for a mistake, or 5 for a profile that does not fit
    (`mig-mps help exit-status`). The following script tests a repository with a
    directory for each kind of node. Each directory has the name of the node's GPUs,
    such as `a100-80gb:4` or `h200:8`:

      #!/bin/sh
      # Judges the profiles in each directory on a node of the GPUs in its name.
      status=0
      for node in */; do
        mig-mps check --gpu "${node%/}" "$node"*.toml || status=$?
      done
      exit $status

    The script requires only the mig-mps program. If your profiles list their models
    with `models`, you can test them without such directories:
    `mig-mps check --models *.toml`.

    This is a section of `mig-mps help profile`.
    "#);
}

#[test]
fn lists_of_commands_and_profiles_are_wrapped_behind_their_names() {
    let sim = Sim::with("a100-80gb", 1);
    let help = assert_fits(&sim.in_terminal(TERMINAL, "help", 80));
    assert_contains(
        &help,
        "\n  kubernetes       Shares of devices for pods, by a device plugin of the kubelet\n",
    );
    assert_contains(&help, "\n  man              Write manual pages");
    assert_snapshot!(assert_fits(&sim.in_80_columns("profiles")), @"
    NAME                  FITS THIS NODE  DESCRIPTION
    all-large             2 devices       Two halves of every GPU
    all-small             7 devices       As many devices as the GPU has slices, all
                                          of the smallest size
    balanced              4 devices       Devices of different sizes on every GPU:
                                          large, medium and small
    inference             4 devices       Devices of medium size for inference
                                          services, and small ones in the rest
    mixed-fleet           4 devices       One file for all nodes of a fleet with
                                          different GPUs: the product decides
    training-and-serving  4 devices       One large device for training and small
                                          ones for serving on every GPU
    whole-gpu             1 device        Every GPU as one device, not partitioned:
                                          one MPS daemon and server each
    ");
    // Without a terminal each stays in one line, for grep.
    let piped = sim.run(&["profiles"]).ended(0).stdout;
    assert_eq!(piped.lines().count(), 8, "{piped}");
}

/// Two GPUs whose devices have names that sort otherwise than their places do.
const NAMED: &str = r#"
[[gpu]]
select = { index = [1] }
devices = [ { profile = "3g", name = "a-{n}" } ]

[[gpu]]
select = { index = [0] }
devices = [ { profile = "3g", name = "zebra" }, { profile = "1g", count = 3, name = "z-{n}" } ]
"#;

#[test]
fn what_a_terminal_shows_of_devices_is_not_cut() {
    let sim = Sim::with("rtx-pro-6000", 2);
    let profile = sim.profile(
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"1g\", count = 4 } ]\n",
    );
    let profile = profile.to_str().unwrap().to_owned();
    assert_fits(&sim.in_80_columns(&format!("plan {profile}")));
    assert_fits(&sim.in_80_columns(&format!("check {profile}")));
    assert_fits(&sim.in_80_columns(&format!("up {profile} --yes")));
    for subcommand in [
        "list",
        "list --offers",
        "status",
        "verify",
        "heal",
        "check --models",
        "down --dry-run",
    ] {
        assert_fits(&sim.in_80_columns(subcommand));
    }
    sim.kill_daemon("0.0");
    let healed = assert_fits(&sim.in_80_columns("heal"));
    assert_contains(&healed, "\n  ");
    assert!(healed.ends_with("1 daemon started\n"), "{healed}");
    // The trace has long names that are never broken, so only its blanks can end a line.
    let traced = sim.in_80_columns("-v list").stdout;
    let mut lines = traced.lines();
    assert!(lines.all(|line| measure_text_width(line) <= 80), "{traced}");
}

/// The names in the order in which they first occur.
fn order(text: &str) -> Vec<&'static str> {
    let mut found: Vec<(usize, &str)> = ["zebra", "z-0", "z-1", "z-2", "a-0"]
        .into_iter()
        .filter_map(|name| Some((text.find(name)?, name)))
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| name).collect()
}

#[test]
fn every_command_has_devices_in_the_order_of_their_gpus_and_places() {
    let sim = Sim::served("a100-80gb", 2, NAMED);
    let devices = ["z-0", "z-1", "z-2", "zebra", "a-0"];
    for words in [
        "list",
        "list --json",
        "status",
        "status --json",
        "status --map",
        "metrics",
        "cdi",
        "export",
        "restart --dry-run *",
        "verify",
        "verify --json",
        "verify *",
        "verify --gpu 0 --gpu 1",
        "logs *",
    ] {
        let args: Vec<&str> = words.split(' ').collect();
        let shown = sim.run(&args).ended(0).stdout;
        let shown = order(&plain(&shown));
        // A plan has one line for one reason, with GPU after GPU.
        assert_eq!(shown, devices, "{words}");
    }
    let unknown = sim.run(&["status", "nothing"]).ended(2).stderr;
    assert_eq!(order(&unknown), devices, "{unknown}");
}

#[test]
fn identical_gpus_stay_together_whatever_their_devices_are_called() {
    let sim = Sim::with("a100-80gb", 2);
    let named = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", name = \"trainer-{gpu}\" } ]\n";
    sim.up(named, &[]).ended(0);
    let listed = sim.run(&["list"]).ended(0).stdout;
    assert!(listed.starts_with("GPUs 0-1  NVIDIA A100"), "{listed}");
    assert!(listed.contains("trainer-0") && listed.contains("trainer-1"));
    // What a GPU offers stands under its map.
    let offers = sim.run(&["list", "--offers"]).ended(0).stdout;
    let at = |what: &str| offers.find(what).unwrap();
    assert!(
        at("|3g.40gb") < at("OFFERS") && at("OFFERS") < at("NAME "),
        "{offers}"
    );
}

#[test]
fn a_plan_tells_a_gpu_without_mig_from_an_empty_one() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(ONE_EACH);
    let profile = profile.to_str().unwrap().to_owned();
    let now = |sim: &Sim| {
        let plan = sim.run(&["plan", &profile]).ended(0).stdout;
        let now = plan.lines().find(|line| line.contains("|  now"));
        now.unwrap().rsplit('|').next().unwrap().trim().to_owned()
    };
    assert_eq!(now(&sim), "now: MIG off");
    sim.run(&["up", &profile, "--yes"]).ended(0);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_eq!(now(&sim), "now: MIG on, no instances");
    sim.run(&["up", &profile, "--yes"]).ended(0);
    let down = sim
        .run(&["down", "--destroy-mig", "--dry-run"])
        .ended(0)
        .stdout;
    assert_contains(&down, "|  then: MIG on, no instances\n");
}

#[test]
fn a_narrow_status_keeps_the_command_of_a_program_outside_mps() {
    let sim = Sim::served("a100-80gb", 1, ONE_EACH);
    let app = sim.outside("0.0");
    let shown = assert_fits(&sim.in_80_columns("status"));
    let (_, outside) = shown.split_once("OUTSIDE MPS").unwrap();
    let heading = outside.lines().next().unwrap();
    for column in ["PID", "USER", "MEMORY GIB", "COMMAND", "LIKELY CAUSE"] {
        assert!(heading.contains(column), "{shown}");
    }
    // Its beginning: the names of users and the digits of pids leave it more room or less.
    let program = &sim.node.dir().to_str().unwrap()[..11];
    assert!(outside.contains(program), "{shown}");
    app.finish();
}

/// A script reads it, or a person searches it.
#[test]
fn without_a_terminal_nothing_is_cut_or_hidden() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = r#"
        [[gpu]]
        select = { all = true }
        devices = [ { profile = "1g", count = 7, name = "trainer-of-the-vision-group-{n}" } ]
    "#;
    sim.up(profile, &["--yes"]).ended(0);
    let name = "trainer-of-the-vision-group-0";
    let client = sim.client(name);
    let outside = sim.outside(name);
    let program = format!("{}/bin/cuda-app hold", sim.node.dir().display());
    for args in [&["status"][..], &["status", "--map"]] {
        let shown = sim.run(args).ended(0).stdout;
        assert!(!shown.contains("not shown:"), "{shown}");
        assert_eq!(shown.matches(&program).count(), 2, "{shown}");
        assert_contains(&shown, "its pipe directory is /nowhere");
        assert!(shown.matches(name).count() >= 3, "{shown}");
        assert!(
            shown
                .lines()
                .any(|line| line.ends_with("GIB") || line.ends_with("DEVICE")),
            "{shown}"
        );
    }
    client.finish();
    outside.finish();
}

#[test]
fn heads_of_tables_are_bold_on_a_terminal() {
    let sim = Sim::served("a100-80gb", 1, NAMED_TRAINER);
    for (subcommand, head) in [
        ("list", "NAME "),
        ("status", "NAME "),
        ("check balanced", "PROFILE "),
    ] {
        let shown = sim.in_terminal(TERMINAL, subcommand, 120).stdout;
        assert_contains(&shown, &format!("\u{1b}[1m{head}"));
        let without_colors = sim.in_terminal("NO_COLOR=1", subcommand, 120).stdout;
        let words: Vec<&str> = subcommand.split(' ').collect();
        let piped = sim.run(&words).ended(0).stdout;
        for plain in [without_colors, piped] {
            assert_contains(&plain, head);
            assert!(!plain.contains('\u{1b}'), "{plain}");
        }
    }
}

/// A device with a name that leaves no room for a UUID in 80 columns.
const NAMED_TRAINER: &str = r#"
[[gpu]]
select = { all = true }
devices = [ { profile = "3g", name = "trainer-of-the-first-group" } ]
"#;

#[test]
fn a_list_loses_uuids_before_memory_and_sms() {
    let sim = Sim::served("a100-80gb", 1, NAMED_TRAINER);
    let shown = assert_fits(&sim.in_80_columns("list"));
    assert_contains(
        &shown,
        "\n  NAME                        PROFILE  GI/CI  AT   SMS   GIB\n",
    );
    assert_contains(
        &shown,
        "\nnot shown: uuid (widen the terminal, or use --json)\n",
    );
}

#[test]
fn a_check_shortens_names_before_it_hides_settings_and_has_one_set_of_columns() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = sim.profile(
        "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", mps = { share = 2 } }, { profile = \"1g\" } ]\n",
    );
    let check = format!("check {} --gpu h100:7 --gpu a100-80gb", profile.display());
    let shown = assert_fits(&sim.in_80_columns(&check));
    assert_snapshot!(shown, @"
    GPUs 0-6  h100-80gb-sxm  NVIDIA H100 80GB HBM3
      |1g   |.....|.....|.....|3g.40gb                |
      PROFILE  AT   SMS   GIB  SERVE          THREADS   LIMIT  CLIENTS  NAMES
      1g.10gb  0     16   9.8  one-at-a-time     100%       -        -  0.0 … 6.0
      3g.40gb  4-7   60  39.5  one-at-a-time    53.3%  20158M        2  0.4 … 6.4
      3g.40gb, share = 2: 30 of 60 SMs and 19.6 GiB each
    GPU 7  a100-80gb  NVIDIA A100-SXM4-80GB
      |1g   |.....|.....|.....|3g.40gb                |
      PROFILE  AT   SMS   GIB  SERVE          THREADS   LIMIT  CLIENTS  NAMES
      1g.10gb  0     14   9.5  one-at-a-time     100%       -        -  7.0
      3g.40gb  4-7   42  39.2  one-at-a-time    52.3%  20030M        2  7.4
      3g.40gb, share = 2: 20 of 42 SMs and 19.5 GiB each; 2 SMs remain unused (share
        = 3 uses all)
    not shown: server (widen the terminal, or use --json)
    It fits: 16 devices on 8 GPUs.
    note: GPUs 0-6: 3g.40gb + 1g.10gb uses 76 of 132 SMs; 1 × 3g.40gb + 1 × 2g.20gb
      + 2 × 1g.10gb uses 124
    note: GPU 7: 3g.40gb + 1g.10gb uses 56 of 98 SMs; 1 × 3g.40gb + 1 × 2g.20gb + 2
      × 1g.10gb uses all
    ");
    let args: Vec<&str> = check.split(' ').collect();
    let piped = sim.run(&args).ended(0).stdout;
    assert_contains(&piped, "  0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0\n");
}
