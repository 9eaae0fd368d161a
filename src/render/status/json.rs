//! `status --json`.

use super::row::{Row, rows};
use super::schema::{Client, Device, Foreign, Outside, Remark, Server, State, Status};
use crate::host::{Uid, user_name};
use crate::node::{self, DaemonState, MpsProgram, Node, Problem, ServerProcess, Variable};
use crate::render::json::VERSION;

/// Returns the status of these devices, or of all if none is named.
pub(in crate::render) fn of(node: &Node, devices: &[String]) -> Status {
    let rows = rows(node, devices);
    let of_all = |wanted: fn(&node::Served) -> &Vec<node::Client>| {
        rows.iter()
            .filter_map(|row| Some((row, row.served?)))
            .flat_map(|(row, served)| wanted(served).iter().map(|client| one_client(row, client)))
            .collect()
    };
    let problems = node.problems(devices);
    Status {
        version: VERSION,
        driver: node.driver.clone(),
        degraded: !problems.is_empty(),
        clients: of_all(|served| &served.clients),
        waiting: of_all(|served| &served.waiting),
        devices: rows.iter().map(|row| device(node, row)).collect(),
        outside_mps: node
            .outside_mps
            .iter()
            .map(|outside| one_outside(node, outside))
            .filter(|outside| devices.is_empty() || devices.contains(&outside.device))
            .collect(),
        foreign: node
            .unmanaged
            .iter()
            .map(|foreign| one_foreign(node, foreign))
            .collect(),
        problems: problems.into_iter().map(remark).collect(),
        remarks: node.remarks(devices).into_iter().map(remark).collect(),
        hidden: node.hidden.clone(),
    }
}

fn device(node: &Node, row: &Row<'_>) -> Device {
    let served = row.served;
    let alive = served.filter(|served| served.is_alive());
    let known = alive.filter(|_| row.is_known());
    let servers = alive.filter(|served| row.is_known() || served.state == DaemonState::Busy);
    let memory = row.memory(node);
    let record = served.map(|served| &served.record);
    Device {
        name: row.name.clone(),
        uuid: row.uuid().to_owned(),
        gpu: row.device.as_ref().map(|device| device.gpu),
        profile: row
            .device
            .as_ref()
            .and_then(|device| device.part.as_ref())
            .map(|part| part.title.clone()),
        state: state(row),
        serve: serde_json::json!(record.and_then(|record| record.settings.serve.as_ref())),
        pipe_directory: served.map(|served| {
            let pipe = served.run_dir.pipe_dir(&served.record.uuid);
            pipe.display().to_string()
        }),
        daemon_pid: alive
            .and_then(|served| served.record.daemon)
            .map(|daemon| daemon.pid.0),
        servers: servers.map(|served| served.servers.iter().map(server).collect()),
        clients: known.map(|served| served.clients.len()),
        client_limit: served.and_then(|served| served.client_limit),
        clients_unseen: known.map(|served| {
            let clients = served.clients.iter();
            clients.filter(|client| client.pid.0 == 0).count()
        }),
        active_thread_percentage: record
            .map(|record| record.settings.active_thread_percentage.value()),
        answered_active_thread_percentage: served
            .and_then(|served| served.answered.as_ref()?.percentage()),
        problem: served.and_then(|served| served.problem.clone()),
        memory_used_bytes: memory.map(|memory| memory.used),
        memory_total_bytes: memory.map(|memory| memory.total),
        utilization_percent: row.utilization(node),
        since: alive.map(|served| served.record.since),
    }
}

fn state(row: &Row<'_>) -> State {
    match row.served {
        None => State::NoDaemon,
        Some(served) if served.is_alive() && !served.device_is_there => State::NoDevice,
        Some(served) => match served.state {
            DaemonState::Ready => State::Ready,
            DaemonState::NoServerYet => State::NoServerYet,
            DaemonState::Starting => State::Starting,
            DaemonState::Fault => State::Fault,
            DaemonState::Busy => State::Busy,
            DaemonState::Hidden => State::Hidden,
            DaemonState::Hung => State::Hung,
            DaemonState::NoAnswer => State::NoAnswer,
            DaemonState::Orphan => State::Orphan,
            DaemonState::Dead => State::Dead,
        },
    }
}

fn server(server: &ServerProcess) -> Server {
    let (user, uid) = person(server.user);
    Server {
        pid: server.pid.0,
        user,
        uid,
    }
}

fn one_client(row: &Row<'_>, client: &node::Client) -> Client {
    let (user, uid) = person(client.user);
    Client {
        device: row.name.clone(),
        pid: Some(client.pid.0).filter(|&pid| pid != 0),
        user,
        uid,
        command: client.command.clone(),
        memory_bytes: client.memory,
        running_seconds: client.age.map(|age| age.as_secs()),
    }
}

fn one_outside(node: &Node, outside: &node::OutsideMps) -> Outside {
    let (user, uid) = person(outside.user);
    Outside {
        device: node.name_of_uuid(&outside.uuid),
        pid: outside.pid.0,
        user,
        uid,
        command: outside.command.clone(),
        memory_bytes: outside.memory,
        running_seconds: outside.age.map(|age| age.as_secs()),
        is_served: outside.is_served,
        cause: outside.cause.clone(),
    }
}

fn one_foreign(node: &Node, foreign: &node::Unmanaged) -> Foreign {
    let (user, uid) = person(foreign.user);
    Foreign {
        program: match foreign.program {
            MpsProgram::Control => "control",
            MpsProgram::Server => "server",
        },
        pid: foreign.pid.0,
        state: if foreign.is_orphan {
            "orphan"
        } else {
            "foreign"
        },
        user,
        uid,
        command: foreign.command.clone(),
        environment_is_readable: foreign.pipe_directory != Variable::Hidden,
        pipe_directory: foreign.pipe_directory.value().map(str::to_owned),
        visible_devices: foreign.visible.value().map(str::to_owned),
        devices: foreign
            .devices
            .iter()
            .map(|uuid| node.name_of_uuid(uuid))
            .collect(),
        servers: foreign.servers.iter().map(server).collect(),
        running_seconds: foreign.age.map(|age| age.as_secs()),
    }
}

fn person(uid: Option<Uid>) -> (Option<String>, Option<u32>) {
    (uid.map(user_name), uid.map(|uid| uid.0))
}

fn remark(problem: Problem) -> Remark {
    Remark {
        device: problem.device,
        what: problem.what,
    }
}
