use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use thiserror::Error;

/// A memory limit at which this program would abort at any point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MemoryResource {
    /// The address space, including reserved memory.
    Addresses,
    /// Private writable memory.
    Data,
    /// The stack of the first thread.
    Stack,
}

/// A memory limit is too low for a change, which would abort half-way.
#[derive(Debug, Error)]
#[error(
    "{what} is limited to {} KiB, and this needs {} KiB: it would end half-way", allowed >> 10, needed >> 10
)]
pub struct TooLittleMemory {
    what: &'static str,
    flag: char,
    allowed: u64,
    needed: u64,
}

impl TooLittleMemory {
    /// Returns the remedy.
    pub fn hint(&self) -> String {
        format!(
            "ulimit -{} {} allows as much; where the shell refuses that, the limit is in /etc/security/limits.conf or in \
             the systemd unit",
            self.flag,
            self.needed >> 10
        )
    }
}

impl MemoryResource {
    const ALL: [Self; 3] = [Self::Addresses, Self::Data, Self::Stack];

    fn resource(self) -> Resource {
        match self {
            Self::Addresses => Resource::As,
            Self::Data => Resource::Data,
            Self::Stack => Resource::Stack,
        }
    }

    /// Returns how much a change may need, in bytes. Measured with `up` of 56 devices on a simulated node: 1.3 GB of
    /// addresses on 2 CPUs, and 21 GB if every thread has a heap of its own, as on many CPUs; 332 MB of data; 176 KiB of
    /// stack.
    fn needed(self) -> u64 {
        match self {
            Self::Addresses => 32 << 30,
            Self::Data => 1 << 30,
            Self::Stack => 1 << 20,
        }
    }

    /// Raises the limit to the system's maximum if it is too low. Daemons inherit it, and need more than this program.
    fn raise(self) -> Result<(), TooLittleMemory> {
        let needed = self.needed();
        let limit = getrlimit(self.resource());
        if limit.current.is_none_or(|now| now >= needed) {
            return Ok(());
        }
        let wanted = match self {
            // The kernel's default: without a limit, programs have another memory layout.
            Self::Stack => Some(limit.maximum.map_or(8 << 20, |most| most.min(8 << 20))),
            _ => limit.maximum,
        };
        let raised = Rlimit {
            current: wanted,
            maximum: limit.maximum,
        };
        let is_raised = setrlimit(self.resource(), raised).is_ok();
        let now = if is_raised { wanted } else { limit.current };
        match now {
            Some(allowed) if allowed < needed => Err(self.too_little(allowed)),
            _ => Ok(()),
        }
    }

    fn too_little(self, allowed: u64) -> TooLittleMemory {
        let (what, flag) = match self {
            Self::Addresses => ("virtual memory (RLIMIT_AS)", 'v'),
            Self::Data => ("memory for data (RLIMIT_DATA)", 'd'),
            Self::Stack => ("the stack (RLIMIT_STACK)", 's'),
        };
        TooLittleMemory {
            what,
            flag,
            allowed,
            needed: self.needed(),
        }
    }
}

/// Raises the memory limits that are too low for a change. Fails if the system does not allow it.
pub fn raise_memory() -> Result<(), TooLittleMemory> {
    MemoryResource::ALL
        .into_iter()
        .try_for_each(MemoryResource::raise)
}

/// Raises the limit of the stack, without which this program cannot even read its arguments.
pub fn raise_stack() -> Result<(), TooLittleMemory> {
    MemoryResource::Stack.raise()
}
