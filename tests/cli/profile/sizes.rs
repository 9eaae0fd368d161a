//! Input that is larger than anything meant.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use testkit::{Ran, SMALL, Sim, assert_contains, without_gpu};

const LARGE: usize = (1 << 20) + 1;

/// Runs `mig-mps`, which is killed after so many seconds of CPU time: other work on the machine does not count.
fn within(seconds: u32, sim: &Sim, args: &[&str]) -> Ran {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--cpu={seconds}"));
    limited.arg(sim.command(&[]).get_program()).args(args);
    Ran::of(limited.env_clear().envs(sim.node.env()))
}

#[test]
fn a_file_over_1_mib_is_refused_by_name_and_size() {
    let sim = Sim::with("a100-80gb", 1);
    let large = "#".repeat(LARGE);
    let path = sim.profile(&large);
    let path = path.to_str().unwrap();
    for args in [&["check", path][..], &["plan", path], &["import", path]] {
        let ran = sim.run(args).ended(2);
        let wanted = format!("{path}: it is larger than 1 MiB");
        assert!(ran.stderr.contains(&wanted), "{args:?}: {}", ran.stderr);
        // It is mig-mps that does not read it.
        assert!(!ran.stderr.contains("ulimit"), "{}", ran.stderr);
    }
    let ran = without_gpu(&["import", "-"], &large).ended(2);
    assert_contains(&ran.stderr, "standard input: it is larger than 1 MiB");
    sim.up(SMALL, &[]).ended(0);
    let node = sim.node.run_dir().join("node.json");
    fs::write(&node, " ".repeat(LARGE)).unwrap();
    let ran = sim.run(&["status"]).ended(0);
    let wanted = "node.json: it is larger than 1 MiB";
    assert_contains(&ran.stdout, wanted);
    let ran = sim.run(&["restart", "0.0", "--yes"]).ended(1);
    let advice = "; remove the file; mig-mps then no longer knows which instances it created";
    assert_contains(&ran.stderr, advice);
    assert!(!ran.stderr.contains("ulimit"), "{}", ran.stderr);
    fs::remove_file(&node).unwrap();
    sim.run(&["restart", "0.0", "--yes"]).ended(0);
}

/// A profile with so many blocks, each of its own GPU.
fn blocks(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, index| {
        let select = format!("select = {{ index = [{index}] }}");
        let _ = write!(text, "[[gpu]]\n{select}\nmig = false\n");
        text
    })
}

#[test]
fn a_profile_with_too_many_blocks_is_refused_by_number_and_others_are_planned_at_once() {
    let sim = Sim::with("a100-80gb", 1);
    let devices = "{ profile = \"1g\" },".repeat(20_000);
    let devices = format!("[[gpu]]\nselect = {{ all = true }}\ndevices = [ {devices} ]\n");
    for (text, status, said) in [
        (blocks(20_000), 2, "has 20000 [[gpu]] blocks: at most 1000"),
        (devices, 2, "has 20000 entries of devices: at most 10000"),
        (blocks(1000), 2, "there is no GPU 1"),
    ] {
        let path = sim.profile(&text);
        let ran = within(5, &sim, &["plan", path.to_str().unwrap()]).ended(status);
        assert_contains(&ran.stderr, said);
    }
}

#[test]
fn a_cpu_that_linux_cannot_count_to_is_refused_in_words() {
    let sim = Sim::with("a100-80gb", 1);
    let with_cpus = |cpus: &str| format!("{SMALL}\n[mps]\ncpus = \"{cpus}\"\n");
    for cpus in ["1024", "0-1024", "99999999999999999999"] {
        let ran = sim.up(&with_cpus(cpus), &[]).ended(2);
        let is_said = [
            "there is no CPU 1024: Linux counts to 1023",
            "is not the number of a CPU",
        ];
        assert!(
            is_said.iter().any(|said| ran.stderr.contains(said)),
            "{}",
            ran.stderr
        );
    }
    let ran = sim.run(&["launch", "--cpus", "1024"]).ended(1);
    assert_contains(&ran.stderr, "there is no CPU 1024: Linux counts to 1023");
}

