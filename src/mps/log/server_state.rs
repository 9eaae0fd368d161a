//! The state of one server that only the logs have.

use super::{LogFile, LogLine};
use crate::host::Pid;

/// The length of the end of server.log that is searched, in bytes.
pub(in crate::mps) const LOG_END: u64 = 1 << 20;

/// Returns the current memory limit of a server in bytes; 0 means no limit. Returns `None` if the log does not have it.
///
/// ```text
/// [2026-11-22 04:12:38.882 Server   465] Device pinned memory limit for device 0 set to 0x60000000 bytes
/// ```
pub(in crate::mps) fn logged_limit(log: &str, server: Pid) -> Option<u64> {
    let bytes = |text: &str| {
        let (_, number) = text.split_once("Device pinned memory limit for device 0 set to 0x")?;
        u64::from_str_radix(number.split_whitespace().next()?, 16).ok()
    };
    lines_backwards(log, server).find_map(|text| bytes(&text))
}

/// True if a server has had a fatal GPU fault and still has its context, which it keeps until all clients have exited.
pub(in crate::mps) fn logged_fault(log: &str, server: Pid) -> bool {
    let is_fault = |text: Box<str>| {
        let is_over = text.contains("server context");
        (is_over || text.contains("a fatal GPU error")).then_some(!is_over)
    };
    lines_backwards(log, server)
        .find_map(is_fault)
        .unwrap_or(false)
}

/// True if control.log says that a server is ready, and not of an earlier process with the same pid.
///
/// ```text
/// [2026-11-20 17:34:05.142 Control   447] Starting new server 466 for user 0
/// [2026-11-20 17:34:05.306 Control   447] NEW SERVER 466: Ready
/// ```
pub fn logged_ready(log: &str, server: Pid) -> bool {
    let ready = log.rfind(&format!("] NEW SERVER {server}: Ready"));
    ready.is_some() && ready > log.rfind(&format!("] Starting new server {server} for "))
}

/// Returns the lines of a server, the last first, without those of an earlier process with the same pid.
fn lines_backwards(log: &str, server: Pid) -> impl Iterator<Item = Box<str>> {
    let phrases = ["pinned memory limit", "server context", "fatal GPU error"];
    let starts = ["] Startup", "] Starting MPS Server"];
    let lines = log.lines().rev().filter(move |line| {
        // Skips most lines: parsing one costs more than this.
        phrases
            .iter()
            .chain(&starts)
            .any(|word| line.contains(word))
    });
    lines
        .map(|line| (line, LogLine::parse(LogFile::Server, line)))
        .filter(move |(_, parsed)| parsed.pid == Some(server.0))
        .take_while(move |(line, _)| !starts.iter().any(|start| line.contains(start)))
        .map(|(_, parsed)| parsed.text)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let limit = |log: &str| logged_limit(log, Pid(637));
        assert_eq!(limit(LOG), None, "that of an earlier process");
        assert_eq!(limit(&format!("{LOG}{SET}")), Some(0x6000_0000));
        assert_eq!(limit(&format!("{LOG}{SET}{CLEARED}")), Some(0));
        assert_eq!(logged_limit(&format!("{LOG}{SET}"), Pid(638)), None);
        let newer = SET.replace("Server   637", "Server INFO   637");
        assert_eq!(limit(&newer), Some(0x6000_0000));
    }

    #[test]
    fn a_server_is_ready_once_the_log_says_so_after_its_start() {
        let starting = "[x Control 1] Starting new server 637 for user 0\n";
        let ready = "[x Control 1] NEW SERVER 637: Ready\n";
        let is_ready = |log: &str| logged_ready(log, Pid(637));
        assert!(!is_ready(starting));
        assert!(is_ready(&format!("{starting}{ready}")));
        assert!(is_ready(ready), "its start is further above");
        let again = format!("{starting}{ready}{starting}");
        assert!(!is_ready(&again), "that was an earlier process");
        assert!(!logged_ready(&again, Pid(63)));
    }

    #[test]
    fn a_fault_is_over_when_the_context_has_gone() {
        let fault =
            "[2026-11-22 04:13:00.045 Server   637] Server is handling a fatal GPU error.\n";
        let gone = "[2026-11-22 04:13:01.068 Server   637] Destroy server context on device 0 (NVIDIA H200)";
        assert!(!logged_fault(LOG, Pid(637)));
        assert!(logged_fault(&format!("{LOG}{fault}"), Pid(637)));
        assert!(!logged_fault(&format!("{LOG}{fault}"), Pid(1)));
        assert!(!logged_fault(&format!("{LOG}{fault}{gone}"), Pid(637)));
    }
}
