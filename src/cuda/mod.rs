//! The door to libcuda, for the attach check alone: is this process an MPS client?
//!
//! `cuInit` and one attribute tell, without a context and without taking a client slot (measured on an H200: 10 to 18 ms).
//! On a device that hangs, or that serves another user, `cuInit` never returns, so the check runs in a child process.

mod attach;
mod library;
mod result;

pub use attach::{AttachResult, attach};
pub use library::load;
pub use result::CudaError;
