//! A node on which something happens all the time, and watchers that run `status` meanwhile.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde_json::{Value, json};
use simnode::node::{Latency, processes};

use crate::truth::history::{History, did};
use crate::truth::judge::Report;
use crate::truth::span::Time;
use testkit::{Ran, Sim};

const PROFILE: &str = r#"
[[gpu]]
select = { index = [0] }
devices = [ { name = "two", profile = "2g" }, { name = "one", profile = "1g" } ]

[[gpu]]
select = { index = [1] }
mig = false
"#;

/// GPU 0 in as many devices as it takes.
const MANY: &str = r#"
[[gpu]]
select = { index = [0] }
devices = [ { name = "part-{n}", profile = "1g", count = 7 } ]

[[gpu]]
select = { index = [1] }
mig = false
"#;

/// The number of runs that are judged, at least. `TRUTH_RUNS=4000` is a soak of half an hour.
const RUNS: usize = 100;

/// The number of watchers at the same time; the last one is a plain user where that can be.
const WATCHERS: usize = 3;

#[test]
fn what_status_reports_was_true() {
    let sim = Sim::with("a100-80gb", 2);
    let watch = Watch::default();
    let wanted = std::env::var("TRUTH_RUNS").map_or(RUNS, |runs| runs.parse().unwrap());
    let mut runs = watched(&sim, &watch, wanted);
    runs.sort_by_key(|run| run.begin);
    let events = sim.node.events();
    let history = History::of(&events);
    let mut wrong = Vec::new();
    let mut seen = BTreeSet::new();
    println!("{} runs of status", runs.len());
    for (number, run) in runs.into_iter().enumerate() {
        let said: Value = match run.ran.status {
            0 | 3 => serde_json::from_str(&run.ran.stdout).unwrap(),
            status => {
                wrong.push(format!(
                    "run {number} ended with {status}: {}",
                    run.ran.stderr
                ));
                continue;
            }
        };
        if said["degraded"] != (run.ran.status == 3) {
            let (status, degraded) = (run.ran.status, &said["degraded"]);
            wrong.push(format!(
                "run {number} ended with {status}, degraded {degraded}"
            ));
        }
        let report = Report {
            begin: run.begin,
            end: run.end,
            is_plain: run.is_plain,
            said,
        };
        for row in report.said["devices"].as_array().unwrap() {
            seen.insert(row["state"].as_str().unwrap().to_owned());
        }
        let faults = history.judge(&report);
        if !faults.is_empty() {
            wrong.push(format!(
                "run {number}{} of {} ns from {}: {}; it said {}",
                if run.is_plain { " by nobody" } else { "" },
                run.end - run.begin,
                run.begin,
                faults.join("; "),
                report.said
            ));
        }
    }
    if !wrong.is_empty() {
        let kept = std::env::temp_dir().join(format!("truth-events-{}.jsonl", std::process::id()));
        let lines: Vec<String> = events
            .iter()
            .map(|event| json!(event).to_string())
            .collect();
        fs::write(&kept, lines.join("\n")).unwrap();
        panic!(
            "{}\nthe event log is kept in {}",
            wrong.join("\n"),
            kept.display()
        );
    }
    for state in [
        "ready",
        "no server yet",
        "fault",
        "no answer",
        "orphan",
        "dead",
        "stopped",
    ] {
        assert!(seen.contains(state), "nobody saw {state}: {seen:?}");
    }
}

/// Has things happen until there are so many runs of `status` beside them; returns those.
fn watched(sim: &Sim, watch: &Watch, wanted: usize) -> Vec<Run> {
    std::thread::scope(|scope| {
        let watchers: Vec<_> = (0..WATCHERS)
            .map(|number| {
                let is_plain = number + 1 == WATCHERS && rustix::process::geteuid().is_root();
                scope.spawn(move || watch.run_status(sim, is_plain))
            })
            .collect();
        let mut driver = Driver {
            sim,
            watch,
            scope,
            commands: 0,
        };
        // A failure must not leave the watchers looking on for ever.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for takes_time in [true, false].into_iter().cycle() {
                let node = sim.node.node();
                let latency = if takes_time {
                    Latency::H200R580
                } else {
                    Latency::None
                };
                node.update(|state| state.policy.latency = latency).unwrap();
                driver.cycle();
                if watch.runs() >= wanted && !takes_time {
                    break;
                }
            }
        }));
        watch.is_over.store(true, Ordering::SeqCst);
        let runs = watchers
            .into_iter()
            .flat_map(|watcher| watcher.join().unwrap());
        let runs: Vec<Run> = runs.collect();
        if let Err(panic) = done {
            // Their ends are waited for.
            processes::end_all(sim.node.dir(), Duration::from_secs(10));
            std::panic::resume_unwind(panic);
        }
        runs
    })
}

