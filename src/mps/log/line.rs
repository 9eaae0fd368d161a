//! One line of a log, the state of a server that only the logs have, and the reason why a daemon or server did not
//! start.

use jiff::civil::DateTime;

use super::{Meaning, rules};
use crate::host::Pid;

/// A daemon's two logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFile {
    /// Written by the control daemon.
    Control,
    /// Messages of servers and clients, which the daemon copies there.
    Server,
}

impl LogFile {
    pub const ALL: [Self; 2] = [Self::Control, Self::Server];

    /// Its file name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Control => "control.log",
            Self::Server => "server.log",
        }
    }

    /// The file name of an older part. 1 is the youngest.
    pub(crate) fn older_file_name(self, number: u32) -> String {
        format!("{}.{number}", self.name())
    }
}

/// The number of older parts of a log that are kept.
pub(crate) const KEPT_OLDER_PARTS: u32 = 3;

/// One line of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// The log that contains the line. Every client can write into server.log, so the head of a line proves nothing.
    pub file: LogFile,
    /// The local time in its head, or that of the line before it.
    pub at: Option<DateTime>,
    /// `Control`, `Server`, `Client`, `Other` and so on. `None` for the continuation of a line, or an unknown form.
    pub tag: Option<Box<str>>,
    /// The pid in its head.
    pub pid: Option<u32>,
    /// The text after the head, or the whole line without one.
    pub text: Box<str>,
}

impl LogLine {
    /// Parses a line (form: MPS guide, "Appendix: Logging"; recorded on drivers 535 to 615).
    pub fn parse(file: LogFile, line: &str) -> Self {
        Self::with_head(file, line).unwrap_or_else(|| Self {
            file,
            at: None,
            tag: None,
            pid: None,
            text: line.into(),
        })
    }

    fn with_head(file: LogFile, line: &str) -> Option<Self> {
        const TIME: usize = "2026-11-20 17:34:04.858".len();
        let (head, text) = line.strip_prefix('[')?.split_once(']')?;
        let (time, writer) = (head.get(..TIME)?, head.get(TIME..)?);
        let (tag, pid) = writer.trim().rsplit_once(char::is_whitespace)?;
        let tag = without_level(tag.trim());
        Some(Self {
            file,
            pid: Some(pid.parse().ok()?),
            at: Some(time.parse().ok()?),
            tag: Some(tag.into()),
            text: text.strip_prefix(' ').unwrap_or(text).into(),
        })
    }

    /// Returns a line of control.log, written at that second.
    #[cfg(test)]
    pub(crate) fn example(second: &str, text: &str) -> Self {
        let line = format!("[2026-11-20 17:34:{second} Control   447] {text}");
        Self::parse(LogFile::Control, &line)
    }

    pub fn meaning(&self) -> Meaning {
        rules::classify_line(self.tag.as_deref(), &self.text)
    }
}

/// Returns `Control` for `Control INFO`, the form of driver 615.
fn without_level(tag: &str) -> &str {
    match tag.rsplit_once(char::is_whitespace) {
        Some((tag, level)) if level.bytes().all(|byte| byte.is_ascii_uppercase()) => tag.trim_end(),
        _ => tag,
    }
}

/// The length of the end of server.log that is searched, in bytes.
pub(in crate::mps) const LOG_END: u64 = 1 << 20;

/// Returns the current memory limit of a server in bytes; 0 means no limit. Returns `None` if the log does not have it.
///
/// ```text
/// [2026-11-22 04:12:38.882 Server   465] Device pinned memory limit for device 0 set to 0x60000000 bytes
/// ```
pub(in crate::mps) fn logged_memory_limit(log: &str, server: Pid) -> Option<u64> {
    lines_backwards(log, server).find_map(|text| {
        let (_, number) = text.split_once("Device pinned memory limit for device 0 set to 0x")?;
        u64::from_str_radix(number.split_whitespace().next()?, 16).ok()
    })
}

/// True if a server has had a fatal GPU fault and still has its context, which it keeps until all clients have exited.
pub(in crate::mps) fn log_shows_fault(log: &str, server: Pid) -> bool {
    for text in lines_backwards(log, server) {
        if text.contains("server context") {
            return false;
        }
        if text.contains("a fatal GPU error") {
            return true;
        }
    }
    false
}

