use super::Kind;
use super::rule::Row;

/// The messages of servers and clients, which the daemon writes into server.log.
pub(super) const SERVER: &[Row] = &[
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
    // An entry in the lists of these devices and clients.
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
