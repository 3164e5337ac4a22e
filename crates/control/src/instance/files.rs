//! Small files in an instance's directories.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// What is in a text file; nothing where there is none.
pub fn read_if_there(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => read,
    }
}

/// Puts a file for its owner alone in the place of another as a whole, so that a crash in between leaves the old one.
pub fn replace(path: &Path, text: &str) -> io::Result<()> {
    let fresh = path.with_extension("new");
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(true).mode(0o600);
    let written = options.open(&fresh).and_then(|mut file| file.write_all(text.as_bytes()));
    let replaced = written.and_then(|()| fs::rename(&fresh, path));
    if replaced.is_err() {
        // It would take the space that the old one may need.
        let _ = remove_if_there(&fresh);
    }
    replaced
}

/// Removes a file, if it is there.
pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
