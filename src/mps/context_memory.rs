use crate::settings::MemoryLimit;

/// The memory of a CUDA context, which counts against the memory limit of a program: with a lower limit no program
/// starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextMemory {
    product: &'static str,
    branch: u32,
    mebibytes: u64,
}

/// Measured on whole GPUs; MIG devices have not been measured.
const MEASURED: [ContextMemory; 1] = [
    // With 516M a program started and had nothing left to allocate; with 400M its first allocation failed with error 2
    // (driver 580.159.04).
    ContextMemory {
        product: "NVIDIA H200",
        branch: 580,
        mebibytes: 516,
    },
];

impl ContextMemory {
    /// Returns the reason why no program starts on a whole GPU with this limit, if its model and driver were measured.
    pub fn forbids(limit: MemoryLimit, product: &str, branch: Option<u32>) -> Option<String> {
        let mut measured = MEASURED.iter();
        let of_this = measured.find(|one| one.product == product && Some(one.branch) == branch)?;
        (limit.bytes() < of_this.mebibytes << 20).then(|| {
            format!(
                "no program starts with a pinned-memory-limit of {limit}: {}",
                of_this.in_words()
            )
        })
    }

    /// Returns a warning if perhaps no program starts with this limit on another GPU.
    pub fn warns_of(limit: MemoryLimit) -> Option<String> {
        let most = MEASURED.iter().max_by_key(|one| one.mebibytes)?;
        (limit.bytes() <= most.mebibytes << 20).then(|| {
            format!(
                "A pinned-memory-limit of {limit} may be too small for any program: {}.",
                most.in_words()
            )
        })
    }

    fn in_words(&self) -> String {
        format!(
            "on a whole {} with driver {} a context took {} MiB of it",
            self.product, self.branch, self.mebibytes
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_refused_where_it_was_measured_and_warned_of_elsewhere() {
        let limit = |text: &str| text.parse::<MemoryLimit>().unwrap();
        let forbids = |text, product, branch| {
            ContextMemory::forbids(limit(text), product, Some(branch)).is_some()
        };
        assert!(forbids("515M", "NVIDIA H200", 580));
        assert!(!forbids("516M", "NVIDIA H200", 580));
        assert!(!forbids("400M", "NVIDIA H200", 595));
        assert!(!forbids("400M", "NVIDIA H100 80GB HBM3", 580));
        let warns = |text| ContextMemory::warns_of(limit(text));
        assert_eq!(
            warns("400M").unwrap(),
            "A pinned-memory-limit of 400M may be too small for any program: on a whole NVIDIA H200 with driver 580 a \
             context took 516 MiB of it."
        );
        assert!(warns("516M").is_some() && warns("517M").is_none());
    }
}