/// Returns the processes that the present GPU fault of a server has reached; `None` if the log does not have them.
///
/// ```text
/// [2026-11-30 00:35:44.048 Server  1069] The following client process have a sticky error set:
/// [2026-11-30 00:35:44.048 Server  1069] 4860
/// ```
pub fn logged_fault_victims(log: &str, server: Pid) -> Option<Vec<Pid>> {
    let mut victims: Option<Vec<Pid>> = None;
    let mut is_in_list = false;
    let lines = log
        .lines()
        .map(|line| LogLine::parse(LogFile::Server, line))
        .filter(|line| line.pid == Some(server.0));
    for line in lines {
        let listed = if is_in_list {
            line.text.parse().ok().map(Pid)
        } else {
            None
        };
        match (listed, &mut victims) {
            (Some(pid), Some(victims)) => victims.push(pid),
            _ if line.text.contains("have a sticky error set:") => {
                victims.get_or_insert_default();
                is_in_list = true;
            }
            _ => {
                is_in_list = false;
                // It follows a fault that is over, and the start of a server.
                if line.text.starts_with("Creating server context") {
                    victims = None;
                }
            }
        }
    }
    victims
}

/// True if control.log says that a server is ready, and not of an earlier process with the same pid.
///
/// ```text
/// [2026-11-20 17:34:05.142 Control   447] Starting new server 466 for user 0
/// [2026-11-20 17:34:05.306 Control   447] NEW SERVER 466: Ready
/// ```
pub fn log_shows_ready(log: &str, server: Pid) -> bool {
    let ready = log.rfind(&format!("] NEW SERVER {server}: Ready"));
    ready.is_some() && ready > log.rfind(&format!("] Starting new server {server} for "))
}

/// Returns how many threads of a server work for clients, as the daemon said when it last asked the server to exit. A client has
/// one for its process and one for each context (measured on H200s).
///
/// ```text
/// [2026-11-29 14:49:02.367 Control   526] Server 534 has 2 active worker threads. Server will not shutdown.
/// ```
pub fn worker_threads(log: &str) -> Option<u32> {
    let (_, end) = log.rsplit_once(" active worker threads. Server will not shutdown.")?;
    let before = &log[..log.len() - end.len()];
    let line = before.lines().next_back()?;
    let (_, count) = line.split_once(" has ")?;
    count.split_once(' ')?.0.parse().ok()
}

/// Returns the lines of a server, the last first, without those of an earlier process with the same pid.
fn lines_backwards(log: &str, server: Pid) -> impl Iterator<Item = Box<str>> {
    let phrases = ["pinned memory limit", "server context", "fatal GPU error"];
    let starts = ["] Startup", "] Starting MPS Server"];
    log.lines()
        .rev()
        .filter(move |line| {
            // Skips most lines: parsing one costs more than this.
            phrases
                .iter()
                .chain(&starts)
                .any(|word| line.contains(word))
        })
        .map(|line| (line, LogLine::parse(LogFile::Server, line)))
        .filter(move |(_, parsed)| parsed.pid == Some(server.0))
        .take_while(move |(line, _)| !starts.iter().any(|start| line.contains(start)))
        .map(|(_, parsed)| parsed.text)
}

fn message_texts(file: LogFile, lines: &[String]) -> Vec<String> {
    lines
        .iter()
        .map(|line| LogLine::parse(file, line).text.trim().to_owned())
        .collect()
}

