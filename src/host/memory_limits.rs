use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// A memory limit at which this program would abort at any point.
#[derive(Debug)]
struct MemoryLimit {
    resource: Resource,
    what: &'static str,
    /// The letter for `ulimit`.
    flag: char,
    /// How much a change may need, in bytes. Measured with `up` of 56 devices on a simulated node: 1.3 GB of addresses on
    /// 2 CPUs, and 21 GB if every thread has a heap of its own, as on many CPUs; 332 MB of data; 176 KiB of stack.
    needed: u64,
    /// The limit to set instead of none.
    most: Option<u64>,
}

/// The address space, including reserved memory.
static ADDRESSES: MemoryLimit = MemoryLimit {
    resource: Resource::As,
    what: "virtual memory (RLIMIT_AS)",
    flag: 'v',
    needed: 32 << 30,
    most: None,
};

/// Private writable memory.
static DATA: MemoryLimit = MemoryLimit {
    resource: Resource::Data,
    what: "memory for data (RLIMIT_DATA)",
    flag: 'd',
    needed: 1 << 30,
    most: None,
};

/// The stack of the first thread.
static STACK: MemoryLimit = MemoryLimit {
    resource: Resource::Stack,
    what: "the stack (RLIMIT_STACK)",
    flag: 's',
    needed: 1 << 20,
    // The kernel's default: without a limit, programs have another memory layout.
    most: Some(8 << 20),
};

/// A memory limit is too low for a change, which would abort half-way.
#[derive(Debug, Error)]
#[error(
    "{} is limited to {} KiB, and this needs {} KiB: it would end half-way",
    limit.what, allowed >> 10, limit.needed >> 10
)]
pub struct TooLittleMemory {
    limit: &'static MemoryLimit,
    allowed: u64,
}

impl TooLittleMemory {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        format!(
            "ulimit -{} {} allows as much; where the shell refuses that, the limit is in /etc/security/limits.conf or in \
             the systemd unit",
            self.limit.flag,
            self.limit.needed >> 10
        )
    }
}

impl MemoryLimit {
    /// Raises the limit to the system's maximum if it is too low. Daemons inherit it, and need more than this program.
    fn raise(&'static self) -> Result<(), TooLittleMemory> {
        let limit = getrlimit(self.resource);
        if limit.current.is_none_or(|now| now >= self.needed) {
            return Ok(());
        }
        let wanted = [limit.maximum, self.most].into_iter().flatten().min();
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum,
        };
        let is_raised = setrlimit(self.resource, raised).is_ok();
        match if is_raised { wanted } else { limit.current } {
            Some(allowed) if allowed < self.needed => Err(TooLittleMemory {
                limit: self,
                allowed,
            }),
            _ => Ok(()),
        }
    }
}

/// Raises the memory limits that are too low for a change. Fails if the system does not allow it.
pub fn raise_memory() -> Result<(), TooLittleMemory> {
    [&ADDRESSES, &DATA, &STACK]
        .into_iter()
        .try_for_each(MemoryLimit::raise)
}

/// Raises the limit of the stack, without which this program cannot even read its arguments.
pub fn raise_stack() -> Result<(), TooLittleMemory> {
    STACK.raise()
}
