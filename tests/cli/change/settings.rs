//! The settings of a daemon in a profile: what is written, what reaches the daemon, what reads back.

use std::fs;

use insta::assert_snapshot;
use rustix::process::Resource;

use testkit::{Ran, Sim, assert_contains, needs_root, plain, whole};

const DEFAULTS: &str = "get_default_active_thread_percentage\n\
    get_default_device_pinned_mem_limit 0\nget_default_client_priority\n";

/// A field of a daemon in the real `/proc`.
fn of_process(pid: &serde_json::Value, file: &str, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    line.unwrap_or_else(|| panic!("no {field} in {text}"))
        .trim()
        .to_owned()
}

#[test]
fn every_setting_reaches_the_daemon_and_is_recorded() {
    let sim = Sim::with("h200", 1);
    let profile = whole(
        r#"active-thread-percentage = 33.3, pinned-memory-limit = "1.5G", client-priority = "below-normal", cpus = "0", nofile = 4096, max-clients = 8"#,
    );
    sim.up(&profile, &[]).ended(0);
    assert_eq!(sim.ask("0", DEFAULTS), "33.3\n1G\n1\n");
    let device = sim.device("0");
    let server = &device["servers"][0]["pid"];
    assert_eq!(
        sim.ask(
            "0",
            &format!(
                "get_active_thread_percentage {server}\nget_device_pinned_mem_limit {server} 0\n"
            )
        ),
        "33.3\n1G\n"
    );
    for pid in [&device["daemon_pid"], server] {
        assert_eq!(of_process(pid, "status", "Cpus_allowed_list:"), "0");
        assert!(of_process(pid, "limits", "Max open files").starts_with("4096 "));
    }
    let mut app = sim.app("0", &["run", "0", "--alloc", "1600", "--alloc", "900"]);
    let up = app.wait_up();
    assert!(up.contains(" sm 42 ") && up.ends_with("mps yes"), "{up}");
    let ended = app.finish();
    assert_contains(&ended.output, "alloc 1600 MiB -> 2 out of memory");
    assert_contains(&ended.output, "alloc 900 MiB -> 0 no error");
    sim.up_does_nothing(&profile);
}

/// 65536, or as many as the system lets the tests have.
#[test]
fn a_daemon_may_have_many_files_open() {
    let sim = Sim::with("h200", 1);
    let profile = sim.profile(&whole("server = \"lazy\""));
    let few = format!("ulimit -S -n 512; exec \"$0\" up {}", profile.display());
    let mut shell = std::process::Command::new("/bin/sh");
    shell.args(["-c", &few]).arg(sim.command(&[]).get_program());
    Ran::of(shell.env_clear().envs(sim.node.env())).ended(0);
    let most = rustix::process::getrlimit(Resource::Nofile).maximum;
    let files = of_process(&sim.device("0")["daemon_pid"], "limits", "Max open files");
    let files: u64 = files.split_whitespace().next().unwrap().parse().unwrap();
    assert!(
        files == 65536 || Some(files) == most && files < 65536,
        "{files}"
    );
}

#[test]
fn settings_are_inherited_and_taken_back() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = r#"
[mps]
pinned-memory-limit = "2G"
client-priority = "below-normal"
cpus = "0"

[[gpu]]
select = { all = true }
mps = { active-thread-percentage = 50 }
devices = [
  { profile = "2g", name = "all-of-it" },
  { profile = "1g", name = "none-of-it", mps = { pinned-memory-limit = "none", client-priority = "normal", cpus = "all", active-thread-percentage = 100 } },
]
"#;
    sim.up(profile, &[]).ended(0);
    assert_eq!(sim.ask("all-of-it", DEFAULTS), "50.0\n2G\n1\n");
    assert_eq!(sim.ask("none-of-it", DEFAULTS), "100.0\n0\n");
    sim.up_does_nothing(profile);
    let exported = sim.run(&["export"]).ended(0).stdout;
    let again = sim.up(&exported, &["--dry-run"]).ended(0);
    assert!(
        again.stderr.starts_with("Nothing to do"),
        "{exported}{}",
        again.stderr
    );
}

