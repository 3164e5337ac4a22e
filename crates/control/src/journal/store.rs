//! The journal's directory: where it may be, what an earlier process left in it, and what of that is
//! good.
//!
//! What cannot be read is never deleted and never used: it is moved into a file of its own, for a
//! person to look at. Nothing is written here beside that.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use dataplane::clock::unix_now;
use rustix::fs::{FlockOperation, flock, statfs};
use zeroize::Zeroizing;

use super::frame::{self, BootId, Problem};
use crate::config::Config;
use crate::instance::files::remove_if_there;
use crate::instance::{Instance, make_private};
use crate::xfrm::Entries;

pub(super) const JOURNAL: &str = "journal";
pub(super) const JOURNAL_NEW: &str = "journal.new";
const LEDGER: &str = "ledger";
const BAD: &str = "journal.bad-";

/// Files that are kept of those that could not be read: they take memory, and hold keys.
const BAD_MAX: usize = 4;

/// Where memory is, on every Linux, if the run directory is on a disk.
const MEMORY: &str = "/dev/shm/peregrine";

/// `f_type` of file systems that are memory (linux/magic.h).
const TMPFS_MAGIC: i64 = 0x0102_1994;
const RAMFS_MAGIC: i64 = 0x8584_58f6;

/// The directory for an instance's journal, made if it is missing.
///
/// Keys must not reach a disk, so it is a file system in memory: the run directory, if that is one
/// (`/run` is on most machines), else `/dev/shm`. Whoever names a directory is taken at their word.
///
/// # Errors
///
/// The reason why there is none, in words.
pub fn choose_directory(config: &Config, instance: &Instance) -> Result<PathBuf, String> {
    let directory = find_directory(config, instance.directory())?;
    if directory == instance.directory() {
        return Ok(directory);
    }
    match &config.control.journal_dir {
        Some(above) => {
            fs::create_dir_all(above).map_err(|error| format!("{}: {error}", above.display()))?
        }
        None => drop(private_directory(Path::new(MEMORY))?),
    }
    private_directory(&directory)
}

/// The same, made or not, of an instance with this run directory, which is there.
///
/// # Errors
///
/// The reason why there is none, in words.
pub fn find_directory(config: &Config, run_directory: &Path) -> Result<PathBuf, String> {
    if !config.control.journal {
        return Err("the configuration says `journal = false`".to_owned());
    }
    if let Some(directory) = &config.control.journal_dir {
        return Ok(directory.join(&config.name));
    }
    if is_memory(run_directory) {
        return Ok(run_directory.to_owned());
    }
    let memory = Path::new(MEMORY);
    if !memory.parent().is_some_and(is_memory) {
        return Err("neither the run directory nor /dev/shm is in memory; name another with \
                    `journal_dir`"
            .to_owned());
    }
    Ok(memory.join(&config.name))
}

fn private_directory(path: &Path) -> Result<PathBuf, String> {
    make_private(path).map_err(|error| error.to_string())?;
    Ok(path.to_owned())
}

fn is_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|found| [TMPFS_MAGIC, RAMFS_MAGIC].contains(&found.f_type))
}

/// This boot of the machine.
///
/// # Errors
/// The kernel does not say.
pub fn boot_id() -> io::Result<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).map_err(io::Error::other)?;
    Ok(number.to_be_bytes())
}

/// What an earlier process left.
#[derive(Debug)]
pub struct Left {
    bytes: Zeroizing<Vec<u8>>,
    good: usize,
    /// The last epoch in it.
    epoch: Option<u32>,
    /// What is wrong with the rest.
    pub problem: Option<Problem>,
    /// Where the rest is now.
    pub set_aside: Option<PathBuf>,
}

