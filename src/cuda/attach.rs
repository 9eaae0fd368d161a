use std::path::Path;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::library::{Attribute, Cuda};
use super::result::CudaError;

/// The outcome of initialising CUDA in a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachResult {
    /// CUDA works.
    Initialised {
        /// True if the process is an MPS client.
        is_client: bool,
        /// The UUID of its first device, without a prefix.
        uuid: [u8; 16],
        /// The SMs of that device that it may use.
        sm_count: u32,
        /// The time that `cuInit` took.
        time: Duration,
    },
    Failed(CudaError),
    /// There is no libcuda, or it cannot be loaded.
    NoLibrary(String),
}

/// Initialises CUDA in this process. May never return.
pub fn attach(library: Option<&Path>) -> AttachResult {
    match Cuda::open(library) {
        Ok(cuda) => initialise(&cuda).unwrap_or_else(AttachResult::Failed),
        Err(error) => AttachResult::NoLibrary(error.to_string()),
    }
}

fn initialise(cuda: &Cuda) -> Result<AttachResult, CudaError> {
    let start = Instant::now();
    cuda.init()?;
    let time = start.elapsed();
    Ok(AttachResult::Initialised {
        is_client: cuda.attribute(Attribute::MpsEnabled)? == 1,
        uuid: cuda.uuid()?,
        sm_count: cuda
            .attribute(Attribute::MultiprocessorCount)?
            .try_into()
            .unwrap_or(0),
        time,
    })
}
