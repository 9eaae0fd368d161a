//! A file that mig-mps keeps in a directory of the administrator.

use std::io;
use std::path::PathBuf;

use super::{Directory, in_the_way};

/// A file that mig-mps writes, replaces and removes. Another one in its place is left as it is.
pub struct OwnFile {
    pub directory: PathBuf,
    pub name: &'static str,
    /// True for the text of a file that mig-mps wrote.
    pub is_ours: fn(&str) -> bool,
}

impl OwnFile {
    pub fn path(&self) -> PathBuf {
        self.directory.join(self.name)
    }

    /// Reads the file; `None` if there is none, or another one in its place.
    pub fn read(&self) -> io::Result<Option<String>> {
        let Some(directory) = self.open()? else {
            return Ok(None);
        };
        Ok(self
            .text_in(&directory)?
            .filter(|text| (self.is_ours)(text)))
    }

    /// Fails if another file is in its place.
    pub fn check(&self) -> io::Result<()> {
        match self.open()? {
            Some(directory) => self.own_text_in(&directory).map(drop),
            None => Ok(()),
        }
    }

    /// Writes the file; returns false if it has this text already. Refuses to replace another one.
    pub fn write(&self, text: &str) -> io::Result<bool> {
        let directory = Directory::make(&self.directory, 0o755)?;
        if self.own_text_in(&directory)?.as_deref() == Some(text) {
            return Ok(false);
        }
        // What reads files of such a directory goes by their ending.
        let half_made = format!(".{}.new", self.name);
        directory.replace_file(self.name, &half_made, text.as_bytes(), 0o644)?;
        Ok(true)
    }

    /// Removes the file; returns false if there is none. Refuses to remove another one.
    pub fn remove(&self) -> io::Result<bool> {
        let Some(directory) = self.open()? else {
            return Ok(false);
        };
        let is_there = self.own_text_in(&directory)?.is_some();
        directory.remove_file(self.name)?;
        Ok(is_there)
    }

    fn open(&self) -> io::Result<Option<Directory>> {
        match Directory::open(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    fn text_in(&self, directory: &Directory) -> io::Result<Option<String>> {
        let bytes = directory.read_file(self.name)?;
        Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    fn own_text_in(&self, directory: &Directory) -> io::Result<Option<String>> {
        match self.text_in(directory)? {
            Some(text) if !(self.is_ours)(&text) => {
                let why = "mig-mps did not write it, and leaves it as it is";
                Err(in_the_way(&self.path(), why))
            }
            found => Ok(found),
        }
    }
}
