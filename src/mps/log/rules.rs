//! The meanings of lines in NVIDIA's logs: a rule per form.

use std::sync::LazyLock;

use regex::Regex;
use schemars::JsonSchema;
use serde::Serialize;

/// The kind of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LineKind {
    /// Of a control session.
    #[serde(rename = "session")]
    Chatter,
    /// Harmless, and reads like an error.
    Benign,
    /// Of everyday operation.
    Ordinary,
    /// A client was refused.
    Refusal,
    /// A fault.
    Fault,
    /// Not known to this version.
    Unknown,
}

/// The meaning of a log line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meaning {
    pub kind: LineKind,
    /// An explanation, if the line does not explain itself.
    pub why: Option<&'static str>,
}

/// The meaning of the lines that match a pattern. Patterns are loose: wording and spelling differ between drivers. The
/// first match counts.
struct Rule {
    pattern: &'static str,
    meaning: Meaning,
}

const fn chatter(pattern: &'static str) -> Rule {
    new_rule(LineKind::Chatter, pattern)
}

const fn benign(pattern: &'static str) -> Rule {
    new_rule(LineKind::Benign, pattern)
}

const fn ordinary(pattern: &'static str) -> Rule {
    new_rule(LineKind::Ordinary, pattern)
}

const fn refusal(pattern: &'static str) -> Rule {
    new_rule(LineKind::Refusal, pattern)
}

const fn fault(pattern: &'static str) -> Rule {
    new_rule(LineKind::Fault, pattern)
}

const fn new_rule(kind: LineKind, pattern: &'static str) -> Rule {
    let meaning = Meaning { kind, why: None };
    Rule { pattern, meaning }
}

impl Rule {
    /// Adds an explanation.
    const fn because(self, why: &'static str) -> Self {
        let meaning = Meaning {
            why: Some(why),
            ..self.meaning
        };
        Self { meaning, ..self }
    }
}

/// Rules with their patterns compiled.
type CompiledRules = LazyLock<Vec<(Regex, Meaning)>>;

fn compile_rules(rules: &[Rule]) -> Vec<(Regex, Meaning)> {
    let compiled = rules.iter().map(|rule| {
        let pattern = Regex::new(rule.pattern).expect("the patterns are tested");
        (pattern, rule.meaning)
    });
    compiled.collect()
}

/// Returns the meaning of a line with this tag in its head.
pub(super) fn classify_line(tag: Option<&str>, text: &str) -> Meaning {
    static BY_CONTROL: CompiledRules = LazyLock::new(|| compile_rules(CONTROL_RULES));
    static BY_SERVER: CompiledRules = LazyLock::new(|| compile_rules(SERVER_RULES));
    let rules: &[(Regex, Meaning)] = match tag {
        None => &[],
        Some("Control") => &BY_CONTROL,
        Some(_) => &BY_SERVER,
    };
    let text = text.trim();
    let known = rules.iter().find(|(pattern, _)| pattern.is_match(text));
    let unknown = Meaning {
        kind: LineKind::Unknown,
        why: None,
    };
    known.map_or(unknown, |(_, meaning)| *meaning)
}