#[test]
fn a_long_log_of_sessions_is_shown_at_once() {
    let sim = Sim::small();
    let uuid = sim.device("0.2")["uuid"].as_str().unwrap().to_owned();
    sim.run(&["down"]).ended(0);
    let log = sim.node.log_dir().join(uuid).join("control.log");
    let mut text = String::new();
    for number in 0..100_000 {
        let at = "[2026-11-20 17:34:04.000 Control   447]";
        let _ = write!(
            text,
            "{at} NEW UI\n{at} Cmd:get_server_status {number}\n{at} UI closed\n"
        );
    }
    text.push_str("[2026-11-20 17:34:05.000 Control   447] NEW SERVER 696: Ready\n");
    fs::write(&log, text).unwrap();
    let device = log.parent().unwrap().file_name().unwrap();
    let ran = within(
        20,
        &sim,
        &["logs", device.to_str().unwrap(), "-n", "1", "--control"],
    );
    assert_contains(&ran.ended(0).stdout, "NEW SERVER 696: Ready");
}

#[test]
fn a_regular_expression_takes_little_memory() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = |product: &str| {
        sim.profile(&format!(
            "[[gpu]]\nselect = {{ product = \"{product}\" }}\nmig = false\n"
        ))
    };
    let path = profile(&"(a|b?)*".repeat(20_000));
    let ran = sim.run(&["check", path.to_str().unwrap()]).ended(2);
    let wanted = "a product is at most 256 bytes long";
    assert_contains(&ran.stderr, wanted);
    let path = profile("((a{1,100}){1,100}){1,100}");
    let ran = sim.run(&["check", path.to_str().unwrap()]).ended(2);
    assert_contains(&ran.stderr, "not a regular expression");
}

#[test]
fn a_configuration_with_too_many_entries_is_refused_at_once() {
    let entry = "    - {devices: all, mig-enabled: true, mig-devices: {\"1g.10gb\": 1}}\n";
    let text = format!("version: v1\nmig-configs:\n  c:\n{}", entry.repeat(14_000));
    let sim = Sim::with("a100-80gb", 1);
    let path = sim.profile(&text);
    let ran = within(20, &sim, &["import", path.to_str().unwrap()]).ended(2);
    let wanted = "has 14000 entries: at most 1000 are read";
    assert_contains(&ran.stderr, wanted);
    let text = format!("version: v1\nmig-configs:\n  \"a\\u202eb\":\n{entry}");
    let ran = without_gpu(&["import", "-"], &text).ended(2);
    let wanted = "has characters that cannot be seen";
    assert_contains(&ran.stderr, wanted);
}

#[test]
fn a_count_beyond_reason_is_refused_at_once() {
    let sim = Sim::with("a100-80gb", 1);
    for count in ["20", "100000000"] {
        let profile = format!(
            "[[gpu]]\nselect = {{ all = true }}\ndevices = [ {{ profile = \"1g\", count = {count} }} ]\n"
        );
        let ran = sim.up(&profile, &[]).ended(5);
        assert_contains(
            &ran.stderr,
            &format!("{count} × 1g.10gb requested, and at most 7 can exist"),
        );
        assert_contains(&ran.stderr, "request 7 × 1g.10gb instead");
    }
}

#[test]
fn a_mistake_on_an_endless_line_is_shown_in_part() {
    let sim = Sim::with("a100-80gb", 1);
    let file = sim.node.dir().join("long.yaml");
    let text = format!("version: v1\nmig-configs: {}\n", "[".repeat(100_000));
    fs::write(&file, text).unwrap();
    let ran = sim.run(&["import", file.to_str().unwrap()]).ended(2);
    assert!(ran.stderr.len() < 1000, "{} bytes", ran.stderr.len());
    let profile = format!(
        "{}[[gpu]]\nselect = {{ all = treu }} # {}",
        "\n",
        "x".repeat(5000)
    );
    let ran = sim.up(&profile, &[]).ended(2);
    assert_contains(&ran.stderr, "select = { all = treu }");
    assert!(ran.stderr.len() < 1000, "{} bytes", ran.stderr.len());
}
