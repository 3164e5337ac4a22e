//! The epoch: the sixteen bits that keep nonces of different runs apart.
//!
//! The explicit IV of GCM is `epoch ‖ counter`. Whatever a crash lost of the counters, packets of
//! two runs cannot share a nonce as long as the runs do not share an epoch, so an epoch is on disk
//! before it is used and is never given out twice.
//!
//! That holds as long as the file does. Where it is lost (a container with a fresh file system), and
//! between gateways that were given the same key by hand, nothing can be known; so the first epoch
//! is a random one, and two such runs share one with a chance of 1 in 32 768 instead of always.
//! This file does not build nonces.

use std::fs::{DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::{InstanceError, make_private};

const EPOCH_FILE: &str = "epoch";
const EPOCH_FILE_NEW: &str = "epoch.new";
/// Beyond this the file cannot be an epoch file ("epoch 65535\n" has 12 bytes).
const EPOCH_BYTES_MAX: u64 = 64;

/// The highest first epoch; it leaves as many restarts as it leaves chances.
const FIRST_MAX: u16 = 1 << 15;

/// A number from 1 to 65 535 that no earlier run of this instance has had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u16);

impl Epoch {
    /// Takes the next epoch of an instance. It is on disk when this returns. The first is random.
    ///
    /// # Errors
    /// Those of [`Claim`].
    pub fn claim(state_dir: &Path, name: &str) -> Result<Self, InstanceError> {
        Claim::begin(state_dir, name)?.finish(|_| ()).map(|(epoch, ())| epoch)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

/// An epoch that is about to be taken. As long as this lives nobody else takes one of the instance.
///
/// 1. Make the state directory, private, and lock it against another claim.
/// 2. Read the last epoch; without a file draw one.
/// 3. Write the next one into a new file, and the file to disk.
/// 4. Let the journal record it.
/// 5. Put the new file in the place of the old, and the directory to disk.
///
/// A process that is killed between 3 and 5 leaves the new file: its number is passed over, and it is known
/// that nobody ran under it. So a journal can be told that has recorded it, or not yet, from one of which a
/// run in between knew nothing.
#[derive(Debug)]
pub struct Claim {
    directory: PathBuf,
    /// Holds the lock.
    handle: File,
    /// The last that somebody has taken.
    last: u16,
    next: u16,
}

impl Claim {
    /// Steps 1 and 2. Nothing is taken yet.
    ///
    /// # Errors
    /// The file is garbled, all epochs are used, or the disk fails. The data plane must not
    /// encrypt.
    pub fn begin(state_dir: &Path, name: &str) -> Result<Self, InstanceError> {
        let above = DirBuilder::new().recursive(true).mode(0o755).create(state_dir);
        above.map_err(InstanceError::file("make directory", state_dir))?;
        let directory = state_dir.join(name);
        make_private(&directory)?;
        let handle = lock(&directory).map_err(InstanceError::file("lock", &directory))?;

        let path = directory.join(EPOCH_FILE);
        let last = read(&path)?.unwrap_or_else(draw);
        // One that was cut was not recorded anywhere.
        let begun = read(&directory.join(EPOCH_FILE_NEW)).ok().flatten();
        let next = last.max(begun.unwrap_or(0)).checked_add(1);
        let next = next.ok_or(InstanceError::EpochsUsedUp { path })?;
        Ok(Self { directory, handle, last, next })
    }

    /// The number.
    #[must_use]
    pub fn epoch(&self) -> u16 {
        self.next
    }

    /// Whether nobody has run between this epoch and another.
    #[must_use]
    pub fn follows(&self, epoch: u32) -> bool {
        (u32::from(self.last)..u32::from(self.next)).contains(&epoch)
    }

    /// Steps 3 to 5. The epoch is on disk when this returns, and what `record` did was done before.
    ///
    /// # Errors
    /// The disk fails. The data plane must not encrypt.
    pub fn finish<T>(self, record: impl FnOnce(&Self) -> T) -> Result<(Epoch, T), InstanceError> {
        let [new, path] = [EPOCH_FILE_NEW, EPOCH_FILE].map(|file| self.directory.join(file));
        write_new(&new, self.next).map_err(InstanceError::file("write", &new))?;
        let recorded = record(&self);
        let moved = std::fs::rename(&new, &path).and_then(|()| self.handle.sync_all());
        moved.map_err(InstanceError::file("replace", &path))?;
        Ok((Epoch(self.next), recorded))
    }
}

fn lock(directory: &Path) -> io::Result<File> {
    let handle = File::open(directory)?;
    flock(&handle, FlockOperation::LockExclusive)?;
    Ok(handle)
}

/// The epoch in a file, if there is one.
fn read(path: &Path) -> Result<Option<u16>, InstanceError> {
    let failed = InstanceError::file("read", path);
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mut bytes = Vec::new();
    file.take(EPOCH_BYTES_MAX).read_to_end(&mut bytes).map_err(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    let number = text.strip_prefix("epoch ").and_then(|rest| rest.strip_suffix('\n'));
    // Nothing but digits: `parse` alone would take "+7".
    let digits = number.filter(|n| n.bytes().all(|b| b.is_ascii_digit()));
    match digits.and_then(|n| n.parse().ok()).filter(|&epoch| epoch > 0) {
        Some(epoch) => Ok(Some(epoch)),
        None => Err(InstanceError::EpochGarbled { path: path.into(), found: text.into_owned() }),
    }
}

/// The number before a random first epoch. The hasher's keys are the system's randomness.
fn draw() -> u16 {
    RandomState::new().hash_one(0) as u16 % FIRST_MAX
}

fn write_new(path: &Path, epoch: u16) -> io::Result<()> {
    super::files::remove_if_there(path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "epoch {epoch}")?;
    file.sync_all()
}
