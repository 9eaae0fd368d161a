//! Compares what a run of `status` said with what was true meanwhile.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::truth::history::{Command, Daemon, Device, History, Server};
use crate::truth::span::{Span, Time};

/// The output of one run of `status --json`, and when it ran.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) begin: Time,
    pub(crate) end: Time,
    /// True if a plain user ran it, so that something may be hidden.
    pub(crate) is_plain: bool,
    pub(crate) said: Value,
}

/// The faults at the moment at which there are fewest.
type Faults = Vec<String>;

impl History {
    /// Everything in a report that was true at no moment of its run.
    pub(crate) fn judge(&self, report: &Report) -> Faults {
        let mut faults = Vec::new();
        let moments = self.moments(report.begin, report.end);
        let rows = || report.said["devices"].as_array().into_iter().flatten();
        for row in rows() {
            let least = moments
                .iter()
                .map(|time| self.row(row, report, *time))
                .min_by_key(Vec::len)
                .unwrap_or_default();
            let name = &row["name"];
            faults.extend(least.into_iter().map(|fault| format!("{name}: {fault}")));
        }
        for (uuid, device) in &self.devices {
            let is_shown = rows().any(|row| row["uuid"] == *uuid);
            let had_daemon = |time: &Time| {
                device
                    .daemons
                    .iter()
                    .any(|daemon| daemon.alive.at(*time).must())
            };
            if !is_shown && moments.iter().all(had_daemon) {
                faults.push(format!(
                    "{uuid} is not shown, and had a daemon all the time"
                ));
            }
        }
        let of = |word: &Value| {
            let mut rows = rows().filter(|row| row["name"] == word["device"]);
            let uuid = rows.next().and_then(|row| row["uuid"].as_str());
            uuid.and_then(|uuid| self.devices.get(uuid))
        };
        let said = |what: &str| report.said[what].as_array().into_iter().flatten();
        for problem in said("problems") {
            let is_true = |time: &Time| self.problem(problem, of(problem), *time);
            if !moments.iter().any(is_true) {
                faults.push(format!("it was no problem at any moment: {problem}"));
            }
        }
        for remark in said("remarks") {
            let is_true = |time: &Time| self.remark(remark, of(remark), *time);
            if !moments.iter().any(is_true) {
                faults.push(format!("it was true at no moment: {remark}"));
            }
        }
        // Root sees everything.
        for hidden in said("hidden").filter(|_| !report.is_plain) {
            faults.push(format!("it was not hidden: {hidden}"));
        }
        if report.said["degraded"] != (report.said["problems"] != Value::Array(Vec::new())) {
            faults.push("degraded is not whether there are problems".to_owned());
        }
        for what in ["unmanaged", "outside_mps"] {
            for stray in report.said[what].as_array().into_iter().flatten() {
                faults.push(format!("there was no {what}: {stray}"));
            }
        }
        faults
    }

    /// Every moment of a window at which something began or ended, and one between each two: all others are like
    /// one of these.
    fn moments(&self, begin: Time, end: Time) -> Vec<Time> {
        let mut edges = BTreeSet::from([begin, end]);
        edges.extend(
            self.commands
                .iter()
                .flat_map(|command| [command.begin, command.end]),
        );
        for device in self.devices.values() {
            edges.extend(device.recorded.iter().flat_map(|span| span.edges()));
            edges.extend(device.daemons.iter().flat_map(Daemon::edges));
        }
        let edges: Vec<Time> = edges.range(begin..=end).copied().collect();
        let between = edges.windows(2).map(|pair| pair[0].midpoint(pair[1]));
        between.chain(edges.iter().copied()).collect()
    }

