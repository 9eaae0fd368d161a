use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use crate::client::ClientLimits;
use crate::settings::{ClientPriority, MemoryLimit, Percentage};

/// The limits of a program, for `run` and `env`.
#[derive(Args, Debug)]
pub(super) struct LimitArgs {
    /// Share of the device's SMs that the program may use, in percent
    #[arg(long, value_name = "PERCENT")]
    threads: Option<Percentage>,
    /// Device memory that the program may allocate, such as 4G or 512M
    #[arg(long, value_name = "SIZE")]
    memory: Option<MemoryLimit>,
    /// Priority of the program's work
    #[arg(long, value_parser = priorities())]
    priority: Option<ClientPriority>,
}

fn priorities() -> impl TypedValueParser<Value = ClientPriority> {
    PossibleValuesParser::new(ClientPriority::WORDS).try_map(|word| word.parse())
}

impl LimitArgs {
    pub(super) fn limits(&self) -> ClientLimits {
        ClientLimits {
            threads: self.threads,
            memory: self.memory,
            priority: self.priority,
        }
    }
}
