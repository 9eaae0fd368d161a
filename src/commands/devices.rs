use std::fmt::Display;

use clap::Args;

use crate::error::{CommandError, ExitStatus, Result};
use crate::node::{NoSuchDevice, Node};

/// The devices of a command line.
#[derive(Args, Debug)]
pub(super) struct DeviceArgs {
    /// Devices: a name, a UUID, a unique prefix of either, or a glob such as 'trainer-*'
    #[arg(value_name = "DEVICE")]
    pub(super) words: Vec<String>,
    /// Every device of the GPU with index N
    #[arg(long = "gpu", value_name = "N", value_parser = gpu_index)]
    pub(super) gpus: Vec<u32>,
}

/// Reads the index of a GPU.
pub(super) fn gpu_index(text: &str) -> std::result::Result<u32, &'static str> {
    text.parse()
        .map_err(|_| "expected the index of a GPU, as mig-mps list shows it; --gpu can be given several times")
}

impl DeviceArgs {
    /// Returns the devices and the values of `set DEVICE VALUE…` or `set --gpu N VALUE…`, where the first word is a
    /// value, too. `value_name` is the values' name in help.
    pub(super) fn and_values<T: Clone, E: Display>(
        first: Option<&String>,
        gpus: &[u32],
        others: &[T],
        value_name: &str,
        parse: impl Fn(&str) -> std::result::Result<T, E>,
    ) -> Result<(Self, Vec<T>)> {
        let usage = |what: String| CommandError::new(ExitStatus::Usage, what);
        let gpus = gpus.to_vec();
        let words = first.filter(|_| gpus.is_empty());
        if let Some(device) = words {
            let words = vec![device.clone()];
            return Ok((Self { words, gpus }, others.to_vec()));
        }
        let first = first.ok_or_else(|| {
            usage(format!("{value_name} is missing"))
                .with_hint(format!("write it after the option: --gpu N {value_name}"))
        })?;
        let first = parse(first).map_err(|error| usage(error.to_string()))?;
        let words = Vec::new();
        let values = [&[first], others].concat();
        Ok((Self { words, gpus }, values))
    }

    /// True if no device is named: the command is about all.
    pub(super) fn is_empty(&self) -> bool {
        self.words.is_empty() && self.gpus.is_empty()
    }

    /// Returns the names of the devices; none only if [`is_empty`](Self::is_empty).
    pub(super) fn names(&self, node: &Node) -> std::result::Result<Vec<String>, NoSuchDevice> {
        let mut names = node.resolve(&self.words)?;
        for &index in &self.gpus {
            for name in node.names_on(index)? {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
        }
        Ok(names)
    }
}