    fn row(&self, row: &Value, report: &Report, time: Time) -> Faults {
        let said = &report.said;
        let nothing = Device::default();
        let device = row["uuid"].as_str().and_then(|uuid| self.devices.get(uuid));
        let device = device.unwrap_or(&nothing);
        let Some(pid) = row["daemon_pid"].as_u64() else {
            return Self::row_without_daemon(row, report, device, time);
        };
        let mut daemons = device.daemons.iter();
        let daemon =
            daemons.find(|daemon| u64::from(daemon.pid) == pid && daemon.alive.at(time).may());
        let Some(daemon) = daemon else {
            return vec![format!("daemon {pid} did not live, state {}", row["state"])];
        };
        let mut faults = Vec::new();
        let state = row["state"].as_str().unwrap_or_default();
        let is_hidden = report.is_plain && state == "hidden";
        if !is_hidden && !Self::is_in(daemon, state, time) {
            faults.push(format!("daemon {pid} was not {state}"));
        }
        faults.extend(servers(row, daemon, time));
        faults.extend(clients(row, said, daemon, time));
        faults.extend(waiting(row, said, daemon, time));
        let answered = row["answered_active_thread_percentage"].as_f64();
        if answered.is_some_and(|answered| daemon.percentage(time) != Some(answered)) {
            faults.push(format!("the percentage was not {answered:?}"));
        }
        if !self
            .percentages(device, time)
            .contains(&row["active_thread_percentage"].as_f64())
        {
            faults.push(format!(
                "the recorded percentage was not {}",
                row["active_thread_percentage"]
            ));
        }
        faults
    }

    fn row_without_daemon(row: &Value, report: &Report, device: &Device, time: Time) -> Faults {
        let (said, is_plain) = (&report.said, report.is_plain);
        let mut faults = Vec::new();
        let mut daemons = device.daemons.iter();
        let lives = daemons.any(|daemon| daemon.alive.at(time).must());
        let recorded =
            |span: fn(&Span, Time) -> bool| device.recorded.iter().any(|of| span(of, time));
        let is_true = match row["state"].as_str().unwrap_or_default() {
            // `down` of a device by name stops it, else it is known no more.
            "no daemon" | "stopped" => !lives && !recorded(|span, time| span.at(time).must()),
            "dead" => {
                let since = device.recorded.iter().find(|span| span.at(time).may());
                let ended = |since: &Span| {
                    device.daemons.iter().any(|daemon| {
                        daemon.alive.from.0 >= since.from.0 && daemon.alive.to.0 <= time
                    })
                };
                !lives && since.is_some_and(ended)
            }
            // A directory that is being made is open to nobody.
            "hidden" => is_plain && recorded(|span, time| span.at(time).may()),
            // Its daemon is being started, and its pid not recorded yet.
            "starting" => {
                let mut starts = device.daemons.iter().map(|daemon| daemon.start);
                starts.any(|start| (start.from.0..=start.to.1).contains(&time))
            }
            _ => false,
        };
        if !is_true {
            faults.push(format!("it was not {} without a daemon", row["state"]));
        }
        let lives = |daemon: &&Daemon| daemon.alive.at(time).may();
        match device.daemons.iter().find(lives) {
            // Its pid is not recorded yet, and it may be asked already.
            Some(daemon) if row["state"] == "starting" => {
                faults.extend(servers(row, daemon, time));
                faults.extend(clients(row, said, daemon, time));
            }
            _ => {
                let known = ["servers", "client_count"].map(|what| (what, &row[what]));
                let known = known.iter().filter(|(_, value)| !value.is_null());
                faults.extend(
                    known.map(|(what, value)| format!("without a daemon its {what} are {value}")),
                );
            }
        }
        faults
    }

    fn is_in(daemon: &Daemon, state: &str, time: Time) -> bool {
        let within = |span: &Span| span.at(time).may();
        let mut servers = daemon.servers.iter().filter(|server| within(&server.alive));
        match state {
            "ready" => servers.any(|server| {
                server.ready.as_ref().is_some_and(within)
                    && !server.faults.iter().any(|fault| fault.at(time).must())
            }),
            "no server yet" => !servers.any(|server| server.alive.at(time).must()),
            "starting" => {
                let coming =
                    servers.any(|server| server.ready.is_none_or(|ready| !ready.at(time).must()));
                coming || (daemon.start.from.0..=daemon.start.to.1).contains(&time)
            }
            "fault" => servers.any(|server| server.faults.iter().any(within)),
            "busy" => daemon.sessions.iter().any(within),
            "no answer" => daemon.stopped.iter().any(within),
            "orphan" => daemon.orphaned.as_ref().is_some_and(within),
            // Nothing is hidden from root, nothing hangs, and no device goes while its daemon lives.
            _ => false,
        }
    }

