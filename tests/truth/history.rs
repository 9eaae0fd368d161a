//! The event log as what was true when, by device.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;
use simnode::node::Event;

use crate::truth::span::{Span, Time};

/// The words that the tests write into the log about what they do; `pid` is in the detail.
pub(crate) mod did {
    pub(crate) const BEGINS: &str = "mig-mps begins";
    pub(crate) const ENDS: &str = "mig-mps ends";
    pub(crate) const KILLS: &str = "test kills";
    pub(crate) const GONE: &str = "process gone";
    pub(crate) const STOPS: &str = "test stops";
    pub(crate) const CONTINUES: &str = "test continues";
    pub(crate) const REMOVES: &str = "test removes";
    pub(crate) const REMOVED: &str = "test removed";
}

/// Everything that happened to a node's devices, by their UUIDs.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) devices: BTreeMap<String, Device>,
    pub(crate) commands: Vec<Command>,
    /// When GPU 0, the only one that the test puts into MIG mode, was in it without a MIG device.
    pub(crate) unpartitioned: Vec<Span>,
}

/// A device that mig-mps has served.
#[derive(Debug, Default)]
pub(crate) struct Device {
    pub(crate) daemons: Vec<Daemon>,
    /// When mig-mps had a record of it.
    pub(crate) recorded: Vec<Span>,
}

#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) pid: u32,
    pub(crate) alive: Span,
    /// The `up` that started it.
    pub(crate) start: Span,
    pub(crate) servers: Vec<Server>,
    pub(crate) sessions: Vec<Span>,
    pub(crate) stopped: Vec<Span>,
    /// It lives, and its pipe directory is gone.
    pub(crate) orphaned: Option<Span>,
    /// The values that it was set to, and when.
    pub(crate) percentages: Vec<(Time, f64)>,
    /// The programs that wait for a server, and when.
    pub(crate) waiting: Vec<(u32, Span)>,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) pid: u32,
    pub(crate) alive: Span,
    pub(crate) ready: Option<Span>,
    pub(crate) faults: Vec<Span>,
    pub(crate) clients: Vec<(u32, Span)>,
}

/// A run of `mig-mps` that changes something, and the devices that it takes away.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) name: String,
    pub(crate) begin: Time,
    pub(crate) end: Time,
    pub(crate) devices: Vec<String>,
    pub(crate) status: i64,
}

/// The log, asked for the next line of a kind.
struct Log<'a>(&'a [Event]);

impl Log<'_> {
    fn first(&self, after: Time, what: &str, fits: impl Fn(&Event) -> bool) -> Option<Time> {
        let mut events = self.0.iter();
        let found = events.find(|event| event.time >= after && event.what == what && fits(event));
        found.map(|event| event.time)
    }

    /// About a process that the line is by, or names.
    fn of(&self, after: Time, what: &str, pid: u32) -> Option<Time> {
        self.first(after, what, |event| event.pid == pid)
    }

    fn naming(&self, after: Time, what: &str, key: &str, pid: u32) -> Option<Time> {
        self.first(after, what, |event| event.detail[key] == pid)
    }
}

impl History {
    pub(crate) fn of(events: &[Event]) -> Self {
        let mut events = events.to_vec();
        events.sort_by_key(|event| event.time);
        let log = Log(&events);
        let commands: Vec<Command> = events
            .iter()
            .filter(|event| event.what == did::BEGINS)
            .map(|event| Command::of(&log, event))
            .collect();
        let mut history = Self {
            commands,
            ..Self::default()
        };
        for event in events.iter().filter(|event| event.what == "daemon start") {
            let Some(uuid) = uuid(&event.detail["directory"]) else {
                continue;
            };
            let daemon = history.daemon(&log, event);
            let device = history.devices.entry(uuid).or_default();
            device.daemons.push(daemon);
        }
        history.unpartitioned = history.unpartitioned(&log);
        let commands = &history.commands;
        for (uuid, device) in &mut history.devices {
            device.recorded = device.recorded(uuid, commands);
        }
        history
    }

    /// The command under way at a moment, if any; the tests run one at a time.
    pub(crate) fn command_at(&self, time: Time) -> Option<&Command> {
        let mut commands = self.commands.iter();
        commands.find(|command| (command.begin..=command.end).contains(&time))
    }

