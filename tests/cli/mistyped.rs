//! Commands that somebody typed otherwise than they are called, and the answers.

use insta::assert_snapshot;

use testkit::{SMALL, Sim, WHOLE, assert_contains, without_gpu};

use crate::cli::status::foreign_programs::{beside, unmanaged_daemon};

/// The text on standard error.
fn said(sim: &Sim, line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    sim.run(&words).stderr
}

#[test]
fn the_words_of_other_programs_lead_to_ours() {
    let sim = Sim::with("h200", 1);
    for (word, meant) in [
        ("apply", "up"),
        ("stop", "down"),
        ("delete", "down"),
        ("ps", "status"),
        ("top", "status"),
        ("show", "status"),
        ("version", "--version"),
        ("docker", "help containers"),
        ("rollback", "up --previous"),
        ("undo", "up --previous"),
        ("history", "profiles --history"),
        ("slow", "help troubleshooting"),
    ] {
        let said = said(&sim, word);
        let hint = format!("hint: did you mean `mig-mps {meant}`?\n");
        assert!(said.contains(&hint), "{word}: {said}");
        // It is similar to others in letters alone.
        assert!(!said.contains("similar"), "{word}: {said}");
    }
    let misspelt = said(&sim, "statsu");
    let similar = "some similar subcommands exist: 'start', 'status'\n";
    assert_contains(&misspelt, similar);
}

#[test]
fn help_knows_the_words_of_others() {
    let help = |word: &str| without_gpu(&["help", word], "").ended(0).stdout;
    for (word, ours) in [
        ("docker", "containers"),
        ("pod", "kubernetes"),
        ("pipes", "running"),
        ("mps", "concepts"),
        ("apply", "up"),
        ("undo", "up"),
        ("history", "profiles"),
        ("performance", "troubleshooting"),
        ("hang", "troubleshooting"),
        ("quickstart", "tutorial"),
        ("student", "recipes"),
        ("UP", "up"),
    ] {
        assert_eq!(help(word), help(ours), "{word}");
    }
}

