//! The journal: SAs and policies, so that they outlive the process.
//!
//! ```text
//! DIR/            0700, in memory (tmpfs): gone after a reboot, never on a disk
//!     journal     0600   what is installed, with keys: a log of entries (`xfrm::record`) in frames
//!     journal.new 0600   the same written anew, while that is under way
//!     ledger      0600   sequence numbers, replay windows and counters (`dataplane::ledger`); locked
//!     journal.bad-TIME   what could not be read, for a person to look at
//! ```
//!
//! An answer to a program stands for a frame that is written: one `write(2)`, no more, as memory
//! does not lose what it took. When half of the journal is garbage it is written anew beside the old
//! one, some entries with every change, so that no request waits for all of it. So it is when an SA is gone
//! whose key is still in the old one, a minute later at most: both files are in memory, which the kernel
//! wipes before anybody else has it.
//!
//! A journal that cannot be written (no space) is removed rather than left behind to tell what is no
//! longer true: the gateway goes on without, says so, and tries again. After a crash the guard
//! (`gateway/guard.rs`) then holds what was protected, as it does for whatever this cannot bring back.

pub mod frame;
mod store;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::{info, warn};

pub use frame::{BootId, FORMAT, Problem};
pub use store::{Left, boot_id, choose_directory, find_directory};

use crate::instance::files::remove_if_there;
use crate::xfrm::{Bytes, Entries, Places, Server, Walk};

/// Entries beyond two for each thing that is there before the journal is written anew.
const SLACK_ENTRIES: usize = 10_000;

/// Entries that are written anew in a turn of an idle gateway, and the most with one change: some 50 µs.
const STEP_ENTRIES: usize = 64;

/// Entries that are written anew with each that a change adds. More make single requests slower; as few as
/// one let the old journal grow to twice its size before the new one is whole.
const STEP_PACE: usize = 4;

/// How long a journal that could not be written is not tried again.
const RETRY: Duration = Duration::from_secs(10);

/// How long a key stays in the journal when its SA is gone. Writing anew takes 50 µs for each 64 entries, 0.2 s
/// for all of 100 000 SAs, so while SAs come and go all the time this takes a third of a percent of a core.
const KEYS_STAY: Duration = Duration::from_secs(60);

/// Bytes kept for frames; a handshake's changes take 4 KiB.
const BUFFER_BYTES: usize = 16 << 10;

/// A log that is open for writing.
struct Log {
    file: File,
    entries: usize,
    bytes: u64,
}

/// The journal of a running gateway.
pub struct Journal {
    directory: PathBuf,
    /// The ledger's, whose lock says that the directory is this process's.
    ledger: File,
    boot: BootId,
    /// The last that this process claimed.
    epoch: u16,
    /// `None`: nothing was written yet, or it could not be.
    log: Option<Log>,
    /// Why there is none.
    broken: Option<(String, Instant)>,
    anew: Option<(Log, Walk)>,
    /// [`Server::sas_gone`] when writing anew began last, and when that was.
    gone_before: u64,
    begun: Instant,
    keys_stay: Duration,
    /// A change was written since the last turn, and some was written anew with it.
    written: bool,
    buffer: Bytes,
}

/// How a journal is, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// Where.
    pub directory: PathBuf,
    /// Bytes written.
    pub bytes: u64,
    /// Why what is installed now would not outlive the process.
    pub broken: Option<String>,
}

impl Journal {
    /// Opens the journal in a directory of this instance's own, and reads what an earlier process left. All of
    /// that stays as it is until [`Journal::take_up`].
    ///
    /// # Errors
    /// The directory or a file in it cannot be used, or another process does: then nothing in it is touched.
    pub fn open(directory: &Path, boot: BootId) -> io::Result<(Journal, Left)> {
        let ledger = store::lock(directory)?
            .ok_or_else(|| io::Error::other("another process holds the ledger in it"))?;
        let left = Left::read(directory, boot)?;
        let log = match left.is_there() {
            false => None,
            true => {
                let file = File::options().append(true).open(directory.join(store::JOURNAL))?;
                Some(Log { file, entries: 0, bytes: 0 })
            }
        };
        let journal = Journal {
            directory: directory.to_owned(),
            ledger,
            boot,
            epoch: 0,
            log,
            broken: None,
            anew: None,
            gone_before: 0,
            begun: Instant::now(),
            keys_stay: KEYS_STAY,
            written: false,
            buffer: Bytes::reusable(BUFFER_BYTES),
        };
        Ok((journal, left))
    }

