//! Reads the files that a user names.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use tempfile::TempDir;

/// The most that is read of a file, in bytes. Profiles and state files are smaller.
const MOST: u64 = 1 << 20;

/// Reads text from a file, or from standard input for `-`. Returns the name of the file in messages with it.
pub fn read_text_from(path: &Path) -> (&Path, io::Result<String>) {
    if path == Path::new("-") {
        return (Path::new("standard input"), read_text(io::stdin()));
    }
    (path, File::open(path).and_then(read_text))
}

/// Reads text of at most 1 MiB. Fails with `InvalidData` if there is more, or if it is not UTF-8.
fn read_text(file: impl Read) -> io::Result<String> {
    String::from_utf8(read_limited(file)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8 text"))
}

/// Reads a whole file of at most 1 MiB. Fails with `InvalidData` if it is larger: it is as useless as a damaged one, and
/// `FileTooLarge` is what the system says of a write.
pub(super) fn read_limited(file: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut file = file.take(MOST + 1);
    file.read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MOST {
        let why = "it is larger than 1 MiB, and not read";
        return Err(io::Error::new(io::ErrorKind::InvalidData, why));
    }
    Ok(bytes)
}

/// Returns the directory that a path is in.
pub fn directory_of(path: &Path) -> &Path {
    let beside = path.parent().filter(|parent| *parent != Path::new(""));
    beside.unwrap_or(Path::new("."))
}

/// Makes an empty directory that nobody else can enter. It is removed when it is dropped.
pub fn empty_directory() -> io::Result<TempDir> {
    TempDir::new()
}

/// Returns the value of a field in a file of `/proc` with a field per line, or `None` if it is hidden.
pub(super) fn field(file: impl AsRef<Path>, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}
