//! The Slurm job, pod or container of a program, by its control group, as users see it.

use std::fs;

use serde_json::{Value, json};
use testkit::{App, Sim, assert_contains};

const UID: &str = "6dbbf17e-94e1-4b10-8555-9bfe510c25d5";
const ID: &str = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d";
const JOB: &str = "/slurm/uid_0/job_7/step_0/task_0";

fn in_pod() -> String {
    let uid = UID.replace('-', "_");
    format!(
        "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{uid}.slice/cri-containerd-{ID}.scope"
    )
}

/// Puts a program into a control group.
fn put(sim: &Sim, app: &App, group: &str) {
    sim.node.node().show_in_cgroup(app.pid(), group).unwrap();
}

/// The workload of a program in a list of a status.
fn workload(status: &Value, list: &str, app: &App) -> Value {
    let mut programs = status[list].as_array().unwrap().iter();
    let found = programs.find(|program| program["pid"] == app.pid());
    found.unwrap()["workload"].clone()
}

/// The line of a program in a table.
fn line<'a>(table: &'a str, app: &App) -> &'a str {
    let pid = format!(" {} ", app.pid());
    let mut lines = table.lines();
    lines.find(|line| line.contains(&pid)).unwrap()
}

/// The name of a client's pod.
fn of_pod(sim: &Sim, client: &App) -> Value {
    workload(&sim.status(), "clients", client)["pod_name"].clone()
}

#[test]
fn a_client_has_the_job_the_pod_or_the_container_of_its_group() {
    let sim = Sim::whole("");
    let clients = [(); 4].map(|()| sim.client("0"));
    let text = sim.run(&["status"]).ended(0).stdout;
    assert!(!text.contains("WORKLOAD"), "{text}");
    let [job, pod, container, other] = &clients;
    put(&sim, job, JOB);
    put(&sim, pod, &in_pod());
    put(&sim, container, &format!("/system.slice/docker-{ID}.scope"));
    let status = sim.status();
    let of = |app: &App| workload(&status, "clients", app);
    let none = json!({ "slurm_job": null, "slurm_step": null, "batch_job": null, "pod_uid": null, "pod_name": null, "container_id": null });
    let with = |key: &str, value: Value| {
        let mut all = none.clone();
        all[key] = value;
        all
    };
    let mut in_job = with("slurm_job", json!(7));
    in_job["slurm_step"] = json!("0");
    let mut in_pod = with("pod_uid", json!(UID));
    in_pod["container_id"] = json!(ID);
    assert_eq!(of(job), in_job);
    assert_eq!(of(pod), in_pod);
    assert_eq!(of(container), with("container_id", json!(ID)));
    assert_eq!(of(other), none);
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(&text, "RUNNING  WORKLOAD            COMMAND");
    assert_contains(line(&text, job), "  slurm 7.0           ");
    assert_contains(line(&text, pod), "  pod 6dbbf17e        ");
    assert_contains(line(&text, container), "  container 9ec39b91  ");
    // The kubelet's logs tell the name of the pod.
    fs::create_dir_all(sim.machine(&format!("var/log/pods/ml_train-0_{UID}/main"))).unwrap();
    assert_eq!(of_pod(&sim, pod), "ml/train-0");
    let named = sim.run(&["status"]).ended(0).stdout;
    assert_contains(line(&named, pod), "  pod ml/train-0      ");
    assert_contains(line(&text, other), "  -                   ");
    let text = sim.in_80_columns("status").stdout;
    assert_contains(&text, "WORKLOAD");
    assert_contains(&text, "not shown: running ");
}

#[test]
fn version_1_of_control_groups_is_read_too() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let groups = "12:pids:/system.slice/slurmd.service\n4:memory:/slurm/uid_0/job_7/step_batch\n\
                  1:name=systemd:/system.slice/slurmd.service\n0::/\n";
    sim.fake_proc(client.pid(), "cgroup", groups);
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(line(&text, &client), "  slurm 7.batch  ");
}

#[test]
fn a_group_that_cannot_be_seen_is_unknown() {
    let sim = Sim::whole("");
    let clients = [(); 2].map(|()| sim.client("0"));
    let [job, hidden] = &clients;
    put(&sim, job, JOB);
    // So it is for a mig-mps that runs in a container.
    put(&sim, hidden, "/../other");
    let status = sim.status();
    assert_eq!(workload(&status, "clients", hidden), Value::Null);
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(line(&text, hidden), "  ?          ");
}

#[test]
fn a_group_that_a_user_has_made_says_nothing() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    let own = "/user.slice/user-1000.slice/user@1000.service";
    for forged in [
        JOB,
        "/slurmstepd.scope/job_7/step_0",
        &in_pod(),
        &format!("/libpod-{ID}.scope"),
    ] {
        put(&sim, &client, &format!("{own}{forged}"));
        let found = workload(&sim.status(), "clients", &client);
        let mut values = found.as_object().unwrap().values();
        assert!(values.all(Value::is_null), "{forged}: {found}");
    }
}

#[test]
fn a_program_outside_mps_is_named_with_its_pod() {
    let sim = Sim::whole("");
    let outside = sim.outside("0");
    put(&sim, &outside, &in_pod());
    let status = sim.status();
    assert_eq!(workload(&status, "outside_mps", &outside)["pod_uid"], UID);
    let what = status["problems"][0]["what"].as_str().unwrap();
    assert_contains(what, ", pod 6dbbf17e) computes outside MPS: ");
    let text = sim.run(&["status"]).ended(0).stdout;
    assert_contains(line(&text, &outside), "  pod 6dbbf17e  ");
}

/// A batch system starts a container in the group of its job. What is inside, others have named.
#[test]
fn a_container_in_a_job_has_the_job() {
    let sim = Sim::whole("");
    let client = sim.client("0");
    for (group, system, id) in [
        (
            format!("/pbs_jobs.service/jobid/7.server/libpod-{ID}"),
            "pbs",
            "7.server",
        ),
        (format!("/lsf/c/job.7.11.22/libpod-{ID}"), "lsf", "7"),
        (
            format!("/htcondor/condor_slot1_1@n/docker/{ID}"),
            "htcondor",
            "slot1_1@n",
        ),
        (format!("/UGE/7.1/libpod-{ID}.scope"), "sge", "7.1"),
        (
            format!("/UGE/7.1/libpod-{ID}.scope/lsf/c/job.9.11.22"),
            "sge",
            "7.1",
        ),
        (
            format!("/pbs_jobs.service/jobid/7.server/libpod-{ID}/UGE/9.1"),
            "pbs",
            "7.server",
        ),
    ] {
        put(&sim, &client, &group);
        let of = workload(&sim.status(), "clients", &client);
        let job = json!({ "system": system, "id": id, "unverified": false });
        assert_eq!(of["batch_job"], job, "{group}");
        let text = sim.run(&["status"]).ended(0).stdout;
        assert_contains(line(&text, &client), &format!("  {system} {id}  "));
    }
    for group in [
        format!("/system.slice/docker-{ID}.scope/lsf/c/job.9.11.22"),
        format!("/docker/{ID}/pbs_jobs.service/jobid/9.server"),
        format!("{}/UGE/9.1", in_pod()),
    ] {
        put(&sim, &client, &group);
        let of = workload(&sim.status(), "clients", &client);
        assert_eq!(
            (&of["batch_job"], &of["container_id"]),
            (&Value::Null, &json!(ID)),
            "{group}"
        );
    }
}
