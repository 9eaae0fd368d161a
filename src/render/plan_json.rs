//! Plans as JSON.

use anyhow::Result;
use serde::Serialize;
use serde_json::{Value, json};

use super::json::VERSION;
use super::status::Status;
use crate::geometry::{ComputeChoice, SliceMap};
use crate::node::Node;
use crate::nvml::compute_mode_in_words;
use crate::plan::{Action, ClientOf, GpuPlan, Obstacle, Plan, Set, Signal, Start, Step};

/// The outcome of a change. `changed` comes last.
#[derive(Serialize)]
pub struct Outcome {
    plan: Value,
    /// The status after the change.
    status: Value,
    changed: bool,
}

/// Describes what a plan has made of a node.
pub fn outcome(plan: &Plan, node: &Node) -> Result<Outcome> {
    Ok(Outcome {
        plan: of(plan),
        status: serde_json::to_value(Status::of(node, &[]))?,
        changed: !plan.is_empty(),
    })
}

pub fn of(plan: &Plan) -> Value {
    json!({
        "version": VERSION,
        "changes": !plan.is_empty(),
        "gpus": plan.gpus.iter().map(gpu).collect::<Value>(),
        "purges": plan.purge.is_some(),
        "kill": plan.kill.as_ref().map(|kill| json!({
            "device": kill.name,
            "clients": kill.clients().map(client).collect::<Vec<_>>(),
            "signal": kill.signal.map(Signal::name),
            "others": kill.others,
        })),
    })
}

fn gpu(gpu: &GpuPlan) -> Value {
    let actions = gpu.steps.iter().map(|step| &step.action);
    let stops = actions.filter_map(Action::as_stop);
    let clients = stops.clone().flat_map(|stop| &stop.clients);
    let unasked = stops.filter_map(|stop| stop.unasked.as_ref());
    json!({
        "index": gpu.index,
        "uuid": gpu.uuid,
        "product": gpu.product,
        "before": slices(&gpu.before),
        "after": slices(&gpu.after),
        "steps": gpu.steps.iter().map(step).collect::<Value>(),
        "to_be_continued": gpu.to_be_continued,
        "due": gpu.due,
        "compute_mode": gpu.compute_mode.map(|change| json!({
            "from": change.from.map(compute_mode_in_words),
            "to": compute_mode_in_words(change.to),
        })),
        "disrupts": clients.map(client).collect::<Value>(),
        "obstacles": gpu.obstacles.iter().chain(unasked).map(obstacle).collect::<Value>(),
    })
}

fn client(client: &ClientOf) -> Value {
    json!({
        "device": client.device,
        "pid": client.pid.map(|pid| pid.0),
        "user": client.user,
        "command": client.command,
    })
}

fn slices(map: &SliceMap) -> Value {
    let segments = map.segments().iter().map(|segment| {
        json!({
            "start": segment.placement.start,
            "size": segment.placement.size,
            "profile": segment.label,
        })
    });
    segments.collect()
}

fn obstacle(obstacle: &Obstacle) -> Value {
    json!({ "what": obstacle.what, "hint": obstacle.hint })
}

fn step(step: &Step) -> Value {
    let mut fields = match &step.action {
        Action::Stop(daemon) => json!({
            "action": "stop-daemon",
            "device": daemon.name,
            "uuid": daemon.uuid,
            "alive": daemon.alive,
        }),
        Action::DestroyComputeInstance { instance, compute } => json!({
            "action": "destroy-compute-instance",
            "gpu_instance": instance,
            "placement": compute,
        }),
        Action::DestroyGpuInstance(instance) => json!({
            "action": "destroy-gpu-instance",
            "profile": instance.name,
            "placement": instance.placement,
        }),
        Action::SwitchMig { on } => json!({ "action": "switch-mig-mode", "on": on }),
        Action::CreateGpuInstance(instance) => json!({
            "action": "create-gpu-instance",
            "profile": instance.name,
            "placement": instance.placement,
        }),
        Action::CreateComputeInstance { instance, compute } => json!({
            "action": "create-compute-instance",
            "gpu_instance": instance,
            "slices": match compute {
                ComputeChoice::Slices { count, .. } => Some(count),
                _ => None,
            },
        }),
        Action::Start(start) => start_json(start),
        Action::Set(set) => set_json(set),
        Action::StartServer(server) => json!({
            "action": "start-server",
            "device": server.name,
        }),
        Action::EndStray(stray) => json!({
            "action": "end-stray-server",
            "device": stray.name,
            "pid": stray.server.0.0,
        }),
    };
    fields["because"] = step.because.as_str().into();
    fields
}

fn start_json(start: &Start) -> Value {
    json!({
        "action": "start-daemon",
        "device": start.name,
        "serve": start.serve(),
        "beside": start.beside.iter().map(|daemon| json!({
            "pid": daemon.pid.0,
            "user": daemon.user,
            "pipe_directory": daemon.pipe_directory.value(),
        })).collect::<Value>(),
    })
}

fn set_json(set: &Set) -> Value {
    json!({
        "action": "set",
        "device": set.name,
        "changes": set.changes.iter().map(|change| json!({
            "key": change.key,
            "from": change.is,
            "to": change.wanted,
        })).collect::<Value>(),
        "keep_old_values": set.keep.iter().map(client).collect::<Value>(),
    })
}
