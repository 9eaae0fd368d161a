//! Instances that mig-mps did not make are destroyed only after a question that names them, or with `--destroy-unmanaged`.

use std::fs;

use serde_json::{Value, json};
use testkit::{ONE_EACH, Ran, SMALL, Sim, assert_contains, in_state};

use crate::cli::devices::uuids::nvidia_smi;

/// The names and places of the GPU instances of a GPU.
fn instances(sim: &Sim, gpu: usize) -> Vec<String> {
    let list = sim.list();
    let instances = list["gpus"][gpu]["gpu_instances"].as_array().unwrap();
    let mut named: Vec<String> = instances
        .iter()
        .map(|one| {
            format!(
                "{} at {}",
                one["profile"].as_str().unwrap(),
                one["placement"]["start"]
            )
        })
        .collect();
    named.sort();
    named
}

/// Another administrator makes a `1g.10gb` with its compute instance at slice 6.
fn make_another(sim: &Sim, gpu: usize) {
    nvidia_smi(sim, &format!("mig -i {gpu} -cgi 19:6 -C"));
}

const REFUSED: &str = "error: GPU 0: 1g.10gb at slice 6 would be destroyed, but mig-mps has no record of creating it\nhint: run `mig-mps up` in a terminal without --yes and confirm, or use --destroy-unmanaged\n";

#[test]
fn no_flag_for_other_things_is_consent() {
    let sim = Sim::small();
    make_another(&sim, 0);
    let before = instances(&sim, 0);
    for flags in [
        &["--yes"][..],
        &["--yes", "--force"],
        &["--yes", "--reset", "--stop-holders", "--prune"],
        &["--yes", "--drain", "1"],
        &[],
    ] {
        let ran = sim.up(ONE_EACH, flags).ended(4);
        assert_contains(&ran.stderr, REFUSED);
        assert_eq!(instances(&sim, 0), before, "{flags:?}");
        assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "0.2"]);
    }
    let whole = "[[gpu]]\nselect = { all = true }\nmig = false\n";
    let ran = sim.up(whole, &["--yes", "--force"]).ended(4);
    assert_contains(&ran.stderr, REFUSED);
    assert_eq!(instances(&sim, 0), before);
    sim.up(ONE_EACH, &["--yes", "--destroy-unmanaged"]).ended(0);
    assert_eq!(instances(&sim, 0), ["3g.40gb at 0"]);
}

#[test]
fn a_plan_shows_beforehand_what_is_refused() {
    let sim = Sim::small();
    make_another(&sim, 0);
    let path = sim.profile(ONE_EACH).display().to_string();
    let shown = "\nIn the way: GPU 0: 1g.10gb at slice 6 would be destroyed, ";
    for args in [
        &["plan", &path][..],
        &["up", &path, "--dry-run"],
        &["up", &path, "--dry-run", "--yes"],
    ] {
        let ran = sim.run(args).ended(0);
        assert_contains(&ran.stdout, shown);
        assert_contains(
            &ran.stdout,
            "(not in the profile; mig-mps has no record of creating it)",
        );
    }
    let agreed = ["up", &path, "--dry-run", "--destroy-unmanaged"];
    let ran = sim.run(&agreed).ended(0);
    assert!(!ran.stdout.contains("In the way"), "{ran:?}");
    let plan = sim.run(&["plan", &path, "--json"]).json();
    let gpu = &plan["gpus"][0];
    let steps = gpu["steps"].as_array().unwrap().iter();
    let marked: Vec<(&Value, &Value)> = steps
        .filter(|step| step["action"] == "destroy-gpu-instance")
        .map(|step| (&step["profile"], &step["unmanaged_instance"]))
        .collect();
    assert_eq!(
        marked,
        [
            (&json!("2g.20gb"), &json!(false)),
            (&json!("1g.10gb"), &json!(false)),
            (&json!("1g.10gb"), &json!(true))
        ]
    );
    assert_eq!(gpu["obstacles"].as_array().unwrap().len(), 1);
}

#[test]
fn a_question_names_them() {
    let sim = Sim::small();
    make_another(&sim, 0);
    let path = sim.profile(ONE_EACH).display().to_string();
    let refused = sim.answered(&format!("up {path}"), "n\n").ended(4);
    let named = "Not known to be created by mig-mps:\n  GPU 0 1g.10gb at slice 6\n";
    assert_contains(&refused.stdout, named);
    assert_eq!(instances(&sim, 0).len(), 3);
    sim.answered(&format!("up {path}"), "y\n").ended(0);
    assert_eq!(instances(&sim, 0), ["3g.40gb at 0"]);
}

/// The command of the unit leaves the GPU as it is, whatever else it may do.
#[test]
fn what_goes_on_leaves_their_gpu_out() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    make_another(&sim, 1);
    let before = instances(&sim, 1);
    let at_boot = ["--yes", "--stop-holders", "--reset", "--keep-going"];
    let ran = sim.up(ONE_EACH, &at_boot).ended(1);
    assert_contains(
        &ran.stderr,
        "error: the profile was applied in part; left out:\n  GPU 1: 1g.10gb at slice 6 would be destroyed, but mig-mps has no record of creating it\n",
    );
    assert_contains(&ran.stderr, "--destroy-unmanaged");
    assert_eq!(instances(&sim, 0), ["3g.40gb at 0"]);
    assert_eq!(instances(&sim, 1), before);
    assert_eq!(in_state(&sim.status(), "ready"), ["0.0", "1.0", "1.2"]);
    let agreed = [&at_boot[..], &["--destroy-unmanaged"]].concat();
    sim.up(ONE_EACH, &agreed).ended(0);
    assert_eq!(instances(&sim, 1), ["3g.40gb at 0"]);
}

