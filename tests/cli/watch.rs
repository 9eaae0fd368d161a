//! `status --watch`, in a terminal.

use std::fs;
use std::io::{Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use testkit::{SMALL, Sim, assert_contains, shell, terminal};

/// `status --watch=0.2` in a terminal that says before and after how it is set, and in between who watches.
pub(crate) struct Watch {
    child: Child,
    keys: Option<ChildStdin>,
    shown: ChildStdout,
    pub(crate) seen: String,
}

impl Watch {
    pub(crate) fn start(sim: &Sim) -> Self {
        Self::start_in(sim, "rows 40 cols 160")
    }

    fn start_in(sim: &Sim, size: &str) -> Self {
        let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
        let script = format!(
            "stty {size}; stty -g; sh -c 'echo WATCHER $$; exec {program} status --watch=0.2'; \
             echo ENDED $?; stty -g"
        );
        let mut command = terminal(&script);
        command.env_clear().envs(sim.node.env());
        command.env("TERM", "xterm").env("NO_COLOR", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            keys: child.stdin.take(),
            shown: child.stdout.take().unwrap(),
            child,
            seen: String::new(),
        }
    }

    /// Reads on until so many looks have been shown since `from`.
    pub(crate) fn await_looks(&mut self, from: usize, looks: usize) -> usize {
        self.await_that(|seen| seen[from..].matches("mig-mps status  ").count() >= looks);
        self.seen.len()
    }

    pub(crate) fn await_that(&mut self, wanted: impl Fn(&str) -> bool) {
        let mut buffer = [0; 4096];
        while !wanted(&self.seen) {
            let count = self.shown.read(&mut buffer).unwrap();
            assert_ne!(count, 0, "it ended: {}", self.seen);
            self.seen
                .push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    }

    /// The pid of the program in the terminal.
    fn pid(&self) -> &str {
        let rest = self.seen.split("WATCHER ").nth(1).unwrap();
        rest.lines().next().unwrap().trim()
    }

    fn press(&mut self, keys: &str) {
        self.keys
            .as_mut()
            .unwrap()
            .write_all(keys.as_bytes())
            .unwrap();
    }

    /// What it ended with, once the terminal was given back as it was.
    fn ended(mut self) -> String {
        self.await_that(|seen| {
            seen.contains("ENDED ")
                && seen
                    .trim_end()
                    .lines()
                    .last()
                    .is_some_and(|line| line.contains(':'))
        });
        drop(self.keys.take());
        self.child.wait().unwrap();
        let settings: Vec<&str> = self
            .seen
            .lines()
            .map(str::trim)
            .filter(|line| line.split(':').count() > 10)
            .collect();
        assert_eq!(settings.len(), 2, "{}", self.seen);
        assert_eq!(settings[0], settings[1], "the terminal is not as it was");
        assert!(
            self.seen.contains("\u{1b}[?1049l"),
            "the screen was not given back"
        );
        assert!(
            self.seen.contains("\u{1b}[?25h"),
            "the cursor was not given back"
        );
        let ended = self.seen.split("ENDED ").nth(1).unwrap();
        ended.lines().next().unwrap().trim().to_owned()
    }
}

fn log_sizes(sim: &Sim) -> Vec<u64> {
    let uuids = ["0.0", "0.2"].map(|name| sim.device(name)["uuid"].as_str().unwrap().to_owned());
    let logs = uuids.map(|uuid| sim.node.log_dir().join(uuid).join("control.log"));
    logs.iter()
        .map(|log| fs::metadata(log).unwrap().len())
        .collect()
}

#[test]
fn nothing_is_asked_while_nothing_changes_and_what_changes_is_marked() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let first = sim.client("0.2");
    let mut watch = Watch::start(&sim);
    let at = watch.await_looks(0, 1);
    let before = {
        let log = sim.node.log_dir();
        let sizes = || -> u64 {
            let logs = fs::read_dir(log)
                .unwrap()
                .map(|entry| entry.unwrap().path());
            logs.map(|dir| fs::metadata(dir.join("control.log")).unwrap().len())
                .sum()
        };
        let before = sizes();
        let at = watch.await_looks(at, 8);
        assert_eq!(
            sizes(),
            before,
            "a look at what has not changed was written into a log"
        );
        let second = sim.client("0.2");
        watch.await_that(|seen| seen[at..].contains("* 0.2"));
        assert!(sizes() > before);
        assert!(second.finish().status.success());
        before
    };
    watch.press("q");
    assert_eq!(watch.ended(), "0");
    assert!(log_sizes(&sim).iter().sum::<u64>() > before);
    assert!(first.finish().status.success());
}

#[test]
fn ctrl_c_and_sigterm_give_the_terminal_back() {
    let sim = Sim::with("a100-80gb", 1);
    let mut watch = Watch::start(&sim);
    watch.await_looks(0, 1);
    watch.press("\u{3}");
    assert_eq!(watch.ended(), "130");
    let mut watch = Watch::start(&sim);
    watch.await_looks(0, 1);
    shell(format!("kill -TERM {}", watch.pid())).ended(0);
    assert_eq!(watch.ended(), "130");
}

/// A line that is shown in another width has not changed.
#[test]
fn a_resize_marks_nothing() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let mut watch = Watch::start(&sim);
    watch.await_looks(0, 2);
    let terminal = fs::read_link(format!("/proc/{}/fd/0", watch.pid())).unwrap();
    for columns in [70, 120, 40] {
        let from = watch.seen.len();
        shell(format!("stty -F {} cols {columns}", terminal.display())).ended(0);
        watch.await_looks(from, 4);
        let seen = &watch.seen[from..];
        assert!(!seen.contains("* "), "{columns}: {seen}");
    }
    // A change is still seen.
    let from = watch.seen.len();
    sim.run(&["down", "0.0"]).ended(0);
    watch.await_that(|seen| seen[from..].contains("* "));
    watch.press("q");
    assert_eq!(watch.ended(), "0");
}

