//! The serving side: a listening socket and a handful of clients, none of which can hold it up.
//!
//! Everything is non-blocking and bounded. A client may have one request in work: the next is not
//! read before the reply has gone out, so a client that asks without reading the replies only fills
//! its own socket. Requests are limited in length, clients in number, and a client that makes no
//! progress for half a minute is dropped when its place is needed.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{Timespec, epoll::EventFlags};

use super::types::{Envelope, Facts, Reply, Request, SCHEMA, Show};

/// Clients served at once. Each holds one reply, or one part of it and the names of what is to come:
/// for 100 000 SAs less than a megabyte.
pub const CLIENTS_MAX: usize = 16;
/// Entries of one part of a long reply. Making it takes a fraction of a millisecond, which is how
/// long whoever else is served by this thread may have to wait for it.
const PART_ENTRIES: usize = 128;
/// The longest request line in bytes; the longest real one has 21.
const REQUEST_BYTES_MAX: usize = 4096;
/// How long a client may make no progress before its place may be given away.
const STALL: Duration = Duration::from_secs(30);
/// Bytes read from or written to one client in one call, so that no client holds up the others.
const TURN_BYTES: usize = 256 << 10;
/// How long no client is accepted after that has failed.
const DEAF_TIME: Duration = Duration::from_millis(100);
/// The listener's number in the epoll set; clients have the numbers below.
const LISTENER: u64 = u64::MAX;

/// The show socket.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    epoll: OwnedFd,
    clients: [Option<Client>; CLIENTS_MAX],
    /// When the listener is asked again, after a client could not be accepted.
    deaf_until: Option<Instant>,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    /// What has been read and not yet answered.
    input: Vec<u8>,
    /// What has been answered and not yet written.
    output: Vec<u8>,
    written: usize,
    /// What of the reply is still to be made.
    rest: Option<Rest>,
    progress: Instant,
    /// No more requests will come.
    closing: bool,
}

/// The parts of a long reply that are still to come.
#[derive(Debug)]
struct Rest {
    show: Show,
    names: std::vec::IntoIter<u64>,
    /// The reply's beginning is out.
    has_begun: bool,
    /// An entry is out: the next comes after a comma.
    has_entry: bool,
}

