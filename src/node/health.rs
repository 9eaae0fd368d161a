//! The problems of a node, each with its remedy.

use super::problem::{Problem, ProblemId, changed_settings, daemon_problem};
use super::{Client, LOST, Node, Served, Stray, Unmanaged, Unseen};
use crate::host::{Pid, Uid, user_name};
use crate::settings::Serve;

impl Node {
    /// Returns the problems that `status --exit-code` reports: those of these devices, or of all if none is named, and
    /// those of the node as a whole.
    pub fn problems(&self, devices: &[String]) -> Vec<Problem> {
        let mut problems = self.device_problems();
        problems.retain(|problem| {
            let device = problem.device.as_ref();
            device.is_some_and(|name| is_wanted(name, devices))
        });
        for daemon in &self.unmanaged {
            problems.extend(self.problems_of(daemon));
        }
        problems.extend(self.interrupted().into_iter().map(|what| {
            let goes_on = "`mig-mps up PROFILE` or `mig-mps down` goes on from there";
            Problem::new(ProblemId::ChangeInterrupted, what).with_remedy(goes_on)
        }));
        // `status` lists these among what is hidden.
        for unseen in &self.unseen {
            let id = match unseen {
                Unseen::Driver(_) => ProblemId::DriverSilent,
                Unseen::Gpu { .. } => ProblemId::GpuLost,
                Unseen::Record { .. } | Unseen::RunDir { .. } => ProblemId::RecordUnreadable,
                Unseen::Instances { .. } | Unseen::Journal(_) | Unseen::Other(_) => continue,
            };
            let problem = Problem::new(id, unseen.to_string()).listed();
            problems.push(match id {
                ProblemId::GpuLost => problem.with_remedy(LOST),
                _ => problem,
            });
        }
        problems
    }