    /// Goes on with what an earlier process left, under the epoch that this one claims, as it says at once: an
    /// epoch that the journal does not know of makes it another run's. `follows` says of an epoch whether nobody
    /// has run between that one and this.
    ///
    /// # Errors
    /// What is no good cannot be set aside.
    pub fn take_up(
        &mut self,
        left: &mut Left,
        epoch: u16,
        follows: impl Fn(u32) -> bool,
    ) -> io::Result<()> {
        left.sort_out(&self.directory, follows)?;
        self.epoch = epoch;
        self.log.take_if(|_| left.good_len() == 0);
        if let Some(log) = &mut self.log {
            log.bytes = left.good_len() as u64;
            // Which of an earlier process's SAs are gone is not known: not what `sas_gone` says of any number of them.
            self.gone_before = u64::MAX;
            self.write_epoch();
        }
        Ok(())
    }

    /// The file of the ledger beside it; emptied where there is no journal to say whose its entries are.
    ///
    /// # Errors
    /// It cannot be emptied.
    pub fn ledger(&self, left: &Left) -> io::Result<File> {
        if left.good_len() == 0 {
            self.ledger.set_len(0)?;
        }
        self.ledger.try_clone()
    }

    /// Another epoch was claimed.
    pub fn set_epoch(&mut self, epoch: u16) {
        if self.epoch != epoch {
            self.epoch = epoch;
            self.write_epoch();
        }
    }

    fn write_epoch(&mut self) {
        self.begin_frame();
        Entries::write_epoch(&mut self.buffer, self.epoch);
        frame::finish(self.buffer.vec());
        // Without a file yet, its header will have the epoch.
        if (self.log.is_some() || self.anew.is_some())
            && let Err(error) = self.write(1)
        {
            self.give_up(&error);
        }
        self.buffer.clear();
    }

    /// Says how many entries the log has that was taken up, for the sake of its size.
    pub fn count(&mut self, entries: usize) {
        if let Some(log) = &mut self.log {
            log.entries += entries;
        }
    }

    /// Writes down what changed since the last call. When this returns it outlives the process.
    pub fn commit(&mut self, server: &mut Server, places: &dyn Places) {
        self.begin_frame();
        let entries = server.write_touched(places, &mut self.buffer);
        if entries == 0 {
            return;
        }
        frame::finish(self.buffer.vec());
        if let Err(error) = self.write(entries) {
            self.give_up(&error);
        }
        self.write_anew(server, places, (STEP_PACE * entries).min(STEP_ENTRIES));
        self.written = true;
        self.buffer.clear();
    }

    /// Goes on with what is under way, while nothing else is to be done: who asks one thing after the
    /// other shall not wait for it twice.
    pub fn turn(&mut self, server: &Server, places: &dyn Places) {
        if std::mem::take(&mut self.written) {
            return;
        }
        if self.anew.is_some() || self.broken.is_some() || self.keeps_old_keys(server) {
            self.write_anew(server, places, STEP_ENTRIES);
            self.buffer.clear();
        }
    }

    /// How it is.
    pub fn health(&self) -> Health {
        Health {
            directory: self.directory.clone(),
            bytes: self.log.as_ref().map_or(0, |log| log.bytes),
            broken: self.broken.as_ref().map(|(reason, _)| reason.clone()),
        }
    }

    /// Removes it: the gateway stops cleanly.
    ///
    /// # Errors
    ///
    /// That of removing a file; one that is not there is none.
    pub fn end(self) -> io::Result<()> {
        store::remove(&self.directory)
    }

    fn begin_frame(&mut self) {
        self.buffer.clear();
        self.buffer.vec().extend_from_slice(&[0; frame::FRAME_HEAD_LEN]);
    }

