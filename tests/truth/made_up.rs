//! The judge refuses what was not true: a made-up history, a true report of it, and lies.

use serde_json::{Value, json};
use simnode::node::Event;

use crate::truth::history::{History, did};
use crate::truth::judge::Report;
use crate::truth::span::Time;

const DEVICE: &str = "MIG-a";

/// `up` at 100 to 200 starts daemon 10 and server 20; client 30 comes at 300 and goes at 600, 31 comes at 400 and
/// faults at 450; the fault is over at 700. At 800 the percentage is 50. The daemon is killed at 900; `down` takes the
/// record away at 1000 to 1100.
fn history() -> History {
    history_with(&[])
}

/// The same with more that happened.
fn history_with(more: &[(Time, u32, &str, Value)]) -> History {
    let start = json!({ "directory": format!("/run/{DEVICE}/pipe"), "multiuser": false });
    let of_client = |client: u32| json!({ "server": 20, "client": client });
    let server = json!({ "server": 20 });
    let events = [
        (
            100,
            1,
            did::BEGINS,
            json!({ "number": 1, "command": "up", "devices": [] }),
        ),
        (110, 10, "daemon start", start),
        (120, 10, "server launch", json!({ "uid": 0 })),
        (125, 10, "server start", server.clone()),
        (130, 20, "server comes up", server.clone()),
        (135, 10, "server ready", server.clone()),
        (200, 1, did::ENDS, json!({ "number": 1, "status": 0 })),
        (300, 20, "client admitted", of_client(30)),
        (310, 30, "client start", json!({})),
        (400, 20, "client admitted", of_client(31)),
        (410, 31, "client start", json!({})),
        (450, 20, "server fault", of_client(31)),
        (590, 30, "client leaves", json!({})),
        (600, 20, "client left", of_client(30)),
        (680, 31, "client leaves", json!({})),
        (700, 20, "server recovers", server.clone()),
        (701, 20, "client left", of_client(31)),
        (
            800,
            10,
            "set_default_active_thread_percentage",
            json!({ "answer": ["50.0"] }),
        ),
        (900, 1, did::KILLS, json!({ "pid": 10 })),
        (910, 1, did::GONE, json!({ "pid": 10 })),
        (
            1000,
            1,
            did::BEGINS,
            json!({ "number": 2, "command": "down", "devices": [] }),
        ),
        (1100, 1, did::ENDS, json!({ "number": 2, "status": 0 })),
    ];
    let events = events.iter().chain(more);
    let events = events.map(|(time, pid, what, detail)| Event {
        time: *time,
        pid: *pid,
        what: (*what).to_owned(),
        detail: detail.clone(),
    });
    History::of(&events.collect::<Vec<_>>())
}

/// A report of the device with those clients.
fn report(begin: Time, end: Time, state: &str, clients: &[u32]) -> Report {
    let clients = clients
        .iter()
        .map(|pid| json!({ "device": "a", "pid": pid }));
    let clients: Vec<Value> = clients.collect();
    let percentage = if begin < 800 { 100.0 } else { 50.0 };
    let row = json!({
        "name": "a", "uuid": DEVICE, "state": state, "daemon_pid": 10, "servers": [{ "pid": 20 }],
        "client_count": clients.len(), "active_thread_percentage": percentage,
        "answered_active_thread_percentage": percentage,
    });
    let said = json!({
        "devices": [row], "clients": clients, "waiting": [], "outside_mps": [], "unmanaged": [], "problems": [],
        "degraded": false,
    });
    Report {
        begin,
        end,
        is_plain: false,
        said,
    }
}

/// The same, of a device without a living daemon.
fn nobody(begin: Time, end: Time, state: &str) -> Report {
    let mut report = report(begin, end, state, &[]);
    for key in [
        "daemon_pid",
        "servers",
        "client_count",
        "answered_active_thread_percentage",
    ] {
        report.said["devices"][0][key] = Value::Null;
    }
    report
}

/// The same with something else in place of a value.
fn with(mut report: Report, place: &str, value: Value) -> Report {
    *report.said.pointer_mut(place).unwrap() = value;
    report
}

fn with_problem(report: Report, id: &str) -> Report {
    let problems = json!([{ "device": "a", "id": id }]);
    with(
        with(report, "/problems", problems),
        "/degraded",
        json!(true),
    )
}

#[test]
fn what_was_true_is_accepted() {
    let history = history();
    let none: &[&str] = &[];
    for report in [
        report(210, 220, "ready", &[]),
        report(305, 306, "ready", &[]),
        report(305, 306, "ready", &[30]),
        report(420, 430, "ready", &[30, 31]),
        report(440, 460, "ready", &[30, 31]),
        with_problem(report(440, 460, "fault", &[30, 31]), "gpu-fault"),
        report(605, 610, "fault", &[31]),
        report(710, 720, "ready", &[]),
        report(820, 830, "ready", &[]),
        with_problem(nobody(920, 930, "dead"), "daemon-dead"),
        nobody(105, 106, "starting"),
        nobody(1050, 1060, "no daemon"),
        nobody(1200, 1300, "no daemon"),
        nobody(50, 60, "no daemon"),
    ] {
        assert_eq!(history.judge(&report), none, "{report:?}");
    }
}

