//! Processes that hold GPUs whose MIG mode is to change.

use insta::assert_snapshot;
use serde_json::{Value, json};

use testkit::{Ran, SMALL, Sim, assert_contains, in_state, needs_root, tidy, user, whole};

const DCGM: &str = "nvidia-dcgm.service";

fn plan(sim: &Sim, profile: &str, words: &[&str]) -> Ran {
    let path = sim.profile(profile);
    let plan = ["plan", path.to_str().unwrap()];
    sim.run(&[&plan, words].concat()).ended(0)
}

/// The text made plain, with root for who runs the tests and holds the GPU.
fn held_by_root(text: &str) -> String {
    tidy(text).replace(&format!(" ({}, ", user()), " (root, ")
}

/// The text below the steps.
fn below(ran: &Ran) -> String {
    let text = held_by_root(&ran.stdout);
    let (_, below) = text.split_once("\n\n").expect("nothing is below the plan");
    // `plan` ends with a summary.
    let summary = below.find("\nPlan: ").unwrap_or(below.len());
    below[..summary].to_owned()
}

fn holders(sim: &Sim, gpu: usize) -> Value {
    let ran = plan(sim, SMALL, &["--json"]);
    let plan: Value = serde_json::from_str(&ran.stdout).unwrap();
    plan["gpus"][gpu]["holders"].clone()
}

#[test]
fn a_plan_shows_who_holds_its_gpus_and_the_option_that_helps() {
    let sim = Sim::with("a100-80gb", 2);
    let all_is_known = plan(&sim, SMALL, &[]).stdout;
    assert!(!all_is_known.contains("held open"), "{all_is_known}");
    assert_eq!(holders(&sim, 0), json!(null));
    sim.node.service(DCGM);
    assert_snapshot!(below(&plan(&sim, SMALL, &[])), @"
    GPUs 0-1: changing the MIG mode resets the GPU. An idle GPU is reset automatically; use --reset for other GPUs. In a virtual machine, reboot instead.

    In the way: cannot switch the MIG mode of GPUs 0-1: kept open by pid N (root, simnode serve /tmp/…/node nvidia-dcgm.service, nvidia-dcgm.service)
      use --stop-holders to stop these services during the change
    ");
    let shown = holders(&sim, 1);
    let shown = &shown.as_array().unwrap()[0];
    assert_eq!(shown["unit"], DCGM, "{shown}");
    assert_eq!(shown["option"], "--stop-holders", "{shown}");
    let stranger = sim.node.holder(&[1]);
    let shown = holders(&sim, 1);
    let mut shown = shown.as_array().unwrap().iter();
    let shown = shown
        .find(|holder| holder["pid"] == stranger.pid())
        .unwrap();
    assert_eq!(shown["unit"], "session-1.scope", "{shown}");
    assert_eq!(shown["option"], json!(null), "{shown}");
    let mixed = below(&plan(&sim, SMALL, &[]));
    assert_contains(&mixed, "In the way: cannot switch the MIG mode of GPU 1:");
    assert_contains(&mixed, "session-1.scope");
}

/// A GPU with a working daemon, and seven others: all are looked at before the first step.
#[test]
fn one_held_gpu_of_eight_is_found_before_anything_is_touched() {
    let sim = Sim::with("a100-80gb", 8);
    let whole = "[[gpu]]\nselect = { index = [3] }\nmig = false\n";
    sim.up(whole, &[]).ended(0);
    let daemon = sim.device("3")["daemon_pid"].clone();
    let holder = sim.node.holder(&[3]);
    let events = sim.node.events().len();
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    let named = format!("GPU 3: kept open by pid {} (", holder.pid());
    assert_contains(&ran.stderr, &named);
    assert!(
        ran.stderr
            .contains("hint: end these processes, then run the command again")
    );
    let since = sim.node.events().split_off(events);
    let changes = [
        "nvmlDeviceSetMigMode",
        "daemon stop",
        "daemon start",
        "quit",
    ];
    for change in changes {
        let happened = since.iter().any(|event| event.what == change);
        assert!(!happened, "{change} happened");
    }
    assert_eq!(sim.device("3")["daemon_pid"], daemon);
    assert_eq!(sim.device("3")["state"], "ready");
    holder.finish();
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 16);
}

