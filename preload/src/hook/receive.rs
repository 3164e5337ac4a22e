//! `recv` and its relatives: what the server wrote, as if the kernel had.
//!
//! Three things differ from the Unix socket underneath. The sender's address is netlink's: port 0,
//! which programs check so that nobody else fools them; the group of an event is not known here and
//! is 0. Lost events, which the server reports in a message, are netlink's `ENOBUFS`, and so is what was
//! unread when a thread that sent had to give the socket another connection. And the end
//! of the connection, which netlink does not have, is `ENOBUFS` when what came before it was read and the gateway
//! is back (whatever was under way is lost). When it is not within a while, who waits is told `ECONNREFUSED`, and who does not
//! that nothing has come: pluto reads until it hears `EAGAIN` and does nothing else meanwhile.

use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};

use super::send::slice;
use crate::frame::{self, LOST_LEN};
use crate::table::Slot;
use crate::{address, connection, errno, next, request, table};

/// `recv(2)`.
///
/// # Safety
///
/// `data` must be writable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recv(
    fd: c_int,
    data: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let got = received(fd, || unsafe { next::recv(fd, data, len, flags) });
    match table::find(fd) {
        None => got,
        // SAFETY: the buffer now holds `got` bytes, as far as they fit.
        Some(slot) => unsafe { judge(fd, slot, got, &[part(data, len)], flags) },
    }
}

/// `recvfrom(2)`.
///
/// # Safety
///
/// `data` must be writable for `len` bytes; `from` and `from_len` as in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    data: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let Some(slot) = table::find(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::recvfrom(fd, data, len, flags, from, from_len) };
    };
    // SAFETY: the caller's promise.
    unsafe {
        let got = received(fd, || next::recv(fd, data, len, flags));
        let got = judge(fd, slot, got, &[part(data, len)], flags);
        if got >= 0 {
            address::write(from, from_len, 0, 0);
        }
        got
    }
}

/// `recvmsg(2)`.
///
/// # Safety
///
/// `message` must be a valid message with writable buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let Some(slot) = table::find(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::recvmsg(fd, message, flags) };
    };
    if message.is_null() {
        return errno::fail_len(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    unsafe {
        let mut inner = message.read();
        inner.msg_name = std::ptr::null_mut();
        inner.msg_namelen = 0;
        let got = received(fd, || next::recvmsg(fd, &raw mut inner, flags));
        let parts = slice(inner.msg_iov, inner.msg_iovlen);
        let got = judge(fd, slot, got, parts, flags);
        if got >= 0 {
            let name = message.read().msg_name;
            if !name.is_null() {
                let room = message.read().msg_namelen;
                (*message).msg_namelen = address::write_name(name, room, 0, 0);
            }
            (*message).msg_controllen = inner.msg_controllen;
            (*message).msg_flags = inner.msg_flags;
        }
        got
    }
}

/// `read(2)`.
///
/// # Safety
///
/// `data` must be writable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn read(fd: c_int, data: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: the caller's promise.
    let got = received(fd, || unsafe { next::read(fd, data, len) });
    match table::find(fd) {
        None => got,
        // SAFETY: the buffer now holds `got` bytes.
        Some(slot) => unsafe { judge(fd, slot, got, &[part(data, len)], 0) },
    }
}

/// `readv(2)`.
///
/// # Safety
///
/// `parts` must be `count` writable buffers.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readv(fd: c_int, parts: *const iovec, count: c_int) -> ssize_t {
    // SAFETY: the caller's promise.
    let got = received(fd, || unsafe { next::readv(fd, parts, count) });
    match (table::find(fd), usize::try_from(count)) {
        // SAFETY: the buffers now hold `got` bytes.
        (Some(slot), Ok(count)) => unsafe { judge(fd, slot, got, slice(parts, count), 0) },
        _ => got,
    }
}

/// What a program compiled with `_FORTIFY_SOURCE` calls for `recv`.
///
/// # Safety
///
/// `data` must be writable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    data: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if table::find(fd).is_some() && len <= room {
        // SAFETY: the caller's promise.
        return unsafe { recv(fd, data, len, flags) };
    }
    // SAFETY: libc ends the program if the buffer is too small.
    unsafe { next::recv_chk(fd, data, len, room, flags) }
}

