//! The reason why a daemon or server did not start, from its logs.

use super::{LogFile, LogLine};

/// Explains from the last lines of the logs why a daemon or server did not start. Returns `None` for unknown lines.
pub(in crate::mps) fn diagnose(control: &[String], server: &[String]) -> Option<String> {
    let texts = |file, lines: &[String]| -> Vec<String> {
        let texts = lines.iter().map(|line| LogLine::parse(file, line).text);
        texts.map(|text| text.trim().to_owned()).collect()
    };
    let control = texts(LogFile::Control, control);
    let server = texts(LogFile::Server, server);
    if let Some(why) = server.iter().rev().find_map(|text| failed_to_start(text)) {
        return Some(format!("the MPS server could not start: {why}"));
    }
    if let Some((user, error)) = control.iter().rev().find_map(|text| not_permitted(text)) {
        return Some(format!(
            "the daemon may not start a server for user {user}: {error} (a daemon that is not root's \
             serves its own user alone)"
        ));
    }
    if let Some(code) = control.iter().rev().find_map(|text| without_cuda(text)) {
        return Some(match cuda_error(|known| known == code) {
            Some(words) => words.to_owned(),
            None => format!("CUDA does not initialise: error {code}"),
        });
    }
    // Lines before the last successful start no longer matter.
    let since = control
        .iter()
        .rposition(|text| text.starts_with("NEW SERVER ") && text.ends_with(": Ready"))
        .map_or(0, |at| at + 1);
    let ends: Vec<&str> = control[since..]
        .iter()
        .filter_map(|text| exit_status(text))
        .collect();
    let status = ends.last()?;
    let times = match ends.len() {
        1 => String::new(),
        times => {
            format!(", {times} times over: with a client waiting, the daemon tries again and again")
        }
    };
    let silence = if server.is_empty() {
        ", and wrote nothing: its program is not found in the daemon's PATH, or its user may not enter \
         one of the directories above the pipe directory"
    } else {
        ""
    };
    Some(format!(
        "the MPS server ended with status {status}{times}{silence}"
    ))
}

/// `Failed to start : no CUDA-capable device is detected`; the rest is CUDA's description.
fn failed_to_start(text: &str) -> Option<&str> {
    let why = text
        .strip_prefix("Server failed to start")
        .or_else(|| text.strip_prefix("Failed to start"))?
        .trim_start()
        .strip_prefix(':')?
        .trim();
    (!why.is_empty()).then_some(why)
}

/// `Failed to start server using uid 0, error: Operation not permitted`
fn not_permitted(text: &str) -> Option<(&str, &str)> {
    let text = text.strip_prefix("Failed to start server using uid ")?;
    text.split_once(", error: ")
        .or_else(|| text.split_once(". "))
}

/// `Failed to initialize CUDA: 100`, the only message of a daemon of driver 615 before it exits
fn without_cuda(text: &str) -> Option<u32> {
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
pub(in crate::mps) fn cuda_error(is_it: impl Fn(u32) -> bool) -> Option<&'static str> {
    let mut errors = CUDA_ERRORS.into_iter();
    errors.find_map(|(code, words)| is_it(code).then_some(words))
}

/// `Server 466 exited with status 1`; `None` if the status is 0.
fn exit_status(text: &str) -> Option<&str> {
    let (_, status) = text
        .strip_prefix("Server ")?
        .split_once(" exited with status ")?;
    (status != "0").then_some(status)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(
            why.unwrap(),
            "the MPS server could not start: operation not supported"
        );
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
            "CUDA does not initialise: error 999"
        );
    }

    #[test]
    fn each_driver_has_its_own_words_for_the_same() {
        let why = said(&[], &["Server failed to start : invalid argument"]);
        assert_eq!(
            why.unwrap(),
            "the MPS server could not start: invalid argument"
        );
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
            why.starts_with("the MPS server ended with status 1, 2 times over"),
            "{why}"
        );
        assert!(!why.contains("wrote nothing"), "{why}");
    }

    #[test]
    fn a_server_that_wrote_nothing_was_not_found_or_may_not_enter() {
        let why = said(&["Server 5 exited with status 1"], &[]).unwrap();
        assert!(
            why.contains("and wrote nothing: its program is not found"),
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