impl Left {
    /// Reads it. It stays as it is.
    pub(super) fn read(directory: &Path, boot: BootId) -> io::Result<Left> {
        remove_if_there(&directory.join(JOURNAL_NEW))?;
        let path = directory.join(JOURNAL);
        let bytes = match fs::read(&path) {
            Ok(bytes) => Zeroizing::new(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Zeroizing::new(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut left = Left { bytes, good: 0, epoch: None, problem: None, set_aside: None };
        if left.bytes.is_empty() {
            // A process that was killed before it wrote anything leaves an empty file.
            remove_if_there(&path)?;
            return Ok(left);
        }
        let mut entries = Entries::default();
        (left.good, left.problem) =
            frame::read(&left.bytes, boot, |payload| entries.add(payload).is_ok());
        let says_something = entries.have_marks();
        left.epoch = entries.epoch().or(frame::origin(&left.bytes).map(|(_, epoch)| epoch));
        drop(entries);
        if !says_something {
            // A kill between the header and the first frame leaves this, and so did earlier versions that wrote
            // a journal anew while nothing was installed: default actions were not in it.
            (left.good, left.problem) = (0, left.problem.or(Some(Problem::Empty)));
        }
        Ok(left)
    }

    /// Sets aside what is no good. `follows` says of the last epoch in it whether no other process ran after
    /// that one.
    pub(super) fn sort_out(
        &mut self,
        directory: &Path,
        follows: impl Fn(u32) -> bool,
    ) -> io::Result<()> {
        if self.good != 0 && !self.epoch.is_some_and(follows) {
            (self.good, self.problem) = (0, Some(Problem::OtherRun));
        }
        if self.problem.is_none() {
            return Ok(());
        }
        let (path, aside) = (directory.join(JOURNAL), bad_path(directory));
        if self.good == 0 {
            fs::rename(&path, &aside)?;
        } else {
            let mut file = private().create_new(true).write(true).open(&aside)?;
            file.write_all(&self.bytes[self.good..])?;
            File::options().write(true).open(&path)?.set_len(self.good as u64)?;
        }
        self.set_aside = Some(aside);
        forget_old(directory);
        Ok(())
    }

    /// Whether there is anything, good or not.
    pub(super) fn is_there(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Bytes that are good.
    pub(super) fn good_len(&self) -> usize {
        self.good
    }

    /// What is good, as entries.
    pub fn entries(&self) -> Entries<'_> {
        let mut entries = Entries::default();
        // The header was checked when the good part was found.
        let (boot, _) = frame::origin(&self.bytes).unwrap_or_default();
        frame::read(&self.bytes[..self.good], boot, |payload| entries.add(payload).is_ok());
        entries
    }

    /// Whether all that an earlier process did is known.
    pub fn is_whole(&self) -> bool {
        self.good != 0 && self.problem.is_none()
    }
}

/// The ledger's file, made if it is missing, and locked: only who holds it may read a directory, as reading sets aside and
/// cuts off. `None` if another process holds it.
///
/// # Errors
/// It cannot be opened.
pub(super) fn lock(directory: &Path) -> io::Result<Option<File>> {
    let path = directory.join(LEDGER);
    loop {
        let file = private().read(true).write(true).create(true).truncate(false).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // A process that ended meanwhile has removed what it held.
        if file.metadata()?.nlink() != 0 {
            return Ok(Some(file));
        }
    }
}

/// A name that no file has, after those of all earlier ones: several problems in one second count up.
fn bad_path(directory: &Path) -> PathBuf {
    let newest = bad_files(directory).last().map_or(0, |(second, _)| *second);
    directory.join(format!("{BAD}{}", unix_now().max(newest + 1)))
}

/// The files that could not be read, with their times, oldest first.
pub(super) fn bad_files(directory: &Path) -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut bad: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_prefix(BAD)?.parse().ok()?, entry.path()))
        })
        .collect();
    bad.sort();
    bad
}

fn forget_old(directory: &Path) {
    let bad = bad_files(directory);
    for (_, path) in bad.iter().take(bad.len().saturating_sub(BAD_MAX)) {
        let _ = fs::remove_file(path);
    }
}

/// Removes everything but what was set aside, and the directory if nothing is left in it.
pub(super) fn remove(directory: &Path) -> io::Result<()> {
    remove_journal(directory)?;
    remove_if_there(&directory.join(LEDGER))?;
    // Fails, as it should, while a run directory or set-aside files are there.
    let _ = fs::remove_dir(directory);
    Ok(())
}

/// Removes a ledger that nothing refers to, and the directory if nothing is left in it.
pub(super) fn remove_unused(directory: &Path) {
    let _ = remove_if_there(&directory.join(LEDGER));
    let _ = fs::remove_dir(directory);
}

pub(super) fn remove_journal(directory: &Path) -> io::Result<()> {
    remove_if_there(&directory.join(JOURNAL_NEW))?;
    remove_if_there(&directory.join(JOURNAL))
}

/// Files for their owner alone.
pub(super) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600);
    options
}
