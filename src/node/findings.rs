//! The problems of a node and remarks on it, each with its remedy, and what is not known.

use std::collections::BTreeSet;

use super::closing::closing_device_remark;
use super::daemon_findings::{changed_settings_problem, daemon_problem};
use super::fault::{Finding, Severity};
use super::{
    Applied, Client, LOST_GPU_REMEDY, Node, Served, Stray, Unmanaged, Unseen, start_again_hint,
};
use crate::failure::Problem;
use crate::host::{Pid, Uid, caller, format_gpus, user_name};
use crate::state::StoppedDevice;

impl Node {
    /// Returns what is wrong, worth knowing or not known: of these devices, or of all if none is named, and of the node
    /// as a whole.
    pub fn findings(&self, devices: &[String]) -> Vec<Finding> {
        let mut found = self.device_problems();
        for daemon in &self.unmanaged {
            found.extend(self.unmanaged_problems(daemon));
        }
        for (_, journal) in &self.interrupted {
            let what = match self.missing_after(journal) {
                missing if missing.is_empty() => format!("interrupted: {journal}"),
                missing => format!("interrupted: {journal}; missing: {}", missing.join(", ")),
            };
            let goes_on = "run `mig-mps up PROFILE` or `mig-mps down` to continue it";
            found.push(Finding::fail("change-interrupted", what).with_remedy(goes_on));
        }
        let unseen = self.unseen.iter().filter(|unseen| match unseen {
            // Its devices have the problem.
            Unseen::Gpu { why, .. } => {
                let mut devices = self.devices.iter();
                !devices.any(|device| device.lost_gpu_reason() == Some(why))
            }
            _ => true,
        });
        found.extend(unseen.filter_map(unseen_problem));
        for journal in &self.under_way {
            let what = format!("a change is under way: {journal}");
            found.push(Finding::warn("change-under-way", what));
        }
        found.extend(self.health_findings(devices));
        if devices.is_empty() {
            found.extend(self.unpartitioned_gpus_remark());
        }
        let missing = Problem::distinct(&self.missing).into_iter();
        found.extend(missing.map(|missing| self.left_out_problem(missing)));
        for served in self.served() {
            found.extend(
                remarks_on(served)
                    .into_iter()
                    .map(|remark| remark.on_device(&served.record.name)),
            );
        }
        for served in self.served() {
            let closing = served.closing();
            found.extend(closing.map(|closing| closing_device_remark(served, closing)));
        }
        for device in &self.devices {
            let stopped = self.find_stopped(device);
            found.extend(stopped.map(|(_, stopped)| stopped_device_remark(stopped)));
        }
        let unstartable = self.unstartable_devices();
        found.extend(unstartable.map(|(stopped, problem)| {
            let origin = stopped.origin.describe("at");
            let seen = format!("stopped by {origin}, and cannot start: {}", problem.what);
            let finding = Finding::warn("device-stopped", seen);
            let finding = finding.with_remedy(problem.hint.unwrap_or_default());
            finding.on_device(&stopped.record.name)
        }));
        debug_assert!(found.iter().all(Finding::matches_fault_table), "{found:?}");
        found.extend(self.unknown_faults());
        found.retain(|one| {
            let device = one.device.as_ref();
            device.is_none_or(|name| devices.is_empty() || devices.contains(name))
        });
        found
    }

    /// Returns the findings that `status --exit-code` reports.
    pub fn problems(&self, devices: &[String]) -> Vec<Finding> {
        self.problems_and_remarks(devices).0
    }

    /// Returns the problems, and what is in order and still worth a line of `status`.
    pub fn problems_and_remarks(&self, devices: &[String]) -> (Vec<Finding>, Vec<Finding>) {
        self.findings(devices)
            .into_iter()
            .filter(|one| matches!(one.severity, Severity::Fail | Severity::Warn))
            .partition(|one| one.severity == Severity::Fail)
    }

    /// Returns the names of the devices that have a problem or a remark.
    pub fn devices_with_findings(&self) -> BTreeSet<String> {
        let (problems, remarks) = self.problems_and_remarks(&[]);
        let findings = problems.into_iter().chain(remarks);
        findings.filter_map(|finding| finding.device).collect()
    }

