//! The wait for the answer to a request.
//!
//! Netlink's `send` returns when the kernel has acted, however long that takes, and so does ours. An answer is
//! known by its request's sequence number: it is the first message that can be read, or one that another thread
//! has received (`Slot::has_heard`). Where it may lie behind others, or another process may have taken it, the
//! server says that it has answered everything (`synchronise`).
//!
//! What is done about a connection that ended first is not decided here.

use std::time::{Duration, Instant};

use libc::c_int;

use crate::connection::{self, Deadline};
use crate::frame::Frame;
use crate::table::Slot;
use crate::{errno, next};

/// How long to look for an answer before sleeping for it. Most take 5 to 30 µs; to wake up on a core that
/// slept takes as long again, and in a virtual machine longer.
const LOOK_FOR: Duration = Duration::from_micros(60);

/// Longest sleep for an answer that another thread may take before we see it: such a thread's answer comes so
/// much later at worst. One that nobody takes ends the sleep itself.
const STEP_MS: c_int = 1;

/// How long to look for an answer before asking the server whether there was one, which takes it two frames:
/// another process that has the socket may have read it. Few requests take as long.
const UNASKED_MS_MAX: u64 = 20;

/// Longest wait for a server that lives and takes nothing, which is what `peregrine upgrade` calls dead as well.
/// The longest that it does so in health is the look of a new binary at its machine, 5 s.
const MUTE_MS_MAX: u64 = 60_000;

/// How long what came before the connection ended may lie there before it is the program's own thread, which
/// waits here, that has to read it. Threads that read do so at once.
pub const UNREAD_MS_MAX: u64 = 500;

/// Turns without sleeping while waiting for the server to take a frame: it usually does within a
/// few tens of microseconds, a sleep costs at least as much.
const YIELDS_MAX: u32 = 64;

/// A request that was sent.
#[derive(Clone, Copy)]
pub struct Asked {
    /// Of which generation the connection was just before.
    pub generation: u32,
    /// Its sequence number.
    pub number: u32,
}

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// The answer can be read or was, or there is something before it that must be read first.
    Answered,
    /// The connection has ended first.
    Ended,
    /// The server lives and does nothing.
    Mute,
}

/// What is to be read next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum First {
    /// Nothing yet.
    Nothing,
    /// A message with this sequence number.
    Numbered(u32),
    /// The server has gone and left nothing.
    End,
}

/// Looks at what is to be read next, without taking it. Keeps errno.
pub fn first(fd: c_int) -> First {
    let saved = errno::get();
    let mut header = [0_u8; 16];
    let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
    // SAFETY: a buffer and its length.
    let mut peek = || unsafe { next::recv(fd, header.as_mut_ptr().cast(), header.len(), flags) };
    let mut got = peek();
    if got < 0 && errno::get() == libc::ECONNRESET {
        // That the server left something unread is told once, and before what it sent.
        got = peek();
    }
    errno::set(saved);
    match got {
        0 => First::End,
        1.. => First::Numbered(u32::from_ne_bytes([header[8], header[9], header[10], header[11]])),
        _ => First::Nothing,
    }
}

/// Waits until a request has its answer. `alone`: nothing was there to be read when it was sent, and no group's
/// events come. Keeps errno.
pub fn wait(fd: c_int, slot: &Slot, asked: Asked, alone: bool) -> Outcome {
    if alone && let Some(outcome) = look(fd, slot, asked) {
        return outcome;
    }
    let patience = Deadline::after(MUTE_MS_MAX);
    let mut told = false;
    loop {
        told = told || tell_twice(fd);
        let all = until_taken(fd) && told;
        if slot.has_heard(asked.number) {
            return Outcome::Answered;
        }
        // In this order: nothing is untaken on a connection that has ended, or that is another one now.
        if slot.generation() != asked.generation || connection::has_hung_up(fd) {
            return settle(fd, slot, asked);
        }
        // A server whose answers nobody reads goes on when the program does, which must not wait here then.
        if all || connection::is_readable(fd) {
            return Outcome::Answered;
        }
        if patience.left_ms() == 0 {
            return Outcome::Mute;
        }
    }
}

/// Looks for the answer for a moment, and then sleeps for it for another. `None`: only the server knows.
///
/// The core is the gateway's meanwhile if it wants it.
fn look(fd: c_int, slot: &Slot, asked: Asked) -> Option<Outcome> {
    let began = Instant::now();
    let deadline = Deadline::after(UNASKED_MS_MAX);
    loop {
        if slot.has_heard(asked.number) {
            return Some(Outcome::Answered);
        }
        if slot.generation() != asked.generation {
            return Some(settle(fd, slot, asked));
        }
        match first(fd) {
            First::Numbered(number) if number == asked.number => return Some(Outcome::Answered),
            // Another thread's, which ours may lie behind.
            First::Numbered(_) => return None,
            First::End => return Some(settle(fd, slot, asked)),
            First::Nothing if began.elapsed() < LOOK_FOR => {
                // SAFETY: no argument.
                unsafe { libc::sched_yield() };
            }
            First::Nothing if deadline.left_ms() == 0 => return None,
            First::Nothing => {
                connection::poll(fd, libc::POLLIN, STEP_MS);
            }
        }
    }
}

/// Whether a request was answered whose connection has ended, or is another one now.
fn settle(fd: c_int, slot: &Slot, asked: Asked) -> Outcome {
    let deadline = Deadline::after(UNREAD_MS_MAX);
    while slot.generation() == asked.generation
        && let First::Numbered(number) = first(fd)
    {
        // Who reads it, or that nobody else does and so the program has to, will be told of the end.
        if number == asked.number || deadline.left_ms() == 0 {
            return Outcome::Answered;
        }
        connection::pause();
    }
    // Who has just taken the last message may be about to note which it was. And a process that is killed closes
    // its connections before it ceases to listen: the next one, too, may end without an answer.
    connection::pause();
    if slot.has_heard(asked.number) { Outcome::Answered } else { Outcome::Ended }
}

/// Waits a while until the server has answered whatever it was sent. Keeps errno.
///
/// The server takes several frames in a turn, at whose end it sends the answers. A `Sync` ends the turn, so when the
/// second was taken, the turn of the first is over; and a Unix socket tells its sender when all was
/// taken (`SIOCOUTQ`).
pub fn synchronise(fd: c_int) {
    tell_twice(fd);
    until_taken(fd);
}

fn tell_twice(fd: c_int) -> bool {
    connection::tell(fd, Frame::Sync) && connection::tell(fd, Frame::Sync)
}

/// Waits a while until the server has taken everything; whether it has. Keeps errno.
fn until_taken(fd: c_int) -> bool {
    let saved = errno::get();
    let deadline = Deadline::start();
    let mut turns = 0;
    let taken = loop {
        if !untaken(fd) {
            break true;
        }
        if deadline.left_ms() == 0 {
            break false;
        }
        if turns < YIELDS_MAX {
            // SAFETY: no argument.
            unsafe { libc::sched_yield() };
        } else {
            // SAFETY: no descriptor is passed; this only sleeps.
            unsafe { libc::poll(std::ptr::null_mut(), 0, 1) };
        }
        turns += 1;
    };
    errno::set(saved);
    taken
}

/// Whether the server has not yet taken all that was sent to it. A closed connection has nothing
/// untaken.
fn untaken(fd: c_int) -> bool {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes one int.
    let status = unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) };
    status == 0 && bytes > 0
}
