use super::rule::{Rule, benign, fault, ordinary, refusal};

const CLIENT_ENDED: &str = "harmless: a client has ended";
const VISIBLE_DEVICES: &str =
    "the client's CUDA_VISIBLE_DEVICES must be unset, 0, or this device's UUID";

/// The messages of servers and clients, which the daemon writes into server.log.
pub(super) const SERVER: &[Rule] = &[
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
        .because("every client of this device fails; new ones are refused until all have gone"),
    fault(r"^(Volta MPS: )?Client .* encountered a fatal GPU error"),
    fault(r"(?i)sticky error|torn down|fatal"),
    fault(r"^Status of client .* is INACTIVE"),
    fault(r"^(The following devices will be reset|Destroy server context)"),
    // An entry in the lists of these devices and clients.
    fault(r"^\d+$"),
    // Refusals.
    refusal(r"^(Failed to start|Server failed to start|Driver initialization failed with) ?:")
        .because("what follows is CUDA's reason why this server did not start"),
    refusal(r"^Failed to accept new client\. Maximum number of clients")
        .because("the client gets error 46 or 808"),
    refusal(r"Refusing to accept new client")
        .because("after a fault, until every client has gone; the client gets error 807"),
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
