use crate::host::{Pid, Uid};

/// Returns the programs that wait for a server of their user: those whose last line in the daemon's log says that they
/// were pushed to the pending list.
///
/// ```text
/// [2026-11-20 17:46:21.325 Control  1369] NEW CLIENT 1404 from user 1235: Server is not ready, push client to pending list
/// ```
pub fn pending(log: &str) -> Vec<(Pid, Uid)> {
    let mut pending: Vec<(Pid, Uid)> = Vec::new();
    for line in log.lines() {
        let Some((pid, user, message)) = new_client(line) else {
            continue;
        };
        pending.retain(|(known, _)| *known != pid);
        // The daemon says 0 for a pid that it cannot see.
        if pid.0 != 0 && message.contains("pending list") {
            pending.push((pid, user));
        }
    }
    pending
}

fn new_client(line: &str) -> Option<(Pid, Uid, &str)> {
    let (_, client) = line.split_once("] NEW CLIENT ")?;
    let (pid, rest) = client.split_once(" from user ")?;
    let (user, message) = rest.split_once(':')?;
    Some((Pid(pid.parse().ok()?), Uid(user.parse().ok()?), message))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a recording on an H200.
    const LOG: &str = "\
[2026-11-20 17:46:20.342 Control  1369] NEW CLIENT 1397 from user 1234: Server already exists
[2026-11-20 17:46:20.343 Control  1369] User did not send valid credentials
[2026-11-20 17:46:21.325 Control  1369] NEW CLIENT 1404 from user 1235: Server is not ready, push client to pending list
";

    #[test]
    fn who_was_pushed_to_the_pending_list_waits_until_admitted() {
        assert_eq!(pending(LOG), [(Pid(1404), Uid(1235))]);
        let admitted = "[2026-11-20 17:46:27.916 Control  1369] NEW CLIENT 1404 from user 1235: Server already exists";
        assert_eq!(pending(&format!("{LOG}{admitted}\n")), []);
    }

    #[test]
    fn a_line_that_is_cut_or_unknown_says_nothing() {
        assert_eq!(
            pending(
                "5 from user 1235: Server is not ready, push client to pending list\n[x] NEW CLIENT\n"
            ),
            []
        );
    }
}
