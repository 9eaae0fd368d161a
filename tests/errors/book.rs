//! The text of `messages.txt`.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::thread;

use regex::Regex;

use crate::common::{Ran, plain};

/// The number of topics that are played at once.
const THREADS: usize = 4;

const HEAD: &str = "\
Every message of mig-mps, as a test provokes it: what was typed, what the program said on standard error, and its
exit status. UUIDs, pids, times and directories are made plain. `RENEW=1 cargo test --test errors` writes this file.
";

/// The scenes of one topic.
pub(crate) type Play = fn(&mut Topic);

/// The messages of one topic.
#[derive(Default)]
pub(crate) struct Topic {
    text: String,
}

impl Topic {
    /// Adds a message.
    #[track_caller]
    pub(crate) fn add(&mut self, title: &str, typed: &str, ran: &Ran) {
        let said = tidy(&ran.stderr);
        let said = said.trim_end();
        assert!(!said.is_empty(), "{title}: {typed} said nothing: {ran:?}");
        let status = ran.status;
        write!(self.text, "\n### {title}\n$ {typed}\n{said}\n[exit status {status}]\n").unwrap();
    }
}

/// Plays all topics, and writes them down in their order.
pub(crate) fn text(topics: &[(&str, Play)]) -> String {
    let next = AtomicUsize::new(0);
    let played: Mutex<Vec<Option<String>>> = Mutex::new(vec![None; topics.len()]);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((_, play)) = topics.get(next.load(Ordering::Relaxed)) {
                    let nth = next.fetch_add(1, Ordering::Relaxed);
                    let Some((_, play)) = topics.get(nth) else {
                        break;
                    };
                    let mut topic = Topic::default();
                    play(&mut topic);
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
            (r"\bpid \d+", "pid N"),
            (r"\bprocess \d+", "process N"),
        ]
        .map(|(from, to)| (Regex::new(from).unwrap(), to))
        .into()
    });
    RULES.iter().fold(plain(text), |text, (from, to)| from.replace_all(&text, *to).into_owned())
}
