//! The variables of programs: `--visible`, and what of the caller's environment they inherit.

use std::collections::BTreeMap;

use testkit::{Ran, Sim, assert_contains, whole};

/// A program that reads the variable as numbers, as vLLM does.
const READER: &str = "IFS=,; for n in $CUDA_VISIBLE_DEVICES; do echo $((n + 0)) || exit 1; done; exec cuda-app run 0";

/// Runs it on the second GPU.
fn reader(sim: &Sim, words: &[&str]) -> Ran {
    sim.run(&[&["run", "1"], words, &["--", "sh", "-c", READER]].concat())
}

#[test]
fn programs_that_read_numbers_get_one() {
    let sim = Sim::served("h200", 2, &whole(""));
    let ran = reader(&sim, &["--visible", "index"]).ended(0);
    assert!(ran.stdout.starts_with("0\n"), "{ran:?}");
    assert_contains(&ran.stdout, "mps yes");
    // It is on the second GPU.
    let mut held = sim.started(&["1", "--visible", "index"]);
    held.wait_up();
    assert_eq!(sim.device("1")["client_count"], 1);
    held.finish();
    assert_ne!(reader(&sim, &[]).status, 0);
    let env = sim.run(&["env", "1", "--visible", "index", "--shell", "sh"]);
    assert_contains(&env.ended(0).stdout, "export CUDA_VISIBLE_DEVICES=0\n");
}

#[test]
fn a_profile_says_so_for_all_programs_of_a_device() {
    let sim = Sim::served("h200", 2, &whole("visible = \"index\""));
    assert!(reader(&sim, &[]).ended(0).stdout.starts_with("0\n"));
    let uuid = sim.uuid("1");
    let shown = sim.run(&[
        "run",
        "1",
        "--visible",
        "uuid",
        "--",
        "printenv",
        "CUDA_VISIBLE_DEVICES",
    ]);
    assert_eq!(shown.ended(0).stdout, format!("{uuid}\n"));
    sim.up_does_nothing(&whole("visible = \"index\""));
    // It changes while the daemon runs, and disturbs nobody.
    let client = sim.client("1");
    let pid = sim.device("1")["daemon_pid"].clone();
    sim.run(&["set", "1", "visible=uuid"]).ended(0);
    assert_ne!(reader(&sim, &[]).status, 0);
    sim.up(&whole("visible = \"index\""), &[]).ended(0);
    assert_eq!(sim.device("1")["daemon_pid"], pid);
    assert!(client.finish().status.success());
}

/// Where the daemon is gone, 0 is another GPU.
#[test]
fn with_a_number_no_program_starts_unchecked() {
    let sim = Sim::served("h200", 2, &whole(""));
    let unchecked = ["--visible", "index", "--no-check"];
    let refused = reader(&sim, &unchecked).ended(125);
    assert_eq!(refused.stdout, "");
    assert_contains(
        &refused.stderr,
        "--no-check cannot be combined with --visible index",
    );
    sim.kill_daemon("1");
    let refused = reader(&sim, &["--visible", "index"]).ended(125);
    assert_eq!(refused.stdout, "");
    sim.up(&whole("visible = \"index\""), &["--yes"]).ended(0);
    reader(&sim, &["--no-check"]).ended(125);
}

/// Everything that could change a program's limits or its device.
#[test]
fn nothing_left_over_changes_a_programs_limits_or_its_device() {
    let sim = Sim::whole("active-thread-percentage = 50, pinned-memory-limit = \"4G\"");
    let junk = [
        ("CUDA_VISIBLE_DEVICES", "7"),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/nowhere"),
        ("CUDA_MPS_LOG_DIRECTORY", "/nowhere"),
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "junk"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "5=60G"),
        ("CUDA_MPS_CLIENT_PRIORITY", "junk"),
        ("CUDA_MPS_PROTOCOL_VERSION", "3"),
        ("CUDA_MPS_SM_PARTITION", "GPU-1/0"),
        (
            "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING",
            "1",
        ),
    ];
    let seen = |words: &[&str], variables: &[(&str, &str)]| -> BTreeMap<String, String> {
        let mut command = sim.command(words);
        let ran = Ran::of(command.envs(variables.iter().copied())).ended(0);
        ran.stdout
            .lines()
            .filter_map(|line| line.split_once('='))
            .filter(|(name, _)| name.starts_with("CUDA_"))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    };
    let run = ["run", "0", "--", "env"];
    let clean = seen(&run, &[]);
    assert_eq!(seen(&run, &junk), clean);
    let names: Vec<&str> = clean.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "CUDA_MPS_LOG_DIRECTORY",
            "CUDA_MPS_PIPE_DIRECTORY",
            "CUDA_VISIBLE_DEVICES"
        ]
    );
    // A shell that has all of it, too.
    let script = "eval \"$($0 env 0 --shell sh)\"; env";
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", script]).arg(sim.program());
    shell.env_clear().envs(sim.node.env()).envs(junk);
    let ran = Ran::of(&mut shell).ended(0).stdout;
    let mut left: Vec<&str> = ran
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name)
        .filter(|name| name.starts_with("CUDA_"))
        .collect();
    left.sort_unstable();
    assert_eq!(left, names);
    // The caller's own limits hold where they are tighter, and take the place of nothing that was asked for.
    let own = [
        ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25"),
        ("CUDA_MPS_CLIENT_PRIORITY", "1"),
        ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=1G"),
    ];
    let kept = seen(&run, &own);
    for (name, value) in own {
        let value = value.replace("1G", "1024M");
        assert_eq!(kept.get(name), Some(&value), "{name}");
    }
    let asked = seen(&["run", "0", "--threads", "40", "--", "env"], &own);
    assert_eq!(asked["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], "40");
    let looser = [("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")];
    assert_eq!(seen(&run, &looser), clean);
}