/// The same for `recvfrom`.
///
/// # Safety
///
/// As `recvfrom`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    data: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    if table::find(fd).is_some() && len <= room {
        // SAFETY: the caller's promise.
        return unsafe { recvfrom(fd, data, len, flags, from, from_len) };
    }
    // SAFETY: libc ends the program if the buffer is too small.
    unsafe { next::recvfrom_chk(fd, data, len, room, flags, from, from_len) }
}

/// The same for `read`.
///
/// # Safety
///
/// As `read`.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    data: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    if table::find(fd).is_some() && len <= room {
        // SAFETY: the caller's promise.
        return unsafe { read(fd, data, len) };
    }
    // SAFETY: libc ends the program if the buffer is too small.
    unsafe { next::read_chk(fd, data, len, room) }
}

fn part(data: *mut c_void, len: size_t) -> iovec {
    iovec { iov_base: data, iov_len: len }
}

/// Receives, once more if the server has gone and left something unread: that is told before what it sent.
fn received(fd: c_int, mut once: impl FnMut() -> ssize_t) -> ssize_t {
    let got = once();
    // A connection that is another one already would have the program wait for what was lost.
    let again = got < 0
        && errno::get() == libc::ECONNRESET
        && table::find(fd).is_some()
        && connection::has_hung_up(fd);
    if again { once() } else { got }
}

/// What the program is told of a receive that returned `got`.
///
/// # Safety
///
/// `parts` must hold what was received.
unsafe fn judge(fd: c_int, slot: &Slot, got: ssize_t, parts: &[iovec], flags: c_int) -> ssize_t {
    /// Length of a message without a body, which the report of lost events is; and of the answer that tells of
    /// messages that were lost with their connection.
    const REPORTS: [ssize_t; 2] = [16, LOST_LEN as ssize_t];
    let closed = match got {
        0 => request::total_len(parts) > 0 || flags & libc::MSG_TRUNC != 0,
        len if REPORTS.contains(&len) => {
            // SAFETY: the caller's promise.
            if unsafe { is_overrun(parts, len) } {
                if flags & libc::MSG_PEEK != 0 {
                    // The report is read once, however the program looks at it.
                    // SAFETY: no buffer.
                    unsafe { next::recv(fd, std::ptr::null_mut(), 0, libc::MSG_DONTWAIT) };
                }
                return errno::fail_len(libc::ENOBUFS);
            }
            false
        }
        _ => got < 0 && errno::get() == libc::ECONNRESET,
    };
    if !closed {
        let taken = got >= 16 && flags & libc::MSG_PEEK == 0;
        // SAFETY: the caller's promise.
        if let Some(header) = taken.then(|| unsafe { request::gather::<16>(parts) }).flatten() {
            slot.hear(u32::from_ne_bytes([header[8], header[9], header[10], header[11]]));
        }
        return got;
    }
    let nonblocking = flags & libc::MSG_DONTWAIT != 0 || connection::is_nonblocking(fd);
    let (wait_ms, away) = match nonblocking {
        true => (connection::RETURN_NONBLOCKING_MS_MAX, libc::EAGAIN),
        false => (connection::RETURN_MS_MAX, libc::ECONNREFUSED),
    };
    let back = connection::replace(fd, slot, wait_ms);
    errno::fail_len(if back { libc::ENOBUFS } else { away })
}

/// # Safety
///
/// `parts` must hold `len` received bytes, or have less room.
unsafe fn is_overrun(parts: &[iovec], len: ssize_t) -> bool {
    if len == LOST_LEN as ssize_t {
        // SAFETY: the caller's promise.
        return unsafe { request::gather(parts) }
            .is_some_and(|message| frame::tells_lost(&message));
    }
    // SAFETY: the caller's promise.
    let header = unsafe { request::gather::<16>(parts) };
    header.is_some_and(|h| c_int::from(u16::from_ne_bytes([h[4], h[5]])) == libc::NLMSG_OVERRUN)
}
