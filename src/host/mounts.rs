//! The directory that a path leads to in the mount namespace of a process, by the kernel's list of mounts: the path itself
//! is not opened, because its file system may hang.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::Process;

/// A directory as the kernel knows it in every mount namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedDirectory {
    /// The file system, as `major:minor`.
    system: String,
    /// The path inside the file system.
    path: PathBuf,
}

impl MountedDirectory {
    /// True if the directory was removed since it was mounted.
    pub fn is_removed(&self) -> bool {
        self.path.as_os_str().as_bytes().ends_with(b"//deleted")
    }
}

impl Process {
    /// Returns what an absolute path without links leads to for the process, or `None` if its mounts are hidden.
    pub fn directory_at(&self, path: &Path) -> Option<MountedDirectory> {
        let mounts = fs::read(self.directory.join("mountinfo")).ok()?;
        resolve_path(&mounts, path)
    }
}

/// A line of `/proc/PID/mountinfo`.
struct Mount {
    id: String,
    parent: String,
    system: String,
    /// The directory of the file system that is mounted.
    root: PathBuf,
    /// The place where it is mounted.
    point: PathBuf,
}

impl Mount {
    fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|byte| *byte == b' ');
        let mut text = || Some(String::from_utf8_lossy(fields.next()?).into_owned());
        let (id, parent, system) = (text()?, text()?, text()?);
        Some(Self {
            id,
            parent,
            system,
            root: unescape_path(fields.next()?),
            point: unescape_path(fields.next()?),
        })
    }
}

/// Follows the path from mount to mount. A mount that a later one covers is not on the way.
fn resolve_path(mounts: &[u8], path: &Path) -> Option<MountedDirectory> {
    let mounts: Vec<Mount> = mounts
        .split(|byte| *byte == b'\n')
        .filter_map(Mount::parse)
        .collect();
    let mut at = mounts.iter().find(|mount| {
        let is_first = !mounts.iter().any(|other| other.id == mount.parent);
        mount.point == Path::new("/") && (is_first || mount.id == mount.parent)
    })?;
    while let Some(next) = mounts
        .iter()
        .filter(|mount| mount.parent == at.id && mount.id != at.id)
        .filter(|mount| path.starts_with(&mount.point))
        .min_by_key(|mount| mount.point.as_os_str().len())
    {
        at = next;
    }
    let inside = path.strip_prefix(&at.point).ok()?;
    // A path that ends in a separator is another one to `PathBuf`.
    let path = if inside.as_os_str().is_empty() {
        at.root.clone()
    } else {
        at.root.join(inside)
    };
    let system = at.system.clone();
    Some(MountedDirectory { system, path })
}

/// Returns a path in which the kernel has written blanks and the like as `\040`.
fn unescape_path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let code = parse_octal_escape(rest);
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn parse_octal_escape(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"\\")?.get(..3)?;
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "\
        21 1 254:0 / / rw shared:1 - ext4 /dev/vda1 rw\n\
        25 21 0:22 / /run rw shared:2 - tmpfs tmpfs rw\n\
        26 25 0:40 / /run/user/1000 rw - tmpfs tmpfs rw\n";

    fn found(mounts: &str, path: &str) -> String {
        match resolve_path(mounts.as_bytes(), Path::new(path)) {
            Some(found) => format!("{} {}", found.system, found.path.display()),
            None => "unknown".to_owned(),
        }
    }

    #[test]
    fn a_directory_is_the_same_wherever_it_is_mounted() {
        let pipe = "/run/mig-mps/MIG-1/pipe";
        let own = found(HOST, pipe);
        assert_eq!(own, "0:22 /mig-mps/MIG-1/pipe");
        let bound =
            format!("{CONTAINER}52 50 0:22 /mig-mps/MIG-1/pipe {pipe} ro - tmpfs tmpfs rw\n");
        assert_eq!(found(&bound, pipe), own);
        let above = format!("{CONTAINER}52 50 0:22 /mig-mps /run/mig-mps ro - tmpfs tmpfs rw\n");
        assert_eq!(found(&above, pipe), own);
    }

    const CONTAINER: &str = "50 49 0:60 / / rw - overlay overlay rw\n";

    #[test]
    fn what_is_covered_is_not_there() {
        let pipe = "/run/mig-mps/MIG-1/pipe";
        assert_eq!(found(CONTAINER, pipe), format!("0:60 {pipe}"));
        // Another file system on /run, over what was mounted below it before, and on the same place twice.
        let covered = format!(
            "{CONTAINER}52 50 0:22 /mig-mps/MIG-1/pipe {pipe} ro - tmpfs tmpfs rw\n\
             53 50 0:70 / /run rw - tmpfs tmpfs rw\n54 53 0:71 / /run rw - tmpfs tmpfs rw\n"
        );
        assert_eq!(found(&covered, pipe), "0:71 /mig-mps/MIG-1/pipe");
        // A name that only begins like the path is not on the way.
        let beside = format!("{CONTAINER}52 50 0:22 / /run/mig ro - tmpfs tmpfs rw\n");
        assert_eq!(found(&beside, pipe), format!("0:60 {pipe}"));
        assert_eq!(found("", pipe), "unknown");
    }

    #[test]
    fn a_removed_directory_is_marked_and_blanks_are_read() {
        let gone = format!(
            "{CONTAINER}52 50 0:22 /m\\040p/pipe//deleted /m\\040p/pipe ro - tmpfs tmpfs rw\n"
        );
        let found = resolve_path(gone.as_bytes(), Path::new("/m p/pipe")).unwrap();
        assert!(found.is_removed());
        assert!(
            !resolve_path(HOST.as_bytes(), Path::new("/run"))
                .unwrap()
                .is_removed()
        );
    }
}
