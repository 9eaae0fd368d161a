//! The file by which container engines find this node's devices.

use std::io;
use std::path::PathBuf;

use serde::Deserialize;

use crate::host::{Directory, Host, Uid, caller, in_path, in_the_way, may_write};

const NAME: &str = "mig-mps.json";
/// Engines read files that end in `.json` or `.yaml`.
const HALF_MADE: &str = "mig-mps.json.new";
const PUBLIC: u32 = 0o644;

/// `mig-mps.json` in the directory of container engines.
#[derive(Debug)]
pub struct CdiFile {
    directory: PathBuf,
    /// The kind of our devices, by which our file is recognised.
    kind: &'static str,
}

/// The file that is found in its place.
enum Found {
    Nothing,
    Ours(String),
    Other,
}

#[derive(Deserialize)]
struct Specification {
    kind: String,
}

impl CdiFile {
    /// Returns the file of devices of this kind.
    pub fn of(host: &Host, kind: &'static str) -> Self {
        Self {
            directory: host.cdi_dir(),
            kind,
        }
    }

    /// Reads the file; `None` if mig-mps has written none.
    pub fn read(&self) -> io::Result<Option<String>> {
        let directory = match Directory::open(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        Ok(match self.find(&directory)? {
            Found::Ours(text) => Some(text),
            Found::Nothing | Found::Other => None,
        })
    }

    /// Fails if the file could not be written: others could replace it, it is not of mig-mps, or the directory takes none.
    pub fn check(&self) -> io::Result<()> {
        let directory = match Directory::open(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        self.refuse_other(&directory)?;
        if caller() == Uid::ROOT && !may_write(&self.directory) {
            let error = io::ErrorKind::ReadOnlyFilesystem.into();
            return Err(in_path(&self.directory, &error));
        }
        Ok(())
    }

    /// Replaces the file, or removes it if there is nothing to write. Refuses to replace one that mig-mps did not write.
    pub fn write(&self, text: Option<&str>) -> io::Result<()> {
        let directory = Directory::make(&self.directory, 0o755)?;
        self.refuse_other(&directory)?;
        match text {
            Some(text) => directory.replace_file(NAME, HALF_MADE, text.as_bytes(), PUBLIC),
            None => directory.remove_file(NAME),
        }
    }

    fn refuse_other(&self, directory: &Directory) -> io::Result<()> {
        if matches!(self.find(directory)?, Found::Other) {
            let why = "mig-mps did not write it, and does not replace it";
            return Err(in_the_way(&self.directory.join(NAME), why));
        }
        Ok(())
    }

    fn find(&self, directory: &Directory) -> io::Result<Found> {
        let Some(bytes) = directory.read_file(NAME)? else {
            return Ok(Found::Nothing);
        };
        Ok(match serde_json::from_slice::<Specification>(&bytes) {
            Ok(found) if found.kind == self.kind => {
                Found::Ours(String::from_utf8_lossy(&bytes).into_owned())
            }
            _ => Found::Other,
        })
    }
}
