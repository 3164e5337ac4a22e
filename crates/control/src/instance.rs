//! One running gateway's place in the file system: its run directory, its lock, its epoch.
//!
//! ```text
//! /run/peregrine/<name>/          0700   gone after a reboot
//!     pid                         0600   the process id; locked (flock) while the instance lives
//!     xfrm.sock  control.sock     0600   made by those who serve them
//! /var/lib/peregrine/<name>/      0700   outlives a reboot
//!     epoch                       0600   the last epoch given out
//!     epoch.new                   0600   the next one, while it is taken
//! ```
//!
//! The lock, not the file's existence, says that an instance lives: the kernel drops it with the
//! process, however that ends. This module does not serve sockets and does not stop instances.

mod epoch;
pub(crate) mod files;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thiserror::Error;

pub use epoch::{Claim, Epoch};
use files::remove_if_there;

/// The directory above all run directories.
pub const RUN_DIR: &str = "/run/peregrine";
/// The directory above all state directories.
pub const STATE_DIR: &str = "/var/lib/peregrine";
/// The XFRM socket in a run directory.
pub const XFRM_SOCKET: &str = "xfrm.sock";
/// The show socket in a run directory.
pub const CONTROL_SOCKET: &str = "control.sock";
const PID_FILE: &str = "pid";
/// How often a lock is tried. Who looks whether an instance lives ([`running`]) holds its lock for
/// a moment, and an instance that ends removes its files under others' eyes; neither is a refusal.
const LOCK_ATTEMPTS: usize = 16;
/// The pause between attempts; 16 of them are beyond any such moment.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Why an instance cannot be started, found or numbered.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// The name is taken.
    #[error(
        "an instance named {name} is already running (process {pid}); stop it first, or give this \
         one another name"
    )]
    Running {
        /// The instance.
        name: String,
        /// Its process, as it wrote it.
        pid: String,
    },
    /// A directory or file that does not work.
    #[error(
        "cannot {doing} {}: {source}; check its owner, its permissions and the space left",
        path.display()
    )]
    File {
        /// What was tried.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A directory that someone else could write to.
    #[error(
        "{} belongs to user {owner} and this is user {user}; remove it, or run as its owner",
        path.display()
    )]
    ForeignDirectory {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user of this process.
        user: u32,
    },
    /// The epoch file does not hold an epoch.
    #[error(
        "{} should hold \"epoch\" and a number from 1 to 65535 but holds {found:?}; if no peer \
         holds a key that this gateway has used (all tunnels rekeyed since), remove the file, else put \
         back the number from a backup", path.display()
    )]
    EpochGarbled {
        /// The file.
        path: PathBuf,
        /// The beginning of what it holds.
        found: String,
    },
    /// All epochs are used.
    #[error(
        "{} has reached 65535, the last epoch: another start could repeat a nonce under a key in \
         use; rekey every tunnel of this gateway (new keys), then remove the file", path.display()
    )]
    EpochsUsedUp {
        /// The file.
        path: PathBuf,
    },
    /// No instance of that name.
    #[error(
        "no instance named {name} is running in {} ({running}); start it with `peregrine run`, name \
         another, or say with --run-dir where it runs", run_dir.display()
    )]
    NotRunning {
        /// The name asked for.
        name: String,
        /// Where it was looked for.
        run_dir: PathBuf,
        /// Those that run, for people.
        running: String,
    },
    /// None at all.
    #[error(
        "no instance is running in {}; start one with `peregrine run --config FILE`, or say with \
         --run-dir where one runs whose configuration names another run_dir", run_dir.display()
    )]
    NoneRunning {
        /// Where it was looked for.
        run_dir: PathBuf,
    },
    /// More than one, and no word which.
    #[error("several instances are running ({running}); choose one with --instance NAME")]
    Ambiguous {
        /// Those that run, for people.
        running: String,
    },
}

impl InstanceError {
    fn file<'a>(doing: &'static str, path: &'a Path) -> impl Fn(io::Error) -> Self + use<'a> {
        move |source| Self::File { doing, path: path.to_owned(), source }
    }