    fn device_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for device in &self.devices {
            if let Some(served) = &device.served {
                // During a change, record and daemon may differ.
                let changed = changed_settings(served).filter(|_| !self.is_changing());
                let found = daemon_problem(self, device, served)
                    .into_iter()
                    .chain(changed);
                problems.extend(found.map(|problem| problem.of(&device.name)));
            }
        }
        for device in &self.devices {
            let name = &device.name;
            problems.extend(
                device
                    .strays
                    .iter()
                    .map(|stray| describe_stray(stray, name).of(name)),
            );
        }
        for device in &self.devices {
            let name = &device.name;
            for outside in device
                .outside_mps
                .iter()
                .filter(|outside| outside.is_served)
            {
                let what = format!(
                    "pid {} computes outside MPS: {}",
                    outside.pid, outside.cause
                );
                let remedy = format!("start it with `mig-mps run {name} -- PROGRAM`");
                let problem = Problem::new(ProblemId::OutsideMps, what).with_remedy(remedy);
                problems.push(problem.of(name).listed());
            }
        }
        for served in self.served() {
            let over = served.clients_over_limit();
            problems.extend(over.filter_map(|client| over_limit(client, served)));
        }
        problems.extend(self.shared());
        problems
    }

    /// Finds the devices that several daemons serve.
    fn shared(&self) -> Vec<Problem> {
        let mut shared = Vec::new();
        for device in self.present() {
            let ours = device.serving().and_then(|served| served.record.daemon);
            let ours = ours.map(|daemon| format!("pid {} of mig-mps", daemon.pid));
            let mut daemons: Vec<String> = ours.into_iter().collect();
            let mut first_unmanaged = None;
            for daemon in &self.unmanaged {
                // A daemon that sees every GPU is reported once.
                if daemon.is_daemon() && !daemon.sees_everything() && daemon.serves(&device.name) {
                    daemons.push(format!("pid {}{}", daemon.pid, of_user(daemon.user)));
                    first_unmanaged = first_unmanaged.or(Some(daemon));
                }
            }
            if daemons.len() > 1 {
                let name = &device.name;
                let what = format!("{} daemons serve it: {}", daemons.len(), daemons.join(", "));
                let remedy = match first_unmanaged {
                    Some(daemon) => end_of(daemon, "the unmanaged one"),
                    None => format!("`mig-mps down {name}` ends one"),
                };
                let problem = Problem::new(ProblemId::SeveralDaemons, what).with_remedy(remedy);
                shared.push(problem.of(name));
            }
        }
        shared
    }

    /// Returns the problems of an unmanaged daemon.
    fn problems_of(&self, daemon: &Unmanaged) -> impl Iterator<Item = Problem> {
        let who = format!("unmanaged daemon {}{}", daemon.pid, of_user(daemon.user));
        let sees_everything = daemon.sees_everything().then(|| {
            let alive = self.served().filter(|served| served.is_alive());
            let also = match alive.count() {
                0 => String::new(),
                alive => format!(", also where daemons of mig-mps serve ({alive})"),
            };
            let what =
                format!("{who} was started without CUDA_VISIBLE_DEVICES: it sees all GPUs{also}");
            Problem::new(ProblemId::SeesAllGpus, what).with_remedy(end_of(daemon, "it"))
        });
        let is_at_default = daemon.captures_others().then(|| {
            let what = format!(
                "{who} uses the default pipe directory: CUDA programs without a pipe directory of their own become its clients"
            );
            Problem::new(ProblemId::DefaultPipeDirectory, what).with_remedy(end_of(daemon, "it"))
        });
        sees_everything.into_iter().chain(is_at_default)
    }

    /// Returns the devices, or the node, on which a problem would not have been seen, with the reason.
    pub fn unchecked(&self, id: ProblemId, devices: &[String]) -> Vec<(Option<String>, String)> {
        let served = self
            .served()
            .filter(|served| is_wanted(&served.record.name, devices));
        if let Some(why) = self.unseen_daemons().filter(|_| id.is_of_daemons()) {
            return vec![(None, why.to_owned())];
        }
        match id {
            ProblemId::DeviceHung | ProblemId::GpuFault => served
                .filter(|served| served.state.is_hidden())
                .map(|served| unchecked_on(served, "its daemon was not asked"))
                .collect(),
            ProblemId::SettingsChanged if self.is_changing() => {
                vec![(None, "a change of the node is in progress".to_owned())]
            }
            ProblemId::SettingsChanged => served
                .filter(|served| served.is_alive() && !served.is_read_back())
                .map(|served| unchecked_on(served, "its settings were not read back"))
                .collect(),
            ProblemId::MemoryOverLimit => served
                .filter(|served| served.is_alive() && served.hides_memory_over_limit())
                .map(|served| unchecked_on(served, "the memory of its clients is hidden"))
                .collect(),
            ProblemId::OutsideMps
            | ProblemId::SeveralDaemons
            | ProblemId::ClientsFull
            | ProblemId::TooManyClients
            | ProblemId::NoMigDevices
            | ProblemId::GpuLost
                if self.has_no_driver() =>
            {
                vec![(None, "the driver does not answer".to_owned())]
            }
            ProblemId::OutsideMps => self
                .present()
                .filter(|device| device.processes.is_none() && is_wanted(&device.name, devices))
                .map(|device| {
                    let why = "the driver shows who computes on it to root alone";
                    (Some(device.name.clone()), why.to_owned())
                })
                .collect(),
            ProblemId::ChangeUnderWay | ProblemId::ChangeInterrupted if self.may_be_changing() => {
                vec![(None, "the journal is hidden".to_owned())]
            }
            ProblemId::SeesAllGpus | ProblemId::DefaultPipeDirectory => self
                .unmanaged
                .iter()
                .filter(|daemon| daemon.is_hidden())
                .map(|daemon| {
                    let why = format!("the environment of daemon {} is hidden", daemon.pid);
                    (None, why)
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// Returns what is in order and still worth a line of `status`.
    pub fn remarks(&self, devices: &[String]) -> Vec<Problem> {
        let mut remarks: Vec<Problem> = self
            .under_way
            .iter()
            .map(|journal| {
                let what = format!("a change is under way: {journal}");
                Problem::new(ProblemId::ChangeUnderWay, what)
            })
            .collect();
        if devices.is_empty() {
            remarks.extend(self.unpartitioned());
        }
        for served in self.served() {
            let name = &served.record.name;
            if is_wanted(name, devices) {
                let found = self.remarks_on(served).into_iter();
                remarks.extend(found.map(|remark| remark.of(name)));
            }
        }
        remarks
    }

    fn remarks_on(&self, served: &Served) -> Vec<Problem> {
        let mut remarks = Vec::new();
        if served.has_lost_its_server() {
            let ended = "its server has ended; the next client starts another";
            remarks.push(Problem::new(ProblemId::ServerEnded, ended));
        }
        remarks.extend(crowd(served, served.most_clients(self.control_program())));
        remarks.extend(served.waiting.iter().map(|client| waits(client, served)));
        remarks
    }

    /// Describes the GPUs in MIG mode without a MIG device, as after a reboot.
    fn unpartitioned(&self) -> Option<Problem> {
        let indices: Vec<String> = self
            .gpus
            .iter()
            .filter(|gpu| gpu.has_nothing_in_mig_mode())
            .map(|gpu| gpu.index.to_string())
            .collect();
        let gpus = match indices.as_slice() {
            [] => return None,
            [one] => format!("GPU {one}"),
            several => format!("GPUs {}", several.join(", ")),
        };
        let what = format!("{gpus}: MIG is on and there is no MIG device");
        let problem = Problem::new(ProblemId::NoMigDevices, what);
        Some(problem.with_remedy("`mig-mps up PROFILE` makes MIG devices"))
    }
}

/// True if the device with that name is one of these; all are if none is named.
fn is_wanted(name: &str, devices: &[String]) -> bool {
    devices.is_empty() || devices.iter().any(|device| device == name)
}

fn unchecked_on(served: &Served, why: &str) -> (Option<String>, String) {
    (Some(served.record.name.clone()), why.to_owned())
}

/// `` `echo quit | …` ends it``
fn end_of(daemon: &Unmanaged, it: &str) -> String {
    match daemon.quit_command() {
        // No session reaches it.
        _ if daemon.is_orphan => format!("`kill {}` ends {it}", daemon.pid),
        Some(quit) => format!("`{quit}` ends {it}"),
        None => format!("let its owner end {it}"),
    }
}

/// ` of alice`, or nothing if the user is hidden.
fn of_user(user: Option<Uid>) -> String {
    user.map_or_else(String::new, |user| format!(" of {}", user_name(user)))
}

/// `server 4711 of alice outlived its daemon …`
fn describe_stray(stray: &Stray, name: &str) -> Problem {
    let pid = stray.server.pid;
    let user = of_user(stray.server.user);
    let remedy = match stray.clients.as_deref() {
        Some([]) => format!("`mig-mps heal {name}` ends it"),
        Some(clients) => {
            let clients: Vec<String> = clients.iter().map(Pid::to_string).collect();
            format!(
                "it still has clients (pid {}); `mig-mps down {name} --force` ends it, and them",
                clients.join(", ")
            )
        }
        None => format!("whether it has clients is hidden; `mig-mps down {name} --force` ends it"),
    };
    let seen = format!("server {pid}{user} outlived its daemon and keeps its GPU memory");
    Problem::new(ProblemId::StrayServer, seen).with_remedy(remedy)
}

/// `pid 4711 (alice) uses 6147 MiB, more than the limit of 2G: …`
fn over_limit(client: &Client, served: &Served) -> Option<Problem> {
    let (name, settings) = (&served.record.name, &served.record.settings);
    let (limit, mib) = (settings.pinned_memory_limit?, client.memory? >> 20);
    let user = client.user.map_or_else(|| "somebody".to_owned(), user_name);
    let seen = format!(
        "pid {} ({user}) uses {mib} MiB, more than the pinned-memory-limit of {limit}: its \
         CUDA_MPS_PINNED_DEVICE_MEM_LIMIT lifts the limit, or it is older than the limit",
        client.shown_pid()
    );
    let ends = match (client.pid, &settings.serve) {
        (None, _) => format!("`mig-mps restart {name} --force` ends all its clients"),
        (Some(pid), Some(Serve::User(user))) => {
            format!("`runuser -u {user} -- mig-mps kill {name} {pid} --signal` ends it")
        }
        (Some(pid), _) => format!("`mig-mps kill {name} {pid} --signal` ends it"),
    };
    let problem = Problem::new(ProblemId::MemoryOverLimit, seen).with_remedy(ends);
    Some(problem.of(name))
}

/// `pid 4712 (bob) waits until the programs of alice have exited: pid 4711`
fn waits(client: &Client, served: &Served) -> Problem {
    let user = client.user.map_or_else(|| "somebody".to_owned(), user_name);
    let who = format!("pid {} ({user})", client.shown_pid());
    let mut users: Vec<String> = served
        .servers
        .iter()
        .filter_map(|server| Some(user_name(server.user?)))
        .collect();
    users.dedup();
    let others = users.join(" and ");
    let pids: Vec<String> = served
        .clients
        .listed()
        .iter()
        .filter_map(|client| Some(client.pid?.to_string()))
        .collect();
    let what = if users.is_empty() {
        format!("{who} waits until another user's server has started")
    } else if pids.is_empty() {
        format!("{who} waits until the programs of {others} have exited")
    } else {
        let pids = pids.join(", ");
        format!("{who} waits until the programs of {others} have exited: pid {pids}")
    };
    let sharing = "serve = \"all\" in the profile lets users share the device";
    Problem::new(ProblemId::UserWaiting, what).with_remedy(sharing)
}

/// Describes a daemon that has all the clients that it can have (`most`), or more than `max-clients`.
fn crowd(served: &Served, most: Option<u32>) -> Option<Problem> {
    if !served.clients.are_known() {
        return None;
    }
    let clients = u32::try_from(served.clients.listed().len()).ok()?;
    if let Some(meant) = served.record.settings.max_clients
        && clients > meant
    {
        let more = format!("it has {clients} clients and is meant for {meant} (max-clients)");
        return Some(Problem::new(ProblemId::TooManyClients, more));
    }
    let full =
        "it has reached its limit of clients: another program's context fails with CUDA error 46";
    let is_full = most.is_some_and(|most| clients >= most);
    is_full.then(|| Problem::new(ProblemId::ClientsFull, full))
}
