//! `mig-mps logs`, and how `up` keeps logs small.

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use insta::assert_snapshot;
use rustix::process::Signal;
use serde_json::Value;

use testkit::{App, NOBODY, Ran, SMALL, Sim, assert_contains, needs_root, plain, shell};

/// Lines that an H200 wrote into its logs, cut short.
const CONTROL: &str = "\
[2026-11-19 23:59:59.900 Control   689] NEW SERVER 696: Ready
[2026-11-20 17:45:48.100 Control   689] Accepting connection...
[2026-11-20 17:45:48.100 Control   689] NEW UI
[2026-11-20 17:45:48.100 Control   689] Cmd:get_server_list
[2026-11-20 17:45:48.100 Control   689] 696
[2026-11-20 17:45:48.100 Control   689] UI closed
[2026-11-20 17:45:49.100 Control   689] NEW UI
[2026-11-20 17:45:49.100 Control   689] Cmd:get_server_list
[2026-11-20 17:45:49.100 Control   689] 696
[2026-11-20 17:45:49.100 Control   689] Cmd:get_server_status 696
[2026-11-20 17:45:49.100 Control   689] ACTIVE
[2026-11-20 17:45:49.100 Control   689] UI closed
[2026-11-20 17:45:50.000 Control   689] User did not send valid credentials
[2026-11-20 17:45:50.100 Control   689] NEW CLIENT 777 from user 0: Server already exists
[2026-11-20 17:45:51.000 Control   689] User did not send valid credentials
[2026-11-20 17:46:02.000 Control   689] NEW UI
[2026-11-20 17:46:02.000 Control   689] Cmd:set_default_active_thread_percentage 200
[2026-11-20 17:46:02.000 Control   689] Invalid percentage, expected between (0.0, 100.0]
[2026-11-20 17:46:02.000 Control   689] UI closed
";
const SERVER: &str = "\
[2026-11-20 17:46:00.045 Server   696] Client {PID: 777, Context: 1} encountered a fatal GPU error.
[2026-11-20 17:46:00.045 Server   696] Server is handling a fatal GPU error.
[2026-11-20 17:46:01.000 Server   696] Server failed to recevie command with status 806, assuming client {PID: 777, Context ID: 1} exit
[2026-11-20 17:46:03.000 Client   976] Invalid CUDA_VISIBLE_DEVICES.
[2026-11-20 17:46:04.000 Server   696] A line of a driver to come
  and what goes on from it
";

/// A device whose daemon has ended and has left these logs; its name and log directory.
fn ended(control: &str, server: &str) -> (Sim, PathBuf) {
    let sim = Sim::small();
    let dir = dir_of(&sim, "0.0");
    sim.run(&["down", "0.0"]).ended(0);
    fs::write(dir.join("control.log"), control).unwrap();
    fs::write(dir.join("server.log"), server).unwrap();
    (sim, dir)
}

fn dir_of(sim: &Sim, name: &str) -> PathBuf {
    sim.node.log_dir().join(sim.uuid(name))
}

