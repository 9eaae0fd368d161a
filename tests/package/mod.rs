//! The Debian package: built, installed into a copy of this system, used, and removed.
//!
//! The package is made of this build's crates, linked as releases are. With the path of a package in `MIG_MPS_DEB`, that
//! one is tested, as before a release.

mod contents;
mod deb;
mod installed;
mod removed;
mod system;