impl Server {
    /// Makes the socket, readable and writable by its owner only. Whoever holds the instance has removed
    /// a stale one.
    ///
    /// # Errors
    ///
    /// That of the system call that failed, `AddrInUse` if a file is in the way.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let listener = UnixListener::bind(path)?;
        // The directory is private already, so there is no moment in which others could connect.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &listener, epoll::EventData::new_u64(LISTENER), EventFlags::IN)?;
        let clients = [const { None }; CLIENTS_MAX];
        Ok(Self { listener, epoll, clients, deaf_until: None })
    }

    /// Does what can be done without waiting: takes new clients, reads requests, answers them,
    /// writes replies. Call when the file descriptor is readable, and now and then besides.
    ///
    /// # Errors
    ///
    /// That of the listener or of waiting for it. What fails with one client ends that client alone.
    pub fn serve(&mut self, facts: &mut dyn Facts, now: Instant) -> io::Result<()> {
        if self.deaf_until.is_some_and(|until| now >= until) {
            self.listen(None)?;
        }
        let mut events = Vec::with_capacity(CLIENTS_MAX + 1);
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), Some(&no_wait))?;
        for event in &events {
            match event.data.u64() {
                LISTENER => self.accept(now)?,
                slot => self.serve_client(slot as usize, facts, now),
            }
        }
        Ok(())
    }

    /// How many clients are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.iter().flatten().count()
    }

    fn accept(&mut self, now: Instant) -> io::Result<()> {
        for _ in 0..CLIENTS_MAX {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                // The client went away before it was taken.
                Err(e) if e.kind() == io::ErrorKind::ConnectionAborted => continue,
                // Descriptors or memory are short: not a reason to stop serving, nor to ask the
                // listener, which stays readable, over and over.
                Err(_) => return self.listen(Some(now + DEAF_TIME)),
            };
            // Also with another user's right to the path (a bind mount, a passed descriptor), only
            // root and this user are answered.
            let allowed = rustix::net::sockopt::socket_peercred(&stream)
                .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid());
            let ready = stream.set_nonblocking(true).is_ok();
            if !allowed || !ready {
                continue;
            }
            match self.free_slot(now) {
                Some(slot) => self.admit(slot, stream, now)?,
                None => refuse(stream),
            }
        }
        Ok(())
    }

    /// Does not ask the listener until a moment; `None` to ask it again.
    fn listen(&mut self, deaf_until: Option<Instant>) -> io::Result<()> {
        self.deaf_until = deaf_until;
        let flags = if deaf_until.is_some() { EventFlags::empty() } else { EventFlags::IN };
        let data = epoll::EventData::new_u64(LISTENER);
        Ok(epoll::modify(&self.epoll, &self.listener, data, flags)?)
    }

    /// A slot for a new client; that of a stalled client when all are taken.
    fn free_slot(&mut self, now: Instant) -> Option<usize> {
        let stalled = |client: &Option<Client>| match client {
            Some(client) => now.saturating_duration_since(client.progress) > STALL,
            None => false,
        };
        let free = self.clients.iter().position(Option::is_none);
        let slot = free.or_else(|| self.clients.iter().position(stalled))?;
        // Closing the stream takes it out of the epoll set.
        self.clients[slot] = None;
        Some(slot)
    }

    fn admit(&mut self, slot: usize, stream: UnixStream, now: Instant) -> io::Result<()> {
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(slot as u64), EventFlags::IN)?;
        let (input, output) = (Vec::new(), Vec::new());
        self.clients[slot] = Some(Client {
            stream,
            input,
            output,
            written: 0,
            rest: None,
            progress: now,
            closing: false,
        });
        Ok(())
    }

    fn serve_client(&mut self, slot: usize, facts: &mut dyn Facts, now: Instant) {
        let Some(client) = self.clients.get_mut(slot).and_then(Option::as_mut) else {
            return;
        };
        let stays = client.turn(facts, now) && {
            // A request that has been read already waits for its turn; with an empty socket "room
            // to write" is true at once.
            let waits = client.pending() || client.has_request();
            let wanted = if waits { EventFlags::OUT } else { EventFlags::IN };
            let data = epoll::EventData::new_u64(slot as u64);
            epoll::modify(&self.epoll, &client.stream, data, wanted).is_ok()
        };
        if !stays {
            self.clients[slot] = None;
        }
    }
}

impl AsFd for Server {
    /// Readable when [`serve`](Server::serve) has something to do: new clients, requests, or room
    /// for replies.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl Client {
    fn pending(&self) -> bool {
        self.written < self.output.len() || self.rest.is_some()
    }

    fn has_request(&self) -> bool {
        self.input.contains(&b'\n') || self.input.len() >= REQUEST_BYTES_MAX
    }

    /// One turn: writes what waits, or else reads and answers one request. False: done with it.
    fn turn(&mut self, facts: &mut dyn Facts, now: Instant) -> bool {
        if !self.pending() {
            if !self.has_request() && !self.read(now) {
                return false;
            }
            if self.has_request() {
                self.output = self.answer(facts);
                self.written = 0;
            }
        }
        if self.written == self.output.len()
            && let Some(rest) = &mut self.rest
        {
            (self.output, self.written) = (rest.next(facts), 0);
            self.rest.take_if(|rest| rest.names.len() == 0);
        }
        self.write(now) && (self.pending() || self.has_request() || !self.closing)
    }

    /// Reads up to a request's length. False when the stream is broken.
    fn read(&mut self, now: Instant) -> bool {
        let room = REQUEST_BYTES_MAX.saturating_sub(self.input.len());
        match (&self.stream).take(room as u64).read_to_end(&mut self.input) {
            Ok(_) if self.input.len() < REQUEST_BYTES_MAX => self.closing = true,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return false,
        }
        self.progress = now;
        true
    }

