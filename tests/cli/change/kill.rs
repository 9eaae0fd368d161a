//! `kill`: a client's work ends, and nobody else's.

use std::fs;

use insta::assert_snapshot;
use regex::Regex;
use rustix::process::Signal;
use testkit::{
    Dialogue, Ran, Sim, assert_contains, is_alive, kill, needs_root, stop, user, wait_until, whole,
};

/// Everything it said; the processes have names, and so have the user and the directories of the node.
fn said(sim: &Sim, ran: &Ran, pids: &[(u32, &str)]) -> String {
    let directories = sim.node.dir().parent().unwrap().display().to_string();
    let mut text = format!("{}{}", ran.stdout, ran.stderr).replace(&directories, "/tmp/…");
    let user = user();
    let user = [(user.as_str(), r"\(|only |run it as ", "USER")];
    let pids: Vec<_> = pids
        .iter()
        .map(|(pid, name)| (pid.to_string(), *name))
        .collect();
    let pids = pids
        .iter()
        .map(|(pid, name)| (pid.as_str(), r"pid |kill (\S+ )?", *name));
    for (value, before, name) in pids.chain(user) {
        let at = Regex::new(&format!(r"(?<before>{before}){value}\b")).unwrap();
        text = at
            .replace_all(&text, format!("${{before}}{name}"))
            .into_owned();
    }
    text
}

/// Interrupts it now, before what waits for a guard goes on, and returns its output.
fn interrupted<T>(mut kill: Dialogue, held: T) -> Ran {
    let heard = "interrupted: stopping at the next safe point\n";
    kill.signal(Signal::INT);
    kill.await_text(heard);
    drop(held);
    let mut ran = kill.end().ended(130);
    // It may be said before or after what was done.
    ran.stdout = ran.stdout.replace(heard, "");
    ran
}

/// True if a process that is stopped has been sent SIGTERM.
fn was_sent_term(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
    let pending = u64::from_str_radix(pending.unwrap().trim(), 16).unwrap();
    pending >> (Signal::TERM.as_raw() - 1) & 1 == 1
}