    fn unpartitioned(&self, log: &Log<'_>) -> Vec<Span> {
        let changes = log.0.iter().filter(|event| {
            let of_mig = ["SetMigMode", "ComputeInstance", "GpuInstance"];
            let is_done = event.detail["gpu"] == 0 && event.detail["code"] == 0;
            is_done && of_mig.iter().any(|call| event.what.contains(call))
        });
        let mut spans: Vec<Span> = Vec::new();
        let mut is_empty = false;
        for event in changes {
            let instances = event.detail["now"].as_array().into_iter().flatten();
            let mut compute = instances.filter_map(|instance| instance["ci"].as_array());
            let was_empty = is_empty;
            is_empty = compute.all(Vec::is_empty);
            match (was_empty, is_empty) {
                (false, true) => {
                    let command = self.command_at(event.time);
                    let begin = command.map_or(event.time, |command| command.begin);
                    spans.push(Span {
                        from: (begin, event.time),
                        to: Span::NEVER_ENDS,
                    });
                }
                (true, false) => {
                    if let Some(span) = spans.last_mut() {
                        span.to = (event.time, event.time);
                    }
                }
                _ => {}
            }
        }
        spans
    }

    fn daemon(&self, log: &Log<'_>, start: &Event) -> Daemon {
        let pid = start.pid;
        let command = self.command_at(start.time);
        let begin = command.map_or(start.time, |command| command.begin);
        let gone = log.naming(start.time, did::GONE, "pid", pid);
        let leaves = [
            log.of(start.time, "daemon end", pid),
            log.naming(start.time, did::KILLS, "pid", pid),
        ];
        let leaves = leaves.into_iter().flatten().min().or_else(|| {
            // The last command has ended it; that it is gone may be noticed only after the command's end.
            let mut before = self.commands.iter();
            let last = before.rfind(|command| Some(command.begin) <= gone)?;
            Some(last.begin)
        });
        let alive = Span {
            from: (begin, start.time),
            to: (
                leaves.or(gone).unwrap_or(Time::MAX),
                gone.unwrap_or(Time::MAX),
            ),
        };
        let of_it = |what: &str| {
            let what = what.to_owned();
            log.0
                .iter()
                .filter(move |event| {
                    event.what == what && event.pid == pid && event.time <= alive.to.1
                })
                .collect::<Vec<_>>()
        };
        let end_of = |from: Time, what: &str, key: &str, pid: u32| {
            let end = log.naming(from, what, key, pid);
            end.map_or(alive.to, |end| (end, end))
        };
        let servers = of_it("server start").into_iter();
        let servers: Vec<Server> = servers.map(|event| Server::of(log, event, alive)).collect();
        let set = of_it("set_default_active_thread_percentage").into_iter();
        let set = set.filter_map(|event| {
            let answer = event.detail["answer"][0].as_str()?;
            Some((event.time, answer.parse().ok()?))
        });
        let waiting = of_it("client waits").into_iter().filter_map(|event| {
            let client = pid_in(event, "client")?;
            let admitted = log.naming(event.time, "client admitted", "client", client);
            let to = admitted.map_or(alive.to, |time| (event.time, time));
            let from = (event.time, event.time);
            Some((client, Span { from, to }))
        });
        let quits = of_it("quit").into_iter();
        let quits = quits.map(|event| Span {
            from: (event.time, event.time),
            to: alive.to,
        });
        let sessions = of_it("session open").into_iter().filter_map(|event| {
            let session = pid_in(event, "session")?;
            Some(Span {
                from: (event.time, event.time),
                to: end_of(event.time, "session closed", "session", session),
            })
        });
        let stops = log.0.iter().filter(|event| {
            event.what == did::STOPS && event.detail["pid"] == pid && event.time >= start.time
        });
        let stopped = stops.map(|event| {
            let goes_on = log.naming(event.time, did::CONTINUES, "pid", pid);
            Span {
                from: (event.time, event.time),
                to: (goes_on.unwrap_or(Time::MAX), goes_on.unwrap_or(Time::MAX)),
            }
        });
        let removal = log.naming(start.time, did::REMOVES, "pid", pid);
        let orphaned = removal.map(|from| Span {
            from: (
                from,
                log.naming(from, did::REMOVED, "pid", pid).unwrap_or(from),
            ),
            to: alive.to,
        });
        Daemon {
            pid,
            alive,
            start: Span {
                from: (begin, begin),
                to: command.map_or((start.time, start.time), |command| {
                    (command.end, command.end)
                }),
            },
            servers,
            sessions: sessions.chain(quits).collect(),
            stopped: stopped.collect(),
            orphaned,
            percentages: std::iter::once((start.time, 100.0)).chain(set).collect(),
            waiting: waiting.collect(),
        }
    }
}

