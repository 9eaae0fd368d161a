//! The completions of each shell.

use std::fs;
use std::time::{Duration, Instant};

use crate::completion::shell::{Session, Shell};
use testkit::{Ran, Sim};

/// The name of a file that no shell takes as it is.
const SPACED: &str = "my profile.toml";

/// The number of times to ask for a completion that does not come in time.
const TRIES: usize = 5;

/// `mig-mps __complete` does not offer what it does not find within this time.
const LIMIT: Duration = Duration::from_secs(1);

fn completes_everything(in_shell: Shell, test: &str) {
    if !in_shell.is_here(test) {
        return;
    }
    let sim = Sim::small();
    let client = sim.client("0.0");
    let dead = sim.device("0.2");
    sim.kill_daemon("0.2");
    let files = sim.node.dir().join("files");
    fs::create_dir_all(files.join("folder")).unwrap();
    for name in ["fleet.toml", "fleet.txt", SPACED, "0.0.txt"] {
        fs::write(files.join(name), "").unwrap();
    }
    let before = sim.node.events().len();
    let mut session = in_shell.start(&sim, &files);
    completes_words(&mut session);
    completes_files(&mut session);
    completes_devices(&mut session, dead["uuid"].as_str().unwrap());
    completes_clients(&mut session, &client.pid().to_string());
    completes_settings(&mut session);
    completes_models(&mut session);
    drop(session);
    // Neither NVML nor a daemon was asked.
    let mut events = sim.node.events().split_off(before);
    // A daemon may notice the end of an earlier session late.
    events.retain(|event| event.what != "session closed");
    assert!(events.is_empty(), "{events:?}");
    // A command that asks NVML is seen.
    Ran::of(sim.command(&["list"]).env("SIMNODE_EVENTS", "all")).ended(0);
    assert!(sim.node.events().len() > before);
}

/// Each beginning of a line becomes these words.
#[track_caller]
fn all(session: &mut Session, cases: &[(&str, &str)]) {
    for (typed, words) in cases {
        let typed = format!("mig-mps {typed}");
        let mut found = String::new();
        for _ in 0..TRIES {
            let begun = Instant::now();
            found = session.completes(&typed);
            // On a machine with much to do it may not come in time: a person presses Tab again.
            if found == *words || begun.elapsed() < LIMIT {
                break;
            }
        }
        assert_eq!(found, *words, "{typed}");
    }
}

/// Subcommands, flags, their values, topics of the manual.
fn completes_words(session: &mut Session) {
    // Every text is awaited: a list comes in pieces.
    let texts = [
        "restart",
        "Apply a profile to this node",
        "Write manual pages",
    ];
    let commands = session.lists("mig-mps ", &texts);
    assert!(!commands.contains("--version"), "{commands}");
    session.lists(
        "mig-mps up --",
        &["--dry-run", "Show the plan and change nothing"],
    );
    session.lists(
        "mig-mps help ",
        &["security", "What users of a device can do", "restart"],
    );
    all(
        session,
        &[
            ("resta", "<restart>"),
            ("down --destroy-m", "<down><--destroy-mig>"),
            ("env x --format dot", "<env><x><--format><dotenv>"),
            ("env x --format=dot", "<env><x><--format=dotenv>"),
            (
                "status --columns device,sta",
                "<status><--columns><device,state>",
            ),
            ("kill --signal=T", "<kill><--signal=TERM>"),
            ("completions f", "<completions><fish>"),
            ("profiles bal", "<profiles><balanced>"),
            ("schema prof", "<schema><profile>"),
        ],
    );
}

/// Profiles, folders, and other files where those are taken.
fn completes_files(session: &mut Session) {
    let spaced = format!("<plan><{SPACED}>");
    all(
        session,
        &[
            ("up fl", "<up><fleet.toml>"),
            ("up bal", "<up><balanced>"),
            ("plan my", &spaced),
            ("check fo", "<check><folder/>"),
            ("import fleet.tx", "<import><fleet.txt>"),
        ],
    );
}

/// Devices with what they are, and no files.
fn completes_devices(session: &mut Session, uuid: &str) {
    let texts = [
        "0.0",
        "GPU 0, 2g.20gb, running",
        "0.2",
        "GPU 0, 1g.10gb, dead",
    ];
    let devices = session.lists("mig-mps restart 0.", &texts);
    assert!(!devices.contains(".txt"), "{devices}");
    let begun = format!("logs {}", &uuid[..uuid.len() - 4]);
    let whole = format!("<logs><{uuid}>");
    all(
        session,
        &[("status 0.0 0", "<status><0.0><0.2>"), (&begun, &whole)],
    );
}