#[test]
fn what_was_not_true_is_refused() {
    let history = history();
    let right = || report(420, 430, "ready", &[30, 31]);
    let of_device = |key: &str| format!("/devices/0/{key}");
    for lie in [
        // States.
        report(460, 470, "ready", &[30, 31]),
        report(420, 430, "fault", &[30, 31]),
        report(705, 720, "fault", &[]),
        report(420, 430, "starting", &[30, 31]),
        report(420, 430, "busy", &[30, 31]),
        report(420, 430, "no answer", &[30, 31]),
        report(420, 430, "hidden", &[30, 31]),
        report(420, 430, "orphan", &[30, 31]),
        report(420, 430, "no device", &[30, 31]),
        report(420, 430, "no server yet", &[30, 31]),
        report(420, 430, "drowsy", &[30, 31]),
        report(920, 930, "ready", &[]),
        nobody(420, 430, "dead"),
        nobody(420, 430, "no daemon"),
        nobody(920, 930, "no daemon"),
        nobody(1200, 1300, "dead"),
        nobody(50, 60, "dead"),
        nobody(105, 106, "dead"),
        nobody(210, 220, "starting"),
        // Who is there.
        with(right(), &of_device("daemon_pid"), json!(11)),
        with(right(), &of_device("servers"), json!([{ "pid": 21 }])),
        with(right(), &of_device("servers"), json!([])),
        with(right(), &of_device("servers"), Value::Null),
        with(right(), &of_device("client_count"), Value::Null),
        with(right(), &of_device("client_count"), json!(1)),
        with(right(), "/clients/0/device", json!("b")),
        with(right(), "/devices", json!([])),
        report(420, 430, "ready", &[30]),
        report(420, 430, "ready", &[30, 31, 32]),
        report(320, 330, "ready", &[]),
        report(610, 620, "fault", &[30, 31]),
        // Each was there at some moment of the run, and never without the other.
        report(415, 440, "ready", &[31]),
        // One of the two was true before the fault, the other after it, and both at no moment.
        report(440, 620, "ready", &[31]),
        // Values.
        with(
            right(),
            &of_device("answered_active_thread_percentage"),
            json!(50.0),
        ),
        with(right(), &of_device("active_thread_percentage"), json!(50.0)),
        with(
            report(820, 830, "ready", &[]),
            &of_device("active_thread_percentage"),
            json!(100.0),
        ),
        // Problems.
        with_problem(right(), "daemon-dead"),
        with_problem(right(), "gpu-fault"),
        with_problem(right(), "device-gone"),
        with(right(), "/degraded", json!(true)),
        with(right(), "/unmanaged", json!([{ "pid": 10 }])),
        with(right(), "/outside_mps", json!([{ "pid": 30 }])),
        with(right(), "/waiting", json!([{ "device": "a", "pid": 30 }])),
    ] {
        assert!(!history.judge(&lie).is_empty(), "{lie:?}");
    }
}

/// A client comes at 210, the percentage is 70 at 250, and another client comes at 270.
#[test]
fn a_client_is_older_than_what_was_set_after_its_start() {
    let admitted = |client: u32| json!({ "server": 20, "client": client });
    let set = json!({ "answer": ["70.0"] });
    let history = history_with(&[
        (210, 20, "client admitted", admitted(40)),
        (250, 10, "set_default_active_thread_percentage", set),
        (270, 20, "client admitted", admitted(41)),
    ]);
    let said = |clients: &[u32], begin: Time, older: &str| {
        let mut report = report(begin, begin + 5, "ready", clients);
        let percentage = if begin < 250 { 100.0 } else { 70.0 };
        for key in [
            "active_thread_percentage",
            "answered_active_thread_percentage",
        ] {
            report.said["devices"][0][key] = json!(percentage);
        }
        let remark = json!({ "device": "a", "id": "older-clients", "what": older });
        report.said["remarks"] = json!([remark]);
        history.judge(&report)
    };
    let one = "pid 40 (root) keeps active-thread-percentage 100, with which it started; programs";
    assert_eq!(said(&[40, 41], 280, one), [""; 0]);
    for lie in [
        one.replace("40", "41"),
        "2 clients keep the settings with which they started: pid 40, 41; programs".to_owned(),
        "clients keep what they have".to_owned(),
    ] {
        assert_eq!(said(&[40, 41], 280, &lie).len(), 1, "{lie}");
    }
    assert_eq!(said(&[40], 220, one).len(), 1);
}