#[test]
fn a_word_is_found_in_the_manual_and_in_the_help_of_commands() {
    let search = |word: &str| without_gpu(&["help", "--search", word], "");
    let found = search("podman").ended(0).stdout;
    assert_contains(&found, "mig-mps env --help\n");
    assert_contains(&found, "mig-mps help containers\n");
    for part in found.split("\n\n") {
        let (title, lines) = part.split_once('\n').unwrap();
        assert!(lines.to_lowercase().contains("podman"), "{title}: {lines}");
    }
    assert_eq!(search("PODMAN").ended(0).stdout, found);
    // A word of every chapter fills no screens.
    let most = search("device").ended(0).stdout;
    assert!(most.lines().count() < 7 * 60, "{most}");
    assert_contains(&most, "more lines\n");
    assert_snapshot!(search("zebra").ended(1).stderr, @r#"
    error: no command and no topic has "zebra"
    hint: run `mig-mps help` to list all commands and topics
    "#);
}

/// Every `change` has the letters of `hang`.
#[test]
fn words_are_found_by_their_beginning_and_titles_come_first() {
    let search = |word: &str| without_gpu(&["help", "--search", word], "").ended(0).stdout;
    let hang = search("hang");
    let beginning = regex::Regex::new(r"(?i)\bhang").unwrap();
    let shown = hang.split("Also in:").next().unwrap();
    let lines = shown.lines().filter(|line| line.starts_with("  "));
    for line in lines.filter(|line| !line.ends_with(" more lines")) {
        assert!(beginning.is_match(line), "{line}");
    }
    for (word, first) in [
        ("hang", "mig-mps help troubleshooting\n  A device hangs\n"),
        ("slow", "mig-mps help troubleshooting\n  A job is slow\n"),
        ("performance", "mig-mps help troubleshooting\n"),
        ("undo", "mig-mps up --previous\n"),
        ("history", "mig-mps profiles --history\n"),
        ("Slurm", "mig-mps slurm --help\n"),
        ("fault", "mig-mps explain gpu-fault\n"),
    ] {
        let found = search(word);
        assert!(found.starts_with(first), "{word}: {found}");
    }
    let ran = without_gpu(&["help", "dead"], "").ended(0);
    assert_contains(&ran.stdout, "mig-mps explain daemon-dead\n");
    // Signs are no patterns.
    assert_contains(&search("--drain"), "--drain <DURATION>");
    without_gpu(&["help", "--search", "a.*b"], "").ended(1);
}

/// Shown on a small terminal without scrolling.
#[test]
fn without_a_command_the_commands_are_shown_by_task() {
    let sim = Sim::with("h200", 1);
    let ran = sim.shown("", "", 80).ended(2);
    let shown = ran.stdout.replace('\r', "");
    assert!(shown.lines().count() <= 24, "{shown}");
    let program = mig_mps::cli::command();
    for command in program.get_subcommands() {
        assert_contains(&shown, command.get_name());
    }
    for way_in in ["You run this node:", "You want to use a GPU:", "help start"] {
        assert_contains(&shown, way_in);
    }
    // An option is no command.
    let quiet = sim.shown("", "-q", 80).ended(2);
    assert_eq!(quiet.stdout, ran.stdout);
    // An incomplete subcommand shows its own.
    let slurm = sim.run(&["slurm"]).ended(2);
    assert_contains(&slurm.stderr, "Usage: mig-mps slurm");
}

#[test]
fn a_usage_error_shows_what_can_be_typed() {
    let sim = Sim::with("h200", 1);
    assert_snapshot!(said(&sim, "run --min-memory 4G 0 -- true").lines().next().unwrap(), @"error: the following required arguments were not provided: <--any|--by-rank|--copies <N>>");
    assert_snapshot!(said(&sim, "status --watch=0").lines().next().unwrap(), @"error: invalid value '0' for '--watch[=<SECONDS>]': it must be between 0.1 and 86400 seconds");
    assert_snapshot!(said(&sim, "--json status"), @"
    error: unexpected argument '--json' found
    hint: 'status --json' exists
    hint: usage: mig-mps [OPTIONS] <COMMAND>
    hint: for more information, try '--help'
    ");
    assert_snapshot!(said(&sim, "check"), @"
    error: the following required arguments were not provided: <PROFILE>...
    hint: give the path of a profile, or a built-in profile: `mig-mps check balanced`
    hint: usage: mig-mps check [OPTIONS] <PROFILE>...
                 mig-mps check [OPTIONS] --models
    hint: for more information, try '--help'
    ");
    for (command, form) in [
        (
            "compare cuda-app run 1",
            "compare [OPTIONS] [DEVICE] -- <PROGRAM>...",
        ),
        ("run 0 true", "run [OPTIONS] <DEVICE> -- <PROGRAM>..."),
    ] {
        let said = said(&sim, command);
        assert_contains(&said, &format!("hint: usage: mig-mps {form}\n"));
    }
}

#[test]
fn devices_that_are_named_in_another_way() {
    let sim = Sim::small();
    assert_snapshot!(said(&sim, "down 0.0,0.2"), @r#"
    error: no device has the name "0.0,0.2"
    hint: separate devices by blanks: 0.0 0.2
    "#);
    assert_snapshot!(said(&sim, "down gpu0"), @r#"
    error: "gpu0" is ambiguous: 0.0 or 0.2
    hint: choose one device, or all of GPU 0 with --gpu 0 in commands that accept several
    "#);
    let client = sim.client("0.2");
    let pid = client.pid();
    let error = format!(
        "error: mig-mps kill needs DEVICE and PID\nhint: run `mig-mps kill 0.2 {pid}` for every client of device 0.2\n"
    );
    assert_eq!(said(&sim, "kill 0.2"), error);
}

/// A device may be called as a number of seconds.
#[test]
fn the_seconds_of_watch_are_not_taken_for_a_device() {
    let sim = Sim::served("h200", 2, WHOLE);
    let ran = sim.shown("", "status --watch 1", 80).ended(2);
    assert_eq!(
        ran.stdout.replace('\r', ""),
        "error: --watch 1 is ambiguous: every 1 s, or device 1\nhint: run `mig-mps status --watch=1`, or `mig-mps status 1 --watch`\n"
    );
}

#[test]
fn quiet_leaves_out_everything_but_errors_and_what_was_asked_for() {
    let sim = Sim::with("a100-80gb", 1);
    let init = sim.run(&["-q", "init", "--yes", "-"]).ended(0);
    assert_eq!(init.stderr, "");
    assert_contains(&init.stdout, "[[gpu]]");
    sim.up(SMALL, &["--yes"]).ended(0);
    sim.client("0.0").finish();
    let loud = sim.run(&["logs", "0.0"]).ended(0);
    assert_contains(&loud.stderr, "harmless:");
    let quiet = sim.run(&["-q", "logs", "0.0"]).ended(0);
    assert_eq!(quiet.stderr, "");
    // A daemon that mig-mps did not start is named after a change.
    unmanaged_daemon(&sim, &beside(&sim, "other"), Some(&sim.uuid("0.0")));
    sim.run(&["down"]).ended(0);
    let quiet = sim.up(SMALL, &["--yes", "-q"]).ended(0);
    assert_eq!((quiet.stdout.as_str(), quiet.stderr.as_str()), ("", ""));
}

#[test]
fn what_goes_otherwise_here_is_answered_with_our_way() {
    let sim = Sim::with("h200", 1);
    for (line, hint) in [
        (
            "metrics --port 9400",
            "hint: use `mig-mps systemd --metrics DIR` to write metrics for a node exporter; no port is opened\n",
        ),
        (
            "check balanced --gpu l4",
            "\"l4\" has no MIG, so it has no layouts to calculate; on a machine with this GPU, `mig-mps up whole-gpu`",
        ),
    ] {
        assert_contains(&said(&sim, line), hint);
    }
    // A product of NVIDIA's lists, in which the form has a number.
    sim.run(&["check", "balanced", "--gpu", "H100-SXM5-80GB"])
        .ended(0);
    sim.run(&["down", "--drain", "2d", "--dry-run"]).ended(0);
}