fn completes_clients(session: &mut Session, pid: &str) {
    let begun = format!("kill 0.0 {}", &pid[..pid.len() - 1]);
    all(session, &[(&begun, &format!("<kill><0.0><{pid}>"))]);
}

fn completes_settings(session: &mut Session) {
    let keys = ["client-priority=", "a hint to the GPU", "max-clients="];
    session.lists("mig-mps set 0.0 ", &keys);
    session.lists(
        "mig-mps set 0.0 client-priority=",
        &["below-normal", "default"],
    );
    let percentage = "set 0.0 active-thread-percentage=";
    let full = "<set><0.0><active-thread-percentage=100>";
    all(
        session,
        &[
            ("set 0.0 client-p", "<set><0.0><client-priority=>"),
            (percentage, full),
        ],
    );
}

fn completes_models(session: &mut Session) {
    session.lists(
        "mig-mps check --gpu a100-",
        &["a100-80gb", "NVIDIA A100-SXM4-80GB"],
    );
    all(
        session,
        &[
            ("check --gpu=h200-141gb-n", "<check><--gpu=h200-141gb-nvl>"),
            ("check --gpu a30-24gb:", "<check><--gpu><a30-24gb:>"),
        ],
    );
}

#[test]
fn bash_completes() {
    completes_everything(Shell::Bash, "bash_completes");
}

#[test]
fn zsh_completes() {
    completes_everything(Shell::Zsh, "zsh_completes");
}

#[test]
fn fish_completes() {
    completes_everything(Shell::Fish, "fish_completes");
}

/// The author of a file of configurations does not choose what a shell runs.
fn completes_as_text(in_shell: Shell, test: &str) {
    if !in_shell.is_here(test) {
        return;
    }
    let sim = Sim::with("a100-80gb", 1);
    let files = sim.node.dir().join("files");
    fs::create_dir_all(&files).unwrap();
    let off = "- devices: all\n      mig-enabled: false\n";
    let configurations = format!(
        "version: v1\nmig-configs:\n  '$(touch x)':\n    {off}  '`touch y`;a':\n    {off}  \"q'u o\":\n    {off}"
    );
    fs::write(files.join("c.yaml"), configurations).unwrap();
    let mut session = in_shell.start(&sim, &files);
    all(
        &mut session,
        &[
            (
                "import c.yaml --config \\$",
                "<import><c.yaml><--config><$(touch x)>",
            ),
            (
                "import c.yaml --config \\`",
                "<import><c.yaml><--config><`touch y`;a>",
            ),
            (
                "import c.yaml --config q",
                "<import><c.yaml><--config><q'u o>",
            ),
        ],
    );
    if in_shell == Shell::Bash {
        let whole = "<import><c.yaml><--config><$(touch x)>";
        all(
            &mut session,
            &[
                ("import c.yaml --config '$", whole),
                ("import c.yaml --config \"\\$", whole),
            ],
        );
    }
    drop(session);
    let mut names: Vec<_> = fs::read_dir(&files)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["c.yaml"]);
}

#[test]
fn bash_takes_a_candidate_as_text() {
    completes_as_text(Shell::Bash, "bash_takes_a_candidate_as_text");
}

#[test]
fn zsh_takes_a_candidate_as_text() {
    completes_as_text(Shell::Zsh, "zsh_takes_a_candidate_as_text");
}

#[test]
fn fish_takes_a_candidate_as_text() {
    completes_as_text(Shell::Fish, "fish_takes_a_candidate_as_text");
}

#[test]
fn a_directory_has_one_slash_in_bash() {
    if !Shell::Bash.is_here("a_directory_has_one_slash_in_bash") {
        return;
    }
    let sim = Sim::with("a100-80gb", 1);
    let files = sim.node.dir().join("files");
    for name in ["near", "next"] {
        fs::create_dir_all(files.join(name)).unwrap();
    }
    let mut session = Shell::Bash.start(&sim, &files);
    let shown = session.lists("mig-mps up ne", &["near/", "next/"]);
    assert!(!shown.contains("//"), "{shown}");
    all(&mut session, &[("up nea", "<up><near/>")]);
}