/// The messages of a daemon, under its own pid or that of a child process.
const CONTROL_RULES: &[Rule] = &[
    benign(r"^User did not send valid credentials")
        .because("harmless: every start of a CUDA program leaves this line"),
    benign(r"^Unable to (read new connection type information|accept connection)")
        .because("harmless: a process connected and disconnected at once"),
    // Sessions and their answers.
    chatter(r"^(Accepting connection|NEW UI|Activating queued UI|UI closed)"),
    chatter(r"^Cmd:"),
    fault(r"^FAULT$").because(
        "the answer to get_server_status: new clients are refused until every client has gone",
    ),
    chatter(r"^(INITIALIZING|ACTIVE)$"),
    chatter(r"^\d+(\.\d+)?[KMG]?$"),
    chatter(r"^$"),
    chatter(
        r"^(Default$|Server \d+$|PID +ID +SERVER|Device Ordinal|\d+,.*,.*,|\[\d+\] [0-9a-f:.]+, )",
    ),
    chatter(r"^\d+ +\d+ +\d+ +(GPU|MIG)-"),
    chatter(r"^\d+ +[0-9a-f:.]+ +(GPU|MIG)-"),
    chatter(r"^set_default_device_pinned_mem_limit "),
    chatter(r"^No default pinned memory limit set"),
    chatter(r"^Server (\d+ )?not found!?$")
        .because("asked for a server that does not exist, or no longer exists"),
    // Start, clients and exit.
    ordinary(
        r"^(Starting control daemon|To connect CUDA applications|CUDA MPS Control binary version)",
    ),
    ordinary(r"^(Starting new server|NEW SERVER)"),
    ordinary(r"^NEW CLIENT .*push client to pending list")
        .because("it waits in cuInit until a server of its user is ready"),
    ordinary(r"^NEW CLIENT 0 ")
        .because("pid 0: it lives in a pid namespace that the daemon cannot see"),
    ordinary(r"^NEW (CLIENT|DEBUGGEE) "),
    ordinary(r"^Removed Shm file"),
    ordinary(
        r"^(Try shutting down server|Control will try shutting down server|quit command issued)",
    ),
    ordinary(r"has \d+ active worker threads\. Server will not shutdown"),
    refusal(r"^Force shutting down server")
        .because("its clients' next CUDA calls fail with error 806"),
    ordinary(r"^(Server \d+ exited|Exit) with status 0"),
    refusal(r"^Server \d+ exited with status").because("the server failed: server.log may say why"),
    refusal(r"^Exit with status")
        .because("the daemon has exited after a server of it had failed"),
    fault(r"^Server (\d+ )?encountered a fatal exception")
        .because("after a GPU fault, or because it could not start: server.log may say why"),
    // Refusals.
    refusal(r"^Failed to initialize CUDA: 100\b")
        .because("the daemon sees no device: CUDA's error 100"),
    refusal(r"^Failed to initialize CUDA")
        .because("the daemon ends; the number is CUDA's error code"),
    refusal(r"^Failed to start server using uid \d+(, error:|\.) Operation not permitted")
        .because("only a daemon of root serves other users"),
    refusal(
        r"^(Insufficient privileges|Not enough privilege|Only (the )?root user|Unable to accept privil)",
    )
    .because("only root and the user who started the daemon may change it"),
    refusal(r"^(Invalid |Unknown command|A user id|A server PID|Failed |Cannot |Unable )"),
    refusal(r"^CUDA_MPS_\w+ should be between"),
    refusal(r"(?i)version mismatch"),
    refusal(r"^Ignoring pinned memory setting"),
];

const CLIENT_ENDED: &str = "harmless: a client has exited";
const VISIBLE_DEVICES: &str =
    "the client's CUDA_VISIBLE_DEVICES must be unset, 0, or this device's UUID";