    /// The values that may be recorded: while a command runs, the one before it and the one after it.
    fn percentages(&self, device: &Device, time: Time) -> Vec<Option<f64>> {
        let at = |time: Time| {
            let set = device.daemons.iter().flat_map(|daemon| &daemon.percentages);
            let before = set.filter(|(at, _)| *at <= time).max_by_key(|(at, _)| *at);
            before.map(|(_, value)| *value)
        };
        match self.command_at(time) {
            Some(command) => vec![at(command.begin), at(command.end)],
            None => vec![at(time)],
        }
    }

    fn problem(&self, problem: &Value, device: Option<&Device>, time: Time) -> bool {
        let Some(device) = device else {
            return false;
        };
        let lives = || {
            let mut daemons = device.daemons.iter();
            daemons.any(|daemon| daemon.alive.at(time).must())
        };
        match problem["id"].as_str().unwrap_or_default() {
            "daemon-dead" => {
                // One that a command ends has not died.
                let mut daemons = device.daemons.iter();
                let last = daemons.rfind(|daemon| daemon.alive.to.0 <= time);
                let recorded = device.recorded.iter().any(|span| span.at(time).may());
                let killed = |daemon: &Daemon| self.command_at(daemon.alive.to.0).is_none();
                !lives() && recorded && last.is_some_and(killed)
            }
            "gpu-fault" => device.says("fault", time),
            "daemon-orphan" => device.says("orphan", time),
            "daemon-stopped" => device.says("no answer", time),
            _ => false,
        }
    }

    fn remark(&self, remark: &Value, device: Option<&Device>, time: Time) -> bool {
        let what = remark["what"].as_str().unwrap_or_default();
        if what.starts_with("a change is under way: ") {
            let is_named = |command: &Command| what.contains(&format!("/mig-mps {}", command.name));
            return self.command_at(time).is_some_and(is_named);
        }
        if what.starts_with("GPU 0: MIG is on and there is no MIG device") {
            return self.unpartitioned.iter().any(|span| span.at(time).may());
        }
        if remark["id"] == "older-clients" {
            // What a change sets is recorded before the daemon has it.
            let until = self.command_at(time).map_or(time, |command| command.end);
            return device.is_some_and(|device| device.has_older_clients(what, time, until));
        }
        let is_true = |device: &Device| {
            if remark["id"] == "device-stopped" {
                let mut recorded = device.recorded.iter();
                return !recorded.any(|span| span.at(time).must());
            }
            if what.starts_with("its server has ended") {
                return device.says("no server yet", time);
            }
            let mut waiting = device.daemons.iter().flat_map(|daemon| &daemon.waiting);
            waiting
                .any(|(pid, span)| span.at(time).may() && what.ends_with(&format!("(pid {pid})")))
        };
        device.is_some_and(is_true)
    }
}

impl Device {
    /// True if a daemon of it may be called that at a moment.
    fn says(&self, state: &str, time: Time) -> bool {
        let mut daemons = self.daemons.iter();
        daemons.any(|daemon| daemon.alive.at(time).may() && History::is_in(daemon, state, time))
    }

    /// True if each process that a text names may be a client since before a value was set, which was no later than `until`.
    fn has_older_clients(&self, text: &str, time: Time, until: Time) -> bool {
        let named = text.split_once("pid ").map_or("", |(_, named)| named);
        let end = named.find(|c: char| !c.is_ascii_digit() && c != ',' && c != ' ');
        let mut pids = named[..end.unwrap_or(named.len())].trim().split(", ");
        let clients = self.daemons.iter().flat_map(|daemon| {
            let clients = daemon.servers.iter().flat_map(|server| &server.clients);
            clients.filter(move |(_, span)| {
                let mut set = daemon.percentages.iter();
                let is_older = set.any(|(at, _)| span.from.0 <= *at && *at <= until);
                is_older && span.at(time).may()
            })
        });
        pids.all(|pid| clients.clone().any(|(client, _)| client.to_string() == pid))
    }
}