/// Explains from the last lines of the logs why a daemon or server did not start. Returns `None` for unknown lines.
pub(in crate::mps) fn diagnose(control: &[String], server: &[String]) -> Option<String> {
    let control = message_texts(LogFile::Control, control);
    let server = message_texts(LogFile::Server, server);
    if let Some(why) = server
        .iter()
        .rev()
        .find_map(|text| parse_start_failure(text))
    {
        return Some(why.to_owned());
    }
    if let Some((user, error)) = control
        .iter()
        .rev()
        .find_map(|text| parse_user_refusal(text))
    {
        return Some(format!(
            "the daemon may not start a server for user {user}: {error} (only a daemon of root serves other users)"
        ));
    }
    if let Some(code) = control
        .iter()
        .rev()
        .find_map(|text| parse_cuda_failure(text))
    {
        return Some(match describe_cuda_error(|known| known == code) {
            Some(words) => words.to_owned(),
            None => format!("CUDA does not initialize: error {code}"),
        });
    }
    // Lines before the last successful start no longer matter.
    let since = control
        .iter()
        .rposition(|text| text.starts_with("NEW SERVER ") && text.ends_with(": Ready"))
        .map_or(0, |at| at + 1);
    let ends: Vec<&str> = control[since..]
        .iter()
        .filter_map(|text| parse_exit_status(text))
        .collect();
    let status = ends.last()?;
    let times = match ends.len() {
        1 => String::new(),
        times => {
            format!(", {times} times (while a client waits, the daemon tries again)")
        }
    };
    let silence = if server.is_empty() {
        ", and printed nothing; its program is not in the daemon's PATH, or its user may not enter a directory above \
         the pipe directory"
    } else {
        ""
    };
    Some(format!(
        "the server exited with status {status}{times}{silence}"
    ))
}

/// `Failed to start : no CUDA-capable device is detected`; the rest is CUDA's description.
fn parse_start_failure(text: &str) -> Option<&str> {
    let why = text
        .strip_prefix("Server failed to start")
        .or_else(|| text.strip_prefix("Failed to start"))?
        .trim_start()
        .strip_prefix(':')?
        .trim();
    (!why.is_empty()).then_some(why)
}

/// `Failed to start server using uid 0, error: Operation not permitted`
fn parse_user_refusal(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix("Failed to start server using uid ")?;
    text.split_once(", error: ")
        .or_else(|| text.split_once(". "))
}

/// `Failed to initialize CUDA: 100`, the only message of a daemon of driver 615 before it exits
fn parse_cuda_failure(text: &str) -> Option<u32> {
    let code = text.strip_prefix("Failed to initialize CUDA:")?;
    code.trim().parse().ok()
}

/// The CUDA errors that occur at a daemon's start.
const CUDA_ERRORS: [(u32, &str); 4] = [
    (100, "CUDA sees no such device"),
    (500, "CUDA's driver library libcuda.so.1 cannot be loaded"),
    (
        802,
        "CUDA says the system is not ready (is the fabric manager running?)",
    ),
    (
        803,
        "the CUDA driver library and the kernel module differ in version",
    ),
];

/// Describes a CUDA error.
pub(in crate::mps) fn describe_cuda_error(matches: impl Fn(u32) -> bool) -> Option<&'static str> {
    CUDA_ERRORS
        .into_iter()
        .find_map(|(code, words)| matches(code).then_some(words))
}

