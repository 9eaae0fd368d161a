use std::sync::LazyLock;

use regex::Regex;

/// What a log line is to whoever reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A control session: what was asked, and the answer.
    Chatter,
    /// It reads like an error and is none.
    Benign,
    /// What is to be expected.
    Ordinary,
    /// Something was not done: a client not admitted, a setting not taken, a server not started.
    Refusal,
    /// A fatal GPU fault and what it brings about.
    Fault,
    /// A line that is not known.
    Unknown,
}

/// What a line means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    /// What it is.
    pub kind: Kind,
    /// What is to be known about it, where it does not say so itself.
    pub why: Option<&'static str>,
}

/// A pattern, what lines that fit it are, and what is to be known about them. Patterns are loose: wording differs
/// between drivers, and so does its spelling. The first that fits counts.
type Row = (&'static str, Kind, Option<&'static str>);

/// What the daemon writes itself, under its own pid or that of the child it speaks for.
const CONTROL: &[Row] = &[
    (
        r"^User did not send valid credentials",
        Kind::Benign,
        Some("harmless: every start of a CUDA program leaves this line"),
    ),
    (
        r"^Unable to (read new connection type information|accept connection)",
        Kind::Benign,
        Some("harmless: somebody connected and hung up at once"),
    ),
    // Sessions, and what they were answered.
    (
        r"^(Accepting connection|NEW UI|Activating queued UI|UI closed)",
        Kind::Chatter,
        None,
    ),
    (r"^Cmd:", Kind::Chatter, None),
    (
        r"^FAULT$",
        Kind::Fault,
        Some(
            "the answer to get_server_status: new clients are refused until every client has gone",
        ),
    ),
    (r"^(INITIALIZING|ACTIVE)$", Kind::Chatter, None),
    (r"^\d+(\.\d+)?[KMG]?$", Kind::Chatter, None),
    (r"^$", Kind::Chatter, None),
    (
        r"^(Default$|Server \d+$|PID +ID +SERVER|Device Ordinal|\d+,.*,.*,|\[\d+\] [0-9a-f:.]+, )",
        Kind::Chatter,
        None,
    ),
    (r"^\d+ +\d+ +\d+ +(GPU|MIG)-", Kind::Chatter, None),
    (r"^\d+ +[0-9a-f:.]+ +(GPU|MIG)-", Kind::Chatter, None),
    (
        r"^set_default_device_pinned_mem_limit ",
        Kind::Chatter,
        None,
    ),
    (r"^No default pinned memory limit set", Kind::Chatter, None),
    (
        r"^Server (\d+ )?not found!?$",
        Kind::Chatter,
        Some("asked for a server that is not, or no longer, there"),
    ),
    // Life.
    (
        r"^(Starting control daemon|To connect CUDA applications|CUDA MPS Control binary version)",
        Kind::Ordinary,
        None,
    ),
    (r"^(Starting new server|NEW SERVER)", Kind::Ordinary, None),
    (
        r"^NEW CLIENT .*push client to pending list",
        Kind::Ordinary,
        Some("it waits in cuInit until a server of its user is ready"),
    ),
    (
        r"^NEW CLIENT 0 ",
        Kind::Ordinary,
        Some("pid 0: it lives in a pid namespace that the daemon cannot see"),
    ),
    (r"^NEW (CLIENT|DEBUGGEE) ", Kind::Ordinary, None),
    (r"^Removed Shm file", Kind::Ordinary, None),
    (
        r"^(Try shutting down server|Control will try shutting down server|quit command issued)",
        Kind::Ordinary,
        None,
    ),
    (
        r"has \d+ active worker threads\. Server will not shutdown",
        Kind::Ordinary,
        None,
    ),
    (
        r"^Force shutting down server",
        Kind::Refusal,
        Some("its clients' next CUDA calls fail with error 806"),
    ),
    (
        r"^(Server \d+ exited|Exit) with status 0",
        Kind::Ordinary,
        None,
    ),
    (
        r"^Server \d+ exited with status",
        Kind::Refusal,
        Some("the server failed: server.log may say why"),
    ),
    (
        r"^Exit with status",
        Kind::Refusal,
        Some("the daemon has ended, and a server of it had failed before"),
    ),
    (
        r"^Server (\d+ )?encountered a fatal exception",
        Kind::Fault,
        Some("after a GPU fault, or because it could not start: server.log may say why"),
    ),
    // Refusals.
    (
        r"^Failed to initialize CUDA: 100\b",
        Kind::Refusal,
        Some("the daemon sees no device: CUDA's error 100"),
    ),
    (
        r"^Failed to initialize CUDA",
        Kind::Refusal,
        Some("the daemon ends; the number is CUDA's error code"),
    ),
    (
        r"^Failed to start server using uid \d+(, error:|\.) Operation not permitted",
        Kind::Refusal,
        Some("a daemon that is not root's serves its own user alone"),
    ),
    (
        r"^(Insufficient privileges|Not enough privilege|Only (the )?root user|Unable to accept privil)",
        Kind::Refusal,
        None,
    ),
    (
        r"^(Invalid |Unknown command|A user id|A server PID|Failed |Cannot |Unable )",
        Kind::Refusal,
        None,
    ),
    (r"^CUDA_MPS_\w+ should be between", Kind::Refusal, None),
    (r"(?i)version mismatch", Kind::Refusal, None),
    (r"^Ignoring pinned memory setting", Kind::Refusal, None),
];

