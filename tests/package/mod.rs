//! The packages: made, installed into a copy of this system, upgraded, used, and removed.
//!
//! They are made of this build's crates, linked as releases are. With the path of a directory in `MIG_MPS_PACKAGES`, the
//! packages in it are tested, as before a release.

mod contents;
mod installed;
mod packages;
mod removed;
mod rpm;
mod system;
mod tarball;
mod upgraded;
