use super::daemon_health::daemon_problem;
use super::drift::drift;
use super::problem::Problem;
use super::snapshot::Node;
use super::stray::Stray;
use super::unmanaged::Unmanaged;
use crate::host::{Pid, user_name};
use crate::mps::MpsProgram;

impl Node {
    /// Returns the problems that `status --exit-code` reports: those of these devices, or of all if none is named, and
    /// those of the node as a whole.
    pub fn problems(&self, devices: &[String]) -> Vec<Problem> {
        let is_wanted = |name: &String| devices.is_empty() || devices.contains(name);
        let mut problems = self.device_problems();
        problems.retain(|problem| problem.device.as_ref().is_some_and(is_wanted));
        let unmanaged = self
            .unmanaged
            .iter()
            .flat_map(|daemon| self.problems_of(daemon));
        problems.extend(unmanaged.map(Problem::of_node));
        problems.extend(self.interrupted().into_iter().map(Problem::of_node));
        let unread = self
            .lost
            .iter()
            .chain(self.unreadable.iter().map(|(_, problem)| problem));
        // `status` lists these among what is hidden.
        problems.extend(unread.cloned().map(|what| Problem {
            is_listed: true,
            ..Problem::of_node(what)
        }));
        problems
    }

    fn device_problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        for served in &self.served {
            let problem = daemon_problem(self, served);
            problems.extend(problem.map(|what| Problem::of(served, what)));
            // During a change, record and daemon may differ.
            if let Some(drift) = drift(served).filter(|_| !self.is_changing()) {
                problems.push(Problem::of(served, drift));
            }
        }
        problems.extend(self.strays.iter().map(|stray| {
            let name = self.name_of_uuid(&stray.uuid);
            Problem {
                what: describe_stray(stray, &name),
                device: Some(name),
                is_listed: false,
            }
        }));
        let outside_mps = self.outside_mps.iter().filter(|outside| outside.is_served);
        problems.extend(outside_mps.map(|outside| Problem {
            device: Some(self.name_of_uuid(&outside.uuid)),
            what: format!(
                "pid {} computes outside MPS: {}",
                outside.pid, outside.cause
            ),
            is_listed: true,
        }));
        problems.extend(self.shared());
        problems
    }

    /// Finds the devices that several daemons serve.
    fn shared(&self) -> Vec<Problem> {
        let mut shared = Vec::new();
        for device in self.devices() {
            let ours = self
                .served
                .iter()
                .filter(|served| served.record.uuid == device.uuid && served.is_alive());
            let ours = ours
                .filter_map(|served| Some(format!("pid {} of mig-mps", served.record.daemon?.pid)));
            let unmanaged = self.unmanaged.iter().filter(|daemon| {
                daemon.program == MpsProgram::Control
                    // A daemon that sees every GPU is reported once.
                    && !daemon.sees_everything()
                    && daemon.devices.contains(&device.uuid)
            });
            let unmanaged = unmanaged.map(|daemon| match daemon.user {
                Some(user) => format!("pid {} of {}", daemon.pid, user_name(user)),
                None => format!("pid {}", daemon.pid),
            });
            let daemons: Vec<String> = ours.chain(unmanaged).collect();
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

    /// Returns the problems of an unmanaged daemon.
    fn problems_of(&self, daemon: &Unmanaged) -> Vec<String> {
        let mut problems = Vec::new();
        let who = match daemon.user {
            Some(user) => format!("foreign daemon {} of {}", daemon.pid, user_name(user)),
            None => format!("foreign daemon {}", daemon.pid),
        };
        if daemon.sees_everything() {
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
        if daemon.is_at_default() && daemon.program == MpsProgram::Control {
            problems.push(format!(
                "{who} uses the default pipe directory: CUDA programs without a pipe directory of their own become its clients"
            ));
        }
        problems
    }
}

/// `server 4711 of alice outlived its daemon …`
fn describe_stray(stray: &Stray, name: &str) -> String {
    let pid = stray.server.pid;
    let user = stray
        .server
        .user
        .map_or_else(String::new, |user| format!(" of {}", user_name(user)));
    let remedy = match stray.clients.as_deref() {
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
    format!("server {pid}{user} outlived its daemon and keeps its GPU memory: {remedy}")
}
