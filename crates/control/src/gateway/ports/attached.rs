//! Which programs lie on which interfaces, so that the next process takes off those that it does not replace.
//!
//! Programs outlive the process, and the configuration that the next one reads may have lost a port: its
//! program would drop what is for workers for ever. The file appears before the first program does, and goes
//! with a clean stop. A line has an interface's index, its program's id and its name. What cannot be read
//! or written costs this tidying and nothing else. Does not put programs on interfaces: `ports` does.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use tracing::{error, warn};

use crate::instance::files::{read_if_there, remove_if_there, replace};

/// The file's name in the instance's run directory.
const FILE: &str = "programs";

/// A program's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The interface.
    pub ifindex: u32,
    /// The program's id.
    pub program: u32,
    /// The interface's name.
    pub interface: String,
}

/// The file, and what of earlier processes is in it.
#[derive(Default)]
pub struct Attached {
    path: PathBuf,
    left: Vec<Place>,
}

impl Attached {
    /// Reads what earlier processes left, and writes down what comes now.
    pub fn open(directory: &Path, own: &[Place]) -> Attached {
        let path = directory.join(FILE);
        let text = read_if_there(&path).unwrap_or_else(|error| {
            warn!(%error, "which XDP programs an earlier run left is not known");
            String::new()
        });
        let left = text.lines().filter_map(read).collect();
        let attached = Attached { path, left };
        attached.write(own);
        attached
    }

    /// Takes off what earlier processes left on interfaces that are no ports any more. On those that are
    /// `own` programs have taken its place.
    pub fn settle(&mut self, own: &[Place]) {
        self.remove_left();
        self.write(own);
    }

    /// Takes off what is left, and removes the file.
    pub fn end(&mut self) {
        self.remove_left();
        if let Err(error) = remove_if_there(&self.path) {
            warn!(%error, "the list of XDP programs was not removed");
        }
    }

    /// What the kernel refuses is kept, to be tried at the stop.
    fn remove_left(&mut self) {
        self.left.retain(|Place { ifindex, program, interface }| {
            match xsk::remove_left(interface, *ifindex, *program) {
                Ok(false) => false,
                Ok(true) => {
                    warn!(
                        interface,
                        "the interface is no port any more: its XDP program was taken off, and the kernel \
                         forwards there as it is configured to, in clear"
                    );
                    false
                }
                Err(error) => {
                    error!(
                        interface,
                        %error,
                        "the interface is no port any more, and its XDP program drops what was for it: \
                         ip link set dev {interface} xdp off"
                    );
                    true
                }
            }
        });
    }

    fn write(&self, own: &[Place]) {
        let mut text = String::new();
        for Place { ifindex, program, interface } in self.left.iter().chain(own) {
            let _ = writeln!(text, "{ifindex} {program} {interface}");
        }
        if let Err(error) = replace(&self.path, &text) {
            warn!(%error, "the next run will not know which interfaces were ports");
        }
    }
}

fn read(line: &str) -> Option<Place> {
    let mut words = line.split(' ');
    let mut number = || words.next()?.parse().ok();
    let (ifindex, program) = (number()?, number()?);
    Some(Place { ifindex, program, interface: words.next()?.to_owned() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A program that does not exist: ids are given from 1 on.
    fn place(ifindex: u32) -> Place {
        Place { ifindex, program: 0, interface: format!("eth{ifindex}") }
    }

    #[test]
    fn what_is_written_down_is_read_by_the_next_process() {
        let directory = tempfile::tempdir().unwrap();
        let first = Attached::open(directory.path(), &[place(1), place(2)]);
        assert_eq!(first.left, []);
        let second = Attached::open(directory.path(), &[place(2)]);
        assert_eq!(second.left, [place(1), place(2)]);
        // It ended before its programs were in place.
        let mut third = Attached::open(directory.path(), &[place(3)]);
        assert_eq!(third.left, [place(1), place(2), place(2)]);
        third.left.clear();
        third.settle(&[place(3)]);
        assert_eq!(fs::read_to_string(directory.path().join(FILE)).unwrap(), "3 0 eth3\n");
        third.end();
        assert!(!directory.path().join(FILE).exists());
    }

    #[test]
    fn a_line_that_is_not_whole_is_none() {
        assert_eq!(read("1 0 eth1"), Some(place(1)));
        for line in ["", "1", "1 0", "one 0 eth1"] {
            assert_eq!(read(line), None, "{line}");
        }
    }
}