/// What servers and clients write; the daemon puts it into server.log.
const SERVER: &[Row] = &[
    (
        r"^Server failed to rec\w+ command with status 806, assuming client .* exit",
        Kind::Benign,
        Some("harmless: a client has ended"),
    ),
    (
        r"^(Receive command failed, assuming client exit|Server failed to receive command: .*assuming)",
        Kind::Benign,
        Some("harmless: a client has ended"),
    ),
    (
        r"^Server failed to rec\w+ command with status",
        Kind::Refusal,
        Some("the connection to a client broke otherwise than by its end"),
    ),
    (
        r"^(Startup|Starting MPS Server|Connect(ing|ed) to control daemon|Using log directory|Initializing server process)",
        Kind::Ordinary,
        None,
    ),
    (r"^(Creating|Created|mapping shm)", Kind::Ordinary, None),
    (
        r"^(CUDA MPS Server|Display Driver version|Server has started)",
        Kind::Ordinary,
        None,
    ),
    (
        r"^(Active Threads Percentage|Device pinned memory limit|(Server|Client) Priority) ",
        Kind::Ordinary,
        None,
    ),
    (
        r"^(Received new client request|Received device query command)",
        Kind::Ordinary,
        None,
    ),
    (
        r"^Client (process )?(\{.*\}|\d+) (connected|disconnected|exiting)",
        Kind::Ordinary,
        None,
    ),
    (r"^Device .* is associated", Kind::Ordinary, None),
    (r"^Status of client .* is ACTIVE", Kind::Ordinary, None),
    (
        r"^(Server has been notified|Waiting for current clients|Exiting|Server was unable to shutdown due to)",
        Kind::Ordinary,
        None,
    ),
    (
        r"^(MPS server requesting client|Client termination succeeded)",
        Kind::Ordinary,
        None,
    ),
    // Faults.
    (
        r"^Server (is handling|has begun teardown sequence to handle) a fatal GPU error",
        Kind::Fault,
        Some("every client of this device fails; new ones are refused until all have gone"),
    ),
    (
        r"^(Volta MPS: )?Client .* encountered a fatal GPU error",
        Kind::Fault,
        None,
    ),
    (r"(?i)sticky error|torn down|fatal", Kind::Fault, None),
    (r"^Status of client .* is INACTIVE", Kind::Fault, None),
    (
        r"^(The following devices will be reset|Destroy server context)",
        Kind::Fault,
        None,
    ),
    // In the list of those devices and clients.
    (r"^\d+$", Kind::Fault, None),
    // Refusals.
    (
        r"^(Failed to start|Server failed to start|Driver initialization failed with) ?:",
        Kind::Refusal,
        Some("what follows is CUDA's own word for why this server did not come up"),
    ),
    (
        r"^Failed to accept new client\. Maximum number of clients",
        Kind::Refusal,
        Some("the client gets error 46 or 808"),
    ),
    (
        r"Refusing to accept new client",
        Kind::Refusal,
        Some("after a fault, until every client has gone; the client gets error 807"),
    ),
    (r"limit \(\d+\)|(?i)reached", Kind::Refusal, None),
    (
        r"Failed to (create|allocate|open)[^ ]* .*(SHM|shm|shared memory)",
        Kind::Refusal,
        Some("too few file descriptors allowed, or too little room in /dev/shm"),
    ),
    (
        r"is not a valid GPU ID|Invalid (set of visible devices|CUDA_VISIBLE_DEVICES)|is invisible to this MPS server",
        Kind::Refusal,
        Some("the client's CUDA_VISIBLE_DEVICES must be unset, 0, or this device's UUID"),
    ),
    (
        r"^Please (set|check) (the )?CUDA_VISIBLE_DEVICES",
        Kind::Refusal,
        None,
    ),
    (
        r"^MPS Client unable to allocate compute resources",
        Kind::Refusal,
        None,
    ),
    (r"^requested compute connections", Kind::Refusal, None),
    (r"^(Failed |Invalid |Cannot |Unable )", Kind::Refusal, None),
];

