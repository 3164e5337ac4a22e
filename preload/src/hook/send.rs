//! `send` and its relatives: a program's datagram on its way to the server.
//!
//! Steps: 1. a socket without a port gets one, as netlink does on the first send; 2. the datagram
//! goes out without the netlink address; 3. if the server has gone, the connection is replaced and
//! the datagram sent once more, which may wait: netlink's `send`, too, returns when the kernel has acted; 4. the call
//! returns when the answer is there, however long that takes a server that lives (`answer`); 5. a server that goes
//! before it answers is asked again when it is back: it may have done already what it was asked,
//! and then says so (`EEXIST`, `ESRCH`), which is better than to leave its program in doubt. If it is not
//! back within a while, the call fails with `ECONNREFUSED`, and with `ETIMEDOUT` if it did nothing for much longer.

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use crate::answer::{self, Asked, First, Outcome};
use crate::connection::Deadline;
use crate::frame::Frame;
use crate::request::{self, Answer};
use crate::table::Slot;
use crate::{connection, errno, next, table};

/// `send(2)`.
///
/// # Safety
///
/// `data` must be readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn send(
    fd: c_int,
    data: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    match table::find(fd) {
        // SAFETY: the caller's promise.
        None => unsafe { next::send(fd, data, len, flags) },
        // SAFETY: the caller's promise.
        Some(slot) => unsafe { transmit(fd, slot, &[part(data, len)], flags) },
    }
}

/// `sendto(2)`. There is only one destination.
///
/// # Safety
///
/// `data` must be readable for `len` bytes, `to` for `to_len`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    data: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    match table::find(fd) {
        // SAFETY: the caller's promise.
        None => unsafe { next::sendto(fd, data, len, flags, to, to_len) },
        // SAFETY: the caller's promise.
        Some(slot) => unsafe { transmit(fd, slot, &[part(data, len)], flags) },
    }
}

/// `sendmsg(2)`. Name and control data are the kernel's business, and stay here.
///
/// # Safety
///
/// `message` must be a valid message.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    let Some(slot) = table::find(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::sendmsg(fd, message, flags) };
    };
    if message.is_null() {
        return errno::fail_len(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let parts = slice(message.read().msg_iov, message.read().msg_iovlen);
        transmit(fd, slot, parts, flags)
    }
}

/// `write(2)`.
///
/// # Safety
///
/// `data` must be readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn write(fd: c_int, data: *const c_void, len: size_t) -> ssize_t {
    match table::find(fd) {
        // SAFETY: the caller's promise.
        None => unsafe { next::write(fd, data, len) },
        // SAFETY: the caller's promise.
        Some(slot) => unsafe { transmit(fd, slot, &[part(data, len)], 0) },
    }
}

/// `writev(2)`.
///
/// # Safety
///
/// `parts` must be `count` buffers that are readable for their length.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn writev(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    let Some(slot) = table::find(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::writev(fd, parts, count) };
    };
    let Ok(count) = usize::try_from(count) else { return errno::fail_len(libc::EINVAL) };
    // SAFETY: the caller's promise.
    unsafe { transmit(fd, slot, slice(parts, count), 0) }
}

fn part(data: *const c_void, len: size_t) -> iovec {
    iovec { iov_base: data.cast_mut(), iov_len: len }
}

/// A program's buffers as a slice; none if it passed null.
///
/// # Safety
///
/// `parts` must be null or point to `count` valid structures that outlive the call.
pub unsafe fn slice<'a>(parts: *const iovec, count: usize) -> &'a [iovec] {
    if parts.is_null() {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(parts, count) }
}

/// Sends a datagram and waits for what it causes.
///
/// # Safety
///
/// `parts` must be buffers that are readable for their length.
unsafe fn transmit(fd: c_int, slot: &Slot, parts: &[iovec], flags: c_int) -> ssize_t {
    if request::total_len(parts) == 0 {
        // Netlink takes an empty datagram and says nothing; to a connection it means the end.
        return 0;
    }
    let saved = errno::get();
    if slot.port().is_none() {
        let port = table::choose_port(fd);
        slot.bind(port);
        connection::tell(fd, Frame::Bind { port, groups: slot.groups() });
    }
    // SAFETY: the caller's promise.
    let expected = unsafe { request::answer(parts) };
    // Of the time that the gateway is away; it may take its own until then.
    let mut patience = None;
    let sent = loop {
        let generation = slot.generation();
        if let Answer::Certain(number) = expected {
            slot.expect(number);
        }
        // What is readable already, or may come from a group, says nothing about this datagram.
        let alone = slot.groups() == 0 && !matches!(answer::first(fd), First::Numbered(_));
        // SAFETY: the caller's promise.
        let sent = unsafe { pass_on(fd, parts, flags) };
        if sent < 0 && !is_gone(errno::get()) {
            return sent;
        }
        if sent >= 0 {
            let Answer::Certain(number) = expected else {
                answer::synchronise(fd);
                break sent;
            };
            match answer::wait(fd, slot, Asked { generation, number }, alone) {
                Outcome::Answered => break sent,
                Outcome::Ended => {}
                Outcome::Mute => return errno::fail_len(libc::ETIMEDOUT),
            }
        }
        // Nobody has the request: a program that was told that it is sent would wait for ever.
        let patience =
            patience.get_or_insert_with(|| Deadline::after(connection::RETURN_MS_MAX)).left_ms();
        if patience == 0 || !connection::replace(fd, slot, patience as u64) {
            return errno::fail_len(libc::ECONNREFUSED);
        }
    };
    errno::set(saved);
    sent
}

/// # Safety
///
/// `parts` must be buffers that are readable for their length.
unsafe fn pass_on(fd: c_int, parts: &[iovec], flags: c_int) -> ssize_t {
    // SAFETY: a structure of integers and pointers, for which zeros are a value.
    let mut message: msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_ptr().cast_mut();
    message.msg_iovlen = parts.len();
    // A netlink socket never raises SIGPIPE.
    // SAFETY: the message has no name and no control data, and the parts are the caller's promise.
    unsafe { next::sendmsg(fd, &raw const message, flags | libc::MSG_NOSIGNAL) }
}

/// Whether an errno means that nobody is at the other end.
fn is_gone(reason: c_int) -> bool {
    matches!(reason, libc::EPIPE | libc::ECONNRESET | libc::ECONNREFUSED | libc::ENOTCONN)
}