#[test]
fn down_destroys_them_only_with_its_option() {
    let sim = Sim::small();
    make_another(&sim, 0);
    let ran = sim
        .run(&["down", "--disable-mig", "--yes", "--force"])
        .ended(0);
    assert_contains(&ran.stderr, "(--destroy-unmanaged destroys such instances)");
    assert_eq!(instances(&sim, 0), ["1g.10gb at 6"]);
    let asked = sim.run(&["down", "--destroy-unmanaged"]).ended(4);
    assert_contains(&asked.stderr, "this would destroy GPU 0 1g.10gb at slice 6");
    sim.run(&["down", "--destroy-unmanaged", "--yes"]).ended(0);
    assert_eq!(instances(&sim, 0), [""; 0]);
}

/// Others may put compute instances into a GPU instance of mig-mps.
#[test]
fn a_compute_instance_of_others_keeps_its_gpu_instance() {
    let one = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", compute = [\"1c\"] } ]\n";
    let sim = Sim::served("a100-80gb", 1, one);
    nvidia_smi(&sim, "mig -cci 0");
    let compute = || {
        let list = sim.list();
        let instance = &list["gpus"][0]["gpu_instances"][0];
        instance["compute_instances"].as_u64()
    };
    assert_eq!(compute(), Some(2));
    let ran = sim.up(SMALL, &["--yes"]).ended(4);
    assert_contains(&ran.stderr, "error: GPU 0: compute instance slice ");
    assert_contains(
        &ran.stderr,
        " would be destroyed, but mig-mps has no record",
    );
    let two = one.replace("[\"1c\"]", "[\"2c\"]");
    sim.up(&two, &["--yes"]).ended(4);
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_eq!(
        (compute(), instances(&sim, 0).len()),
        (Some(1), 1),
        "theirs stays, ours went"
    );
    sim.run(&["down", "--destroy-unmanaged", "--yes"]).ended(0);
    assert_eq!(instances(&sim, 0), [""; 0]);
}

/// Without node.json nothing tells who made an instance: one that the profile wants is used, and no other is destroyed.
#[test]
fn what_is_forgotten_is_theirs() {
    let sim = Sim::small();
    sim.run(&["down"]).ended(0);
    fs::remove_dir_all(sim.node.run_dir()).unwrap();
    sim.up(SMALL, &["--yes"]).ended(0);
    sim.up_does_nothing(SMALL);
    let refused = |ran: Ran| {
        let ran = ran.ended(4);
        assert_contains(
            &ran.stderr,
            "2g.20gb at slices 0-1 and 1g.10gb at slice 2 would be destroyed",
        );
    };
    refused(sim.up(ONE_EACH, &["--yes"]));
    sim.run(&["down", "--destroy-mig", "--yes"]).ended(0);
    assert_eq!(instances(&sim, 0).len(), 2);
    refused(sim.up(ONE_EACH, &["--yes"]));
    sim.up(ONE_EACH, &["--yes", "--destroy-unmanaged"]).ended(0);
    // What is made now is known.
    sim.up(SMALL, &["--yes"]).ended(0);
}

/// A rollback makes them for their owner.
#[test]
fn what_is_put_back_is_theirs() {
    let sim = Sim::small();
    make_another(&sim, 0);
    let before = instances(&sim, 0);
    let fault = sim.node.fault("nvmlDeviceCreateGpuInstanceWithPlacement");
    fault.nth(1).fails(1).unwrap();
    sim.up(ONE_EACH, &["--yes", "--destroy-unmanaged"]).ended(1);
    sim.node.node().clear_faults().unwrap();
    assert_eq!(instances(&sim, 0), before);
    let ran = sim.up(ONE_EACH, &["--yes"]).ended(4);
    assert_contains(&ran.stderr, REFUSED);
}

/// The question comes again for instances made meanwhile: while clients were waited for, and within an instance that was named.
#[test]
fn what_comes_after_the_question_is_asked_about() {
    let sim = Sim::small();
    let path = sim.profile(ONE_EACH).display().to_string();
    let named = "Not known to be created by mig-mps:";
    let app = sim.client("0.0");
    let mut up = sim.dialogue(&format!("up {path} --drain 60"));
    up.await_text("Go on?");
    up.press("y\n");
    up.await_text("waiting up to");
    make_another(&sim, 0);
    let before = instances(&sim, 0);
    app.finish();
    up.await_texts(&[named, "  GPU 0 1g.10gb at slice 6", "Go on?"]);
    up.press("n\n");
    up.end().ended(4);
    assert_eq!(instances(&sim, 0), before);

    let part = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"3g\", compute = [\"1c\"] } ]\n";
    let sim = Sim::served("a100-80gb", 1, part);
    let path = sim.profile(SMALL).display().to_string();
    let mut up = sim.dialogue(&format!("up {path}"));
    up.await_text("Go on?");
    let id = &sim.list()["gpus"][0]["gpu_instances"][0]["gpu_instance_id"];
    nvidia_smi(&sim, &format!("mig -i 0 -gi {id} -cci 0"));
    up.press("y\n");
    up.await_texts(&[named, "  GPU 0 compute instance", "Go on?"]);
    up.press("n\n");
    up.end().ended(4);
    assert_eq!(instances(&sim, 0), ["3g.40gb at 0"]);
}