    fn device_problems(&self) -> Vec<Finding> {
        let mut problems = Vec::new();
        for device in &self.devices {
            if let Some(served) = &device.served {
                let mut found = Vec::from_iter(daemon_problem(self, device, served));
                // During a change, record and daemon may differ.
                if !self.is_changing() {
                    found.extend(changed_settings_problem(self, served));
                    found.extend(self.access_problems(served));
                }
                problems.extend(
                    found
                        .into_iter()
                        .map(|problem| problem.on_device(&device.name)),
                );
            }
        }
        for device in &self.devices {
            for stray in &device.strays {
                problems.push(stray_server_problem(stray, &device.name));
            }
        }
        for device in &self.devices {
            let name = &device.name;
            for outside in device
                .outside_mps
                .iter()
                .filter(|outside| outside.is_served)
            {
                let problem = Finding::fail("outside-mps", outside.describe())
                    .with_remedy(outside.remedy(device, caller()));
                problems.push(problem.on_device(name).mark_listed());
            }
        }
        for served in self.served() {
            let over = served.clients_over_limit();
            problems.extend(over.filter_map(|client| memory_over_limit_problem(client, served)));
        }
        problems.extend(self.shared_device_problems());
        problems
    }

    /// Finds the devices that several daemons serve.
    fn shared_device_problems(&self) -> Vec<Finding> {
        let mut shared = Vec::new();
        for device in self.existing_devices() {
            let ours = device
                .serving_daemon()
                .and_then(|served| served.record.daemon);
            let mut daemons: Vec<String> = ours
                .map(|daemon| format!("pid {} of mig-mps", daemon.pid))
                .into_iter()
                .collect();
            let mut first_unmanaged = None;
            for daemon in &self.unmanaged {
                // A daemon that sees every GPU is reported once.
                if daemon.is_daemon()
                    && !daemon.sees_every_gpu()
                    && daemon.serves_device(&device.name)
                {
                    daemons.push(format!("pid {}{}", daemon.pid, of_user(daemon.user)));
                    first_unmanaged = first_unmanaged.or(Some(daemon));
                }
            }
            if daemons.len() > 1 {
                let name = &device.name;
                let what = format!("{} daemons serve it: {}", daemons.len(), daemons.join(", "));
                let remedy = match first_unmanaged {
                    Some(daemon) => daemon.ending_for(caller()).remedy("the unmanaged one"),
                    None => format!("run `mig-mps down {name}` to end one"),
                };
                let problem = Finding::fail("several-daemons", what).with_remedy(remedy);
                shared.push(problem.on_device(name));
            }
        }
        shared
    }

    /// Returns the problems of an unmanaged daemon.
    fn unmanaged_problems(&self, daemon: &Unmanaged) -> impl Iterator<Item = Finding> {
        let who = format!("unmanaged daemon {}{}", daemon.pid, of_user(daemon.user));
        let sees_everything = daemon.sees_every_gpu().then(|| {
            let alive = self.served().filter(|served| served.is_alive());
            let also = match alive.count() {
                0 => String::new(),
                alive => format!(", also the GPUs of mig-mps daemons ({alive})"),
            };
            let what =
                format!("{who} was started without CUDA_VISIBLE_DEVICES: it sees all GPUs{also}");
            Finding::fail("sees-all-gpus", what)
                .with_remedy(daemon.ending_for(caller()).remedy("it"))
        });
        let is_at_default = (daemon.is_daemon() && daemon.uses_default_pipe_dir()).then(|| {
            let what = format!(
                "{who} uses the default pipe directory: CUDA programs without another pipe directory become its clients"
            );
            Finding::fail("default-pipe-directory", what).with_remedy(daemon.ending_for(caller()).remedy("it"))
        });
        sees_everything.into_iter().chain(is_at_default)
    }

    /// Returns the faults that would not have been seen, with the reason.
    fn unknown_faults(&self) -> Vec<Finding> {
        let mut unknown = Vec::new();
        if self.is_changing() {
            let why = "a change of the node is in progress";
            unknown.push(Finding::unknown("settings-changed", why));
        }
        if self.may_be_changing() {
            for id in ["change-interrupted", "change-under-way"] {
                unknown.push(Finding::hidden(id, "the journal is hidden"));
            }
        }
        for served in self.served() {
            // Of a daemon that does not answer, root sees no more.
            let is_hidden = served.state.is_hidden() || served.is_read_back();
            let mut hide = |id, why: &str| {
                let finding = Finding::unknown(id, why).on_device(&served.record.name);
                unknown.push(Finding {
                    is_hidden,
                    ..finding
                });
            };
            if served.state.is_hidden() {
                hide("device-hung", "its daemon was not asked");
                hide("gpu-fault", "its daemon was not asked");
            }
            if served.is_alive() && !served.is_read_back() && !self.is_changing() {
                hide("settings-changed", "its settings were not read back");
            }
            if served.is_alive() && served.hides_memory_over_limit() {
                hide("memory-over-limit", "the memory of its clients is hidden");
            }
        }
        for device in self.existing_devices() {
            if device.processes.is_none() {
                let why = "the driver shows only to root who computes on it";
                unknown.push(Finding::hidden("outside-mps", why).on_device(&device.name));
            }
        }
        for daemon in self.unmanaged.iter().filter(|daemon| daemon.is_hidden()) {
            let why = format!("the environment of daemon {} is hidden", daemon.pid);
            for id in ["sees-all-gpus", "default-pipe-directory"] {
                unknown.push(Finding::hidden(id, why.as_str()));
            }
        }
        unknown
    }

