//! The Unix socket on which programs speak XFRM: listener, connections, fairness.
//!
//! [`Clients`] owns an epoll descriptor. The control thread waits by it ([`Clients::wait`]), for
//! descriptors of others as well ([`Clients::watch`]), and calls [`Clients::on_ready`]; or it waits for
//! that descriptor to become readable ([`AsFd`]). Nothing else here blocks.
//!
//! Whoever may connect may read keys (GETSA shows them), so the socket is mode 0600 in a directory
//! of mode 0700, and the peer's user id is checked beside.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen,
    socket_with, sockopt,
};
use rustix::process::{Uid, geteuid};
use thiserror::Error;
use zeroize::Zeroizing;

use super::connection::{Connection, Ended, REQUEST_MAX, commit};
use super::counters::{Backend, Counters};
use super::delivery::{Delivery, Event};
use super::flush::Flush;
use super::server::Server;

/// Connections waiting to be accepted.
const BACKLOG: i32 = 128;

/// Connections at a time. An IKE daemon has a handful and every `ip` one for a moment; more than
/// this is a program that leaks them.
const CONNECTIONS_MAX: usize = 1024;

/// Ready connections looked at in one call.
const EVENTS_MAX: usize = 64;

/// Connections accepted in one call.
const ACCEPTS_MAX: usize = 32;

/// How long nothing is accepted after that has failed. What was missing (descriptors, memory) comes
/// back when somebody leaves; who waits to connect waits no longer than for a busy kernel.
const DEAF_TIME: Duration = Duration::from_millis(100);

/// `epoll` data of the listener; connections count up from 1.
const LISTENER: u64 = 0;

/// `epoll` data of others' descriptors: this and what they are called by.
const WATCHED: u64 = 1 << 63;

const NOTHING: epoll::Event =
    epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(LISTENER) };

/// Why the socket could not be made.
#[derive(Debug, Error)]
pub enum SocketError {
    /// Somebody else may enter the directory.
    #[error(
        "{0}: mode {1:04o} owned by uid {2}: keys pass through sockets in it, so it must be mode \
         0700 and owned by the user that runs the gateway"
    )]
    OpenDirectory(PathBuf, u32, u32),
    /// Another server answers there.
    #[error("{0}: another gateway is listening; stop it, or give this one another name")]
    InUse(PathBuf),
    /// Any other failure.
    #[error("{0}: {1}")]
    Io(PathBuf, #[source] io::Error),
}

/// The listener and all connections.
pub struct Clients {
    path: PathBuf,
    listener: OwnedFd,
    epoll: OwnedFd,
    /// What was ready when it was waited for, and how many of these; `None` if that was not asked since
    /// they were served.
    ready: [epoll::Event; EVENTS_MAX],
    asked: Option<usize>,
    connections: HashMap<u64, Connection>,
    next_token: u64,
    /// The user that may connect.
    owner: Uid,
    /// When the listener is asked again, after a connection could not be accepted.
    deaf_until: Option<Instant>,
    /// Flushes that are under way, and who asked for them.
    flushes: Vec<(u64, Flush)>,
    buffer: Zeroizing<Vec<u8>>,
}

