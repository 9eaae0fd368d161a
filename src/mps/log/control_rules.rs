use super::Kind;
use super::rule::Row;

/// The messages of a daemon, under its own pid or that of a child process.
pub(super) const CONTROL: &[Row] = &[
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
    // Sessions and their answers.
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
    // Start, clients and exit.
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