/// A run of `status`.
struct Run {
    begin: Time,
    end: Time,
    /// True if a plain user looked.
    is_plain: bool,
    ran: Ran,
}

/// The watchers.
#[derive(Default)]
struct Watch {
    is_over: AtomicBool,
    /// The number of runs that have begun.
    begun: AtomicUsize,
    /// The numbers of those that have ended.
    numbers: Mutex<BTreeSet<usize>>,
    news: Condvar,
}

impl Watch {
    fn run_status(&self, sim: &Sim, is_plain: bool) -> Vec<Run> {
        let args = ["status", "--json", "--exit-code"];
        let mut command = if is_plain {
            sim.by_nobody(&args)
        } else {
            sim.command(&args)
        };
        command.env("MIG_MPS_RUN_DIR", sim.node.run_dir());
        let mut runs = Vec::new();
        while !self.is_over.load(Ordering::SeqCst) {
            let number = self.begun.fetch_add(1, Ordering::SeqCst);
            let begin = now();
            let ran = Ran::of(&mut command);
            let end = now();
            runs.push(Run {
                begin,
                end,
                is_plain,
                ran,
            });
            let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
            numbers.insert(number);
            self.news.notify_all();
        }
        runs
    }

    /// Waits until somebody has seen the node as it is now.
    fn see(&self) {
        let next = self.begun.load(Ordering::SeqCst);
        let numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let unseen = |numbers: &mut BTreeSet<usize>| numbers.range(next..).next().is_none();
        let seen = self.news.wait_while(numbers, unseen);
        drop(seen.unwrap_or_else(PoisonError::into_inner));
    }

    fn runs(&self) -> usize {
        self.numbers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }
}

/// Programs that come and go.
struct Clients<'scope> {
    thread: std::thread::ScopedJoinHandle<'scope, ()>,
    is_over: Arc<AtomicBool>,
}

impl Clients<'_> {
    fn end(self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.thread.join().unwrap();
    }
}

/// Who makes things happen, and writes down what he does.
struct Driver<'scope, 'a> {
    sim: &'a Sim,
    watch: &'a Watch,
    scope: &'scope std::thread::Scope<'scope, 'a>,
    commands: u64,
}