impl Daemon {
    fn edges(&self) -> Vec<Time> {
        let mut spans = vec![self.alive, self.start];
        spans.extend(
            self.sessions
                .iter()
                .chain(&self.stopped)
                .chain(&self.orphaned),
        );
        spans.extend(self.waiting.iter().map(|(_, span)| span));
        for server in &self.servers {
            spans.push(server.alive);
            spans.extend(server.ready.iter().chain(&server.faults));
            spans.extend(server.clients.iter().map(|(_, span)| span));
        }
        let set = self.percentages.iter().map(|(time, _)| *time);
        spans.into_iter().flat_map(Span::edges).chain(set).collect()
    }

    fn percentage(&self, time: Time) -> Option<f64> {
        let set = self.percentages.iter().rfind(|(at, _)| *at <= time);
        set.map(|(_, value)| *value)
    }

    fn servers_at(&self, time: Time) -> impl Iterator<Item = &Server> {
        self.servers
            .iter()
            .filter(move |server| server.alive.at(time).may())
    }
}

fn servers(row: &Value, daemon: &Daemon, time: Time) -> Faults {
    let Some(said) = row["servers"].as_array() else {
        return must_be_known(row, "servers");
    };
    let said: Vec<u64> = said
        .iter()
        .filter_map(|server| server["pid"].as_u64())
        .collect();
    let spans = daemon
        .servers
        .iter()
        .map(|server| (server.pid, server.alive));
    compare("server", &said, spans, time)
}

fn clients(row: &Value, said: &Value, daemon: &Daemon, time: Time) -> Faults {
    let Some(count) = row["client_count"].as_u64() else {
        return must_be_known(row, "client_count");
    };
    let pids = pids_of(row, &said["clients"]);
    let spans = daemon
        .servers_at(time)
        .flat_map(|server| server.clients.iter().copied());
    let mut faults = compare("client", &pids, spans, time);
    if count != pids.len() as u64 {
        faults.push(format!("{count} clients, and {} are listed", pids.len()));
    }
    faults
}

fn waiting(row: &Value, said: &Value, daemon: &Daemon, time: Time) -> Faults {
    let pids = pids_of(row, &said["waiting"]);
    let spans = daemon
        .waiting
        .iter()
        .copied()
        .filter(|(pid, _)| pids.contains(&u64::from(*pid)));
    // A log says who waits, and only for daemons that are asked: it need not be complete.
    compare(
        "waiting program",
        &pids,
        spans.filter(|(_, span)| span.at(time).may()),
        time,
    )
}

fn pids_of(row: &Value, programs: &Value) -> Vec<u64> {
    let programs = programs.as_array().into_iter().flatten();
    let of_device = programs.filter(|program| program["device"] == row["name"]);
    of_device
        .filter_map(|program| program["pid"].as_u64())
        .collect()
}

/// The differences between what is named and what was there.
fn compare(
    what: &str,
    said: &[u64],
    spans: impl Iterator<Item = (u32, Span)>,
    time: Time,
) -> Faults {
    let spans: Vec<(u64, Span)> = spans.map(|(pid, span)| (u64::from(pid), span)).collect();
    let mut faults = Vec::new();
    for pid in said {
        if !spans
            .iter()
            .any(|(known, span)| known == pid && span.at(time).may())
        {
            faults.push(format!("{what} {pid} was not there"));
        }
    }
    for (pid, span) in spans {
        if span.at(time).must() && !said.contains(&pid) {
            faults.push(format!("{what} {pid} was there, and is not shown"));
        }
    }
    faults
}

/// These states follow from what is known of servers and clients.
fn must_be_known(row: &Value, what: &str) -> Faults {
    let state = row["state"].as_str().unwrap_or_default();
    if ["ready", "no server yet", "fault"].contains(&state) {
        return vec![format!("{state}, and its {what} are unknown")];
    }
    Vec::new()
}
