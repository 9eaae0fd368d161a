//! The text of `messages.txt`.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;

use regex::Regex;

use testkit::{Ran, plain};

/// The number of topics that are played at once.
const THREADS: usize = 4;

const HEAD: &str = "\
Every message of mig-mps, as a test provokes it: what was typed, what the program said on standard error, and its
exit status. UUIDs, pids, times and directories are made plain. `cargo renew` writes this file.
";

/// In place of a message that did not come.
pub(crate) const NOTHING: &str = "(nothing)";

/// The scenes of one topic.
pub(crate) type Play = fn(&mut Topic);

/// The messages of one topic.
#[derive(Default)]
pub(crate) struct Topic {
    text: String,
}

impl Topic {
    /// Adds a message.
    pub(crate) fn add(&mut self, title: &str, typed: &str, ran: &Ran) {
        self.write(title, typed, &ran.stderr, ran.status);
    }

    /// Adds what a command said on a terminal, after the answer to its question.
    pub(crate) fn add_dialogue(&mut self, title: &str, typed: &str, ran: &Ran) {
        let (_, said) = ran.stdout.rsplit_once("Go on?").unwrap();
        let (_, said) = said.split_once('\n').unwrap();
        self.write(title, typed, &console::strip_ansi_codes(said), ran.status);
    }

    fn write(&mut self, title: &str, typed: &str, said: &str, status: i32) {
        let (typed, said) = (tidy(typed), tidy(said));
        let said = said.trim_end();
        let said = if said.is_empty() { NOTHING } else { said };
        write!(
            self.text,
            "\n### {title}\n$ {typed}\n{said}\n[exit status {status}]\n"
        )
        .unwrap();
    }
}

/// Plays all topics, and writes them down in their order.
pub(crate) fn text(topics: &[(&str, Play)]) -> String {
    let next = AtomicUsize::new(0);
    let played: Mutex<Vec<Option<String>>> = Mutex::new(vec![None; topics.len()]);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some((_, play)) = topics.get(nth) else {
                        break;
                    };
                    let mut topic = Topic::default();
                    // What fails is seen in the output of the test; the other topics go on.
                    if catch_unwind(AssertUnwindSafe(|| play(&mut topic))).is_err() {
                        topic.text.push_str(NOTHING);
                    }
                    played.lock().unwrap()[nth] = Some(topic.text);
                }
            });
        }
    });
    let played = played.into_inner().unwrap();
    let chapters = topics.iter().zip(played);
    chapters.fold(HEAD.to_owned(), |text, ((title, _), messages)| {
        format!("{text}\n\n## {title}\n{}", messages.unwrap())
    })
}

/// Makes plain what differs from run to run, and keeps every column.
fn tidy(text: &str) -> String {
    static RULES: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
        [
            (r"/(?:tmp|dev/shm)/[a-z2-9]{6}/", "/…/"),
            (r"/(?:tmp|dev/shm)/[a-z2-9]{6}\b", "/…"),
            // The root of a simulated node is that of a machine.
            (r"/…/node/root\b", ""),
            (r"\bpid \d+", "pid N"),
            (r"\bkill (\S+) \d{2,}", "kill $1 N"),
            (r"\bprocess \d+", "process N"),
            (
                r"(?m)(^ +\[\d{4}-.*\n)+",
                "    […: the last lines of its logs]\n",
            ),
            (r#"began with "[^"]*""#, r#"began with "…""#),
        ]
        .map(|(from, to)| (Regex::new(from).unwrap(), to))
        .into()
    });
    RULES.iter().fold(plain(text), |text, (from, to)| {
        from.replace_all(&text, *to).into_owned()
    })
}
