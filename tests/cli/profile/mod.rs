//! Profiles: files, names, and what is read from and written for other programs.

mod built_in;
mod check;
mod export;
mod file;
mod import;
mod init;
mod manifests;
mod mig_parted;
mod mig_parted_files;
mod names;
mod sizes;