#[test]
fn what_is_exported_says_every_setting() {
    let sim = Sim::with("h200", 1);
    let profile = whole(
        r#"serve = "all", pinned-memory-limit = "1.5G", client-priority = "below-normal", cpus = "0", nofile = 4096, max-clients = 8"#,
    );
    let is_root = rustix::process::geteuid().is_root();
    let profile = if is_root {
        profile
    } else {
        profile.replace(r#"serve = "all", "#, "")
    };
    sim.up(&profile, &[]).ended(0);
    let exported = sim.run(&["export"]).ended(0).stdout;
    for said in [
        "pinned-memory-limit = \"1536M\"",
        "client-priority = \"below-normal\"",
        "cpus = \"0\"",
        "nofile = 4096",
        "max-clients = 8",
    ] {
        assert_contains(&exported, said);
    }
    sim.up_does_nothing(&exported);
}

/// Every mistake points at its place, and nothing is touched.
#[test]
fn mistakes_in_settings() {
    let sim = Sim::with("h200", 1);
    let mut all = String::new();
    for settings in [
        r#"pinned-memory-limit = "512K""#,
        r#"pinned-memory-limit = "2GB""#,
        r#"pinned-memory-limit = "0.1G""#,
        r#"pinned-memory-limit = "9999G""#,
        "pinned-memory-limit = 512",
        r#"pinned-memory-limt = "1G""#,
        r#"client-priority = "low""#,
        r#"client-priority = "belownormal""#,
        r#"cpus = "7-0""#,
        r#"compute-mode = "exclusive""#,
        "max-clients = 0",
        "nofile = 10",
        r#"serve = "usr:alice""#,
        r#"serve = "user:""#,
        "active-thread-percentage = 0",
    ] {
        let ran = sim.up(&whole(settings), &[]).ended(2);
        all += &plain(&ran.stderr);
    }
    assert!(!sim.node.run_dir().exists());
    assert_snapshot!(all, @r#"
    error: profile.toml:4:31: pinned-memory-limit = "512K": expected a size with the unit M (MiB) or G (GiB), such as 512M, 1.5G or 20GiB
      |
    4 | mps = { pinned-memory-limit = "512K" }
      |                               ^^^^^^
    error: profile.toml:4:31: pinned-memory-limit = "2GB": its unit is M (MiB) or G (GiB), as in 2G
      |
    4 | mps = { pinned-memory-limit = "2GB" }
      |                               ^^^^^
    error: profile.toml:4:31: pinned-memory-limit = "0.1G": 0.1G is not a whole number of MiB, which MPS requires
      |
    4 | mps = { pinned-memory-limit = "0.1G" }
      |                               ^^^^^^
    error: profile.toml:4:31: pinned-memory-limit = "9999G": it is more than the memory of any device (1024G)
      |
    4 | mps = { pinned-memory-limit = "9999G" }
      |                               ^^^^^^^
    error: profile.toml:4:31: pinned-memory-limit must be a string
      |
    4 | mps = { pinned-memory-limit = 512 }
      |                               ^^^ write pinned-memory-limit = "512G"
    error: profile.toml:4:9: unknown key "pinned-memory-limt"
      |
    4 | mps = { pinned-memory-limt = "1G" }
      |         ^^^^^^^^^^^^^^^^^^ did you mean "pinned-memory-limit"?
    error: profile.toml:4:27: client-priority = "low" is not one of "normal", "below-normal"
      |
    4 | mps = { client-priority = "low" }
      |                           ^^^^^
    error: profile.toml:4:27: client-priority = "belownormal" is not one of "normal", "below-normal"
      |
    4 | mps = { client-priority = "belownormal" }
      |                           ^^^^^^^^^^^^^ did you mean "below-normal"?
    error: profile.toml:4:16: cpus = "7-0": 7-0 goes backwards: 0-7?
      |
    4 | mps = { cpus = "7-0" }
      |                ^^^^^
    error: profile.toml:4:24: compute-mode = "exclusive" is not one of "exclusive-process"
      |
    4 | mps = { compute-mode = "exclusive" }
      |                        ^^^^^^^^^^^ did you mean "exclusive-process"?
    error: profile.toml:4:23: max-clients must be from 1 to 1024
      |
    4 | mps = { max-clients = 0 }
      |                       ^
    error: profile.toml:4:18: nofile must be from 256 to 1073741824
      |
    4 | mps = { nofile = 10 }
      |                  ^^
    error: profile.toml:4:17: serve = "usr:alice" is not one of "one-at-a-time", "all", "group:NAME", "user:NAME", "self"
      |
    4 | mps = { serve = "usr:alice" }
      |                 ^^^^^^^^^^^ did you mean "user:alice"?
    error: profile.toml:4:17: serve = "user:" is not one of "one-at-a-time", "all", "group:NAME", "user:NAME", "self"
      |
    4 | mps = { serve = "user:" }
      |                 ^^^^^^^ did you mean "user:NAME"?
    error: profile.toml:4:36: active-thread-percentage must be from 0.1 to 100
      |
    4 | mps = { active-thread-percentage = 0 }
      |                                    ^
    "#);
}

#[test]
fn a_mig_device_has_no_compute_mode() {
    let sim = Sim::with("a100-80gb", 1);
    let profile = "[mps]\ncompute-mode = \"exclusive-process\"\n[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"2g\" } ]\n";
    let ran = sim.up(profile, &[]).ended(2);
    assert_snapshot!(plain(&ran.stderr), @r#"
    error: profile.toml:2:16: compute-mode is for whole GPUs: in MIG mode the driver refuses exclusive-process
      |
    2 | compute-mode = "exclusive-process"
      |                ^^^^^^^^^^^^^^^^^^^ move it to the mps of a [[gpu]] block with mig = false
    "#);
}

#[test]
fn a_user_who_is_not_there_is_named_before_anything_is_touched() {
    needs_root!();
    let sim = Sim::with("h200", 1);
    let mut all = String::new();
    for serve in ["user:nobdy", "group:no-such-group-anywhere"] {
        let profile = whole(&format!("serve = \"{serve}\""));
        all += &plain(&sim.up(&profile, &[]).ended(2).stderr);
        let path = sim.profile(&profile);
        let path = path.to_str().unwrap();
        sim.run(&["plan", path]).ended(2);
        // It may be for another machine.
        sim.run(&["check", path, "--gpu", "h200"]).ended(0);
    }
    assert!(!sim.node.run_dir().exists());
    assert_snapshot!(all, @r#"
    error: profile.toml:4:17: there is no user "nobdy" on this machine
      |
    4 | mps = { serve = "user:nobdy" }
      |                 ^^^^^^^^^^^^ did you mean "user:nobody"?
    error: profile.toml:4:17: there is no group "no-such-group-anywhere" on this machine
      |
    4 | mps = { serve = "group:no-such-group-anywhere" }
      |                 ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
    "#);
}

/// A value that is taken without a word and not kept, as limits by UUID were up to driver 555.
#[test]
fn a_value_that_reads_back_otherwise_fails_in_words() {
    let sim = Sim::with("h200", 1);
    for (command, settings, said) in [
        (
            "set_default_device_pinned_mem_limit",
            r#"pinned-memory-limit = "2G""#,
            "pinned-memory-limit was set to 2G but reads back as none",
        ),
        (
            "set_default_client_priority",
            r#"client-priority = "below-normal""#,
            "client-priority was set to below-normal but reads back as normal",
        ),
        (
            "set_default_active_thread_percentage",
            "active-thread-percentage = 50",
            "active-thread-percentage was set to 50 but reads back as 100",
        ),
    ] {
        sim.node.fault(command).fails(0).unwrap();
        let ran = sim.up(&whole(settings), &[]).ended(1);
        assert_contains(&ran.stderr, said);
        assert_eq!(
            sim.device("0")["state"],
            "no daemon",
            "half a daemon was left"
        );
    }
    sim.node
        .fault("set_default_client_priority")
        .fails(9)
        .unwrap();
    let ran = sim
        .up(&whole(r#"client-priority = "below-normal""#), &[])
        .ended(1);
    assert_contains(&ran.stderr, "Insufficient privileges");
}

#[test]
fn a_daemon_runs_on_the_cpus_near_its_gpu() {
    let sim = Sim::with("h200", 2);
    let near = whole("cpus = \"near\"");
    sim.up(&near, &[]).ended(0);
    for (index, name) in ["0", "1"].iter().enumerate() {
        let address = &sim.node.node().state().unwrap().gpus[index].pci;
        let wanted = near_cpus(
            &sim,
            &format!(
                "{:04x}:{:02x}:{:02x}.0",
                address.domain, address.bus, address.device
            ),
        );
        let device = sim.device(name);
        assert_eq!(device["cpus"], "near");
        for pid in [&device["daemon_pid"], &device["servers"][0]["pid"]] {
            assert_eq!(of_process(pid, "status", "Cpus_allowed_list:"), wanted);
        }
    }
    sim.up_does_nothing(&near);
    let missing = sim.node.dir().join("root/proc/driver/nvidia/gpus");
    std::fs::remove_dir_all(missing).unwrap();
    let ran = sim.run(&["restart", "0", "--yes"]).ended(1);
    assert_contains(&ran.stderr, "cannot determine the CPUs near the GPU: ");
}

/// The CPUs near a GPU, as the kernel lists them.
fn near_cpus(sim: &Sim, address: &str) -> String {
    let devices = sim.node.dir().join("root/sys/bus/pci/devices");
    let text = std::fs::read_to_string(devices.join(address).join("local_cpulist")).unwrap();
    // The kernel writes a range of one as a number.
    let text = text.trim();
    match text.split_once('-') {
        Some((first, last)) if first == last => first.to_owned(),
        _ => text.to_owned(),
    }
}

#[test]
fn cpus_that_are_not_there_are_no_success() {
    let sim = Sim::with("h200", 1);
    for (cpus, said) in [
        ("0,1023", "cpus was set to 0,1023 but reads back as 0"),
        ("1023", "the system does not allow these CPUs"),
    ] {
        let ran = sim.up(&whole(&format!("cpus = \"{cpus}\"")), &[]).ended(1);
        assert_contains(&ran.stderr, said);
        assert_eq!(sim.device("0")["state"], "no daemon");
    }
}
