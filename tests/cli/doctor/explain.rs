//! `doctor --explain`, and the manual's list of ids.

use insta::assert_snapshot;

use super::{doctor, healthy};
use testkit::without_gpu;

#[test]
fn ids_and_errors_are_explained_without_a_node() {
    let explained = |id: &str| {
        without_gpu(&["doctor", "--explain", id], "")
            .ended(0)
            .stdout
    };
    assert_snapshot!(explained("device-hung"), @"
    device-hung
      meaning the daemon of a device waits for a client that died, or can accept no connection
      why     every new client waits in cuInit for ever
      remedy  `mig-mps restart DEVICE` ends the server; give programs at least 64 open files (`ulimit -n`)
    ");
    assert_snapshot!(explained("805"), @"
    805
      meaning CUDA error 805 (CUDA_ERROR_MPS_CONNECTION_FAILED): no connection to the daemon or server
      why     the daemon has ended and left its socket, is ending, or may not be reached from this container; the user is another one than the server's; or the client may open too few files (10)
      remedy  `mig-mps status DEVICE`; `mig-mps restart DEVICE`; `ulimit -n 1024`
    ");
    let unknown = without_gpu(&["doctor", "--explain", "deamon-dead"], "")
        .ended(2)
        .stderr;
    assert_snapshot!(unknown, @r#"
    error: no check or error is called "deamon-dead" (did you mean "daemon-dead"?)
    hint: mig-mps help diagnosis lists all
    "#);
    without_gpu(&["doctor", "--explain", "805", "--json"], "").ended(2);
}

/// Every id of a report, and every one that the manual lists, can be explained, and the other way round.
#[test]
fn the_manual_lists_every_id() {
    let sim = healthy();
    let report = doctor(&sim, &[]);
    let checks = report.0["checks"].as_array().unwrap().iter();
    let rows = checks.map(|check| {
        let (id, fault) = (&check["id"], &check["fault"]);
        format!(
            "| `{}` | {} |",
            id.as_str().unwrap(),
            fault.as_str().unwrap()
        )
    });
    let wanted: Vec<String> = rows.collect();
    let manual = sim.run(&["help", "diagnosis"]).ended(0).stdout;
    let file = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/src/manual/diagnosis.md"
    ))
    .unwrap();
    let listed: Vec<&str> = file
        .lines()
        .filter(|line| line.starts_with("| `"))
        .collect();
    assert_eq!(listed, wanted, "the rows should be\n{}", wanted.join("\n"));
    assert!(manual.contains("device-hung"));
}

/// The nearest id of a long word is not looked for letter by letter, and the word does not fill the screen.
#[test]
fn a_word_of_any_length_is_answered() {
    let ran = without_gpu(&["doctor", "--explain", &"x".repeat(100_000)], "").ended(2);
    assert!(ran.stderr.len() < 1000, "{} bytes", ran.stderr.len());
    assert!(
        ran.stderr
            .starts_with("error: no check or error is called \"xxx")
    );
}
