//! The list of an instance's routes by groups' devices, in its run directory.
//!
//! The kernel does not say who wrote a route, only that it was a gateway: in the same network namespace there
//! may be another. So the routes are listed before they are written, and what is on the list and not in the
//! configuration any more is what the next run removes. A clean stop removes the list. It holds a line for
//! each route: table, prefix, device. Which of them are in the kernel it does not know.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use dataplane::prefix::Prefix;

use crate::instance::files::{read_if_there, remove_if_there, replace};

/// The file's name in the instance's run directory.
const FILE: &str = "routes";

/// A route by a group's device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The table it is in.
    pub table: u32,
    /// The destinations.
    pub prefix: Prefix,
    /// The group's device.
    pub device: String,
}

impl Listed {
    /// Its place: by whichever device, the kernel has one route there.
    pub fn place(&self) -> (u32, Prefix) {
        (self.table, self.prefix)
    }
}

/// The list.
pub struct RouteList {
    path: PathBuf,
}

impl RouteList {
    /// The list in a run directory.
    pub fn of(directory: &Path) -> RouteList {
        RouteList { path: directory.join(FILE) }
    }

    /// What an earlier run that did not end cleanly has listed. Lines that make no sense are skipped.
    pub fn read(&self) -> io::Result<Vec<Listed>> {
        let text = read_if_there(&self.path).map_err(|error| self.named(error))?;
        Ok(text.lines().filter_map(parse).collect())
    }

    /// Lists these and nothing else, in one step. Without any there is no file.
    pub fn write<'a>(&self, routes: impl Iterator<Item = &'a Listed>) -> io::Result<()> {
        let mut text = String::new();
        for Listed { table, prefix, device } in routes {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{table} {prefix} {device}");
        }
        let written =
            if text.is_empty() { remove_if_there(&self.path) } else { replace(&self.path, &text) };
        written.map_err(|error| self.named(error))
    }

    fn named(&self, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }
}

fn parse(line: &str) -> Option<Listed> {
    let mut words = line.split(' ');
    let table = words.next()?.parse().ok()?;
    let (address, len) = words.next()?.split_once('/')?;
    let prefix = Prefix::new(address.parse().ok()?, len.parse().ok()?)?;
    let device = words.next().filter(|device| !device.is_empty())?.to_owned();
    Some(Listed { table, prefix, device })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_was_listed_is_read_and_nothing_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let list = RouteList::of(directory.path());
        let listed = |prefix: Prefix| Listed { table: 254, prefix, device: "pgn-t".to_owned() };
        let routes = [
            listed(Prefix::new([10, 50, 0, 0].into(), 16).unwrap()),
            listed(Prefix::new("fd50::".parse().unwrap(), 32).unwrap()),
        ];
        assert!(list.read().unwrap().is_empty());
        list.write(routes.iter()).unwrap();
        assert_eq!(list.read().unwrap(), routes);
        let path = directory.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        for bad in ["", "254", "x 10.0.0.0/8 a", "254 10.0.0.0/33 a", "254 10.0.0.0/8", "1 1/1 "] {
            fs::write(&path, format!("{bad}\n{text}")).unwrap();
            assert_eq!(list.read().unwrap(), routes, "{bad:?}");
        }
        list.write([].iter()).unwrap();
        list.write([].iter()).unwrap();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