impl<'scope> Driver<'scope, '_> {
    fn cycle(&mut self) {
        self.up();
        self.watch.see();
        let whole = self.device("1");
        let first = self.sim.client("two");
        let second = self.sim.client("two");
        self.mig_mps(&["set", "two", "active-thread-percentage=50"], &[]);
        let third = self.sim.client("1");
        self.watch.see();
        self.mig_mps(&["set", "1", "active-thread-percentage=25"], &[]);
        assert!(first.finish().status.success());
        self.note(did::KILLS, json!({ "pid": second.pid() }));
        let killed = second.pid().to_string();
        self.mig_mps(&["kill", "two", &killed, "--signal", "--yes"], &[]);
        drop(second);
        self.watch.see();

        // Clients come and go while other devices change, and while theirs does.
        let clients = self.come_and_go("two");
        self.restart("one");
        self.mig_mps(&["set", "two", "active-thread-percentage=70"], &[]);
        clients.end();
        self.watch.see();
        let client = self.sim.client("one");
        self.restart("one");
        self.restart("two");
        self.note(did::KILLS, json!({ "pid": client.pid() }));
        drop(client);
        self.watch.see();

        // A fault takes everybody with it.
        let mut faulty = self.sim.app("1", &["hold", "--fault"]);
        faulty.wait_up();
        self.watch.see();
        self.kill(faulty.pid());
        drop(faulty);
        third.finish();
        self.watch.see();

        // The server dies; the next client gets another.
        self.kill(pid(&whole["servers"][0]["pid"]));
        self.watch.see();
        let client = self.sim.client("1");
        self.watch.see();
        assert!(client.finish().status.success());

        // A daemon dies, and `up` starts it again.
        self.kill(pid(&self.device("two")["daemon_pid"]));
        self.watch.see();
        self.up();

        let daemon = pid(&self.device("two")["daemon_pid"]);
        self.note(did::STOPS, json!({ "pid": daemon }));
        signal(daemon, Signal::STOP);
        self.watch.see();
        signal(daemon, Signal::CONT);
        self.note(did::CONTINUES, json!({ "pid": daemon }));

        let one = self.device("one");
        let daemon = pid(&one["daemon_pid"]);
        self.note(did::REMOVES, json!({ "pid": daemon }));
        fs::remove_dir_all(Path::new(one["pipe_directory"].as_str().unwrap())).unwrap();
        self.note(did::REMOVED, json!({ "pid": daemon }));
        self.watch.see();
        let uuid = one["uuid"].as_str().unwrap();
        self.mig_mps(&["down", "one", "--force"], &[uuid]);

        // Another geometry takes a device away, and many daemons start and end together.
        let two = self.device("two");
        self.up_with(MANY, &[two["uuid"].as_str().unwrap()]);
        self.watch.see();
        self.mig_mps(&["down", "--destroy-mig", "--yes"], &[]);
        self.watch.see();
    }

    fn up(&mut self) {
        self.up_with(PROFILE, &[]);
    }

    /// Brings a profile up, which takes these devices away.
    fn up_with(&mut self, profile: &str, taken: &[&str]) {
        let path = self.sim.profile(profile);
        self.mig_mps(&["up", path.to_str().unwrap(), "--yes"], taken);
        let status = self.sim.status();
        for device in status["devices"].as_array().unwrap() {
            self.mourn(pid(&device["daemon_pid"]));
        }
    }

    fn restart(&mut self, name: &str) {
        self.mig_mps(&["restart", name, "--force", "--yes"], &[]);
        self.mourn(pid(&self.device(name)["daemon_pid"]));
    }

    /// Has programs join a device, one after the other, until it is asked to end.
    fn come_and_go(&self, name: &'static str) -> Clients<'scope> {
        let (sim, is_over) = (self.sim, Arc::new(AtomicBool::new(false)));
        let theirs = Arc::clone(&is_over);
        let thread = self.scope.spawn(move || {
            while !theirs.load(Ordering::SeqCst) {
                assert!(sim.client(name).finish().status.success());
            }
        });
        Clients { thread, is_over }
    }

    fn mig_mps(&mut self, args: &[&str], devices: &[&str]) {
        self.commands += 1;
        let number = self.commands;
        let begins = json!({ "number": number, "command": args[0], "devices": devices });
        self.note(did::BEGINS, begins);
        let ran = self.sim.run(args);
        self.note(did::ENDS, json!({ "number": number, "status": ran.status }));
        ran.ended(0);
    }

    fn device(&self, name: &str) -> Value {
        self.sim.device(name)
    }

    /// Kills a process and waits until it is gone; with a daemon goes its server.
    fn kill(&self, pid: u32) {
        let fd = pidfd_open(process(pid), PidfdFlags::empty()).unwrap();
        self.note(did::KILLS, json!({ "pid": pid }));
        signal(pid, Signal::KILL);
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        self.note(did::GONE, json!({ "pid": pid }));
    }

    /// Writes down when a process has ended.
    fn mourn(&self, pid: u32) {
        let fd = pidfd_open(process(pid), PidfdFlags::empty()).unwrap();
        let node = self.sim.node.node();
        self.scope.spawn(move || {
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
            node.event(did::GONE, json!({ "pid": pid }));
        });
    }

    fn note(&self, what: &str, detail: Value) {
        self.sim.node.node().event(what, detail);
    }
}

/// By the clock of the event log.
fn now() -> Time {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    now.as_nanos().try_into().unwrap()
}

fn pid(value: &Value) -> u32 {
    value.as_u64().unwrap().try_into().unwrap()
}

fn process(pid: u32) -> Pid {
    Pid::from_raw(pid.try_into().unwrap()).unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(process(pid), signal).unwrap();
}