impl Clients {
    /// Listens at `path`, whose directory is made if it is missing. A socket that a dead server
    /// left is removed.
    ///
    /// # Errors
    ///
    /// [`SocketError`]: others may enter the directory, another server answers there, or a system call
    /// failed.
    pub fn bind(path: &Path) -> Result<Self, SocketError> {
        let failed = |error: io::Error| SocketError::Io(path.to_owned(), error);
        let directory = path.parent().unwrap_or(Path::new("."));
        prepare_directory(directory)?;
        let address = SocketAddrUnix::new(path).map_err(|errno| failed(errno.into()))?;
        remove_stale(path, &address)?;
        let listener = listen_at(path, &address).map_err(failed)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let data = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, data, epoll::EventFlags::IN)
            .map_err(|errno| failed(errno.into()))?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            epoll,
            ready: [NOTHING; EVENTS_MAX],
            asked: None,
            connections: HashMap::new(),
            next_token: LISTENER + 1,
            owner: geteuid(),
            deaf_until: None,
            flushes: Vec::new(),
            buffer: Zeroizing::new(vec![0; REQUEST_MAX]),
        })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connections at this moment.
    pub fn len(&self) -> usize {
        self.connections.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.connections.is_empty()
    }

    /// Has [`wait`](Clients::wait) look at somebody else's descriptor, too: it is bit `number` of what that
    /// returns. One that is closed is forgotten.
    ///
    /// # Errors
    ///
    /// That of the system call.
    pub fn watch(&self, fd: impl AsFd, number: u32) -> io::Result<()> {
        let data = epoll::EventData::new_u64(WATCHED | u64::from(number));
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Waits until something is readable, or `timeout` is over. Whether there is something for
    /// [`on_ready`](Clients::on_ready), which need not ask again then, and which of others' descriptors
    /// are readable.
    ///
    /// # Errors
    ///
    /// That of the system call; an interruption is none.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<(bool, u32)> {
        let timeout = rustix::event::Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        };
        let count = match epoll::wait(&self.epoll, &mut self.ready[..], Some(&timeout)) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(error) => return Err(error.into()),
        };
        self.asked = Some(count);
        let tokens = self.ready[..count].iter().map(|event| event.data.u64());
        let (mut ours, mut others) = (false, 0);
        for token in tokens {
            match token & WATCHED {
                0 => ours = true,
                _ => others |= 1 << (token & 31),
            }
        }
        Ok((ours, others))
    }

    /// Serves what is ready. Every connection gets a limited turn; what is left keeps the
    /// descriptor readable.
    pub fn on_ready(&mut self, server: &mut Server, backend: &mut dyn Backend, now: u64) {
        if self.asked.is_none() && self.wait(Duration::ZERO).is_err() {
            return;
        }
        let count = self.asked.take().unwrap_or(0);
        let ready = self.ready;
        let (mut served, mut events) = (Vec::new(), Vec::new());
        server.set_listeners(self.groups());
        for event in &ready[..count] {
            match event.data.u64() {
                LISTENER => self.accept(),
                WATCHED.. => {}
                token => {
                    let result = self.serve(token, server, backend, now, &mut events);
                    served.push((token, result));
                }
            }
        }
        served.extend(self.go_on_flushing(server, &mut events));
        // What all of them asked for comes into force at once.
        let done = commit(server, backend);
        for (token, result) in served {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            let flushed = result.and(done).and_then(|()| connection.flush(server, &*backend));
            self.settle(token, flushed);
        }
        self.broadcast(events, server, &*backend);
        if self.deaf_until.is_some_and(|until| Instant::now() >= until) {
            self.listen(true);
        }
        server.set_listeners(self.groups());
    }

    /// Hands out what a timer or the data plane produced.
    pub fn deliver(&mut self, deliveries: Vec<Delivery>, server: &Server, counters: &dyn Counters) {
        let events = deliveries.into_iter().filter_map(Delivery::into_event);
        self.broadcast(events.map(|event| (LISTENER, event)).collect(), server, counters);
    }

    /// Whether anybody who listens to a group has yet to read much of what was handed out.
    pub fn are_behind(&self, group: u32) -> bool {
        self.connections.values().any(|connection| connection.is_behind(group))
    }

    /// The groups that anybody is bound to.
    fn groups(&self) -> u32 {
        self.connections.values().fold(0, |mask, connection| mask | connection.groups)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fd = match accept_with(&self.listener, flags) {
                Ok(fd) => fd,
                Err(Errno::AGAIN) => return,
                // Whoever connected is gone already.
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(error) => {
                    tracing::error!(%error, "no XFRM connection can be accepted now");
                    self.listen(false);
                    return;
                }
            };
            let allowed = sockopt::socket_peercred(&fd)
                .is_ok_and(|peer| peer.uid == self.owner || peer.uid.is_root());
            if !allowed || self.connections.len() >= CONNECTIONS_MAX {
                tracing::warn!(path = %self.path.display(), allowed, "XFRM connection refused");
                continue;
            }
            let token = self.next_token;
            self.next_token += 1;
            let data = epoll::EventData::new_u64(token);
            if epoll::add(&self.epoll, &fd, data, epoll::EventFlags::IN).is_ok() {
                self.connections.insert(token, Connection::new(fd));
            }
        }
    }

    /// Stops asking the listener for a moment, or asks again. Without that a connection that cannot be
    /// accepted, for want of descriptors or memory, keeps the control thread busy for nothing.
    fn listen(&mut self, on: bool) {
        self.deaf_until = (!on).then(|| Instant::now() + DEAF_TIME);
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, on);
        // The descriptor was added when we were made; changing its flags takes nothing.
        let data = epoll::EventData::new_u64(LISTENER);
        let _ = epoll::modify(&self.epoll, &self.listener, data, flags);
    }

    /// Reads a connection's requests. Its events are added to those that all others are to get.
    fn serve(
        &mut self,
        token: u64,
        server: &mut Server,
        backend: &mut dyn Backend,
        now: u64,
        events: &mut Vec<(u64, Event)>,
    ) -> Result<(), Ended> {
        let Some(connection) = self.connections.get_mut(&token) else { return Ok(()) };
        connection.flush(server, &*backend)?;
        let mut caused = Vec::new();
        let result = connection.serve(server, backend, now, &mut self.buffer, &mut caused);
        events.extend(caused.into_iter().map(|event| (token, event)));
        self.flushes.extend(result?.map(|flush| (token, flush)));
        Ok(())
    }

    /// Does a part of every flush. Returns the connections whose flush is over; one that is closed has
    /// its flush carried out all the same, as a kernel does.
    fn go_on_flushing(
        &mut self,
        server: &mut Server,
        events: &mut Vec<(u64, Event)>,
    ) -> Vec<(u64, Result<(), Ended>)> {
        let mut over = Vec::new();
        self.flushes.retain_mut(|(token, flush)| {
            let mut deliveries = Vec::new();
            if !server.flush_next(flush, &mut deliveries) {
                return true;
            }
            deliveries.extend(flush.answer());
            let mut caused = Vec::new();
            if let Some(connection) = self.connections.get_mut(token) {
                connection.flushing = false;
                connection.take(deliveries, &mut caused);
                over.push((*token, Ok(())));
            } else {
                caused.extend(deliveries.into_iter().filter_map(Delivery::into_event));
            }
            events.extend(caused.into_iter().map(|event| (*token, event)));
            false
        });
        over
    }

    /// Gives events to all connections but those that caused them, which have them already.
    fn broadcast(&mut self, events: Vec<(u64, Event)>, server: &Server, counters: &dyn Counters) {
        if events.is_empty() {
            return;
        }
        let listening = self.connections.iter().filter(|(_, connection)| connection.groups != 0);
        let tokens: Vec<u64> = listening.map(|(token, _)| *token).collect();
        for token in tokens {
            let Some(connection) = self.connections.get_mut(&token) else { continue };
            for (asker, event) in &events {
                if *asker != token {
                    connection.notify(event);
                }
            }
            let result = connection.flush(server, counters);
            self.settle(token, result);
        }
    }

    /// Ends a connection, or asks to be woken for what it still wants.
    fn settle(&mut self, token: u64, result: Result<(), Ended>) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::IN, connection.wants_read());
        wanted.set(epoll::EventFlags::OUT, connection.wants_write());
        let known = std::mem::replace(&mut connection.waits_for, wanted);
        let modify = || {
            let data = epoll::EventData::new_u64(token);
            wanted == known || epoll::modify(&self.epoll, &connection.fd, data, wanted).is_ok()
        };
        if result.is_err() || !modify() {
            // Closing the descriptor takes it out of the epoll set.
            self.connections.remove(&token);
        }
    }
}

impl AsFd for Clients {
    /// Readable when [`Clients::on_ready`] has something to do.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Drop for Clients {
    fn drop(&mut self) {
        // The socket is of no use without us; who comes next need not find it.
        let _ = std::fs::remove_file(&self.path);
    }
}

fn prepare_directory(directory: &Path) -> Result<(), SocketError> {
    let failed = |error| SocketError::Io(directory.to_owned(), error);
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed)?;
    let metadata = std::fs::metadata(directory).map_err(failed)?;
    let mode = metadata.permissions().mode() & 0o7777;
    if mode & 0o077 != 0 || metadata.uid() != geteuid().as_raw() {
        return Err(SocketError::OpenDirectory(directory.to_owned(), mode, metadata.uid()));
    }
    Ok(())
}

/// Removes a socket that nobody listens on.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketError> {
    let failed = |error| SocketError::Io(path.to_owned(), error);
    let probe = new_socket().map_err(|errno| failed(errno.into()))?;
    match connect(&probe, address) {
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::InUse(path.to_owned())),
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn new_socket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn listen_at(path: &Path, address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let listener = new_socket()?;
    bind(&listener, address)?;
    // Before `listen` nobody can connect, so the moment with a wider mode is harmless.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}
