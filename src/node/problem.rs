use std::fmt;

use super::{Foreign, Life, LogGrowth, MpsProgram, Node, Served, Stray};
use crate::host::{Pid, user_name};
use crate::settings::LimitAnswer;

/// Something that is not as it should be, or worth a word, with what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The device's name; `None` for what concerns the node.
    pub device: Option<String>,
    /// What it is.
    pub what: String,
    /// Whether a table of `status` shows it already.
    pub is_listed: bool,
}

/// `0.2: its daemon has died: …`
impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.device {
            Some(device) => write!(f, "{device}: {}", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl Problem {
    fn of(served: &Served, what: String) -> Self {
        Self {
            device: Some(served.record.name.clone()),
            what,
            is_listed: false,
        }
    }

    fn of_node(what: String) -> Self {
        Self {
            device: None,
            what,
            is_listed: false,
        }
    }
}

impl Node {
    /// What is not as it should be: `status --exit-code` is about this. With names, that of these devices and of
    /// the node as a whole.
    pub fn problems(&self, devices: &[String]) -> Vec<Problem> {
        let wanted = |name: &String| devices.is_empty() || devices.contains(name);
        let mut problems = Vec::new();
        for served in self
            .served
            .iter()
            .filter(|served| wanted(&served.record.name))
        {
            problems.extend(
                self.problem_of(served)
                    .map(|what| Problem::of(served, what)),
            );
            // What is being changed may be read in two halves.
            if let Some(drift) = drift(served).filter(|_| !self.is_changing()) {
                problems.push(Problem::of(served, drift));
            }
        }
        for stray in &self.strays {
            let name = self.name_of_uuid(&stray.uuid);
            if wanted(&name) {
                problems.push(Problem {
                    what: stray_in_words(stray, &name),
                    device: Some(name),
                    is_listed: false,
                });
            }
        }
        for outside in self.outside.iter().filter(|outside| outside.is_served) {
            let name = self.name_of_uuid(&outside.uuid);
            if wanted(&name) {
                problems.push(Problem {
                    device: Some(name),
                    what: format!(
                        "pid {} computes outside MPS: {}",
                        outside.pid, outside.cause
                    ),
                    is_listed: true,
                });
            }
        }
        problems.extend(
            self.shared()
                .into_iter()
                .filter(|problem| problem.device.as_ref().is_some_and(wanted)),
        );
        let foreign = self
            .foreign
            .iter()
            .flat_map(|foreign| self.problems_of(foreign));
        problems.extend(foreign.map(Problem::of_node));
        problems.extend(self.interrupted().into_iter().map(Problem::of_node));
        let unread = self
            .lost
            .iter()
            .chain(self.unreadable.iter().map(|(_, problem)| problem));
        // `status` shows these among what it has not seen.
        problems.extend(unread.cloned().map(|what| Problem {
            is_listed: true,
            ..Problem::of_node(what)
        }));
        problems
    }

    /// What is as it may be and still worth a word.
    pub fn remarks(&self, devices: &[String]) -> Vec<Problem> {
        let wanted = |served: &&Served| devices.is_empty() || devices.contains(&served.record.name);
        let under_way = self.under_way.iter();
        let mut remarks: Vec<Problem> = under_way
            .map(|journal| Problem::of_node(format!("a change is under way: {journal}")))
            .collect();
        for served in self.served.iter().filter(wanted) {
            if served.has_lost_its_server() {
                let what = "its server has ended; the next client starts another";
                remarks.push(Problem::of(served, what.to_owned()));
            }
            remarks.extend(crowd(served).map(|what| Problem::of(served, what)));
            let before = before(served);
            for waiting in &served.waiting {
                let user = waiting
                    .user
                    .map_or_else(|| "somebody".to_owned(), user_name);
                let what = format!("{user} waits behind {before} (pid {})", waiting.pid);
                remarks.push(Problem::of(served, what));
            }
        }
        remarks
    }

    /// True if a change is under way, as far as the caller may know.
    fn is_changing(&self) -> bool {
        self.may_be_changing || !self.under_way.is_empty()
    }

    /// A device's name by its UUID, or the UUID.
    pub fn name_of_uuid(&self, uuid: &str) -> String {
        let mut devices = self.devices();
        let device = devices.find(|device| device.uuid == uuid);
        device.map_or_else(|| uuid.to_owned(), |device| self.name_of(&device))
    }

    /// Changes that were killed half-way.
    pub fn interrupted(&self) -> Vec<String> {
        let journals = self.interrupted.iter().map(|(_, journal)| journal);
        journals
            .map(|journal| {
                let missing = self.missing_after(journal);
                if missing.is_empty() {
                    return format!("interrupted: {journal}");
                }
                format!("interrupted: {journal}; missing: {}", missing.join(", "))
            })
            .collect()
    }

    fn problem_of(&self, served: &Served) -> Option<String> {
        let name = &served.record.name;
        let pid = served
            .record
            .daemon
            .map_or_else(String::new, |daemon| format!(" (pid {})", daemon.pid));
        if let Some(growth) = served.log_growth.as_ref().filter(|_| served.is_alive()) {
            return Some(logs_without_pause(growth, served, &pid));
        }
        match served.life {
            // It is being ended, or started again.
            Life::Dead if self.is_changing() => None,
            Life::Dead if served.record.boot_id != self.boot_id => Some(format!(
                "its directory is of an earlier boot: `up` starts it again, `mig-mps down {name}` removes it"
            )),
            Life::Dead => {
                let what = match served.record.daemon {
                    Some(_) => "its daemon has died",
                    None => "an interrupted change has left it without a daemon",
                };
                let cure = if served.device_is_there {
                    format!("mig-mps restart {name}")
                } else {
                    "up".to_owned()
                };
                Some(format!(
                    "{what}: `{cure}` starts it again, `mig-mps down {name}` removes what it left"
                ))
            }
            Life::Orphan => Some(format!(
                "its daemon{pid} lives and its pipe directory is gone, so no program reaches it: `mig-mps restart {name} --force` starts another"
            )),
            Life::Hung => Some(hung(served)),
            Life::NoAnswer => Some(match &served.problem {
                Some(problem) => format!(
                    "its daemon{pid} does not answer: {problem}: `mig-mps restart {name} --force` starts another"
                ),
                None => format!(
                    "its daemon{pid} is stopped and answers nobody: `kill -CONT` lets it go on, `mig-mps restart {name} --force` starts another"
                ),
            }),
            Life::Hidden if served.problem.is_some() => {
                let problem = served.problem.as_deref().unwrap_or_default();
                Some(format!("its daemon{pid} cannot be asked: {problem}"))
            }
            Life::Fault if served.clients.is_empty() => Some(format!(
                "a GPU fault whose clients have gone: it clears within a second or so; if it does not, \
                 `mig-mps restart {name}` starts another"
            )),
            Life::Fault => {
                let clients = served.clients.iter().map(|client| client.pid);
                // 0 is one in a pid namespace that cannot be seen from here.
                let seen: Vec<String> = clients
                    .filter(|pid| pid.0 != 0)
                    .map(|pid| pid.to_string())
                    .collect();
                let cure = if seen.is_empty() {
                    format!("mig-mps restart {name} --force")
                } else {
                    format!("mig-mps kill {name} {} --signal", seen.join(" "))
                };
                Some(format!(
                    "a GPU fault: it serves again when all its clients have ended, and `{cure}` ends them"
                ))
            }
            _ if served.mode_is_lost() => Some(format!(
                "somebody has changed its GPU's compute mode, which was exclusive-process: \
                 `mig-mps restart {name}` sets it again"
            )),
            _ if served.is_abandoned => Some(format!(
                "an interrupted change has not finished with it: `up` goes on from there, `mig-mps restart {name}` starts it again"
            )),
            _ if !served.device_is_there => Some(format!(
                "its daemon{pid} lives and its device is gone: `mig-mps down {name}`"
            )),
            _ => None,
        }
    }

    /// Devices that more than one daemon serves.
    fn shared(&self) -> Vec<Problem> {
        let mut shared = Vec::new();
        for device in self.devices() {
            let ours = self
                .served
                .iter()
                .filter(|served| served.record.uuid == device.uuid && served.is_alive());
            let ours = ours
                .filter_map(|served| Some(format!("pid {} of mig-mps", served.record.daemon?.pid)));
            let foreign = self.foreign.iter().filter(|foreign| {
                foreign.program == MpsProgram::Control
                    // One that sees everything is said to, once.
                    && !foreign.sees_everything()
                    && foreign.devices.contains(&device.uuid)
            });
            let foreign = foreign.map(|foreign| match foreign.user {
                Some(user) => format!("pid {} of {}", foreign.pid, user_name(user)),
                None => format!("pid {}", foreign.pid),
            });
            let daemons: Vec<String> = ours.chain(foreign).collect();
            if daemons.len() > 1 {
                shared.push(Problem {
                    what: format!("{} daemons serve it: {}", daemons.len(), daemons.join(", ")),
                    device: Some(self.name_of(&device)),
                    is_listed: false,
                });
            }
        }
        shared
    }

    fn problems_of(&self, foreign: &Foreign) -> Vec<String> {
        let mut problems = Vec::new();
        let who = match foreign.user {
            Some(user) => format!("foreign daemon {} of {}", foreign.pid, user_name(user)),
            None => format!("foreign daemon {}", foreign.pid),
        };
        if foreign.sees_everything() {
            let mut what =
                format!("{who} was started without CUDA_VISIBLE_DEVICES: it sees all GPUs");
            let alive = self
                .served
                .iter()
                .filter(|served| served.is_alive())
                .count();
            if alive > 0 {
                what = format!("{what}, also where daemons of mig-mps serve ({alive})");
            }
            problems.push(what);
        }
        if foreign.is_at_default() && foreign.program == MpsProgram::Control {
            problems.push(format!(
                "{who} uses the default pipe directory: CUDA programs that were told nothing become its clients"
            ));
        }
        problems
    }
}

/// `its daemon (pid 4711) logs without pause: …`
fn logs_without_pause(growth: &LogGrowth, served: &Served, pid: &str) -> String {
    let (path, name) = (growth.path.display(), &served.record.name);
    let (length, per_second) = (growth.length >> 10, growth.per_second >> 10);
    let cause = if growth.accepts_nobody() {
        format!(
            "most likely its limit of open files is exhausted, and no program can join it; {}",
            who_works(served)
        )
    } else {
        format!("`mig-mps logs {name}` shows it")
    };
    format!(
        "its daemon{pid} logs without pause: {path} has {length} KiB and grows by {per_second} KiB/s with \"{}\": \
         {cause}; `mig-mps restart {name} --force` starts another",
        growth.text
    )
}

/// What hangs, who still works, and what ends it.
fn hung(served: &Served) -> String {
    let name = &served.record.name;
    let cure = match served.clients.as_slice() {
        [] if served.is_known => format!("`mig-mps restart {name}` ends that"),
        [] => format!("`mig-mps restart {name} --force` ends that, and them"),
        _ => format!(
            "`mig-mps restart {name} --drain 5m` waits for them and ends that, --force ends them too"
        ),
    };
    format!(
        "it hangs: a client died while it connected, and every new one waits for ever; {}; {cure}",
        who_works(served)
    )
}

/// `pid 4711, 4712 still work`
fn who_works(served: &Served) -> String {
    let pids = served.clients.iter().map(|client| client.pid.to_string());
    let pids: Vec<String> = pids.collect();
    match pids.as_slice() {
        [] if served.is_known => "no client works".to_owned(),
        [] => "whether clients still work is hidden".to_owned(),
        [one] => format!("pid {one} still works"),
        _ => format!("pids {} still work", pids.join(", ")),
    }
}

/// `server 4711 of alice outlived its daemon …`
fn stray_in_words(stray: &Stray, name: &str) -> String {
    let pid = stray.server.pid;
    let user = stray
        .server
        .user
        .map_or_else(String::new, |user| format!(" of {}", user_name(user)));
    let cure = match stray.clients.as_deref() {
        Some([]) => format!("`up` or `mig-mps down {name}` ends it"),
        Some(clients) => {
            let clients: Vec<String> = clients.iter().map(Pid::to_string).collect();
            format!(
                "it still has clients (pid {}); `mig-mps down {name} --force` ends it, and them",
                clients.join(", ")
            )
        }
        None => format!("whether it has clients is hidden; `mig-mps down {name} --force` ends it"),
    };
    format!("server {pid}{user} outlived its daemon and keeps its GPU memory: {cure}")
}

/// Whose programs are served now.
fn before(served: &Served) -> String {
    let users = served.servers.iter().filter_map(|server| server.user);
    let mut names: Vec<String> = users.map(user_name).collect();
    names.dedup();
    if names.is_empty() {
        "a server that starts".to_owned()
    } else {
        names.join(", ")
    }
}

/// That no more clients fit, or there are more than it is meant for.
fn crowd(served: &Served) -> Option<String> {
    let most = served.client_limit.filter(|_| served.is_known)?;
    let clients = u32::try_from(served.clients.len()).ok()?;
    if let Some(meant) = served.record.settings.max_clients {
        let more = format!("it has {clients} clients and is meant for {meant} (max-clients)");
        return (clients > meant).then_some(more);
    }
    let full =
        "it has as many clients as it takes: another program's context fails with CUDA error 46";
    (clients >= most).then(|| full.to_owned())
}

fn drift(served: &Served) -> Option<String> {
    if !served.record.finished {
        // It is being set.
        return None;
    }
    let set = &served.record.settings;
    let answered = served.answered.as_ref()?;
    let mut changed = Vec::new();
    let mut compare = |key: &str, differs: bool, set: String, is: String| {
        if differs {
            changed.push(format!("{key} was set to {set} and is {is}"));
        }
    };
    let (shall, is) = (set.active_thread_percentage, answered.percentage);
    compare(
        "active-thread-percentage",
        shall.differs_from(is),
        shall.to_string(),
        is.to_string(),
    );
    let none = || "none".to_owned();
    let (shall, is) = (set.pinned_memory_limit, answered.pinned_memory_limit);
    compare(
        "pinned-memory-limit",
        LimitAnswer::differs(is, shall),
        shall.map_or_else(none, |limit| limit.to_string()),
        is.map_or_else(none, |limit| limit.to_string()),
    );
    let shall = set.client_priority;
    let is = answered.client_priority.unwrap_or(shall);
    compare(
        "client-priority",
        shall != is,
        shall.to_string(),
        is.to_string(),
    );
    (!changed.is_empty()).then(|| format!("{}: somebody has changed it", changed.join("; ")))
}