    /// Describes a part of the applied profile that was left out. A daemon from before may go on in its place.
    fn left_out_problem(&self, missing: &Problem) -> Finding {
        let seen = format!("the applied profile is incomplete: {}", missing.what);
        let remedy = format!("fix this, then run `{}`", self.up_command());
        let finding = Finding::fail("profile-incomplete", seen).with_remedy(remedy);
        match &missing.device {
            Some(name) => finding.on_device(name),
            None => finding,
        }
    }

    /// Names the GPUs in MIG mode without a MIG device: `GPUs 0-2`.
    pub fn describe_unpartitioned_gpus(&self) -> Option<String> {
        let indices: Vec<u32> = self
            .gpus
            .iter()
            .filter(|gpu| self.is_unpartitioned(gpu))
            .map(|gpu| gpu.index)
            .collect();
        (!indices.is_empty()).then(|| format_gpus(&indices))
    }

    /// Describes the GPUs in MIG mode without a MIG device, as after a reboot. Where the profile was taken down, they are as
    /// somebody wanted them.
    fn unpartitioned_gpus_remark(&self) -> Option<Finding> {
        if let Applied::Known {
            taken_down: Some(_),
            ..
        } = &self.applied
        {
            return None;
        }
        let gpus = self.describe_unpartitioned_gpus()?;
        let what = format!("{gpus}: MIG is on and there is no MIG device");
        let problem = Finding::warn("no-mig-devices", what);
        let remedy = match &self.applied {
            // The applied profile may leave the GPU alone, or want no devices there.
            Applied::Known { differs, .. } if *differs != Some(true) => {
                format!(
                    "run `mig-mps up` with a profile that partitions {gpus} to create MIG devices"
                )
            }
            _ => format!("run `{}` to create MIG devices", self.up_command()),
        };
        Some(problem.with_remedy(remedy))
    }
}

fn remarks_on(served: &Served) -> Vec<Finding> {
    let mut remarks = Vec::new();
    if served.has_lost_server() {
        let ended = "its server has ended, and so have its clients; the next client starts another";
        remarks.push(Finding::warn("server-ended", ended));
    }
    if let Some(user) = served.record.runs_as_its_user() {
        let name = &served.record.name;
        let seen = format!(
            "its daemon runs as {}, as mig-mps 0.2 started it",
            user_name(user)
        );
        let remedy = format!("run `mig-mps restart {name}` to start a daemon that runs as root");
        remarks.push(Finding::warn("daemon-of-user", seen).with_remedy(remedy));
    }
    remarks.extend(client_limit_remark(served));
    remarks.extend(older_clients_remark(served));
    remarks.extend(
        served
            .waiting
            .iter()
            .map(|client| waiting_client_remark(client, served)),
    );
    remarks
}

/// Describes something that cannot be seen, if that is a problem. `status` lists it among what is hidden.
fn unseen_problem(unseen: &Unseen) -> Option<Finding> {
    let id = match unseen {
        Unseen::Driver(_) => "driver-silent",
        Unseen::Gpu { .. } => "gpu-lost",
        Unseen::Record { .. } | Unseen::RunDir { .. } => "record-unreadable",
        Unseen::Instances { .. } | Unseen::Journal(_) | Unseen::Other(_) => return None,
    };
    let problem = Finding::fail(id, unseen.to_string()).mark_listed();
    Some(match unseen {
        Unseen::Gpu { .. } => problem.with_remedy(LOST_GPU_REMEDY),
        _ => problem,
    })
}

/// ` of alice`, or nothing if the user is hidden.
fn of_user(user: Option<Uid>) -> String {
    user.map_or_else(String::new, |user| format!(" of {}", user_name(user)))
}

/// `server 4711 of alice outlived its daemon …`
fn stray_server_problem(stray: &Stray, name: &str) -> Finding {
    let pid = stray.server.pid;
    let user = of_user(stray.server.user);
    let remedy = match stray.clients.as_deref() {
        Some([]) => format!("run `mig-mps heal {name}` to end it"),
        Some(clients) => {
            let clients: Vec<String> = clients.iter().map(Pid::to_string).collect();
            format!(
                "it still has clients (pid {}); run `mig-mps down {name} --force` to end the server and the clients",
                clients.join(", ")
            )
        }
        None => format!("its clients are hidden; run `mig-mps down {name} --force` to end it"),
    };
    let seen = format!("server {pid}{user} outlived its daemon and keeps its GPU memory");
    let problem = Finding::fail("stray-server", seen).with_remedy(remedy);
    problem.on_device(name)
}

