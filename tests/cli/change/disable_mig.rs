//! `down --disable-mig`: which GPUs, and where the mode stays.

use testkit::{ONE_EACH, SMALL, Sim, assert_contains};

/// Where an Ampere GPU's MIG mode changes with a reboot.
fn in_a_virtual_machine() -> Sim {
    let sim = Sim::with("a100-80gb", 1);
    let platform = simnode::node::Platform::PassThrough;
    let update = sim
        .node
        .node()
        .update(|state| state.policy.platform = platform);
    update.unwrap();
    sim
}

#[test]
fn disable_mig_leaves_the_gpus_of_other_devices_alone() {
    let sim = Sim::served("h200", 2, ONE_EACH);
    sim.run(&["down", "1.0", "--destroy-mig", "--yes"]).ended(0);
    sim.run(&["down", "0.0", "--disable-mig", "--yes"]).ended(0);
    let list = sim.list();
    assert_eq!(list["gpus"][0]["mig"]["current"], false, "{list:#}");
    assert_eq!(list["gpus"][1]["mig"]["current"], true, "{list:#}");
}

/// Where the mode stays is said of the GPUs that were asked for, and the profile still has them.
#[test]
fn what_down_says_is_about_the_gpus_asked_for() {
    let sim = Sim::served("h200", 3, ONE_EACH);
    sim.foreign_instance(1, 6);
    let ran = sim.run(&["down", "--gpu", "1", "--disable-mig", "--yes"]);
    let said = regex::Regex::new(r" in \d+ ms").unwrap();
    let ran = ran.ended(0);
    insta::assert_snapshot!(said.replace_all(&ran.tidy(), " in N ms"), @"
    GPU 1  NVIDIA H200  GPU-…
      |3g.71gb  |.....|.....|1g  |.....|  now
      |.....|.....|.....|.....|.....|.....|1g  |.....|  then
      - stop 1 daemon: 1.0
      - destroy 3g.71gb at slices 0-3 (mig-mps created it)
    note: GPU 1 stays in MIG mode: it still has instances
    1 daemon stopped, 1 GPU instance destroyed in N s
    note: these GPU instances remain, because mig-mps has no record of creating them (--destroy-unmanaged destroys such instances), or they hold other devices:
      GPU 1 1g.18gb at slice 6
    note: the next up of profile.toml, also at boot, creates them again, unless you change the profile
    ");
}

/// It is not known what drivers do with existing instances: they are destroyed first.
#[test]
fn disable_mig_needs_no_driver_that_clears_the_gpu() {
    for model in ["h200", "a100-80gb"] {
        for clears in [true, false] {
            let sim = Sim::with(model, 2);
            let policy = sim
                .node
                .node()
                .update(|state| state.policy.disables_with_instances = clears);
            policy.unwrap();
            sim.up(SMALL, &[]).ended(0);
            sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
            for gpu in sim.list()["gpus"].as_array().unwrap() {
                assert_eq!(gpu["mig"]["current"], false, "{model} {clears}: {gpu:#}");
            }
            assert_eq!(sim.run_dir(), ["lock"]);
            assert_eq!(refusals(&sim), 0, "{model} {clears}");

            // Nor does a profile that wants the GPUs whole.
            sim.up(SMALL, &[]).ended(0);
            let whole = "[[gpu]]\nselect = { all = true }\nmig = false\n";
            sim.up(whole, &["--yes"]).ended(0);
            sim.up_does_nothing(whole);
            assert_eq!(refusals(&sim), 0, "{model} {clears}");
        }
    }
}

/// The mode stays where somebody else's instance lives, and nothing is asked of the driver.
#[test]
fn disable_mig_leaves_a_gpu_with_instances_of_others_in_mig_mode() {
    for clears in [true, false] {
        let sim = Sim::with("h200", 1);
        let policy = sim
            .node
            .node()
            .update(|state| state.policy.disables_with_instances = clears);
        policy.unwrap();
        sim.up(ONE_EACH, &[]).ended(0);
        sim.foreign_instance(0, 6);
        sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
        let gpu = &sim.list()["gpus"][0];
        assert_eq!(gpu["mig"]["current"], true, "{gpu:#}");
        assert_eq!(refusals(&sim), 0);
    }
}

/// The changes of MIG mode that the driver refused.
fn refusals(sim: &Sim) -> usize {
    let events = sim.node.events();
    let of_mode = events
        .iter()
        .filter(|event| event.what == "nvmlDeviceSetMigMode");
    of_mode.filter(|event| event.detail["code"] != 0).count()
}

#[test]
fn a_mode_that_was_only_noted_is_no_longer_ours_once_it_is_taken_back() {
    let sim = in_a_virtual_machine();
    sim.up(SMALL, &[]).ended(3);
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert_contains(&ran.stderr, "MIG mode off on 1 GPU in ");
    assert_eq!(sim.run_dir(), ["lock"]);
}

#[test]
fn disable_mig_says_where_the_mode_stays() {
    let sim = in_a_virtual_machine();
    sim.up(SMALL, &[]).ended(3);
    sim.node.reboot();
    sim.up(SMALL, &[]).ended(0);
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert_contains(
        &ran.stderr,
        "GPU 0 stays in MIG mode: mig-mps has no record of enabling MIG mode",
    );
}

/// Before the question, with one command for all.
#[test]
fn where_the_mode_stays_is_said_before_the_question() {
    let sim = Sim::served("a100-80gb", 2, SMALL);
    sim.node.reboot();
    sim.up(SMALL, &[]).ended(0);
    let stays = "GPUs 0-1 stay in MIG mode: mig-mps has no record of enabling MIG mode (the record does not survive a reboot); to disable MIG mode, run `nvidia-smi -i 0,1 -mig 0`\n";
    let ran = sim.run(&["down", "--disable-mig"]).ended(4);
    assert_contains(&ran.stderr, stays);
    assert_contains(&ran.stderr, "confirmation required: ");
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert_eq!(ran.stderr.matches(stays).count(), 1, "{}", ran.stderr);
    // Nothing is left to do, and that is still so.
    let ran = sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
    assert_contains(&ran.stderr, stays);
}

#[test]
fn disable_mig_warns_of_the_reset_that_ampere_needs() {
    for (model, warns) in [("a100-80gb", true), ("h200", false)] {
        let sim = Sim::with(model, 1);
        sim.up(SMALL, &[]).ended(0);
        let ran = sim.run(&["down", "--disable-mig"]).ended(4);
        let warned = ran.stderr.contains("needs a GPU reset");
        assert_eq!(warned, warns, "{model}: {}", ran.stderr);
    }
}

/// The driver answers for the GPU, but not about its instances.
fn cannot_be_read(sim: &Sim) {
    let placements = "nvmlDeviceGetGpuInstancePossiblePlacements_v2";
    sim.node.fault(placements).every().fails(12).unwrap();
}

#[test]
fn what_mig_mps_made_on_a_gpu_that_cannot_be_read_is_not_done_away_with() {
    for option in ["--destroy-mig", "--disable-mig"] {
        let sim = Sim::small();
        cannot_be_read(&sim);
        let shown = sim.run(&["down", option, "--dry-run"]).ended(0);
        assert_contains(&shown.stderr, STAYS);
        let ran = sim.run(&["down", option, "--yes"]).ended(1);
        assert_contains(&ran.stderr, "2 daemons stopped");
        assert_contains(&ran.stderr, STAYS);
        // Nothing is left to stop, and it still is not done.
        let again = sim.run(&["down", option, "--yes", "--json"]).ended(1);
        let document: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
        let error = document["error"]["what"].as_str().unwrap();
        assert!(error.contains(STAYS), "{document:#}");
        sim.run(&["down", "--yes"]).ended(0);
        sim.node.node().clear_faults().unwrap();
        sim.run(&["down", option, "--yes"]).ended(0);
        assert_eq!(
            sim.list()["gpus"][0]["gpu_instances"],
            serde_json::json!([])
        );
    }
}

const STAYS: &str = "devices and instances of mig-mps remain on GPU 0, which cannot be read: ";

/// Neither those of a device on another GPU, nor those that others made.
#[test]
fn a_gpu_that_cannot_be_read_fails_only_what_is_asked_of_it() {
    let sim = Sim::served("a100-80gb", 2, ONE_EACH);
    sim.node.node().lose_gpu(1).unwrap();
    sim.run(&["down", "0.0", "--destroy-mig", "--yes"]).ended(0);
    let ran = sim.run(&["down", "1.0", "--destroy-mig", "--yes", "--force"]);
    assert!(ran.ended(1).stderr.contains("on GPU 1, which"));
    let sim = Sim::with("a100-80gb", 2);
    sim.up(
        "[[gpu]]\nselect = { index = [0] }\ndevices = [ { profile = \"3g\" } ]\n",
        &[],
    )
    .ended(0);
    sim.node.node().lose_gpu(1).unwrap();
    sim.run(&["down", "--disable-mig", "--yes"]).ended(0);
}

/// `'*'` means everything also where no device is left.
#[test]
fn a_star_is_everything_also_without_devices() {
    let sim = Sim::with("h200", 2);
    sim.up(SMALL, &[]).ended(0);
    let down = sim.run(&["down", "*", "--destroy-mig", "--yes"]).ended(0);
    assert_contains(&down.stdout, "(mig-mps created them)");
    assert_eq!(sim.list()["gpus"][0]["mig"]["current"], true);
    let again = sim.run(&["down", "*", "--destroy-mig", "--yes"]).ended(0);
    assert_contains(&again.stderr, "Nothing to do");
    sim.run(&["down", "*", "--disable-mig", "--yes"]).ended(0);
    for gpu in sim.list()["gpus"].as_array().unwrap() {
        assert_eq!(gpu["mig"]["current"], false, "{gpu:#}");
    }
}

/// `--gpu` means a whole GPU, with its MIG mode and with instances that have no device.
#[test]
fn a_gpu_is_meant_as_a_whole_also_without_devices() {
    let sim = Sim::with("h200", 3);
    sim.up(ONE_EACH, &[]).ended(0);
    sim.run(&["down", "--gpu", "1", "--destroy-mig", "--yes"])
        .ended(0);
    let idle = sim.run(&["down", "--gpu", "1"]).ended(2);
    assert_contains(&idle.stderr, "GPU 1 has no device");
    for again in [&["--gpu", "1"][..], &["--gpu", "1", "--gpu", "2"]] {
        let words = [&["down", "--destroy-mig", "--yes", "--dry-run"], again].concat();
        let gone = sim.run(&words).ended(0);
        assert_eq!(
            gone.stderr.contains("Nothing to do"),
            again.len() == 2,
            "{gone:?}"
        );
    }
    sim.run(&["down", "--gpu", "1", "--disable-mig", "--yes"])
        .ended(0);
    let modes = |sim: &Sim| {
        let list = sim.list();
        let gpus = list["gpus"].as_array().unwrap();
        let modes = gpus.iter().map(|gpu| gpu["mig"]["current"] == true);
        modes.collect::<Vec<_>>()
    };
    assert_eq!(modes(&sim), [true, false, true]);
    // An instance that has no device, made by somebody else.
    sim.foreign_instance(2, 6);
    let compute = sim.run(&["down", "--gpu", "2", "--destroy-mig", "--yes"]);
    assert_contains(&compute.ended(0).stderr, "GPU 2 1g.18gb at slice 6");
    sim.run(&[
        "down",
        "--gpu",
        "2",
        "--disable-mig",
        "--destroy-unmanaged",
        "--yes",
    ])
    .ended(0);
    assert_eq!(modes(&sim), [true, false, false]);
    let unknown = sim
        .run(&["down", "--gpu", "7", "--disable-mig", "--yes"])
        .ended(2);
    assert_contains(&unknown.stderr, "there is no GPU 7");
}