#[test]
fn a_reset_is_not_kept_off_by_a_watcher() {
    let sim = Sim::with("a100-80gb", 1);
    let mut watch = Watch::start(&sim);
    watch.await_looks(0, 1);
    // Switching the mode of an A100 resets it, which wants nobody to have it open.
    sim.up(SMALL, &[]).ended(0);
    watch.await_that(|seen| seen.contains("2g.20gb"));
    watch.press("q");
    assert_eq!(watch.ended(), "0");
}

#[test]
fn a_terminal_that_nobody_has_measured_is_taken_for_a_usual_one() {
    let sim = Sim::with("a100-80gb", 1);
    sim.up(SMALL, &[]).ended(0);
    let mut watch = Watch::start_in(&sim, "rows 0 cols 0");
    watch.await_that(|seen| seen.contains("2g.20gb") && seen.contains("No clients."));
    watch.press("q");
    assert_eq!(watch.ended(), "0");
}

#[test]
fn without_a_terminal_it_says_so() {
    let sim = Sim::with("a100-80gb", 1);
    let ran = sim.run(&["status", "--watch"]).ended(1);
    assert_eq!(
        ran.stderr,
        "error: status --watch needs a terminal\nhint: status --json is for programs\n"
    );
    sim.run(&["status", "--watch=0"]).ended(2);
    sim.run(&["status", "--watch", "--json"]).ended(2);
}

/// `--watch 5` cannot be told from a device that is called 5.
#[test]
fn seconds_without_a_sign_are_explained() {
    let sim = Sim::with("h200", 1);
    let program = sim.command(&[]).get_program().to_str().unwrap().to_owned();
    let mut script = terminal(format!("{program} status --watch 5"));
    let ran = testkit::Ran::of(script.env_clear().envs(sim.node.env())).ended(2);
    assert_contains(&ran.stdout, "--watch=5");
}
