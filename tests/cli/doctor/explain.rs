//! `explain`, and the manual's list of ids.

use insta::assert_snapshot;

use super::{doctor, healthy};
use testkit::{is_shipped, repository, without_gpu};

#[test]
fn ids_and_errors_are_explained_without_a_node() {
    let explained = |id: &str| without_gpu(&["explain", id], "").ended(0).stdout;
    assert_snapshot!(explained("device-hung"), @"
    device-hung
      meaning the daemon of a device waits for a client that died, or can accept no connection
      why     every new client waits in cuInit forever
      remedy  run `mig-mps restart DEVICE` to end the server; give programs at least 64 open files (`ulimit -n`)
    ");
    assert_snapshot!(explained("805"), @"
    805
      meaning CUDA error 805 (CUDA_ERROR_MPS_CONNECTION_FAILED): no connection to the daemon or server
      why     the daemon has exited and left its socket, is exiting, or cannot be reached from this container; another user owns the server; or the limit of open files of the program is too low (10)
      remedy  run `mig-mps run --any -- PROGRAM` to use another device, `mig-mps status DEVICE` to see the state of the device, or `ulimit -n 1024` to raise the limit of open files; with `run --private`, whose daemon exits with its programs, start the program again; the owner of the daemon starts a new one with `mig-mps restart DEVICE`
    ");
    for name in [
        "CUDA_ERROR_MPS_CONNECTION_FAILED",
        "cudaErrorMpsConnectionFailed",
    ] {
        assert_eq!(explained(name), explained("805"), "{name}");
    }
    // As status shows several, and in the words of others.
    let both = without_gpu(&["explain", "device-hung", "805"], "").ended(0);
    let one_after_the_other = format!("{}\n{}", explained("device-hung"), explained("805"));
    assert_eq!(both.stdout, one_after_the_other);
    assert_eq!(explained("hang"), explained("device-hung"));
    // What a program prints is enough.
    for (printed, id) in [
        ("torch.OutOfMemoryError: CUDA out of memory.", "2"),
        ("CUDA error: invalid device ordinal", "101"),
        ("RuntimeError: No CUDA GPUs are available", "100"),
        ("CUDA error: the MPS client has been terminated", "810"),
        (
            "CUDA error: an illegal memory access was encountered",
            "700",
        ),
        ("mps: connection failed (error 805)", "805"),
        ("CUDA error 46: device busy", "46"),
        ("error 19", "nvml-19"),
    ] {
        let explained = explained(printed);
        let heads: Vec<&str> = explained
            .lines()
            .filter(|line| !line.starts_with(' '))
            .collect();
        assert_eq!(heads, [id], "{printed}");
    }
    for unknown in ["error 77", "805 files", "line 2: an error"] {
        without_gpu(&["explain", unknown], "").ended(2);
    }
    // As it was called before 0.3.
    let before = without_gpu(&["doctor", "--explain", "805"], "").ended(0);
    assert_eq!(before.stdout, explained("805"));
    let unknown = without_gpu(&["explain", "deamon-dead"], "").ended(2).stderr;
    assert_snapshot!(unknown, @r#"
    error: no check or error has the name "deamon-dead" (did you mean "daemon-dead"?)
    hint: run `mig-mps help checks` to list all checks and errors
    hint: run `mig-mps help deamon-dead` to search the manual
    "#);
    without_gpu(&["doctor", "--explain", "805", "--json"], "").ended(2);
}

/// The chapters of the manual's diagnosis, by the subject of their faults.
const CHAPTERS: [(&str, &str); 7] = [
    ("driver", "Driver"),
    ("gpus", "GPUs"),
    ("daemons", "Daemons"),
    ("directories", "Directories"),
    ("surroundings", "Surroundings"),
    ("cuda", "Errors of CUDA"),
    ("nvml", "Errors of NVML"),
];

/// The ids and meanings of the faults of a subject.
fn faults(subject: &str) -> Vec<(String, String)> {
    let file: toml::Table = toml::from_str(include_str!("../../../src/node/faults.toml")).unwrap();
    let all = file["fault"].as_array().unwrap().iter();
    let text = |fault: &toml::Value, key: &str| fault[key].as_str().unwrap().to_owned();
    all.filter(|fault| fault["subject"].as_str() == Some(subject))
        .map(|fault| (text(fault, "id"), text(fault, "fault")))
        .collect()
}

#[test]
fn the_shipped_manual_lists_every_fault() {
    let path = "src/manual/checks.md";
    let mut manual = std::fs::read_to_string(repository().join(path)).unwrap();
    for (subject, title) in CHAPTERS {
        let rows = faults(subject);
        let rows = rows
            .iter()
            .map(|(id, fault)| format!("| `{id}` | {fault} |\n"));
        let chapter = manual.find(&format!("\n## {title}\n")).unwrap();
        let ruler = "|---|---|\n";
        let start = chapter + manual[chapter..].find(ruler).unwrap() + ruler.len();
        let end = start + manual[start..].find("\n\n").unwrap() + 1;
        manual.replace_range(start..end, &rows.collect::<String>());
    }
    is_shipped(path, &manual);
}

#[test]
fn a_report_has_every_fault_in_the_order_of_the_manual() {
    let sim = healthy();
    let report = doctor(&sim, &[]);
    let checks = report.0["checks"].as_array().unwrap().iter();
    let reported = checks.map(|check| check["id"].as_str().unwrap().to_owned());
    let subjects = CHAPTERS
        .iter()
        .filter(|(subject, _)| !["cuda", "nvml"].contains(subject));
    let wanted = subjects.flat_map(|(subject, _)| faults(subject));
    assert_eq!(
        reported.collect::<Vec<_>>(),
        wanted.map(|(id, _)| id).collect::<Vec<_>>()
    );
    let manual = sim.run(&["help", "checks"]).ended(0).stdout;
    assert!(manual.contains("device-hung"));
}

/// The nearest id of a long word is not looked for letter by letter, and the word does not fill the screen.
#[test]
fn a_word_of_any_length_is_answered() {
    let ran = without_gpu(&["explain", &"x".repeat(100_000)], "").ended(2);
    assert!(ran.stderr.len() < 1000, "{} bytes", ran.stderr.len());
    assert!(
        ran.stderr
            .starts_with("error: no check or error has the name \"xxx")
    );
}

/// What `cudaGetErrorString` of CUDA 12 returns, as `PyTorch` and others print it.
#[test]
fn an_error_is_known_by_what_programs_print() {
    for (number, text) in [
        (2, "out of memory"),
        (46, "CUDA-capable device(s) is/are busy or unavailable"),
        (100, "no CUDA-capable device is detected"),
        (101, "invalid device ordinal"),
        (205, "mapping of buffer object failed"),
        (214, "uncorrectable ECC error encountered"),
        (700, "an illegal memory access was encountered"),
        (719, "unspecified launch failure"),
        (801, "operation not supported"),
        (802, "system not yet initialized"),
        (
            803,
            "system has unsupported display driver / cuda driver combination",
        ),
        (
            804,
            "forward compatibility was attempted on non supported HW",
        ),
        (
            805,
            "MPS client failed to connect to the MPS control daemon or the MPS server",
        ),
        (
            806,
            "the remote procedural call between the MPS server and the MPS client failed",
        ),
        (
            807,
            "MPS server is not ready to accept new MPS client requests",
        ),
        (
            808,
            "the hardware resources required to create MPS client have been exhausted",
        ),
        (
            809,
            "the hardware resources required to support device connections have been exhausted",
        ),
        (810, "the MPS client has been terminated by the server"),
        (
            811,
            "is using CUDA Dynamic Parallelism, but the current configuration, like MPS, does not support it",
        ),
        (
            915,
            "one or more resources are insufficient or non-applicable for the operation",
        ),
    ] {
        let said = format!("RuntimeError: CUDA error: {text}");
        let ran = without_gpu(&["explain", &said], "").ended(0);
        assert!(
            ran.stdout.starts_with(&format!("{number}\n")),
            "{text}: {}",
            ran.stdout
        );
    }
}