impl Command {
    fn of(log: &Log<'_>, begins: &Event) -> Self {
        let number = &begins.detail["number"];
        let ends = log
            .0
            .iter()
            .find(|event| event.what == did::ENDS && event.detail["number"] == *number);
        let devices = begins.detail["devices"].as_array().into_iter().flatten();
        Self {
            name: begins.detail["command"]
                .as_str()
                .unwrap_or_default()
                .to_owned(),
            begin: begins.time,
            end: ends.map_or(Time::MAX, |event| event.time),
            devices: devices
                .filter_map(|uuid| Some(uuid.as_str()?.to_owned()))
                .collect(),
            status: ends.map_or(-1, |event| event.detail["status"].as_i64().unwrap_or(-1)),
        }
    }

    fn takes_away(&self, uuid: &str) -> bool {
        let named = self.devices.iter().any(|device| device == uuid);
        let all = self.name == "down" && self.devices.is_empty();
        self.status == 0 && (named || all)
    }
}

impl Device {
    /// From the `up` that started its daemon to the `down` that took it away.
    fn recorded(&self, uuid: &str, commands: &[Command]) -> Vec<Span> {
        let mut spans: Vec<Span> = Vec::new();
        for daemon in &self.daemons {
            let (begin, end) = (daemon.start.from.0, daemon.start.to.1);
            // One that is started again has been recorded all the time.
            if spans.last().is_some_and(|last| last.to.0 > begin) {
                continue;
            }
            let down = commands
                .iter()
                .find(|command| command.begin >= end && command.takes_away(uuid));
            spans.push(Span {
                from: (begin, end),
                to: down.map_or(Span::NEVER_ENDS, |down| (down.begin, down.end)),
            });
        }
        spans
    }
}

impl Server {
    fn of(log: &Log<'_>, start: &Event, daemon: Span) -> Self {
        let pid = pid_in(start, "server").unwrap_or_default();
        let launched = log.0.iter().rev().find(|event| {
            event.time <= start.time && event.what == "server launch" && event.pid == start.pid
        });
        let first = |what: &[(&str, &str)]| {
            let times = what
                .iter()
                .filter_map(|(what, key)| log.naming(start.time, what, key, pid));
            times.min()
        };
        let leaves = first(&[("server leaves", "server"), (did::KILLS, "pid")]);
        let end = first(&[("server end", "server"), (did::GONE, "pid")]);
        let gone = end.unwrap_or(Time::MAX).min(daemon.to.1);
        let alive = Span {
            from: (launched.map_or(start.time, |event| event.time), start.time),
            to: (leaves.unwrap_or(gone).min(daemon.to.0).min(gone), gone),
        };
        let up = log.naming(start.time, "server ready", "server", pid);
        let ready = up.map(|ready| Span {
            from: (
                log.naming(start.time, "server comes up", "server", pid)
                    .unwrap_or(ready),
                ready,
            ),
            to: alive.to,
        });
        let mut server = Self {
            pid,
            alive,
            ready,
            faults: Vec::new(),
            clients: Vec::new(),
        };
        let of_it = |what: &'static str| {
            log.0.iter().filter(move |event| {
                event.what == what
                    && event.detail["server"] == pid
                    && (alive.from.0..=alive.to.1).contains(&event.time)
            })
        };
        for event in of_it("client admitted") {
            let Some(client) = pid_in(event, "client") else {
                continue;
            };
            let begun = log.of(event.time, "client start", client);
            let left = of_it("client left")
                .filter(|left| left.time >= event.time && left.detail["client"] == client)
                .map(|left| left.time)
                .next();
            let leaves = [
                log.of(event.time, "client leaves", client),
                log.naming(event.time, did::KILLS, "pid", client),
            ];
            let left = left.unwrap_or(alive.to.1).min(alive.to.1);
            let leaves = leaves.into_iter().flatten().min().unwrap_or(left);
            let span = Span {
                from: (event.time, begun.unwrap_or(left)),
                to: (leaves.min(alive.to.0).min(left), left),
            };
            server.clients.push((client, span));
        }
        for event in of_it("server fault") {
            let recovered = of_it("server recovers")
                .map(|recovers| recovers.time)
                .find(|time| *time >= event.time);
            let to = recovered.map_or(alive.to, |recovered| {
                // The last of its clients is then about to be gone.
                let leaving = server.clients.iter().map(|(_, span)| span.to.0);
                let last = leaving.filter(|time| *time <= recovered).max();
                (last.unwrap_or(recovered), recovered)
            });
            server.faults.push(Span {
                from: (event.time, event.time),
                to,
            });
        }
        server
    }
}

fn pid_in(event: &Event, key: &str) -> Option<u32> {
    event.detail[key].as_u64()?.try_into().ok()
}

/// `…/<UUID>/pipe`
fn uuid(directory: &Value) -> Option<String> {
    let device = Path::new(directory.as_str()?).parent()?;
    Some(device.file_name()?.to_str()?.to_owned())
}
