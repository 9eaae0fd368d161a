use super::rule::{Rule, benign, chatter, fault, ordinary, refusal};

/// The messages of a daemon, under its own pid or that of a child process.
pub(super) const CONTROL: &[Rule] = &[
    benign(r"^User did not send valid credentials")
        .because("harmless: every start of a CUDA program leaves this line"),
    benign(r"^Unable to (read new connection type information|accept connection)")
        .because("harmless: somebody connected and hung up at once"),
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
        .because("asked for a server that is not, or no longer, there"),
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
        .because("the daemon has ended, and a server of it had failed before"),
    fault(r"^Server (\d+ )?encountered a fatal exception")
        .because("after a GPU fault, or because it could not start: server.log may say why"),
    // Refusals.
    refusal(r"^Failed to initialize CUDA: 100\b")
        .because("the daemon sees no device: CUDA's error 100"),
    refusal(r"^Failed to initialize CUDA")
        .because("the daemon ends; the number is CUDA's error code"),
    refusal(r"^Failed to start server using uid \d+(, error:|\.) Operation not permitted")
        .because("a daemon that is not root's serves its own user alone"),
    refusal(
        r"^(Insufficient privileges|Not enough privilege|Only (the )?root user|Unable to accept privil)",
    ),
    refusal(r"^(Invalid |Unknown command|A user id|A server PID|Failed |Cannot |Unable )"),
    refusal(r"^CUDA_MPS_\w+ should be between"),
    refusal(r"(?i)version mismatch"),
    refusal(r"^Ignoring pinned memory setting"),
];