/// `pid 4711 (alice) uses 6147 MiB, more than the limit of 2G: …`
fn memory_over_limit_problem(client: &Client, served: &Served) -> Option<Finding> {
    let name = &served.record.name;
    let (limit, mib) = (served.memory_limit_of(client)?, client.memory? >> 20);
    // Which clients are older than a limit is known by their processes.
    let or_older = match client.started {
        Some(_) => "",
        None => ", or it is older than the limit",
    };
    let seen = format!(
        "{} uses {mib} MiB, more than the pinned-memory-limit of {limit}: its \
         CUDA_MPS_PINNED_DEVICE_MEM_LIMIT lifts the limit{or_older}",
        client.pid_with_user()
    );
    let ends = match client.pid {
        None => format!("run `mig-mps restart {name} --force` to end all its clients"),
        Some(pid) => format!("run `mig-mps kill {name} {pid} --signal` to end it"),
    };
    let problem = Finding::fail("memory-over-limit", seen).with_remedy(ends);
    Some(problem.on_device(name))
}

/// Says who has stopped a device, and how it comes back.
fn stopped_device_remark(stopped: &StoppedDevice) -> Finding {
    let name = &stopped.record.name;
    let seen = format!("stopped by {}", stopped.origin.describe("at"));
    let way_back = start_again_hint(name);
    let remedy = if stopped.origin.is_of_up() {
        format!("run the same command again to continue its change, or {way_back}")
    } else {
        way_back
    };
    Finding::warn("device-stopped", seen)
        .with_remedy(remedy)
        .on_device(name)
}

fn older_clients_remark(served: &Served) -> Option<Finding> {
    let older: Vec<&Client> = served
        .clients
        .as_slice()
        .iter()
        .filter(|client| !served.earlier_values(client).is_empty())
        .collect();
    let what = match older.as_slice() {
        [] => return None,
        [one] => {
            let values: Vec<String> = served
                .earlier_values(one)
                .into_iter()
                .map(|(key, value)| format!("{key} {value}"))
                .collect();
            format!(
                "{} keeps {}, with which it started",
                one.pid_with_user(),
                values.join(", ")
            )
        }
        several => {
            let pids: Vec<String> = several.iter().map(|client| client.shown_pid()).collect();
            let count = pids.len();
            format!(
                "{count} clients keep the settings with which they started, not the current settings: pid {}",
                pids.join(", ")
            )
        }
    };
    let remedy = "new programs get the current settings";
    Some(Finding::warn("older-clients", what).with_remedy(remedy))
}

/// `pid 4712 (bob) waits until the programs of alice have exited: pid 4711`
fn waiting_client_remark(client: &Client, served: &Served) -> Finding {
    let who = client.pid_with_user();
    let mut users: Vec<String> = served
        .servers
        .iter()
        .filter_map(|server| Some(user_name(server.user?)))
        .collect();
    users.dedup();
    let others = users.join(" and ");
    let pids = served.clients.shown_pids();
    let what = if users.is_empty() {
        format!("{who} waits until another user's server has started")
    } else if pids.is_empty() {
        format!("{who} waits until the programs of {others} have exited")
    } else {
        let pids = pids.join(", ");
        format!("{who} waits until the programs of {others} have exited: pid {pids}")
    };
    let sharing = "use serve = \"all\" in the profile to let users share the device";
    Finding::warn("user-waiting", what).with_remedy(sharing)
}

/// Describes a daemon that has all the clients that it can have, or more than `max-clients`.
fn client_limit_remark(served: &Served) -> Option<Finding> {
    if !served.clients.are_known() {
        return None;
    }
    let clients = u32::try_from(served.clients.as_slice().len()).ok()?;
    if let Some(meant) = served.record.settings.max_clients
        && clients > meant
    {
        let more = format!("it has {clients} clients and is meant for {meant} (max-clients)");
        return Some(Finding::warn("too-many-clients", more));
    }
    if served.record.key.is_joint() {
        return served.full_gpus_remark();
    }
    let most = served.hardware_limit.filter(|most| clients >= *most)?;
    let full = if served.record.key.instance.is_none() {
        "it has reached its limit of clients: another program's context fails with CUDA error 46"
            .to_owned()
    } else {
        format!(
            "it has as many clients as NVIDIA documents for a device of its size ({most}): another program's context may \
             fail with CUDA error 46"
        )
    };
    Some(Finding::warn("clients-full", full))
}
