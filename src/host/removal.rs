//! Removes a directory with everything in it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::time::Instant;

use rustix::fs::FileType;

use super::{Directory, in_path};

/// The deepest level at which directories are removed in place. Each level keeps a descriptor open.
const DEEPEST: u32 = 64;

impl Directory {
    /// Removes a directory with everything in it, until a deadline. Detaches file systems that are mounted there. The
    /// owner may add entries meanwhile, and may have nested directories to any depth.
    pub fn remove_all(&self, name: impl AsRef<OsStr>, until: Instant) -> io::Result<()> {
        let name = name.as_ref();
        let mut removal = Removal {
            top: self,
            until,
            name,
            moved: 0,
            left: vec![name.to_owned()],
        };
        while let Some(next) = removal.left.pop() {
            match removal.remove(self, &next, DEEPEST) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                    removal.left.push(next);
                }
                other => other?,
            }
        }
        Ok(())
    }
}

/// The removal of one entry of a directory with everything in it.
struct Removal<'a> {
    top: &'a Directory,
    until: Instant,
    name: &'a OsStr,
    /// The number of directories that were moved up from below [`DEEPEST`].
    moved: u64,
    /// The remaining entries of `top` to remove.
    left: Vec<OsString>,
}

impl Removal<'_> {
    fn remove(&mut self, parent: &Directory, name: &OsStr, depth: u32) -> io::Result<()> {
        if Instant::now() > self.until {
            let path = self.top.path().join(self.name);
            let why = "there is more in it than can be removed in time; what was removed is gone, and the same \
                       command again goes on";
            return Err(in_path(
                &path,
                &io::Error::new(io::ErrorKind::TimedOut, why),
            ));
        }
        parent.detach_mounts(name)?;
        let is_directory = match parent.stat(name)? {
            Some(meta) => FileType::from_raw_mode(meta.st_mode) == FileType::Directory,
            None => return Ok(()),
        };
        if !is_directory {
            return parent.remove_file(name);
        }
        if depth == 0 {
            return self.move_up(parent, name);
        }
        if let Some(child) = parent.child(name)? {
            for entry in child.names()? {
                self.remove(&child, &entry, depth - 1)?;
            }
        }
        parent.remove_dir(name)
    }

    /// Moves a directory to the top, to be removed there.
    fn move_up(&mut self, parent: &Directory, name: &OsStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            let mut free = self.name.to_owned();
            free.push(format!(".deep-{}", self.moved));
            if !self.top.has(&free) {
                parent.rename(name, self.top, &free)?;
                self.left.push(free);
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_removal_stops_at_its_deadline() {
        let path = std::env::temp_dir().join(format!("mig-mps-removal-{}", std::process::id()));
        std::fs::create_dir_all(path.join("hers/a/b")).unwrap();
        let directory = Directory::open(&path).unwrap();
        let now = Instant::now();
        let error = directory
            .remove_all("hers", now.checked_sub(Duration::from_secs(1)).unwrap())
            .unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(path.join("hers/a/b").exists());
        directory
            .remove_all("hers", now + Duration::from_secs(60))
            .unwrap();
        assert!(!path.join("hers").exists());
        std::fs::remove_dir(&path).unwrap();
    }
}