    /// Answers the first request.
    fn answer(&mut self, facts: &mut dyn Facts) -> Vec<u8> {
        let Some(end) = self.input.iter().position(|&byte| byte == b'\n') else {
            self.input.clear();
            self.closing = true;
            let why = format!("the request is longer than {REQUEST_BYTES_MAX} bytes");
            return line(Reply::Error(why));
        };
        let request: Vec<u8> = self.input.drain(..=end).collect();
        match serde_json::from_slice::<Request>(&request) {
            Ok(Request::Upgrade(wanted)) => {
                line(facts.upgrade(wanted).map_or_else(Reply::Error, Reply::Upgrade))
            }
            Ok(Request::Show(show)) => match facts.names(show) {
                Some(names) if names.len() > PART_ENTRIES => {
                    let names = names.into_iter();
                    self.rest = Some(Rest { show, names, has_begun: false, has_entry: false });
                    Vec::new()
                }
                Some(names) => line(facts.part(show, &names)),
                None => line(facts.reply(show)),
            },
            Err(error) => line(Reply::Error(format!(
                "the request is not understood ({error}); send {{\"show\":\"status\"}}"
            ))),
        }
    }

    /// Writes what waits, up to a turn's worth. False when the stream is broken.
    fn write(&mut self, now: Instant) -> bool {
        let turn_end = self.output.len().min(self.written + TURN_BYTES);
        while self.written < turn_end {
            match (&self.stream).write(&self.output[self.written..turn_end]) {
                Ok(0) => return false,
                Ok(written) => {
                    self.written += written;
                    self.progress = now;
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        if self.written == self.output.len() {
            self.output = Vec::new();
            self.written = 0;
        }
        true
    }
}

impl Rest {
    /// The next part: the line of a reply with these entries, without its beginning unless it is the
    /// first, and without its end unless it is the last.
    fn next(&mut self, facts: &mut dyn Facts) -> Vec<u8> {
        let mut whole = line(facts.part(self.show, &[]));
        // `…[]…`, whatever is around the list of entries.
        let middle = whole.windows(2).position(|two| two == b"[]").map_or(0, |at| at + 1);
        let end = whole.split_off(middle);
        let has_begun = std::mem::replace(&mut self.has_begun, true);
        let mut out = if has_begun { Vec::new() } else { whole };
        let names: Vec<u64> = self.names.by_ref().take(PART_ENTRIES).collect();
        let entries = match facts.part(self.show, &names) {
            Reply::Sa(sas) => serde_json::to_vec(&sas),
            Reply::Policy(policies) => serde_json::to_vec(&policies),
            _ => Ok(Vec::new()),
        };
        // As in `line`: serialising into memory cannot fail.
        let entries = entries.unwrap_or_default();
        let inner = entries.get(1..entries.len().saturating_sub(1)).unwrap_or_default();
        if !inner.is_empty() {
            // Of a part whose entries are all gone there is nothing, not even a comma.
            if std::mem::replace(&mut self.has_entry, true) {
                out.push(b',');
            }
            out.extend_from_slice(inner);
        }
        if self.names.len() == 0 {
            out.extend_from_slice(&end);
        }
        out
    }
}

/// Tells a client that there is no place for it, as far as that goes without waiting.
fn refuse(mut stream: UnixStream) {
    let reply = Reply::Error(format!("{CLIENTS_MAX} clients are being served; ask again later"));
    let _ = stream.write(&line(reply));
}

fn line(reply: Reply) -> Vec<u8> {
    // Serialising plain data into memory cannot fail; if it did, an empty line is an honest answer.
    let mut bytes = serde_json::to_vec(&Envelope { schema: SCHEMA, reply }).unwrap_or_default();
    bytes.push(b'\n');
    bytes
}
