//! A user can fill the file system of the run directory through her pipe directory: everything still ends.

use std::process::Command;

use testkit::{Ran, SMALL, Sim, needs_root};

/// Runs a script in which `$run` is the run directory, a small file system of its own, and `$mig_mps` the program.
fn on_a_disk(sim: &Sim, options: &str, script: &str) -> Ran {
    let profile = sim.profile(SMALL);
    let program = sim.program();
    let script = format!(
        "run={run}; mig_mps={program}; profile={profile}; state={state}
         mkdir -p $run; mount -t tmpfs -o mode=0755,{options} none $run || exit 99
         fill() {{ dd if=/dev/zero of=$1/fill bs=4k >/dev/null 2>&1; echo >$1/more; }} 2>/dev/null
         {script}",
        run = sim.node.run_dir().display(),
        profile = profile.display(),
        state = sim.node.dir().join("state").display(),
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).env_clear();
    Ran::of(command.envs(sim.node.env()))
}

/// Fills the disk while a fault waits, and has it go on. The event is `"what":"fault"`; others speak of defaults.
const FILL_MEANWHILE: &str =
    "timeout 60 sh -c 'until grep -q what...fault $0; do sleep 0.05; done' $state/events.jsonl
         fill $run; rm \"$state\"/held*";

/// Everything left in the run directory, but for the user's files.
const LEFT: &str = "cd $run; find . -mindepth 1 -not -path './left*' | sort";

#[test]
fn root_changes_a_node_whose_run_directory_a_user_has_filled() {
    needs_root!();
    for fill in [
        "fill $run/by-name/0.0/pipe",
        "i=0; while echo >$run/by-name/0.0/pipe/$i; do i=$((i+1)); done 2>/dev/null",
    ] {
        let sim = Sim::with("a100-80gb", 1);
        let script = format!(
            "$mig_mps up $profile --yes >&2 || exit 98
             {fill}
             $mig_mps restart 0.2 --yes >&2; echo restart $?
             {fill}
             $mig_mps down --force --destroy-mig --yes >&2; echo down $?
             {LEFT}"
        );
        let ran = on_a_disk(&sim, "size=2m,nr_inodes=300", &script);
        let said = format!("{fill}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(
            ran.stdout, "restart 0\ndown 0\n./lock\n./node.json\n",
            "{said}"
        );
        assert_eq!(sim.happened("daemon start"), 3, "{said}");
        assert_eq!(sim.happened("daemon end"), 3, "{said}");
    }
}

/// The user fills the reserve too, before the journal is written.
#[test]
fn down_ends_everything_without_room_for_a_journal() {
    needs_root!();
    for fill in [
        "fill $run/by-name/0.0/pipe",
        "i=0; while echo >$run/by-name/0.0/pipe/$i; do i=$((i+1)); done 2>/dev/null",
    ] {
        let sim = Sim::with("a100-80gb", 1);
        let script = format!(
            "$mig_mps up $profile --yes >&2 || exit 98
             rm -r $run/reserve; {fill}
             $mig_mps up $profile --yes >&2; echo up $?
             $mig_mps restart 0.2 --yes >&2; echo restart $?
             $mig_mps down --force --destroy-mig --yes >&2; echo down $?
             {LEFT}"
        );
        let ran = on_a_disk(&sim, "size=2m,nr_inodes=300", &script);
        let said = format!("{fill}: {}{}", ran.stdout, ran.stderr);
        assert_eq!(
            ran.stdout, "up 0\nrestart 1\ndown 0\n./lock\n./node.json\n",
            "{said}"
        );
        assert!(
            ran.stderr.contains("nothing was changed\n  cause: "),
            "{said}"
        );
        assert!(ran.stderr.contains("No space left on device"), "{said}");
        assert_eq!(sim.happened("daemon end"), 2, "{said}");
    }
}

#[test]
fn a_dead_daemon_is_healed_on_a_full_disk() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let script = "$mig_mps up $profile --yes >&2 || exit 98
         pid=$(sed -n 's/.*\"pid\": \\([0-9]*\\).*/\\1/p' $run/by-name/0.2/device.json)
         kill -9 $pid; timeout 60 tail --pid=$pid -s 0.05 -f /dev/null
         fill $run/by-name/0.0/pipe
         $mig_mps heal >&2; echo heal $?
         $mig_mps status --exit-code >&2; echo status $?
         $mig_mps down --force >&2; echo down $?";
    let ran = on_a_disk(&sim, "size=2m", script);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout, "heal 0\nstatus 0\ndown 0\n", "{said}");
}

/// A daemon that was started is ended, though its record cannot be marked as leaving.
#[test]
fn a_change_is_undone_on_a_disk_that_fills_meanwhile() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let _held = sim.node.fault("daemon start").nth(2).waits().unwrap();
    let script = format!(
        "$mig_mps up $profile --yes >&2 & up=$!
         {FILL_MEANWHILE}; wait $up; echo up $?
         rm $run/fill; {LEFT}"
    );
    let ran = on_a_disk(&sim, "size=2m", &script);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.starts_with("up 1\n"), "{said}");
    // NVIDIA's programs only say that they cannot use the directory.
    let why = ["No space left on device", "did not start"];
    assert!(why.iter().any(|why| ran.stderr.contains(why)), "{said}");
    let stands = |line: &&str| line.starts_with("not undone: ") && line.contains("daemon of");
    assert_eq!(ran.stderr.lines().find(stands), None, "{said}");
    assert!(!ran.stdout.contains("device.json"), "{said}");
    assert_eq!(
        sim.happened("daemon end"),
        sim.happened("daemon start"),
        "{said}"
    );
}

/// The disk fills while an instance is destroyed: it stays recorded as ours, so it can be made again.
#[test]
fn an_instance_is_made_again_whose_record_could_not_be_changed() {
    needs_root!();
    let sim = Sim::with("a100-80gb", 1);
    let other = sim.node.dir().join("other.toml");
    let text = "[[gpu]]\nselect = { all = true }\ndevices = [ { profile = \"4g\", at = 0 } ]\n";
    std::fs::write(&other, text).unwrap();
    let script = format!(
        "$mig_mps up $profile --yes >&2 || exit 98
         rm -r $run/reserve
         $mig_mps up {other} --yes >&2 & up=$!
         {FILL_MEANWHILE}; wait $up; echo up $?
         rm $run/fill $run/more; $mig_mps up $profile --yes >&2; echo up $?",
        other = other.display(),
    );
    let _held = sim.node.fault("nvmlGpuInstanceDestroy").waits().unwrap();
    let ran = on_a_disk(&sim, "size=2m", &script);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert_eq!(ran.stdout, "up 1\nup 0\n", "{said}");
    assert!(ran.stderr.contains("No space left on device"), "{said}");
    let missing = |line: &&str| line.starts_with("missing: ") && !line.contains("daemon of");
    assert_eq!(ran.stderr.lines().find(missing), None, "{said}");
}