/// The messages of servers and clients, which the daemon writes into server.log.
const SERVER_RULES: &[Rule] = &[
    benign(r"^Server failed to rec\w+ command with status 806, assuming client .* exit")
        .because(CLIENT_ENDED),
    benign(r"^Receive command failed, assuming client exit").because(CLIENT_ENDED),
    benign(r"^Server failed to receive command: .*assuming").because(CLIENT_ENDED),
    refusal(r"^Server failed to rec\w+ command with status")
        .because("the connection to a client broke although the client had not exited"),
    ordinary(
        r"^(Startup|Starting MPS Server|Connect(ing|ed) to control daemon|Using log directory|Initializing server process)",
    ),
    ordinary(r"^(Creating|Created|mapping shm)"),
    ordinary(r"^(CUDA MPS Server|Display Driver version|Server has started)"),
    ordinary(r"^(Active Threads Percentage|Device pinned memory limit|(Server|Client) Priority) "),
    ordinary(r"^(Received new client request|Received device query command)"),
    ordinary(r"^Client (process )?(\{.*\}|\d+) (connected|disconnected|exiting)"),
    ordinary(r"^Device .* is associated"),
    ordinary(r"^Status of client .* is ACTIVE"),
    ordinary(
        r"^(Server has been notified|Waiting for current clients|Exiting|Server was unable to shutdown due to)",
    ),
    ordinary(r"^(MPS server requesting client|Client termination succeeded)"),
    // Faults.
    fault(r"^Server (is handling|has begun teardown sequence to handle) a fatal GPU error")
        .because("the clients on this GPU fail; new ones are refused until all have exited"),
    fault(r"^(Volta MPS: )?Client .* encountered a fatal GPU error"),
    fault(r"(?i)sticky error|torn down|fatal"),
    fault(r"^Status of client .* is INACTIVE"),
    fault(r"^(The following devices will be reset|Destroy server context)"),
    // An entry in the lists of these devices and clients.
    fault(r"^\d+$"),
    // Refusals.
    refusal(r"^(Failed to start|Server failed to start|Driver initialization failed with) ?:")
        .because("the next line is CUDA's reason why this server did not start"),
    refusal(r"^Failed to accept new client\. Maximum number of clients")
        .because("the client gets error 46 or 808"),
    refusal(r"Refusing to accept new client").because(
        "after a fault, until every affected client has exited; the client gets error 807",
    ),
    refusal(r"limit \(\d+\)|(?i)reached"),
    refusal(r"Failed to (create|allocate|open)[^ ]* .*(SHM|shm|shared memory)")
        .because("too few file descriptors allowed, or too little room in /dev/shm"),
    refusal(r"is not a valid GPU ID|is invisible to this MPS server").because(VISIBLE_DEVICES),
    refusal(r"Invalid (set of visible devices|CUDA_VISIBLE_DEVICES)").because(VISIBLE_DEVICES),
    refusal(r"^Please (set|check) (the )?CUDA_VISIBLE_DEVICES"),
    refusal(r"^MPS Client unable to allocate compute resources"),
    refusal(r"^requested compute connections"),
    refusal(r"^(Failed |Invalid |Cannot |Unable )"),
];

#[cfg(test)]
mod tests {
    use super::super::{LogFile, LogLine};
    use super::*;

    /// Every form of line that was recorded on an H200 with driver 580, or is known from other drivers, with its kind.
    const FORMS: &str = include_str!("forms.txt");

    fn mark(kind: LineKind) -> &'static str {
        match kind {
            LineKind::Chatter => "chatter",
            LineKind::Benign => "benign",
            LineKind::Ordinary => "ordinary",
            LineKind::Refusal => "refusal",
            LineKind::Fault => "fault",
            LineKind::Unknown => "unknown",
        }
    }

    #[test]
    fn every_known_form_of_line_has_its_kind() {
        let mut wrong = Vec::new();
        let forms = FORMS
            .lines()
            .filter(|line| !line.starts_with('#') && !line.is_empty());
        for form in forms {
            let (wanted, line) = form.split_once('\t').expect("a mark, a tab, a line");
            // The meaning does not depend on the file.
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
    fn harmless_lines_that_read_like_errors_are_explained() {
        for (tag, text) in [
            ("Control", "User did not send valid credentials"),
            (
                "Server",
                "Server failed to recevie command with status 806, assuming client {PID: 1, Context ID: 0} exit",
            ),
            ("Server", "Receive command failed, assuming client exit"),
        ] {
            let found = classify_line(Some(tag), text);
            assert_eq!(found.kind, LineKind::Benign);
            assert!(found.why.unwrap().starts_with("harmless: "));
        }
    }

    #[test]
    fn unknown_lines_have_no_guessed_meaning() {
        for (tag, text) in [
            (None, "User did not send valid credentials"),
            (Some("Control"), "A line of a driver to come"),
            (Some("Server"), "A line of a driver to come"),
        ] {
            assert_eq!(
                classify_line(tag, text),
                Meaning {
                    kind: LineKind::Unknown,
                    why: None
                }
            );
        }
    }
}
