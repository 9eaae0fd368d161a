//! `status --watch`, in a terminal.

use std::fs;
use std::time::{Duration, Instant};

use testkit::{Dialogue, SMALL, Sim, assert_contains, shell, terminal, terminate};

/// The beginning of each refresh.
pub(crate) const REFRESH: &str = "mig-mps status  ";

/// `status --watch=0.2` in a terminal that says before and after how it is set, and in between who watches.
fn watch(sim: &Sim, size: &str) -> (Dialogue, u32) {
    let script = format!(
        "stty {size}; stty -g; sh -c 'echo WATCHER $$; exec {} status --watch=0.2'; echo ENDED $?; stty -g",
        sim.program()
    );
    let mut command = terminal(script);
    command.env_clear().envs(sim.node.env());
    command.env("TERM", "xterm").env("NO_COLOR", "1");
    let mut watch = Dialogue::start(command);
    watch.await_text("WATCHER ");
    let pid = watch.await_text("\n").trim().parse().unwrap();
    (watch, pid)
}

fn started(sim: &Sim) -> (Dialogue, u32) {
    let (mut watch, pid) = watch(sim, "rows 40 cols 160");
    watch.await_text(REFRESH);
    (watch, pid)
}

/// The output of that many refreshes.
fn refreshes(watch: &mut Dialogue, count: usize) -> String {
    (0..count).map(|_| watch.await_text(REFRESH)).collect()
}

/// Waits for its end with that status, and asserts that the terminal is given back as it was.
#[track_caller]
fn ended(mut watch: Dialogue, status: u32) {
    watch.await_text(&format!("ENDED {status}"));
    let seen = watch.end().ended(0).stdout;
    let settings: Vec<&str> = seen
        .lines()
        .map(str::trim)
        .filter(|line| line.split(':').count() > 10)
        .collect();
    assert_eq!(settings.len(), 2, "{seen}");
    assert_eq!(settings[0], settings[1], "the terminal is not as it was");
    // The screen, and the cursor.
    assert_contains(&seen, "\u{1b}[?1049l");
    assert_contains(&seen, "\u{1b}[?25h");
}

/// The size of the control logs.
fn logged(sim: &Sim) -> u64 {
    let logs = fs::read_dir(sim.node.log_dir()).unwrap();
    logs.map(|log| log.unwrap().path().join("control.log"))
        .map(|log| fs::metadata(log).unwrap().len())
        .sum()
}

#[test]
fn nothing_is_asked_while_nothing_changes_and_what_changes_is_marked() {
    let sim = Sim::small();
    let first = sim.client("0.2");
    let (mut watch, _) = started(&sim);
    let before = logged(&sim);
    refreshes(&mut watch, 8);
    assert_eq!(
        logged(&sim),
        before,
        "a refresh of what has not changed was written into a log"
    );
    let second = sim.client("0.2");
    watch.await_text("* 0.2");
    assert!(logged(&sim) > before);
    assert!(second.finish().status.success());
    watch.press("q");
    ended(watch, 0);
    assert!(first.finish().status.success());
}

#[test]
fn ctrl_c_and_sigterm_give_the_terminal_back() {
    let sim = Sim::with("a100-80gb", 1);
    let (mut watch, _) = started(&sim);
    watch.press("\u{3}");
    ended(watch, 130);
    let (watch, pid) = started(&sim);
    terminate(pid);
    ended(watch, 130);
}

/// A line that is shown in another width has not changed.
#[test]
fn a_resize_marks_nothing() {
    let sim = Sim::small();
    let (mut watch, pid) = started(&sim);
    watch.await_text(REFRESH);
    let terminal = fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
    for columns in [70, 120, 40] {
        shell(format!("stty -F {} cols {columns}", terminal.display())).ended(0);
        let seen = refreshes(&mut watch, 4);
        assert!(!seen.contains("* "), "{columns}: {seen}");
    }
    // A change is still seen.
    sim.run(&["down", "0.0"]).ended(0);
    watch.await_text("* ");
    watch.press("q");
    ended(watch, 0);
}

#[test]
fn a_reset_is_not_kept_off_by_a_watcher() {
    let sim = Sim::with("a100-80gb", 1);
    let (mut watch, _) = started(&sim);
    // Switching the mode of an A100 resets it, which wants nobody to have it open.
    sim.up(SMALL, &[]).ended(0);
    watch.await_text("2g.20gb");
    watch.press("q");
    ended(watch, 0);
}

#[test]
fn a_terminal_that_nobody_has_measured_is_taken_for_a_usual_one() {
    let sim = Sim::small();
    let (mut watch, _) = watch(&sim, "rows 0 cols 0");
    watch.await_texts(&["2g.20gb", "no clients"]);
    watch.press("q");
    ended(watch, 0);
}

#[test]
fn by_itself_it_refreshes_every_two_seconds() {
    let sim = Sim::with("a100-80gb", 1);
    let begun = Instant::now();
    let mut watch = sim.dialogue("status --watch");
    watch.await_text("every 2 s");
    watch.await_text(REFRESH);
    // On a busy machine it takes longer.
    assert!(begun.elapsed() >= Duration::from_secs(2));
    watch.press("q");
    watch.end().ended(0);
}

#[test]
fn without_a_terminal_it_says_so() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.run(&["status", "--watch"]).ended(1);
    assert_eq!(
        ran.stderr,
        "error: status --watch needs a terminal\nhint: use `mig-mps status --json` in programs\n"
    );
    sim.run(&["status", "--watch=0"]).ended(2);
    sim.run(&["status", "--watch", "--json"]).ended(2);
}

/// `--watch 5` cannot be distinguished from a device that is called 5.
#[test]
fn seconds_without_a_sign_are_explained() {
    let sim = Sim::with("h200", 1);
    let ran = sim.dialogue("status --watch 5").end().ended(2);
    assert_contains(&ran.stdout, "--watch=5");
}

/// A path is no text, nor is the name by which a program was started.
#[test]
fn it_is_started_by_a_name_that_is_no_text() {
    let sim = Sim::small();
    let (directory, program) = (sim.node.dir().display(), sim.program());
    let script = format!(
        "cd {directory}; name=$(printf 'mig\\377'); ln -s {program} \"$name\"; stty rows 40 cols 160; \
         exec ./\"$name\" status --watch=0.2"
    );
    let mut command = terminal(script);
    command.env_clear().envs(sim.node.env());
    let mut watch = Dialogue::start(command);
    watch.await_text(REFRESH);
    watch.press("q");
    watch.end().ended(0);
}