#[test]
fn a_clients_work_is_ended_and_the_others_go_on() {
    let sim = Sim::small();
    let clients = [sim.client("0.2"), sim.client("0.2"), sim.client("0.2")];
    let neighbour = sim.client("0.0");
    let servers = sim.device("0.2")["servers"].clone();
    let [first, second, third] = clients;
    let pids = [(first.pid(), "FIRST"), (second.pid(), "SECOND")];
    let both = [first.pid().to_string(), second.pid().to_string()];
    let ran = sim
        .run(&["kill", "0.2", &both[0], &both[1], &both[0], "--yes"])
        .ended(0);
    assert_snapshot!(said(&sim, &ran, &pids), @"
    This ends the work of 2 clients:
      0.2: pid FIRST (USER, /tmp/…/node/bin/cuda-app hold)
      0.2: pid SECOND (USER, /tmp/…/node/bin/cuda-app hold)
    1 other client continues.
    0.2: pid FIRST: GPU work ended, process exited
    0.2: pid SECOND: GPU work ended, process exited
    ");
    for client in [first, second] {
        let ended = client.finish();
        assert_contains(&ended.output, "err 810");
    }
    let device = sim.device("0.2");
    assert_eq!(
        (&device["servers"], &device["client_count"]),
        (&servers, &1.into())
    );
    assert!(third.finish().status.success());
    assert!(neighbour.finish().status.success());
}

#[test]
fn a_process_that_takes_no_notice_is_sent_a_signal_if_asked() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let pid = client.pid().to_string();
    // It does not notice what becomes of its work.
    stop(client.pid());
    // It is still on the list: what was not read back is not said to be done.
    let ran = sim.run(&["kill", "0.2", &pid, "--yes"]).ended(1);
    assert_snapshot!(said(&sim, &ran, &[(client.pid(), "CLIENT")]), @"
    This ends the work of 1 client:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    error: device 0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
      cause: the server ended the client, but still lists it because the process has made no CUDA call since
    hint: add --signal to end the process; otherwise it leaves the list with its next CUDA call
    ");
    assert!(is_alive(client.pid()));
    let ran = sim
        .run(&["kill", "0.2", &pid, "--signal=kill", "--yes"])
        .ended(0);
    assert_snapshot!(said(&sim, &ran, &[(client.pid(), "CLIENT")]), @"
    This ends the work of 1 client and sends its process SIGKILL:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    0.2: pid CLIENT: GPU work ended, process exited after SIGKILL
    ");
    assert!(!is_alive(client.pid()));
    assert_eq!(sim.device("0.2")["client_count"], 0);
    assert_eq!(sim.device("0.2")["state"], "ready");
    // SIGTERM is what is sent where nothing else is said.
    let client = sim.client("0.2");
    let pid = client.pid().to_string();
    let ran = sim
        .run(&["kill", "0.2", &pid, "--signal", "--yes"])
        .ended(0);
    assert_contains(&ran.stderr, "process exited after SIGTERM");
    let unknown = sim.run(&["kill", "0.2", &pid, "--signal=HUP"]).ended(2);
    assert_contains(&unknown.stderr, "[possible values: TERM, KILL]");
}

#[test]
fn it_asks_first() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let pid = client.pid().to_string();
    let no = sim.answered(&format!("kill 0.2 {pid} --signal"), "\r");
    assert_eq!(no.status, 4, "{}", no.stdout);
    // The part that is drawn again with the answer is never wider than the terminal.
    let question =
        "This will end the work of 1 client on 0.2 and send its process SIGTERM.\nGo on? [y/N]";
    assert_contains(&no.stdout, question);
    assert_eq!(sim.device("0.2")["client_count"], 1);
    let yes = sim.answered(&format!("kill 0.2 {pid}"), "y\r").ended(0);
    assert_contains(&yes.stdout, "GPU work ended");
    assert!(client.finish().output.contains("err 810"));
    // One that ends while the question stands is no mistake.
    let client = sim.client("0.2");
    let mut kill = sim.dialogue(&format!("kill 0.2 {}", client.pid()));
    kill.await_text("Go on?");
    assert!(client.finish().status.success());
    wait_until("the client leaves", || {
        sim.device("0.2")["client_count"] == 0
    });
    kill.press("y\r");
    let late = kill.end().ended(0).stdout;
    assert_contains(&late, "no longer a client; nothing was done");
}

/// The flags of every changing command.
#[test]
fn it_can_be_tried_waited_for_and_read_by_programs() {
    let sim = Sim::small();
    let (client, other) = (sim.client("0.2"), sim.client("0.2"));
    let pid = client.pid().to_string();
    let names = [(client.pid(), "CLIENT"), (other.pid(), "OTHER")];
    let tried = sim.run(&["kill", "0.2", &pid, "--dry-run"]).ended(0);
    assert_snapshot!(said(&sim, &tried, &names), @"
    This ends the work of 1 client:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    1 other client continues.

    Plan: end the work of 1 client (1 client of root disrupted).
    ");
    let plan = sim.run(&["kill", "0.2", &pid, "--dry-run", "--json"]);
    let kill = &plan.ended(0).json()["plan"]["kill"];
    assert_eq!(kill["device"], "0.2");
    assert_eq!(kill["victims"][0]["pid"], client.pid());
    assert_eq!((&kill["signal"], &kill["others"]), (&().into(), &1.into()));
    // Without --force nobody is ended, however long it waits.
    let waited = sim
        .run(&["kill", "0.2", &pid, "--drain", "1", "--yes"])
        .ended(4);
    assert_snapshot!(said(&sim, &waited, &names), @"
    This ends the work of 1 client:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    1 other client continues.
    note: 1 client is still running:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    waiting up to 1 s more
    error: 1 client is still running:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    hint: use a longer --drain, or end the clients with --force
    ");
    assert_eq!(sim.device("0.2")["client_count"], 2);
    let ended = [
        "kill", "0.2", &pid, "--drain", "1", "--force", "--json", "--yes",
    ];
    let begun = std::time::Instant::now();
    let ended = sim.run(&ended).ended(0);
    assert!(begun.elapsed().as_secs() >= 1, "it has its second");
    let notes = ended.stderr.replace(&format!("pid {pid}"), "pid CLIENT");
    assert_snapshot!(notes, @"0.2: pid CLIENT: GPU work ended, process exited");
    let outcome = ended.json();
    assert_eq!(outcome["changed"], true);
    assert_eq!(outcome["plan"]["kill"]["victims"][0]["pid"], client.pid());
    let devices = outcome["status"]["devices"].as_array().unwrap();
    let device = devices.iter().find(|device| device["name"] == "0.2");
    assert_eq!(device.unwrap()["client_count"], 1);
    assert!(client.finish().output.contains("err 810"));
    // One that exits in the time that it has is left alone.
    let pid = other.pid().to_string();
    let mut kill = sim.talk(&["kill", "0.2", &pid, "--drain", "60", "--yes"]);
    kill.await_text("waiting up to");
    assert!(other.finish().status.success());
    let rest = kill.end().ended(0).stdout;
    assert_contains(&rest, "no longer a client; nothing was done");
}

#[test]
fn what_is_no_client_of_the_device_is_named_for_what_it_is() {
    let sim = Sim::small();
    let (client, other) = (sim.client("0.2"), sim.client("0.0"));
    let device = sim.device("0.2");
    let outside = sim.outside("0.2");
    let number = |value: &serde_json::Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let (daemon, server) = (
        number(&device["daemon_pid"]),
        number(&device["servers"][0]["pid"]),
    );
    let pids = [
        (client.pid(), "CLIENT"),
        (other.pid(), "OTHER"),
        (outside.pid(), "OUTSIDE"),
        (daemon, "DAEMON"),
        (server, "SERVER"),
        (std::process::id(), "TEST"),
    ];
    let mut all = String::new();
    for pid in [
        other.pid(),
        outside.pid(),
        daemon,
        server,
        std::process::id(),
    ] {
        // With one that could be ended: none is.
        let both = [client.pid().to_string(), pid.to_string()];
        let ran = sim
            .run(&["kill", "0.2", &both[0], &both[1], "--yes"])
            .ended(2);
        all += &said(&sim, &ran, &pids);
    }
    assert_snapshot!(all, @"
    error: pid OTHER is not a client of device 0.2: it is a client of device 0.0
    hint: run `mig-mps kill 0.0 OTHER`
    error: pid OUTSIDE is not a client of device 0.2: it computes on device 0.2 outside MPS, where no daemon can end its work
    hint: end the process itself with `kill OUTSIDE`
    error: pid DAEMON is not a client of device 0.2: it is the control daemon of device 0.2
    hint: run `mig-mps restart 0.2` to replace the daemon and its servers
    error: pid SERVER is not a client of device 0.2: it is the MPS server of device 0.2
    hint: run `mig-mps restart 0.2` to replace the daemon and its servers
    error: pid TEST is not a client of device 0.2
    hint: choose a client of device 0.2: pid CLIENT
    ");
    sim.run(&["kill", "0.9", "1"]).ended(2);
    sim.run(&["kill", "0.2"]).ended(2);
    sim.run(&["kill", "0.2", "0"]).ended(2);
    assert!(client.finish().status.success());
    assert!(other.finish().status.success());
    let none = sim.run(&["kill", "0.2", "1", "--yes"]).ended(2);
    assert_contains(&none.stderr, "device 0.2 has none");
}

#[test]
fn a_daemon_that_is_not_there_dead_busy_or_silent_is_reported() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let pid = client.pid().to_string();
    let ask = || sim.run(&["kill", "0.2", &pid, "--yes"]).ended(4).stderr;
    let mut all = String::new();
    let session = sim.session("0.2");
    all += &ask();
    let closed = sim.happened("session closed");
    drop(session);
    sim.await_event("session closed", closed + 1);
    let daemon = sim.device("0.2")["daemon_pid"].clone();
    stop(&daemon);
    all += &ask().replace(&daemon.to_string(), "PID");
    kill(&daemon);
    all += &ask();
    sim.run(&["down"]).ended(0);
    all += &ask();
    assert_snapshot!(all, @"
    error: the daemon of device 0.2 cannot be asked for its clients: another control session is open
    hint: wait until no other mig-mps waits for clients, and close any open session of nvidia-cuda-mps-control
    error: the daemon of device 0.2 cannot be asked for its clients: it is stopped by a signal
    hint: run `kill -CONT PID` to resume it, or `mig-mps restart 0.2 --force` to replace it
    error: the daemon of device 0.2 has died, and its clients get CUDA error 806
    hint: run `mig-mps restart 0.2` to start it again
    error: device 0.2 has no clients: mig-mps does not serve it
    hint: run `mig-mps status` to see who computes there; `kill PID` ends a program that is no client
    ");
    assert!(client.await_end().output.contains("err 806"));
}

#[test]
fn a_fault_beside_a_healthy_client_is_over_when_both_have_been_ended() {
    let sim = Sim::small();
    let healthy = sim.client("0.2");
    stop(healthy.pid());
    let mut faulty = sim.app("0.2", &["hold", "--fault"]);
    faulty.wait_up();
    sim.await_state("0.2", "fault");
    let pids = [healthy.pid(), faulty.pid()].map(|pid| pid.to_string());
    let text = sim.run(&["status"]).ended(0).stdout;
    let cure = format!(
        "run `mig-mps kill 0.2 {} {} --signal` to end them",
        pids[0], pids[1]
    );
    assert_contains(&text, &cure);
    let servers = sim.device("0.2")["servers"].clone();
    // A server in a fault answers no terminate_client before its clients have gone.
    let refused = sim.run(&["kill", "0.2", &pids[1], "--yes"]).ended(4).stderr;
    assert_snapshot!(refused, @"
    error: device 0.2 had a GPU fault: the work of the affected clients has ended, and it accepts programs again when their processes have exited
    hint: use --signal to end the processes
    ");
    let ran = sim
        .run(&["kill", "0.2", &pids[0], &pids[1], "--signal=KILL", "--yes"])
        .ended(0);
    let names = [(healthy.pid(), "HEALTHY"), (faulty.pid(), "FAULTY")];
    assert_snapshot!(said(&sim, &ran, &names), @"
    This sends SIGKILL to 2 processes:
      0.2: pid HEALTHY (USER, /tmp/…/node/bin/cuda-app hold)
      0.2: pid FAULTY (USER, /tmp/…/node/bin/cuda-app hold --fault)
    0.2 had a GPU fault: the work of the affected clients has ended, and it accepts programs again when all their processes have exited.
    0.2: pid HEALTHY: GPU work ended, process exited after SIGKILL
    0.2: pid FAULTY: GPU work ended, process exited after SIGKILL
    ");
    sim.await_state("0.2", "ready");
    assert_eq!(sim.device("0.2")["servers"], servers);
    assert!(sim.client("0.2").finish().status.success());
}

#[test]
fn a_server_that_refuses_is_quoted_and_the_client_goes_on() {
    let sim = Sim::small();
    let (first, second) = (sim.client("0.2"), sim.client("0.2"));
    sim.node.fault("terminate_client").fails(5).unwrap();
    let pids = [first.pid(), second.pid()].map(|pid| pid.to_string());
    let ran = sim
        .run(&["kill", "0.2", &pids[0], &pids[1], "--signal", "--yes"])
        .ended(1);
    assert_contains(
        &ran.stderr,
        "the control daemon was asked to \"terminate_client ",
    );
    // No signal without the server's word; and one that fails does not save the other.
    assert!(first.finish().status.success());
    assert!(!second.await_end().status.success());
}

#[test]
fn ctrl_c_in_between_leaves_the_rest_and_it_can_be_run_again() {
    let sim = Sim::small();
    let (first, second) = (sim.client("0.2"), sim.client("0.2"));
    let pids = [first.pid(), second.pid()].map(|pid| pid.to_string());
    let held = sim.node.fault("terminate_client").waits().unwrap();
    let kill = sim.talk(&["kill", "0.2", &pids[0], &pids[1], "--yes"]);
    sim.await_event("fault", 1);
    let ran = interrupted(kill, held);
    let names = [(first.pid(), "FIRST"), (second.pid(), "SECOND")];
    assert_snapshot!(said(&sim, &ran, &names), @"
    This ends the work of 2 clients:
      0.2: pid FIRST (USER, /tmp/…/node/bin/cuda-app hold)
      0.2: pid SECOND (USER, /tmp/…/node/bin/cuda-app hold)
    0.2: pid FIRST: GPU work ended, process exited
    error: interrupted
    not done: end the work of 0.2: pid SECOND (USER, /tmp/…/node/bin/cuda-app hold)
    ");
    assert!(first.finish().output.contains("err 810"));
    sim.run(&["kill", "0.2", &pids[1], "--yes"]).ended(0);
    assert!(second.finish().output.contains("err 810"));
}

/// Whatever it waits for when it is interrupted: what has been done until then is said, and nothing else.
#[test]
fn ctrl_c_in_a_wait_says_what_was_done() {
    let sim = Sim::small();
    let (client, other) = (sim.client("0.2"), sim.client("0.2"));
    let pids = [client.pid(), other.pid()].map(|pid| pid.to_string());
    let names = [(client.pid(), "CLIENT"), (other.pid(), "OTHER")];
    let kill = |pids: &[&str]| sim.talk(&[&["kill", "0.2"], pids, &["--yes"]].concat());
    // It takes no notice of anything.
    stop(client.pid());
    // For the server, which is busy with it.
    let held = sim.node.fault("terminate_client").waits().unwrap();
    let first = kill(&[&pids[0], &pids[1], "--signal"]);
    sim.await_event("fault", 1);
    assert_snapshot!(said(&sim, &interrupted(first, held), &names), @"
    This ends the work of 2 clients and sends their processes SIGTERM:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
      0.2: pid OTHER (USER, /tmp/…/node/bin/cuda-app hold)
    0.2: pid CLIENT: GPU work ended; process still running, because no signal was sent
    error: interrupted
    not done: end the work of 0.2: pid OTHER (USER, /tmp/…/node/bin/cuda-app hold)
    ");
    assert!(!was_sent_term(client.pid()));
    // For the process to take notice.
    let ended = sim.happened("terminate_client");
    let second = kill(&[&pids[0]]);
    sim.await_event("terminate_client", ended + 1);
    assert_snapshot!(said(&sim, &interrupted(second, ()), &names), @"
    This ends the work of 1 client:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    1 other client continues.
    0.2: pid CLIENT: GPU work ended; not waited for the process to exit, no signal sent
    error: interrupted
    ");
    // For its end.
    let third = kill(&[&pids[0], "--signal"]);
    wait_until("it is sent SIGTERM", || was_sent_term(client.pid()));
    assert_snapshot!(said(&sim, &interrupted(third, ()), &names), @"
    This ends the work of 1 client and sends its process SIGTERM:
      0.2: pid CLIENT (USER, /tmp/…/node/bin/cuda-app hold)
    1 other client continues.
    0.2: pid CLIENT: GPU work ended; process sent SIGTERM and still running when this command was interrupted
    error: interrupted
    ");
    assert!(other.finish().status.success());
}

/// A user who may use a device may call himself whatever he likes, and cannot push the plan out of the
/// administrator's sight with that.
#[test]
fn no_command_line_is_too_long_for_a_question() {
    let sim = Sim::small();
    let mut client = sim.app("0.2", &vec!["hold"; 24_000]);
    client.wait_up();
    let pid = client.pid().to_string();
    let empty =
        sim.profile("[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"7g\" } ]\n");
    let empty = empty.to_str().unwrap();
    let asked: [(&[&str], i32); 5] = [
        (&["kill", "0.2", &pid], 4),
        (&["restart", "0.2", "--force"], 4),
        (&["restart", "0.2"], 4),
        (&["up", empty, "--force"], 4),
        (&["plan", empty], 0),
    ];
    for (args, status) in asked {
        let ran = sim.run(args).ended(status);
        let all = format!("{}{}", ran.stdout, ran.stderr);
        let whose = all
            .lines()
            .find(|line| line.contains(&format!("pid {pid}")));
        let whose = whose.unwrap_or_else(|| panic!("{args:?}: {all}"));
        assert!(whose.ends_with("…)"), "{whose}");
        assert!(all.chars().count() < 2000, "{args:?}: {}", all.len());
    }
    // A program gets more, and never all of what a user may write.
    let plan = sim.run(&["plan", empty, "--json"]).ended(0).stdout;
    assert!((4_000..10_000).contains(&plan.len()), "{plan}");
    assert!(client.finish().status.success());
}

/// The end of the input is no answer, and nothing that is typed after it is one.
#[test]
fn ctrl_d_is_a_no() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let ran = sim.answered(&format!("kill 0.2 {}", client.pid()), "\u{4}y\r");
    let ran = ran.ended(4);
    assert_contains(&ran.stdout, "\nNothing was changed.");
    assert!(client.finish().status.success());
}

#[test]
fn clients_in_containers_are_explained() {
    let sim = Sim::small();
    let client = sim.client("0.2");
    let pid = client.pid();
    // A control program of a daemon that does not see its client's pid: it calls it 0.
    let script = format!("\"$real\" \"$@\" | /bin/sed -E 's/^{pid}$/0/'");
    let control = sim.control_script(&script);
    let path = format!("{}:/usr/bin:/bin", sim.node.dir().join("bin").display());
    let mut kill = sim.command(&["kill", "0.2", "17", "--yes"]);
    kill.env("MIG_MPS_CONTROL", &control).env("PATH", path);
    assert_snapshot!(Ran::of(&mut kill).ended(2).stderr, @"
    error: pid 17 is not a client of device 0.2
    hint: end them in their containers, or all clients with `mig-mps restart 0.2 --force`; the daemon does not see the pids of 1 of its clients
    ");
    assert!(client.finish().status.success());
}

/// Neither its user nor the driver makes it one.
#[test]
fn a_process_that_only_the_daemon_calls_a_client_is_sent_no_signal() {
    needs_root!();
    let sim = Sim::small();
    let client = sim.client("0.2");
    let stranger = sim.app_of_nobody("0.0", &["hold"]);
    sim.await_event("client waits", 1);
    let script = format!(
        "\"$real\" \"$@\" | /bin/sed -E 's/^{}$/{}/'",
        client.pid(),
        stranger.pid()
    );
    let control = sim.control_script(&script);
    let pid = stranger.pid().to_string();
    let mut kill = sim.command(&["kill", "0.2", &pid, "--yes", "--signal"]);
    let ran = Ran::of(kill.env("MIG_MPS_CONTROL", control)).ended(4);
    assert_contains(&ran.stderr, "the driver does not list it as a client");
    assert!(is_alive(stranger.pid()) && client.finish().status.success());
}

#[test]
fn users_end_their_own_clients_and_no_others() {
    needs_root!();
    let sim = Sim::whole("");
    let roots = sim.client("0");
    let mut waiting = sim.app_of_nobody("0", &["hold"]);
    sim.await_event("client waits", 1);
    let by_nobody =
        |pid: u32| Ran::of(&mut sim.by_other(&["kill", "0", &pid.to_string(), "--yes"]));
    let names = [(roots.pid(), "ROOTS"), (waiting.pid(), "WAITING")];
    // Root's server: a plain user sees its clients, and that is all.
    let mut all = said(&sim, &by_nobody(roots.pid()).ended(4), &names);
    // One that waits has nothing on the GPU.
    let wait = sim.run(&["kill", "0", &waiting.pid().to_string(), "--yes"]);
    all += &said(&sim, &wait.ended(4), &names);
    assert_snapshot!(all, @"
    error: not enough privilege to end a client of device 0: only USER may control its server
    hint: run it as USER: `sudo MIG_MPS_RUN_DIR=/tmp/…/run mig-mps kill 0 ROOTS --yes`
    error: pid WAITING is not a client of device 0 yet: it waits in cuInit until the programs of another user have exited, and uses nothing on the GPU
    hint: end the process itself with `kill WAITING`
    ");
    assert!(roots.finish().status.success());
    // The user's own server, though the daemon is root's.
    assert!(waiting.wait_up().ends_with("mps yes"));
    let ended = by_nobody(waiting.pid()).ended(0);
    assert_contains(&ended.stderr, "GPU work ended");
    assert!(waiting.finish().output.contains("err 810"));
    // A server for everybody is root's, no matter who its clients are.
    sim.up(&whole(r#"serve = "all""#), &["--yes"]).ended(0);
    let mut client = sim.app_of_nobody("0", &["hold"]);
    assert!(client.wait_up().ends_with("mps yes"));
    let pid = client.pid().to_string();
    for signal in [&[][..], &["--signal"]] {
        let words = [&["kill", "0", &pid, "--yes"], signal].concat();
        let refused = Ran::of(&mut sim.by_other(&words)).ended(4).stderr;
        assert_contains(&refused, "not enough privilege");
        let own = format!("hint: run `kill {pid}` to end it, because it is your own program\n");
        assert_contains(&refused, &own);
        assert!(!refused.contains("sudo"), "{refused}");
    }
    // Without a pid, those of other users are not listed.
    let others = sim.client("0");
    let refused = Ran::of(&mut sim.by_other(&["kill", "0"])).ended(2).stderr;
    let own = format!("hint: run `kill {pid}` to end your own program on device 0\n");
    assert_contains(&refused, &own);
    let of_root = others.pid().to_string();
    let refused = Ran::of(&mut sim.by_other(&["kill", &of_root]))
        .ended(2)
        .stderr;
    assert_contains(
        &refused,
        &format!("ask root to run `mig-mps kill 0 {of_root}`"),
    );
    assert!(others.finish().status.success());
    sim.run(&["kill", "0", &client.pid().to_string(), "--yes"])
        .ended(0);
    assert!(client.finish().output.contains("err 810"));
    let text = fs::read_to_string(sim.node.run_dir().join("lock"));
    assert!(text.is_ok(), "root's lock stays root's");
}

#[test]
fn a_user_in_the_place_of_a_pid_is_answered_with_the_pids() {
    let sim = Sim::small();
    let clients = [sim.client("0.2"), sim.client("0.2")];
    let refused = sim.run(&["kill", "0.2", &user()]).ended(2);
    let [command] = refused
        .stderr
        .lines()
        .filter_map(|line| line.strip_prefix("hint: run `mig-mps ")?.split_once('`'))
        .map(|(command, _)| command)
        .collect::<Vec<_>>()[..]
    else {
        panic!("{refused:?}");
    };
    let words: Vec<&str> = command.split(' ').chain(["--yes"]).collect();
    sim.run(&words).ended(0);
    assert_eq!(sim.device("0.2")["client_count"], 0);
    drop(clients);
}

/// Each device has a question of its own, so the commands for each are given.
#[test]
fn clients_of_several_devices_are_answered_with_a_command_for_each() {
    let sim = Sim::small();
    let clients = [sim.client("0.0"), sim.client("0.2"), sim.client("0.2")];
    let [first, second, third] = clients.each_ref().map(|client| client.pid().to_string());
    let words = ["kill", "--gpu", "0", &first, &second, &third];
    assert_eq!(
        sim.run(&words).ended(2).stderr,
        format!(
            "error: mig-mps kill ends clients of one device, and these are clients of several devices\n\
             hint: run `mig-mps kill 0.0 {first}` and `mig-mps kill 0.2 {second} {third}`\n"
        )
    );
    let refused = sim.run(&["kill", "0.*", &first, "1"]).ended(2).stderr;
    assert_contains(&refused, "error: none of 0.0, 0.2 has client 1\n");
    drop(clients);
}