    /// Writes the frame in the buffer to every log there is.
    fn write(&mut self, entries: usize) -> io::Result<()> {
        if let Some((log, _)) = &mut self.anew
            && let Err(error) = log.append(&self.buffer, entries)
        {
            self.anew = None;
            warn!(%error, "the journal is not written anew");
        }
        if self.broken.is_some() {
            return Ok(());
        }
        if self.log.is_none() {
            self.log =
                Some(Log::create(&self.directory.join(store::JOURNAL), self.boot, self.epoch)?);
        }
        self.log.as_mut().map_or(Ok(()), |log| log.append(&self.buffer, entries))
    }

    fn give_up(&mut self, error: &io::Error) {
        self.log = None;
        let removed = store::remove_journal(&self.directory);
        warn!(%error, ?removed, "no journal: what is installed now ends with this process");
        self.broken = Some((error.to_string(), Instant::now()));
    }

    /// Whether there are keys in the log that nobody needs, for long enough.
    fn keeps_old_keys(&self, server: &Server) -> bool {
        self.log.is_some()
            && server.sas_gone() != self.gone_before
            && self.begun.elapsed() > self.keys_stay
    }

    /// Begins to write the journal anew if it is time to, and writes so many entries of it.
    fn write_anew(&mut self, server: &Server, places: &dyn Places, count: usize) {
        if self.anew.is_none() {
            let (sas, policies) = server.sizes();
            let live = sas + policies;
            let due = match (&self.broken, &self.log) {
                (Some((_, when)), _) => when.elapsed() > RETRY,
                (None, Some(log)) => {
                    log.entries > 2 * live + SLACK_ENTRIES || self.keeps_old_keys(server)
                }
                (None, None) => false,
            };
            if !due {
                return;
            }
            match Log::create(&self.directory.join(store::JOURNAL_NEW), self.boot, self.epoch) {
                Ok(log) => {
                    self.anew = Some((log, Walk::default()));
                    // What goes from here on is in the new one, too, if the walk has passed it.
                    self.gone_before = server.sas_gone();
                    self.begun = Instant::now();
                }
                Err(error) => return self.put_off(&error),
            }
        }
        if let Err(error) = self.step(server, places, count) {
            self.anew = None;
            self.put_off(&error);
        }
    }

    fn step(&mut self, server: &Server, places: &dyn Places, count: usize) -> io::Result<()> {
        self.begin_frame();
        let Some((log, walk)) = &mut self.anew else { return Ok(()) };
        let entries = server.write_some(walk, count, places, &mut self.buffer);
        frame::finish(self.buffer.vec());
        log.append(&self.buffer, entries + 1)?;
        if entries != 0 {
            return Ok(());
        }
        // Everything is in it, and everything that changed meanwhile.
        std::fs::rename(
            self.directory.join(store::JOURNAL_NEW),
            self.directory.join(store::JOURNAL),
        )?;
        self.log = self.anew.take().map(|(log, _)| log);
        if self.broken.take().is_some() {
            info!("the journal is written again");
        }
        Ok(())
    }

    fn put_off(&mut self, error: &io::Error) {
        if let Some((reason, when)) = &mut self.broken {
            *reason = error.to_string();
            *when = Instant::now();
        } else if let Some(log) = &mut self.log {
            // The old one is as true as ever; it grows for a while.
            log.entries = 0;
            self.gone_before = u64::MAX;
            self.begun = Instant::now();
        }
    }
}

impl Drop for Journal {
    /// A start that fails leaves nothing behind, if there was nothing to take up.
    fn drop(&mut self) {
        if self.log.is_none() && self.broken.is_none() {
            store::remove_unused(&self.directory);
        }
    }
}

impl Log {
    /// A new file with nothing but a header.
    fn create(path: &Path, boot: BootId, epoch: u16) -> io::Result<Log> {
        remove_if_there(path)?;
        let mut file = store::private().create_new(true).append(true).open(path)?;
        let header = frame::header(boot, epoch);
        file.write_all(header.as_ref())?;
        Ok(Log { file, entries: 0, bytes: header.as_ref().len() as u64 })
    }

    fn append(&mut self, frame: &[u8], entries: usize) -> io::Result<()> {
        self.file.write_all(frame)?;
        self.entries += entries;
        self.bytes += frame.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