/// Adds so many lines to a log that it is over the limit.
fn fill(log: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(log).unwrap();
    let line = format!(
        "[2026-11-20 17:34:04.858 Control   447] {text} {}\n",
        "x".repeat(900)
    );
    let lines = line.repeat((9 << 20) / line.len());
    file.write_all(lines.as_bytes()).unwrap();
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn both_logs_are_shown_by_time_and_what_matters_is_marked_and_explained() {
    let (sim, _) = ended(CONTROL, SERVER);
    let ran = sim.run(&["logs", "0.0"]).ended(0);
    assert_snapshot!(ran.stdout, @"
       2026-11-19 23:59:59.900 control     689  NEW SERVER 696: Ready
    ~  2026-11-20 17:45:50.000 control     689  User did not send valid credentials
       2026-11-20 17:45:50.100 control     689  NEW CLIENT 777 from user 0: Server already exists
    ~  2026-11-20 17:45:51.000 control     689  User did not send valid credentials
    !! 2026-11-20 17:46:00.045 server      696  Client {PID: 777, Context: 1} encountered a fatal GPU error.
    !! 2026-11-20 17:46:00.045 server      696  Server is handling a fatal GPU error.
    ~  2026-11-20 17:46:01.000 server      696  Server failed to recevie command with status 806, assuming client {PID: 777, Context ID: 1} exit
       2026-11-20 17:46:02.000 control     689  Cmd:set_default_active_thread_percentage 200
    !  2026-11-20 17:46:02.000 control     689  Invalid percentage, expected between (0.0, 100.0]
    !  2026-11-20 17:46:03.000 server      976  (Client) Invalid CUDA_VISIBLE_DEVICES.
       2026-11-20 17:46:04.000 server      696  A line of a driver to come
                               server             and what goes on from it
    ");
    assert_snapshot!(ran.stderr, @"

    13 lines of control sessions are hidden (--all shows them)
    ~  User did not send valid credentials (2 times)
        harmless: every start of a CUDA program leaves this line
    ~  Server failed to recevie command with status 806, assuming …
        harmless: a client has exited
    !  Invalid CUDA_VISIBLE_DEVICES.
        the client's CUDA_VISIBLE_DEVICES must be unset, 0, or this device's UUID
    !! Server is handling a fatal GPU error.
        the clients on this GPU fail; new ones are refused until all have exited
    ");
}

#[test]
fn a_terminal_of_80_columns_gets_days_as_headings_and_lines_that_fit() {
    let (sim, _) = ended(CONTROL, SERVER);
    let ran = sim.in_terminal("NO_COLOR=1", "logs 0.0", 80);
    let all = sim.in_terminal("NO_COLOR=1", "logs 0.0 --all", 80);
    assert_contains(
        &all.stdout,
        "\n~  17:45:50.000 control     689  User did not send valid credentials\r\n",
    );
    assert!(!all.stdout.contains("not shown"), "{}", all.stdout);
    let shown = ran.stdout.replace('\r', "");
    assert!(
        shown.lines().all(|line| line.chars().count() <= 80),
        "{shown}"
    );
    assert!(!shown.contains('\u{1b}'), "{shown}");
    assert_snapshot!(shown, @"
       2026-11-19
       23:59:59.900 control     689  NEW SERVER 696: Ready
       2026-11-20
       17:45:50.100 control     689  NEW CLIENT 777 from user 0: Server already
                                     exists
    !! 17:46:00.045 server      696  Client {PID: 777, Context: 1} encountered a
                                     fatal GPU error.
    !! 17:46:00.045 server      696  Server is handling a fatal GPU error.
       17:46:02.000 control     689  Cmd:set_default_active_thread_percentage 200
    !  17:46:02.000 control     689  Invalid percentage, expected between (0.0,
                                     100.0]
    !  17:46:03.000 server      976  (Client) Invalid CUDA_VISIBLE_DEVICES.
       17:46:04.000 server      696  A line of a driver to come
                    server             and what goes on from it

    3 harmless lines and 13 lines of control sessions are hidden (--all shows them)
    !  Invalid CUDA_VISIBLE_DEVICES.
        the client's CUDA_VISIBLE_DEVICES must be unset, 0, or this device's UUID
    !! Server is handling a fatal GPU error.
        the clients on this GPU fail; new ones are refused until all have exited
    ");
    // The same in colours.
    let ran = sim.in_terminal("TERM=xterm", "logs 0.0", 200).stdout;
    let line = |text: &str| ran.lines().find(|line| line.contains(text)).unwrap();
    assert!(line("Server is handling").contains("\u{1b}[31m"));
    assert!(line("Invalid percentage").contains("\u{1b}[33m"));
    assert!(!line("NEW CLIENT 777").contains("\u{1b}[3"));
    let ran = sim.in_terminal("TERM=xterm", "logs 0.0 --all", 200).stdout;
    let line = |text: &str| ran.lines().find(|line| line.contains(text)).unwrap();
    assert!(
        line("valid credentials")
            .ends_with("\u{1b}[2mUser did not send valid credentials\u{1b}[0m")
    );
}

#[test]
fn one_log_a_number_of_lines_and_every_line() {
    let (sim, _) = ended(CONTROL, SERVER);
    let lines = |args: &[&str]| {
        let args = [&["logs", "0.0"], args].concat();
        sim.run(&args).ended(0).stdout
    };
    assert_eq!(lines(&["--server"]).lines().count(), 6);
    assert!(!lines(&["--server"]).contains(" control "));
    assert!(!lines(&["--control"]).contains(" server "));
    assert_eq!(lines(&["--all"]).lines().count(), 19 + 6);
    // As it was called before 0.3.
    assert_eq!(lines(&["--sessions"]), lines(&["--all"]));
    assert_eq!(lines(&["-n", "all"]), lines(&[]));
    assert_eq!(lines(&["-n", "0"]), "");
    // What is counted is what is shown, without sessions.
    let all = lines(&[]);
    for number in 1..=all.lines().count() {
        let last: Vec<&str> = all.lines().rev().take(number).collect();
        let shown = lines(&["-n", &number.to_string()]);
        assert_eq!(shown.lines().rev().collect::<Vec<_>>(), last, "{number}");
    }
    let wrong = sim.run(&["logs", "0.0", "-n", "some"]).ended(2);
    assert_contains(&wrong.stderr, "expected a number, or all");
    sim.run(&["logs", "0.0", "--server", "--control"]).ended(2);
}

#[test]
fn a_terminal_gets_the_last_40_lines_and_a_pipe_all() {
    let lines = (1..=60).map(|number| {
        format!("[2026-11-20 17:45:50.100 Control   689] NEW CLIENT {number}: Ready\n")
    });
    let (sim, _) = ended(&lines.collect::<String>(), "");
    let count = |shown: &Ran| shown.stdout.matches("NEW CLIENT").count();
    assert_eq!(count(&sim.run(&["logs", "0.0"]).ended(0)), 60);
    let shown = sim.in_80_columns("logs 0.0");
    assert_eq!(count(&shown), 40);
    assert_contains(&shown.stdout, "NEW CLIENT 21:");
    assert_eq!(count(&sim.in_80_columns("logs 0.0 -n all")), 60);
}

/// Between two lines of the server stand more sessions than are read at once.
#[test]
fn sessions_do_not_push_out_what_happened() {
    let polled = "\
[2026-11-20 17:45:48.100 Control   689] NEW UI
[2026-11-20 17:45:48.100 Control   689] Cmd:get_server_list
[2026-11-20 17:45:48.100 Control   689] UI closed
"
    .repeat(5000);
    let began = "[2026-11-20 17:45:40.000 Control   689] NEW SERVER 696: Ready\n";
    let server = "[2026-11-20 17:45:41.000 Server   696] Server has started\n";
    let (sim, _) = ended(&format!("{began}{polled}"), server);
    let shown = sim.run(&["logs", "0.0", "-n", "2"]).ended(0).stdout;
    assert_snapshot!(shown, @"
    2026-11-20 17:45:40.000 control     689  NEW SERVER 696: Ready
    2026-11-20 17:45:41.000 server      696  Server has started
    ");
}

#[test]
fn a_program_gets_an_object_a_line() {
    let (sim, dir) = ended(CONTROL, SERVER);
    let mut server = OpenOptions::new()
        .append(true)
        .open(dir.join("server.log"))
        .unwrap();
    writeln!(server, "a \u{1b}[2J \u{9b}1m \u{202e} \\ \"quoted\"").unwrap();
    let shown = sim.run(&["logs", "0.0", "--json"]).ended(0).stdout;
    assert_snapshot!(shown.lines().nth(14).unwrap(), @r#"{"device":"0.0","time":"2026-11-20T17:45:51.000+00:00","file":"control.log","tag":"Control","pid":689,"text":"User did not send valid credentials","kind":"benign","meaning":"harmless: every start of a CUDA program leaves this line"}"#);
    assert_snapshot!(shown.lines().last().unwrap(), @r#"{"device":"0.0","time":"2026-11-20T17:46:04.000+00:00","file":"server.log","tag":null,"pid":null,"text":"a \u001b[2J \u009b1m \u202e \\ \"quoted\"","kind":"unknown","meaning":null}"#);
    // The logs have local time.
    let mut east = sim.command(&["logs", "0.0", "--json"]);
    let east = Ran::of(east.env("TZ", "EAST-3")).ended(0).stdout;
    let last: Value = serde_json::from_str(east.lines().last().unwrap()).unwrap();
    assert_eq!(last["time"], "2026-11-20T17:46:04.000+03:00");
    let last: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
    assert_eq!(last["text"], "a \u{1b}[2J \u{9b}1m \u{202e} \\ \"quoted\"");
    for line in shown.lines() {
        serde_json::from_str::<Value>(line).unwrap();
    }
    assert_eq!(shown.lines().count(), 19 + 7);
    let two = sim
        .run(&["logs", "0.0", "--json", "-n", "2"])
        .ended(0)
        .stdout;
    assert!(two.lines().eq(shown.lines().skip(24)), "{two}");
}

#[test]
fn a_device_is_found_by_what_exists_of_it() {
    let (sim, dir) = ended(CONTROL, SERVER);
    let uuid = dir.file_name().unwrap().to_str().unwrap();
    let shown = sim.run(&["logs", "0.0"]).ended(0).stdout;
    assert_eq!(sim.run(&["logs", uuid]).ended(0).stdout, shown);
    assert_eq!(sim.run(&["logs", &uuid[..12]]).ended(0).stdout, shown);
    // One that runs, and no driver that answers.
    let mut command = sim.command(&["logs", "0.2"]);
    let ran = Ran::of(command.env("MIG_MPS_NVML_LIBRARY", "/nonexistent")).ended(0);
    assert_contains(&ran.stdout, "Starting control daemon");
    // A name that the driver alone could tell, as of logs of mig-mps 0.3.
    fs::remove_file(dir.join("device-name")).unwrap();
    let mut command = sim.command(&["logs", "0.0"]);
    let ran = Ran::of(command.env("MIG_MPS_NVML_LIBRARY", "/nonexistent")).ended(2);
    assert_contains(&ran.stderr, "the driver does not report");
    let unknown = sim.run(&["logs", "nobody"]).ended(2);
    assert_snapshot!(plain(&unknown.stderr), @r#"
    error: no device has the name "nobody"
    hint: choose one of the devices: 0.0, 0.2
    "#);
    let mut command = sim.command(&["logs", "nobody"]);
    let ran = Ran::of(command.env("MIG_MPS_NVML_LIBRARY", "/nonexistent")).ended(2);
    assert_contains(
        &plain(&ran.stderr),
        "\nhint: choose one of the devices with logs: 0.2, MIG-…\n",
    );
    let ambiguous = sim.run(&["logs", "MIG-"]).ended(2);
    assert_contains(&ambiguous.stderr, "\"MIG-\" is ambiguous: 0.2 or MIG-");
}

#[test]
fn a_fault_and_what_clients_do_is_shown() {
    let sim = Sim::whole("");
    sim.app("0", &["run", "0", "--fault"]).finish();
    let ran = sim.run(&["logs", "0"]).ended(0);
    let marked = |mark: &str| -> Vec<&str> {
        let lines = ran.stdout.lines().filter(|line| line.starts_with(mark));
        lines.collect()
    };
    assert!(
        marked("!!")
            .iter()
            .any(|line| line.contains("Server is handling a fatal GPU error"))
    );
    assert!(
        marked("~ ")
            .iter()
            .any(|line| line.contains("valid credentials"))
    );
    let explained = "harmless: every start of a CUDA program leaves this line";
    assert_eq!(ran.stderr.matches(explained).count(), 1, "{}", ran.stderr);
    assert!(
        ran.stderr
            .trim_end()
            .ends_with("new ones are refused until all have exited")
    );
}

#[test]
fn following_survives_rotation_and_another_daemon_and_ends_with_ctrl_c() {
    let sim = Sim::small();
    let mut following = sim.talk(&["logs", "0.0", "-f"]);
    following.await_text("NEW SERVER");
    let first = sim.client("0.0");
    following.await_text(&format!("NEW CLIENT {}", first.pid()));
    // Put aside and truncated.
    let log = dir_of(&sim, "0.0").join("control.log");
    fill(&log, "filled");
    following.await_text("filled");
    sim.up(SMALL, &[]).ended(0);
    assert!(size(&log) < 1 << 20);
    let second = sim.client("0.0");
    following.await_text(&format!("NEW CLIENT {}", second.pid()));
    drop((first, second));
    // Another daemon.
    sim.kill_daemon("0.0");
    sim.up(SMALL, &["--yes"]).ended(0);
    following.await_text("Starting control daemon");
    following.signal(Signal::INT);
    following.end().ended(130);
}

/// As `logs -f | less` does, where somebody reads slowly: its pipe is full while the log is put aside.
#[test]
fn who_reads_slowly_misses_no_line_of_a_log_that_is_put_aside() {
    let sim = Sim::small();
    let log = dir_of(&sim, "0.0").join("control.log");
    let mut command = sim.command(&["logs", "0.0", "-f", "-n", "1", "--control"]);
    command.stderr(Stdio::null());
    let mut following = App::start(command);
    following.wait_up();
    let numbers = 0..(9 << 10);
    let mut lines = Vec::new();
    for number in numbers.clone() {
        let text = "x".repeat(1000);
        let head = "[2026-11-20 17:34:04.858 Control   447]";
        writeln!(lines, "{head} {number} {text}").unwrap();
    }
    let mut file = OpenOptions::new().append(true).open(&log).unwrap();
    file.write_all(&lines).unwrap();
    let mut next_is = |text: &str| assert_contains(&following.wait_up(), text);
    next_is(" 0 xxx");
    sim.up(SMALL, &[]).ended(0);
    assert!(size(&log) < 1 << 20);
    let client = sim.client("0.0");
    for number in numbers.skip(1) {
        next_is(&format!(" {number} xxx"));
    }
    // `up` has a session before.
    let pid = format!("NEW CLIENT {}", client.pid());
    let mut lines = std::iter::repeat_with(|| following.wait_up()).take(20);
    assert!(lines.any(|line| line.contains(&pid)));
}

#[test]
fn following_ends_with_its_reader_and_with_the_directory() {
    let (sim, dir) = ended(CONTROL, SERVER);
    let mut command = sim.command(&["logs", "0.0", "-f", "-n", "1"]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut following = command.spawn().unwrap();
    let mut reader = BufReader::new(following.stdout.take().unwrap());
    reader.read_line(&mut String::new()).unwrap();
    drop(reader);
    assert_eq!(following.wait().unwrap().code(), Some(0));

    let mut following = sim.talk(&["logs", "0.0", "-f", "--json"]);
    following.await_text("goes on from it");
    fs::remove_dir_all(dir).unwrap();
    following.end().ended(1);
}

/// The user who owns the directory may put anything there.
#[test]
fn nothing_that_is_planted_hurts_who_reads() {
    let (sim, dir) = ended(CONTROL, SERVER);
    let control = dir.join("control.log");
    let server = dir.join("server.log");
    let secret = sim.node.dir().join("secret");
    fs::write(&secret, "a secret\n").unwrap();
    fs::remove_file(&control).unwrap();
    symlink(&secret, &control).unwrap();
    let ran = sim.run(&["logs", "0.0"]).ended(0);
    assert!(!ran.stdout.contains("secret") && ran.stdout.contains("fatal GPU error"));
    assert_contains(
        &ran.stderr,
        "control.log: it is a symbolic link, which mig-mps does not follow",
    );

    fs::remove_file(&server).unwrap();
    shell(format!("mkfifo {}", server.display())).ended(0);
    let ran = sim.run(&["logs", "0.0"]).ended(1);
    assert_contains(&ran.stderr, "server.log: it is not a regular file");

    // An older part that is a link, and a line that would clear the screen and draw another one.
    fs::remove_file(&control).unwrap();
    fs::remove_file(&server).unwrap();
    let head = "[2026-11-20 17:34:04.858 Con\u{1b}]0;trol   447]";
    fs::write(
        &control,
        format!("{head} \u{1b}[2J\u{1b}[1;1Hall is well\r\u{8}\u{9b}2J\u{202e}\n"),
    )
    .unwrap();
    symlink(&secret, dir.join("control.log.1")).unwrap();
    let ran = sim.run(&["logs", "0.0"]).ended(0);
    assert_snapshot!(ran.stdout, @r"                           control          [2026-11-20 17:34:04.858 Con\x1b]0;trol   447] \x1b[2J\x1b[1;1Hall is well\x0d\x08\u{9b}2J\u{202e}");
    assert_contains(
        &ran.stderr,
        "control.log.1: it is a symbolic link, which mig-mps does not follow",
    );
    let terminal = sim.in_terminal("NO_COLOR=1", "logs 0.0", 80).stdout;
    assert!(!terminal.contains('\u{1b}'), "{terminal}");

    // Files without end, of nothing and of nothing but lines.
    fs::File::create(&control)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    let ran = sim.run(&["logs", "0.0", "-n", "5"]).ended(0);
    assert_contains(&ran.stderr, "control.log has more than is read at once");
    fs::write(&server, "\n".repeat(8 << 20)).unwrap();
    let ran = sim.run(&["logs", "0.0", "--server", "-n", "all"]).ended(0);
    assert!(ran.stdout.lines().count() < 2_000_000);
    assert_contains(&ran.stderr, "server.log has more than is read at once");
}

/// A line that is too long to be shown is not said to be nothing.
#[test]
fn a_log_in_which_no_line_ends_is_not_said_to_be_empty() {
    let (sim, dir) = ended("", "");
    let server = dir.join("server.log");
    let file = OpenOptions::new().write(true).open(&server).unwrap();
    file.set_len(300 << 20).unwrap();
    let ran = sim.run(&["logs", "0.0"]).ended(0);
    assert_snapshot!(plain(&format!("{}{}", ran.stdout, ran.stderr)), @"note: older lines are left out: server.log has more than is read at once, and no whole line in that");
}

/// A daemon's line, and one of the server's, in the middle of sessions.
#[test]
fn what_stands_between_the_lines_of_a_session_is_shown() {
    let control = "\
[2026-11-20 17:45:48.100 Control   689] NEW UI
[2026-11-20 17:45:48.110 Control   689] Cmd:get_server_list
[2026-11-20 17:45:48.120 Control   689] 696
[2026-11-20 17:45:48.130 Control   689] Cmd:get_server_status 696
[2026-11-20 17:45:48.140 Control   689] FAULT
[2026-11-20 17:45:48.150 Control   689] Cmd:get_default_active_thread_percentage
[2026-11-20 17:45:48.160 Control   689] 100.0
[2026-11-20 17:45:48.170 Control   689] UI closed
[2026-11-20 17:45:49.100 Control   689] NEW UI
[2026-11-20 17:45:49.120 Control   689] Cmd:get_server_list
[2026-11-20 17:45:49.140 Control   689] 696
[2026-11-20 17:45:49.150 Control   689] UI closed
[2026-11-20 17:50:00.000 Control   689] NEW UI
[2026-11-20 17:50:01.000 Control   689] Cmd:get_server_list
[2026-11-20 17:50:01.000 Control   689] 696
[2026-11-20 17:51:00.000 Control   689] NEW CLIENT 777 from user 0: Server already exists
[2026-11-20 17:52:00.000 Control   689] Cmd:set_default_active_thread_percentage 30
[2026-11-20 17:52:00.000 Control   689] UI closed
";
    let server = "\
[2026-11-20 17:45:49.110 Server   696] Server is handling a fatal GPU error.
[2026-11-20 17:45:49.130 Server   696] A line of a driver to come
";
    let (sim, _) = ended(control, server);
    let ran = sim.run(&["logs", "0.0"]).ended(0);
    assert_snapshot!(ran.stdout, @"
    !! 2026-11-20 17:45:48.140 control     689  FAULT
    !! 2026-11-20 17:45:49.110 server      696  Server is handling a fatal GPU error.
       2026-11-20 17:45:49.130 server      696  A line of a driver to come
       2026-11-20 17:51:00.000 control     689  NEW CLIENT 777 from user 0: Server already exists
       2026-11-20 17:52:00.000 control     689  Cmd:set_default_active_thread_percentage 30
    ");
}

/// So may the user who owns a run directory, and root reads every user's.
#[test]
fn no_name_of_a_directory_steers_the_terminal() {
    let (sim, _) = ended(CONTROL, SERVER);
    for planted in [
        sim.node.run_dir().join("\u{1b}[2J"),
        sim.node.log_dir().join("MIG-\u{1b}[2J"),
    ] {
        fs::create_dir(&planted).unwrap();
        fs::write(planted.join("device.json"), "{}").unwrap();
    }
    for args in [&["logs", "nobody"][..], &["logs", "0.0"], &["status"]] {
        let ran = sim.run(args);
        let all = format!("{}{}", ran.stdout, ran.stderr);
        assert_contains(&all, "device.json");
        assert!(!all.contains('\u{1b}'), "{all}");
    }
}

#[test]
fn what_a_plain_user_may_not_read_is_said() {
    needs_root!();
    let sim = Sim::small();
    let dir = dir_of(&sim, "0.0");
    let logs = || {
        let mut command = sim.by_nobody(&["logs", "0.0"]);
        command.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
        Ran::of(command.env("MIG_MPS_LOG_DIR", sim.node.log_dir()))
    };
    assert_contains(&logs().ended(0).stdout, "NEW SERVER");
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&dir.join("server.log"), 0o600);
    let ran = logs().ended(0);
    assert_contains(&ran.stdout, "NEW SERVER");
    assert_contains(&ran.stderr, "server.log: Permission denied");
    mode(&dir, 0o700);
    let ran = logs().ended(1);
    assert_contains(&ran.stderr, "cannot read the logs: ");
    assert_contains(&ran.stderr, "Permission denied");
}

#[test]
fn up_puts_large_logs_aside_and_the_daemon_writes_on() {
    let sim = Sim::small();
    let dir = dir_of(&sim, "0.0");
    let control = dir.join("control.log");
    let older = |number: u32| dir.join(format!("control.log.{number}"));
    let neighbour = dir_of(&sim, "0.2");
    let foreign = sim.node.log_dir().join("GPU-not-ours");
    fs::create_dir(&foreign).unwrap();
    fs::write(foreign.join("control.log"), "").unwrap();
    fill(&foreign.join("control.log"), "foreign");
    for round in 1..=5 {
        fill(&control, &format!("round {round}"));
        let ran = sim.up(SMALL, &[]).ended(0);
        // Nothing was done that is worth a word.
        assert_eq!(ran.stderr, "Nothing to do: the node matches the profile.\n");
        assert!(size(&control) < 1 << 20);
        assert_eq!(older(round).exists(), round <= 3);
        let before = size(&control);
        let client = sim.client("0.0");
        assert!(client.finish().status.success());
        assert!(size(&control) > before);
        let text = fs::read(&control).unwrap();
        assert!(!text.contains(&0), "it goes on where it was before");
    }
    assert_contains(&fs::read_to_string(older(3)).unwrap(), "round 3");
    let meta = |path: &Path| {
        let meta = fs::metadata(path).unwrap();
        (meta.uid(), meta.gid(), meta.mode())
    };
    assert_eq!(meta(&older(1)), meta(&control));
    assert!(!neighbour.join("control.log.1").exists());
    assert!(size(&foreign.join("control.log")) > 8 << 20);
    let shown = sim.run(&["logs", "0.0"]).ended(0).stdout;
    let rounds: Vec<bool> = (1..=5)
        .map(|round| shown.contains(&format!("round {round}")))
        .collect();
    assert_eq!(rounds, [false, false, true, true, true]);
    // A dry run leaves them where they are, and so they are put aside where there is something to do.
    let server = neighbour.join("server.log");
    fill(&server, "server");
    sim.up(SMALL, &["--dry-run"]).ended(0);
    assert!(size(&server) > 8 << 20);
    sim.run(&["down", "0.0"]).ended(0);
    sim.up(SMALL, &[]).ended(0);
    assert!(size(&server) < 1 << 20);
}

/// Only so much of a log is kept as is ever copied, and that is said.
#[test]
fn what_is_left_out_of_a_very_large_log_is_said() {
    let sim = Sim::small();
    let dir = dir_of(&sim, "0.0");
    let server = dir.join("server.log");
    for _ in 0..9 {
        fill(&server, "large");
    }
    let ran = sim.up(SMALL, &[]).ended(0);
    assert_snapshot!(plain(&ran.stderr.replace(sim.node.log_dir().to_str().unwrap(), "LOGS")), @"
    Nothing to do: the node matches the profile.
    note: LOGS/MIG-…/server.log had 81 MiB; only its last 32 MiB were kept, in server.log.1
    ");
    let kept = fs::read_to_string(dir.join("server.log.1")).unwrap();
    assert!(kept.starts_with("[2026"), "{}", &kept[..80]);
    assert!(kept.len() > 31 << 20);
    assert!(size(&server) < 1 << 20);
}

/// Anything in the way of the older parts is called by its own name, and stays. An unfinished copy has another name then.
#[test]
fn what_is_in_the_way_of_a_rotation_is_named() {
    let sim = Sim::small();
    let dir = dir_of(&sim, "0.0");
    fs::write(dir.join("server.log.2"), "").unwrap();
    for planted in ["server.log.3", "server.log.new"] {
        fs::create_dir(dir.join(planted)).unwrap();
        // What holds nothing is removed.
        fs::write(dir.join(planted).join("file"), "").unwrap();
    }
    fill(&dir.join("server.log"), "large");
    let said = sim.up(SMALL, &[]).ended(0).stderr;
    assert!(size(&dir.join("server.log")) > 8 << 20);
    assert_snapshot!(plain(&said.replace(sim.node.log_dir().to_str().unwrap(), "LOGS")), @"
    Nothing to do: the node matches the profile.
    note: a log could not be moved: cannot rename LOGS/MIG-…/server.log.2 to LOGS/MIG-…/server.log.3: Is a directory
    ");
    fs::remove_dir_all(dir.join("server.log.3")).unwrap();
    sim.up(SMALL, &[]).ended(0);
    assert!(size(&dir.join("server.log")) < 1 << 20);
    assert!(dir.join("server.log.new/file").exists());
}

/// A lock that somebody holds keeps neither `logs` from reading nor `up` from having nothing to do.
#[test]
fn nobody_waits_for_the_lock() {
    let sim = Sim::small();
    let control = dir_of(&sim, "0.0").join("control.log");
    fill(&control, "large");
    let lock = fs::File::open(sim.node.run_dir().join("lock")).unwrap();
    lock.lock().unwrap();
    assert_contains(&sim.run(&["logs", "0.0"]).ended(0).stdout, "large");
    let ran = sim.up(SMALL, &[]).ended(0);
    assert_contains(&ran.stderr, "large logs could not be moved");
    assert!(size(&control) > 8 << 20);
    lock.unlock().unwrap();
    assert!(!sim.up(SMALL, &[]).ended(0).stderr.contains("put aside"));
    assert!(size(&control) < 1 << 20);
}

/// Anything the owner of a log directory puts in a log's place is left alone, and `up` says so and does the rest.
#[test]
fn up_does_not_touch_what_was_planted() {
    needs_root!();
    let sim = Sim::small();
    let dir = dir_of(&sim, "0.0");
    let control = dir.join("control.log");
    let target = sim.node.dir().join("target");
    let plant: [(&str, &dyn Fn()); 4] = [
        ("it is a symbolic link", &|| {
            symlink(&target, &control).unwrap();
        }),
        ("it is not a regular file", &|| {
            shell(format!("mkfifo {}", control.display())).ended(0);
        }),
        ("it has other names", &|| {
            fs::hard_link(&target, &control).unwrap();
        }),
        ("it does not belong to the owner of its directory", &|| {
            fs::copy(&target, &control).unwrap();
            chown(&control, Some(NOBODY), None).unwrap();
        }),
    ];
    for (why, plant) in plant {
        fs::write(&target, "").unwrap();
        fill(&target, "a treasure");
        let before = fs::read(&target).unwrap();
        let _ = fs::remove_file(&control);
        plant();
        fill(&dir.join("server.log"), "server");
        let ran = sim.up(SMALL, &[]).ended(0);
        assert!(ran.stderr.contains(why), "{why}: {}", ran.stderr);
        assert_contains(&ran.stdout, "ready");
        assert_eq!(fs::read(&target).unwrap(), before, "{why}");
        assert!(!dir.join("control.log.1").exists(), "{why}");
        assert!(size(&dir.join("server.log")) < 1 << 20, "{why}");
    }
}

/// The name stays when the device and its record are gone; one that several devices had means the last.
#[test]
fn the_logs_of_a_device_that_is_gone_are_found_by_its_name() {
    let sim = Sim::small();
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let ran = sim.run(&["logs", "0.2"]).ended(0);
    assert!(!ran.stdout.is_empty());
    let unknown = sim.run(&["logs", "nope"]).ended(2);
    assert_eq!(
        unknown.stderr,
        "error: no device has the name \"nope\"; this node has no devices\nhint: run `mig-mps up PROFILE` to create devices, or `mig-mps doctor` to find out why a device is not visible\nhint: run `mig-mps logs` with one of the deleted devices whose logs are kept: 0.0, 0.2\n"
    );
    sim.up(testkit::ONE_EACH, &["--yes"]).ended(0);
    let newest = dir_of(&sim, "0.0");
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    let mut log = OpenOptions::new()
        .append(true)
        .open(newest.join("control.log"))
        .unwrap();
    writeln!(log, "[2026-11-27 12:00:00.000 Control   447] the newest").unwrap();
    let ran = sim.run(&["logs", "0.0", "--sessions"]).ended(0);
    assert_contains(&ran.stdout, "the newest");
    // Purged with the logs.
    sim.run(&["down", "--purge", "--yes"]).ended(0);
    sim.run(&["logs", "0.0"]).ended(2);
}
