//! The boundary between root and the users it serves: what a user can write, answer or hold is input.

use std::path::Path;

mod claims;
mod directories;
mod earlier;
mod hers;
mod inherited;
mod locks;
mod mounts;
mod named_files;

const HERS: &str = r#"serve = "user:nobody""#;

/// Gives a directory of root's an access control list by which `nobody` has these permissions.
fn let_nobody(directory: &Path, permissions: u8) {
    let entries = [
        (1, 7, u32::MAX),
        (2, permissions, testkit::NOBODY),
        (4, 0, u32::MAX),
        (16, permissions, u32::MAX),
        (32, 0, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (kind, permissions, id) in entries {
        list.extend([kind, 0, permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(directory, "system.posix_acl_access", &list, flags).unwrap();
}
