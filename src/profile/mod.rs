//! What the user wants: the profile file, read and checked, without any GPU at hand.
//!
//! The file's form is TOML; here it has become types. Everything that can be wrong with a
//! profile by itself is found on loading, and every error points at file, line and column.

mod assignment;
mod block;
mod check;
mod diagnostic;
mod mps;
mod name;
mod read;
mod schema;
mod selector;

pub use assignment::Assignment;
pub use block::{Block, Part, Profile, Want, WholeGpu};
pub use diagnostic::{ProfileError, Source, Span, nearest};
pub use name::{NameTemplate, Names, is_device_name};
pub use selector::Selector;