    /// Whether a file or directory was not there.
    fn is_not_found(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// A name held by this process. Dropping it removes the run directory.
#[derive(Debug)]
pub struct Instance {
    name: String,
    directory: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Instance {
    /// Takes a name: makes its run directory, locks it, and removes what a dead instance left
    /// there.
    ///
    /// # Errors
    /// Another live instance holds the name, or the directory cannot be used.
    pub fn hold(run_dir: &Path, name: &str) -> Result<Self, InstanceError> {
        let above = DirBuilder::new().recursive(true).mode(0o755).create(run_dir);
        above.map_err(InstanceError::file("make directory", run_dir))?;
        let directory = run_dir.join(name);
        let lock = lock(&directory, name)?;
        let instance = Self { name: name.to_owned(), directory, _lock: lock };
        for socket in [XFRM_SOCKET, CONTROL_SOCKET] {
            let path = instance.directory.join(socket);
            remove_if_there(&path).map_err(InstanceError::file("remove stale socket", &path))?;
        }
        Ok(instance)
    }

    /// The instance's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The run directory.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the XFRM socket belongs.
    #[must_use]
    pub fn xfrm_socket(&self) -> PathBuf {
        self.directory.join(XFRM_SOCKET)
    }

    /// Where the show socket belongs.
    #[must_use]
    pub fn control_socket(&self) -> PathBuf {
        self.directory.join(CONTROL_SOCKET)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // The pid file goes last: until then nobody else can hold the name.
        for file in [XFRM_SOCKET, CONTROL_SOCKET, PID_FILE] {
            let _ = remove_if_there(&self.directory.join(file));
        }
        // Fails, as it should, when someone put a file of their own there.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// An instance that lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Its name.
    pub name: String,
    /// Its process, when its pid file is readable.
    pub pid: Option<u32>,
    /// Its run directory.
    pub directory: PathBuf,
}

/// The instances that live, by name. Without the right to look into a directory an instance is
/// taken for alive: it is its socket that will refuse.
#[must_use]
pub fn running(run_dir: &Path) -> Vec<Running> {
    let entries = fs::read_dir(run_dir).into_iter().flatten().flatten();
    let mut running: Vec<Running> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let directory = entry.path();
            match File::open(directory.join(PID_FILE)) {
                Ok(file) => {
                    is_locked(&file).then(|| Running { name, pid: read_pid(&file), directory })
                }
                Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {
                    Some(Running { name, pid: None, directory })
                }
                Err(_) => None,
            }
        })
        .collect();
    running.sort_by(|a, b| a.name.cmp(&b.name));
    running
}

/// The instance that a command means: the one of that name, or the only one.
///
/// # Errors
///
/// [`InstanceError`] naming those that run, when none has the name, or without a name there are none or
/// several.
pub fn choose(run_dir: &Path, name: Option<&str>) -> Result<Running, InstanceError> {
    let mut running = running(run_dir);
    let names = |running: &[Running]| {
        let names: Vec<&str> = running.iter().map(|r| r.name.as_str()).collect();
        if names.is_empty() {
            "none is".to_owned()
        } else {
            format!("running: {}", names.join(", "))
        }
    };
    if let Some(name) = name {
        return match running.iter().position(|r| r.name == name) {
            Some(i) => Ok(running.swap_remove(i)),
            None => Err(InstanceError::NotRunning {
                name: name.into(),
                run_dir: run_dir.to_owned(),
                running: names(&running),
            }),
        };
    }
    match running.len() {
        0 => Err(InstanceError::NoneRunning { run_dir: run_dir.to_owned() }),
        1 => Ok(running.swap_remove(0)),
        _ => Err(InstanceError::Ambiguous { running: names(&running) }),
    }
}

/// Makes a directory that only this user can look into, or checks that it is one.
pub(crate) fn make_private(path: &Path) -> Result<(), InstanceError> {
    let made = DirBuilder::new().mode(0o700).create(path);
    if let Err(error) = made
        && error.kind() != io::ErrorKind::AlreadyExists
    {
        return Err(InstanceError::file("make directory", path)(error));
    }
    let failed = InstanceError::file("use directory", path);
    // Not followed: a symbolic link here would let its target be filled or emptied.
    let found = fs::symlink_metadata(path).map_err(&failed)?;
    if !found.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    let user = rustix::process::geteuid().as_raw();
    if found.uid() != user {
        let (path, owner) = (path.to_owned(), found.uid());
        return Err(InstanceError::ForeignDirectory { path, owner, user });
    }
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(failed)
}

/// Makes the run directory, locks the pid file in it and writes this process into it.
fn lock(directory: &Path, name: &str) -> Result<File, InstanceError> {
    let path = directory.join(PID_FILE);
    let failed = InstanceError::file("lock", &path);
    let (mut holder, mut gone) = (None, None);
    for _ in 0..LOCK_ATTEMPTS {
        match make_private(directory) {
            // It was there, and its holder has removed it since.
            Err(error) if error.is_not_found() => {
                gone = Some(error);
                continue;
            }
            made => made?,
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = match options.open(&path) {
            // The former holder has just removed the directory.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(&failed)?,
        };
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                holder = Some(read_pid(&file));
                std::thread::sleep(LOCK_PAUSE);
                continue;
            }
            Err(error) => return Err(failed(error.into())),
        }
        // Between open and lock the former holder may have removed the file: then this lock is on
        // a file that nobody else can see.
        let here = file.metadata().map_err(&failed)?;
        let there = fs::metadata(&path);
        if there.is_ok_and(|there| (there.dev(), there.ino()) == (here.dev(), here.ino())) {
            // In place: on a file system that is full there may be no room for it any more once it was given up.
            let text = format!("{}\n", std::process::id());
            let write = file.write_all(text.as_bytes());
            write.and_then(|()| file.set_len(text.len() as u64)).map_err(&failed)?;
            return Ok(file);
        }
    }
    match holder {
        Some(pid) => Err(InstanceError::Running {
            name: name.to_owned(),
            pid: pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string()),
        }),
        None => Err(gone.unwrap_or_else(|| failed(io::ErrorKind::ResourceBusy.into()))),
    }
}

fn is_locked(file: &File) -> bool {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            let _ = flock(file, FlockOperation::Unlock);
            false
        }
        Err(error) => error == Errno::WOULDBLOCK,
    }
}

fn read_pid(mut file: &File) -> Option<u32> {
    let mut text = String::new();
    file.rewind().ok()?;
    file.take(16).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests;