#[test]
fn monitoring_services_are_no_obstacle_where_they_are_stopped() {
    let sim = Sim::with("a100-80gb", 2);
    sim.node.service(DCGM);
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    assert_snapshot!(held_by_root(&ran.stderr), @"
    note: GPUs 0-1: 2g.20gb + 1g.10gb uses 42 of 98 SMs; 1 × 3g.40gb + 1 × 2g.20gb + 2 × 1g.10gb uses all
    note: waiting for pid N (root, simnode serve /tmp/…/node nvidia-dcgm.service, nvidia-dcgm.service) to close GPUs 0-1
    error: cannot switch the MIG mode of GPUs 0-1: kept open by pid N (root, simnode serve /tmp/…/node nvidia-dcgm.service, nvidia-dcgm.service)
    hint: use --stop-holders to stop these services during the change
    ");
    assert_eq!(sim.happened("systemctl stop"), 0);
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
    let path = sim.profile(SMALL);
    let dry_run = ["up", path.to_str().unwrap(), "--stop-holders", "--dry-run"];
    let shown = sim.run(&dry_run).ended(0);
    assert!(!shown.stdout.contains("In the way"), "{}", shown.stdout);
    // Somebody else is still one.
    let holder = sim.node.holder(&[0]);
    sim.up(SMALL, &["--yes", "--stop-holders"]).ended(4);
    assert_eq!(sim.happened("systemctl stop"), 0);
    holder.finish();
    sim.up(SMALL, &["--yes", "--stop-holders"]).ended(0);
}

/// Hopper changes the mode without a reset, with some programs on it: the driver is asked before all else.
#[test]
fn where_the_driver_decides_a_held_gpu_comes_first() {
    let sim = Sim::with("h100-80gb-sxm", 8);
    let holder = sim.node.holder(&[5]);
    let shown = plan(&sim, SMALL, &[]);
    assert_snapshot!(below(&shown), @"
    GPU 5 is kept open by pid N (root, /tmp/…/node/bin/simnode hold /tmp/…/node --gpu 5, session-1.scope). If the driver does not switch its MIG mode because of this, nothing else is done.
      end these processes, then run the command again
    ");
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    assert_contains(&ran.stderr, "the GPU is in use");
    assert!(!ran.stderr.contains("were undone"), "{}", ran.stderr);
    let create = "nvmlDeviceCreateGpuInstanceWithPlacement";
    assert_eq!(sim.happened(create), 0);
    holder.finish();
    sim.up(SMALL, &["--yes"]).ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 16);
}

/// Before the question, in the words of the plan; and what they say is what happens.
#[test]
fn up_shows_who_holds_its_gpus() {
    let sim = Sim::served("h100-80gb-sxm", 1, &whole(""));
    let _holder = sim.node.holder(&[0]);
    let doubt = below(&plan(&sim, SMALL, &[]));
    assert_contains(
        &doubt,
        "because of this, its daemons and instances are restored, and nothing else is done.\n",
    );
    let ran = sim.up(SMALL, &[]).ended(4);
    assert_eq!(below(&ran), doubt);
    assert_contains(&ran.stderr, "this would stop 1 daemon\n");
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    assert_contains(&ran.stderr, "were undone");
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
}

/// A rollback brings no client back.
#[test]
fn no_client_is_ended_for_a_switch_that_the_driver_may_refuse() {
    let sim = Sim::served("h100-80gb-sxm", 1, &whole(""));
    sim.node.service(DCGM);
    let client = sim.client("0");
    assert_contains(
        &plan(&sim, SMALL, &[]).stdout,
        "nothing else is done. While it is kept open, --force ends no client on it.\n",
    );
    let ran = sim.up(SMALL, &["--yes", "--force"]).ended(4);
    assert_contains(
        &ran.stderr,
        "the driver might reject the MIG mode change of GPU 0 after clients were ended: kept open by pid ",
    );
    assert_contains(
        &ran.stderr,
        "hint: use --stop-holders to stop these services",
    );
    assert_eq!(sim.happened("nvmlDeviceSetMigMode"), 0);
    assert_eq!(in_state(&sim.status(), "ready"), ["0"]);
    // What is asked for by itself is done.
    let dry = sim.run(&["down", "--force", "--dry-run"]).ended(0);
    assert_contains(&dry.stdout, "This ends 1 client:");
    sim.up(SMALL, &["--yes", "--force", "--stop-holders"])
        .ended(0);
    assert_eq!(in_state(&sim.status(), "ready").len(), 2);
    assert!(!client.await_end().status.success());
}

/// An `nvidia-smi` that runs at that moment fails nothing.
#[test]
fn a_process_that_holds_a_gpu_for_a_moment_is_waited_for() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let path = sim.profile(SMALL);
    let mut up = sim.talk(&["up", path.to_str().unwrap(), "--yes"]);
    up.await_text(&format!("waiting for pid {} (", holder.pid()));
    holder.finish();
    let said = up.end().ended(0).stdout;
    assert_eq!(said.matches("waiting for").count(), 1, "{said}");
    assert_eq!(in_state(&sim.status(), "ready").len(), 2);
}

#[test]
fn what_a_plain_user_cannot_see_is_counted() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    sim.node.service(DCGM);
    let whole = "[mps]\nserve = \"one-at-a-time\"\n".to_owned() + SMALL;
    let path = sim.profile(&whole);
    let ran = Ran::of(&mut sim.by_nobody(&["plan", path.to_str().unwrap()])).ended(0);
    assert_contains(&ran.stdout, "of other users, which only root can inspect");
}

/// As in `status`: the scope of a container or of Slurm tells nobody whose job it is.
#[test]
fn a_holder_in_a_pod_or_a_job_is_named_by_that() {
    let sim = Sim::with("a100-80gb", 1);
    let holder = sim.node.holder(&[0]);
    let uid = "6dbbf17e-94e1-4b10-8555-9bfe510c25d5";
    let pod = format!(
        "/kubepods.slice/kubepods-pod{}.slice/cri-containerd-6552905b87fd9f0aca7dd140834c594e6873cf24b2ac9dd0023972d5b6ead6dc.scope",
        uid.replace('-', "_")
    );
    let job = "/system.slice/slurmstepd.scope/job_1042/step_batch/user/task_0";
    let is_named = |group: &str, name: &str| {
        let node = sim.node.node();
        node.show_in_cgroup(holder.pid(), group).unwrap();
        let named = format!(", {name})");
        let text = below(&plan(&sim, SMALL, &[]));
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_contains(&text, &named);
        assert!(!text.contains(".scope"), "{text}");
        let refused = sim.up(SMALL, &["--yes"]).ended(4);
        assert_contains(&refused.stderr, &named);
    };
    is_named(job, "slurm 1042.batch");
    is_named(&pod, "pod 6dbbf17e");
    let logs = format!("var/log/pods/ml_train-0_{uid}");
    std::fs::create_dir_all(sim.machine(&logs)).unwrap();
    is_named(&pod, "pod ml/train-0");
    let shown = holders(&sim, 0);
    assert_eq!(shown[0]["workload"]["pod_name"], "ml/train-0", "{shown}");
}
