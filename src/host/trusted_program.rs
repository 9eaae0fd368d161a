//! Programs that are run as root.

use std::fs;
use std::io;
use std::path::Path;

use super::path_error::{Fault, belongs_to, refused};
use super::walk::OTHERS_WRITE;
use super::{Directory, Uid, caller, in_path};

/// Fails if a user other than root and the caller could replace the program at this path, with the part of the path
/// that allows it.
pub fn only_root_can_change(program: &Path) -> io::Result<()> {
    let program = fs::canonicalize(program)?;
    let directory = Directory::open(program.parent().unwrap_or(&program))?;
    let name = program.file_name().unwrap_or_default();
    let Some(meta) = directory.stat(name)? else {
        return Err(io::ErrorKind::NotFound.into());
    };
    if ![Uid::ROOT, caller()].contains(&Uid(meta.st_uid)) {
        return Err(in_path(
            &program,
            &refused(
                Fault::Foreign(meta.st_uid),
                format!("it {}", belongs_to(meta.st_uid)),
            ),
        ));
    }
    if meta.st_mode & OTHERS_WRITE != 0 {
        return Err(in_path(
            &program,
            &refused(Fault::Writable, "others can write to it"),
        ));
    }
    Ok(())
}