struct Rules(Vec<(Regex, Meaning)>);

impl Rules {
    fn of(rows: &[Row]) -> Self {
        let rule = |(pattern, kind, why): &Row| {
            let pattern = Regex::new(pattern).expect("the patterns are tested");
            (
                pattern,
                Meaning {
                    kind: *kind,
                    why: *why,
                },
            )
        };
        Self(rows.iter().map(rule).collect())
    }

    fn find(&self, text: &str) -> Option<Meaning> {
        let mut rules = self.0.iter();
        rules
            .find(|(pattern, _)| pattern.is_match(text))
            .map(|(_, meaning)| *meaning)
    }
}

impl Meaning {
    /// What a line of that writer means.
    pub(super) fn of(tag: Option<&str>, text: &str) -> Self {
        static BY_CONTROL: LazyLock<Rules> = LazyLock::new(|| Rules::of(CONTROL));
        static BY_SERVER: LazyLock<Rules> = LazyLock::new(|| Rules::of(SERVER));
        let rules = match tag {
            None => None,
            Some("Control") => Some(&*BY_CONTROL),
            Some(_) => Some(&*BY_SERVER),
        };
        // The forms are known with or without what stands around them.
        let known = rules.and_then(|rules| rules.find(text.trim()));
        known.unwrap_or(Self {
            kind: Kind::Unknown,
            why: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{LogFile, LogLine};
    use super::*;

    /// Every form of line that was recorded on an H200 with 580, or that is known of other drivers, each with what
    /// it is.
    const FORMS: &str = include_str!("forms.txt");

    fn mark(kind: Kind) -> &'static str {
        match kind {
            Kind::Chatter => "chatter",
            Kind::Benign => "benign",
            Kind::Ordinary => "ordinary",
            Kind::Refusal => "refusal",
            Kind::Fault => "fault",
            Kind::Unknown => "unknown",
        }
    }

    #[test]
    fn every_known_form_of_line_is_what_it_is() {
        let mut wrong = Vec::new();
        let forms = FORMS
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        for form in forms {
            let (wanted, line) = form.split_once('\t').expect("a mark, a tab, a line");
            // What stands in which file does not matter to what it means.
            let parsed = LogLine::parse(LogFile::Control, line);
            assert!(parsed.tag.is_some(), "{line}");
            let is = mark(parsed.meaning().kind);
            if is != wanted {
                wrong.push(format!("{is}, not {wanted}: {line}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn what_reads_like_an_error_and_is_none_is_explained() {
        for (tag, text) in [
            ("Control", "User did not send valid credentials"),
            (
                "Server",
                "Server failed to recevie command with status 806, assuming client {PID: 1, Context ID: 0} exit",
            ),
            ("Server", "Receive command failed, assuming client exit"),
        ] {
            let meaning = Meaning::of(Some(tag), text);
            assert_eq!(meaning.kind, Kind::Benign);
            assert!(meaning.why.unwrap().starts_with("harmless: "));
        }
    }

    #[test]
    fn what_is_not_known_is_not_guessed_at() {
        for (tag, text) in [
            (None, "User did not send valid credentials"),
            (Some("Control"), "A line of a driver to come"),
            (Some("Server"), "A line of a driver to come"),
        ] {
            assert_eq!(
                Meaning::of(tag, text),
                Meaning {
                    kind: Kind::Unknown,
                    why: None
                }
            );
        }
    }
}
