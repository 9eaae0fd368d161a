//! The parts of a node that a snapshot could not see.

use std::fmt;
use std::path::PathBuf;

use super::Node;
use crate::nvml::NvmlError;
use crate::state::RunDir;

/// Something that a snapshot could not see, or not all of it.
#[derive(Clone, Debug)]
pub enum Unseen {
    /// The GPUs: the driver does not answer, or nobody has asked it.
    Driver(Option<NvmlError>),
    /// A GPU that is lost or cannot be read, with the driver's error, which names it.
    Gpu { index: u32, why: String },
    /// The instances of a GPU, with the driver's error.
    Instances { gpu: u32, why: String },
    /// The record of a device: a daemon may use it. The reason names the file.
    Record { run_dir: RunDir, why: String },
    /// A run directory, which the reason names: daemons may run there that nobody sees.
    RunDir {
        run_dir: RunDir,
        why: String,
        /// The remedy, if there is one.
        hint: Option<String>,
    },
    /// The journal in this run directory: a change is in progress there, or was killed half-way.
    Journal(PathBuf),
    /// Anything else, described.
    Other(String),
}

impl Unseen {
    /// Returns the reason why a device cannot be seen.
    pub fn why(&self) -> String {
        match self {
            Self::Driver(_) => "the driver does not answer".to_owned(),
            Self::Instances { why, .. } => why.clone(),
            other => other.to_string(),
        }
    }
}

/// Describes what is not seen: `the GPUs, since …`
impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Driver(Some(error)) => {
                write!(f, "the GPUs, since the driver does not answer: {error}")
            }
            Self::Driver(None) => f.write_str("the GPUs, since the driver was not asked"),
            Self::Instances { gpu, .. } => write!(
                f,
                "the MIG devices of GPU {gpu}, which the driver shows to root alone"
            ),
            Self::Journal(path) => write!(
                f,
                "the change that is under way in {}, or was interrupted",
                path.display()
            ),
            Self::Gpu { why, .. }
            | Self::Record { why, .. }
            | Self::RunDir { why, .. }
            | Self::Other(why) => f.write_str(why),
        }
    }
}

impl Node {
    /// Describes everything that could not be seen.
    pub fn hidden(&self) -> Vec<String> {
        self.unseen.iter().map(Unseen::to_string).collect()
    }

    /// True if the driver does not answer, or was not asked: devices are known by their records alone.
    pub fn has_no_driver(&self) -> bool {
        let mut unseen = self.unseen.iter();
        unseen.any(|one| matches!(one, Unseen::Driver(_)))
    }

    /// Returns the error of a driver that does not answer.
    pub fn driver_error(&self) -> Option<&NvmlError> {
        self.unseen.iter().find_map(|one| match one {
            Unseen::Driver(error) => error.as_ref(),
            _ => None,
        })
    }

    /// Returns the indices of the GPUs that are lost or cannot be read, with the driver's error.
    pub fn lost_gpus(&self) -> impl Iterator<Item = (u32, &str)> {
        self.unseen.iter().filter_map(|one| match one {
            Unseen::Gpu { index, why } => Some((*index, why.as_str())),
            _ => None,
        })
    }

    /// Returns the run directories of records that cannot be read, with the reason.
    pub fn unreadable(&self) -> impl Iterator<Item = (&RunDir, &str)> {
        self.unseen.iter().filter_map(|one| match one {
            Unseen::Record { run_dir, why } | Unseen::RunDir { run_dir, why, .. } => {
                Some((run_dir, why.as_str()))
            }
            _ => None,
        })
    }

    /// Returns the reason why daemons may run that cannot be seen: a run directory cannot be read.
    pub fn unseen_daemons(&self) -> Option<&str> {
        self.unseen.iter().find_map(|one| match one {
            Unseen::RunDir { why, .. } => Some(why.as_str()),
            _ => None,
        })
    }

    /// True if a change is in progress that the caller may not see, or was killed half-way.
    pub fn may_be_changing(&self) -> bool {
        let mut unseen = self.unseen.iter();
        unseen.any(|one| matches!(one, Unseen::Journal(_)))
    }
}