/// `Server 466 exited with status 1`; `None` if the status is 0.
fn parse_exit_status(text: &str) -> Option<&str> {
    let (_, status) = text
        .strip_prefix("Server ")?
        .split_once(" exited with status ")?;
    (status != "0").then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_count_of_worker_threads_counts() {
        let line = |count| {
            format!(
                "[2026-11-29 14:49:02.367 Control   526] Server 534 has {count} active worker threads. Server will not shutdown.\n"
            )
        };
        let later = "[2026-11-29 14:49:02.367 Control   526] Control will try shutting down server 534 again in at most 400ms\n";
        let log = line(3) + &line(1) + later;
        assert_eq!(worker_threads(&log), Some(1));
        assert_eq!(worker_threads(&line(12)), Some(12));
        assert_eq!(worker_threads(later), None);
        assert_eq!(
            worker_threads(" has many active worker threads. Server will not shutdown."),
            None
        );
    }

    #[test]
    fn the_victims_of_the_present_fault_are_listed() {
        let line =
            |pid: u32, text: &str| format!("[2026-11-30 00:35:44.048 Server  {pid}] {text}\n");
        let fault = |pid, victims: &[&str]| {
            let head = "The following client process have a sticky error set:";
            let lines = ["The following devices will be reset:", "1", head];
            let lines = lines.iter().chain(victims);
            lines.map(|text| line(pid, text)).collect::<String>()
        };
        let refused = line(
            9,
            "Server teardown in progress. Refusing to accept new client",
        );
        let log = fault(9, &["11", "12"]) + &refused + &fault(8, &["7"]);
        let victims = |log: &str| logged_fault_victims(log, Pid(9));
        assert_eq!(victims(&log), Some(vec![Pid(11), Pid(12)]));
        let again = log.clone() + &fault(9, &["13"]);
        assert_eq!(victims(&again), Some(vec![Pid(11), Pid(12), Pid(13)]));
        let over = log + &line(9, "Creating server context on device 1 (NVIDIA H200)");
        assert_eq!(victims(&over), None);
        assert_eq!(victims(&(over + &fault(9, &["14"]))), Some(vec![Pid(14)]));
    }

    #[test]
    fn the_head_has_time_and_writer() {
        let parsed = LogLine::example("04.858", "NEW UI");
        assert_eq!(parsed.at.unwrap().to_string(), "2026-11-20T17:34:04.858");
        assert_eq!(
            (parsed.tag.as_deref(), parsed.pid, &*parsed.text),
            (Some("Control"), Some(447), "NEW UI")
        );
        let newer = "[2026-11-20 17:34:04.858 Control INFO   447] Activating queued UI";
        let parsed = LogLine::parse(LogFile::Control, newer);
        assert_eq!(
            (parsed.tag.as_deref(), parsed.pid, &*parsed.text),
            (Some("Control"), Some(447), "Activating queued UI")
        );
        let volta = "[2021-01-02 03:04:05.006 Legacy Server 31999] Volta MPS: x] y";
        let parsed = LogLine::parse(LogFile::Server, volta);
        assert_eq!(
            (parsed.tag.as_deref(), parsed.pid, &*parsed.text),
            (Some("Legacy Server"), Some(31999), "Volta MPS: x] y")
        );
    }

    #[test]
    fn a_line_of_another_form_stays_as_it_is() {
        for text in [
            "",
            "[",
            "[2026-11-20",
            "[not a time, but as long 447] x",
            "[2026-11-20 17:34:04.858 Control] no pid",
            "[2026-13-40 17:34:04.858 Control 447] no day",
            "[é2026-11-20 17:34:04.85 Control 447] no boundary",
            "plain",
        ] {
            let parsed = LogLine::parse(LogFile::Server, text);
            assert_eq!((parsed.at, &*parsed.text), (None, text));
        }
    }

    /// Recorded on an H200 with driver 580. An earlier process had the same pid as the last server.
    const LOG: &str = "\
[2026-11-22 04:12:44.214 Server   637] Device pinned memory limit for device 0 set to 0x138800000 bytes
[2026-11-22 04:12:46.967 Other   637] Startup
[2026-11-22 04:12:46.968 Server   637] Creating server context on device 0 (NVIDIA H200)
";
    const SET: &str = "[2026-11-22 04:12:47.583 Server   637] Device pinned memory limit for device 0 set to 0x60000000 bytes\n";
    const CLEARED: &str = "[2026-11-22 04:12:47.836 Server   637] Device pinned memory limit for device 0 set to 0x0 bytes\n";

    #[test]
    fn the_last_limit_of_a_server_counts() {
        let limit = |log: &str| logged_memory_limit(log, Pid(637));
        assert_eq!(limit(LOG), None, "that of an earlier process");
        assert_eq!(limit(&format!("{LOG}{SET}")), Some(0x6000_0000));
        assert_eq!(limit(&format!("{LOG}{SET}{CLEARED}")), Some(0));
        assert_eq!(logged_memory_limit(&format!("{LOG}{SET}"), Pid(638)), None);
        let newer = SET.replace("Server   637", "Server INFO   637");
        assert_eq!(limit(&newer), Some(0x6000_0000));
    }

    #[test]
    fn a_server_is_ready_once_the_log_says_so_after_its_start() {
        let starting = "[x Control 1] Starting new server 637 for user 0\n";
        let ready = "[x Control 1] NEW SERVER 637: Ready\n";
        let is_ready = |log: &str| log_shows_ready(log, Pid(637));
        assert!(!is_ready(starting));
        assert!(is_ready(&format!("{starting}{ready}")));
        assert!(is_ready(ready), "its start is further above");
        let again = format!("{starting}{ready}{starting}");
        assert!(!is_ready(&again), "that was an earlier process");
        assert!(!log_shows_ready(&again, Pid(63)));
    }

    #[test]
    fn a_fault_is_over_when_the_context_has_gone() {
        let fault =
            "[2026-11-22 04:13:00.045 Server   637] Server is handling a fatal GPU error.\n";
        let gone = "[2026-11-22 04:13:01.068 Server   637] Destroy server context on device 0 (NVIDIA H200)";
        assert!(!log_shows_fault(LOG, Pid(637)));
        assert!(log_shows_fault(&format!("{LOG}{fault}"), Pid(637)));
        assert!(!log_shows_fault(&format!("{LOG}{fault}"), Pid(1)));
        assert!(!log_shows_fault(&format!("{LOG}{fault}{gone}"), Pid(637)));
    }

    fn lines(tag: &str, texts: &[&str]) -> Vec<String> {
        let line = |text| format!("[2026-11-20 17:34:04.858 {tag}   447] {text}");
        texts.iter().map(line).collect()
    }

    fn said(control: &[&str], server: &[&str]) -> Option<String> {
        diagnose(&lines("Control", control), &lines("Server", server))
    }

    #[test]
    fn cudas_own_words_come_first() {
        let why = said(
            &["Server 5 exited with status 1"],
            &["Startup", "Failed to start : operation not supported"],
        );
        assert_eq!(why.unwrap(), "operation not supported");
    }

    #[test]
    fn a_server_of_another_user_is_not_permitted() {
        let refused = "Failed to start server using uid 1000, error: Operation not permitted";
        let why = said(&[refused, "Server 5 exited with status 1"], &[]).unwrap();
        assert!(
            why.starts_with(
                "the daemon may not start a server for user 1000: Operation not permitted"
            ),
            "{why}"
        );
    }

    #[test]
    fn a_daemon_without_cuda_says_so_in_its_log_alone() {
        let log = ["Starting control daemon", "Failed to initialize CUDA: 100"];
        assert_eq!(said(&log, &[]).unwrap(), "CUDA sees no such device");
        let log = ["Failed to initialize CUDA: 999"];
        assert_eq!(
            said(&log, &[]).unwrap(),
            "CUDA does not initialize: error 999"
        );
    }

    #[test]
    fn each_driver_has_its_own_words_for_the_same() {
        let why = said(&[], &["Server failed to start : invalid argument"]);
        assert_eq!(why.unwrap(), "invalid argument");
        let why = said(
            &["Failed to start server using uid 0. Operation not permitted"],
            &[],
        );
        assert!(why.unwrap().contains("for user 0: Operation not permitted"));
    }

    #[test]
    fn a_crash_loop_is_counted_since_the_last_server_that_was_ready() {
        let twice = [
            "Server 5 exited with status 9",
            "NEW SERVER 6: Ready",
            "Server 6 exited with status 1",
            "Starting new server 7 for user 0",
            "Server 7 exited with status 1",
        ];
        let why = said(&twice, &["Startup"]).unwrap();
        assert!(
            why.starts_with("the server exited with status 1, 2 times ("),
            "{why}"
        );
        assert!(!why.contains("printed nothing"), "{why}");
    }

    #[test]
    fn a_server_that_wrote_nothing_was_not_found_or_may_not_enter() {
        let why = said(&["Server 5 exited with status 1"], &[]).unwrap();
        assert!(
            why.contains("and printed nothing; its program is not in"),
            "{why}"
        );
    }

    #[test]
    fn a_healthy_log_says_nothing() {
        assert_eq!(
            said(
                &["NEW SERVER 6: Ready", "Server 6 exited with status 0"],
                &["Startup"]
            ),
            None
        );
        assert_eq!(said(&[], &[]), None);
    }
}
