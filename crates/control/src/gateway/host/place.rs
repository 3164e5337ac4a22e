//! Where the host's traffic is in the kernel's routing: a table, and four priorities of rules that lead there.
//!
//! Another gateway in the same network namespace has another place. Rules do not say whose they are: what lies
//! at these priorities and leads elsewhere is another's, unless it is at the place that this instance has noted
//! in its run directory, before its configuration named another. A clean stop removes the note.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::super::rtnetlink::{Act, Rule};
use crate::config::HostConfig;
use crate::instance::files::{remove_if_there, replace};

/// The file's name in the instance's run directory.
const FILE: &str = "host";

/// How many priorities there are: past the table by port, by address, into it, and the place past it.
const PRIORITIES: u32 = 4;

/// A table and the first of its priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    table: u32,
    priority: u32,
}

impl Place {
    /// What the configuration says.
    pub fn of(config: &HostConfig) -> Place {
        Place { table: config.table, priority: config.priority }
    }

    /// Whether a rule is at these priorities.
    pub fn has(&self, rule: &Rule) -> bool {
        (self.priority..self.priority + PRIORITIES).contains(&rule.priority)
    }

    /// Whether a rule is one that leads here, or past here.
    fn explains(&self, rule: &Rule) -> bool {
        let expected = match rule.priority.checked_sub(self.priority) {
            Some(0 | 1) => Act::Goto(self.priority + PRIORITIES - 1),
            Some(2) => Act::Lookup(self.table),
            Some(3) => Act::Nop,
            _ => return false,
        };
        rule.action == expected
    }

    /// Sees that rules at these priorities are this instance's.
    ///
    /// # Errors
    /// The first that is not, and what to do.
    pub fn check(&self, noted: Option<Place>, rules: &[Rule]) -> io::Result<()> {
        let is_ours =
            |rule: &Rule| self.explains(rule) || noted.is_some_and(|noted| noted.explains(rule));
        let Some(rule) = rules.iter().find(|rule| self.has(rule) && !is_ours(rule)) else {
            return Ok(());
        };
        let does = match rule.action {
            Act::Lookup(table) => format!("looks into table {table}"),
            Act::Goto(priority) => format!("goes to {priority}"),
            Act::Nop => "ends another's".to_owned(),
        };
        let text = format!(
            "the rule of priority {} {does}, and is another gateway's; choose a `priority` in [host] \
             that is four away from others' (`ip rule` shows protocol 80), or remove the rule if nothing \
             that runs has made it",
            rule.priority
        );
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    }
}

/// The note of the place, in the instance's run directory.
pub struct Note(PathBuf);

impl Note {
    /// In a run directory.
    pub fn of(directory: &Path) -> Note {
        Note(directory.join(FILE))
    }

    /// What an earlier run that did not end cleanly has noted; `None` if that makes no sense.
    pub fn read(&self) -> Option<Place> {
        let text = fs::read_to_string(&self.0).ok()?;
        let (table, priority) = text.trim().split_once(' ')?;
        Some(Place { table: table.parse().ok()?, priority: priority.parse().ok()? })
    }

    /// Notes a place.
    pub fn write(&self, Place { table, priority }: Place) -> io::Result<()> {
        replace(&self.0, &format!("{table} {priority}\n"))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.0.display())))
    }

    /// There is nothing any more.
    pub fn remove(&self) -> io::Result<()> {
        remove_if_there(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::rtnetlink::Of;
    use super::*;
    use dataplane::prefix::Family;

    fn rules(Place { table, priority }: Place) -> Vec<Rule> {
        let rule =
            |at, of, action| Rule { family: Family::V4, priority: priority + at, of, action };
        vec![
            rule(3, Of::Nobody, Act::Nop),
            rule(2, Of::Host, Act::Lookup(table)),
            rule(1, Of::Source([192, 0, 2, 1].into()), Act::Goto(priority + 3)),
            rule(0, Of::Port(500), Act::Goto(priority + 3)),
        ]
    }

    #[test]
    fn rules_of_another_gateway_are_refused_wherever_they_overlap() {
        let place = |table, priority| Place { table, priority };
        let other = rules(place(20_552, 210));
        for priority in 207..=213 {
            let refusal = place(20_551, priority).check(None, &other).unwrap_err().to_string();
            assert!(refusal.contains("another gateway's; choose"), "{priority}: {refusal}");
        }
        for priority in [1, 206, 214] {
            assert!(place(20_551, priority).check(None, &other).is_ok(), "{priority}");
        }
        assert!(place(20_552, 210).check(None, &other).is_ok(), "its own, of an earlier run");
    }

    #[test]
    fn what_this_instance_left_elsewhere_is_its_own() {
        let place = |table, priority| Place { table, priority };
        let (before, now) = (place(20_551, 200), place(20_600, 202));
        assert!(now.check(None, &rules(before)).is_err());
        assert!(now.check(Some(before), &rules(before)).is_ok());
        let directory = tempfile::tempdir().unwrap();
        let note = Note::of(directory.path());
        assert_eq!(note.read(), None);
        note.write(before).unwrap();
        assert_eq!(note.read(), Some(before));
        note.remove().unwrap();
        note.remove().unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
