//! `sendmmsg` and `recvmmsg`: several messages with one call, one after the other.

use libc::{c_int, c_uint, mmsghdr, msghdr, timespec};

use super::receive::recvmsg;
use super::send::sendmsg;
use crate::{errno, next, table};

/// `sendmmsg(2)`. Stops at the first message that does not go out, and fails only if that is the
/// first of all.
///
/// # Safety
///
/// `messages` must be `count` valid messages.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if table::find(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::sendmmsg(fd, messages, count, flags) };
    }
    // SAFETY: the caller's promise, for each of the messages.
    unsafe { each(messages, count, |_, message| sendmsg(fd, message, flags)) }
}

/// `recvmmsg(2)`. As in Linux, the time limit is looked at between messages.
///
/// # Safety
///
/// `messages` must be `count` valid messages with writable buffers, `limit` null or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
    limit: *mut timespec,
) -> c_int {
    if table::find(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::recvmmsg(fd, messages, count, flags, limit) };
    }
    // SAFETY: the caller's promise.
    let limit = (!limit.is_null()).then(|| unsafe { limit.read() });
    let limit = limit.map(|limit| {
        let (seconds, nanoseconds) = (limit.tv_sec.max(0), limit.tv_nsec.clamp(0, 999_999_999));
        std::time::Duration::new(seconds as u64, nanoseconds as u32)
    });
    let begin = std::time::Instant::now();
    let one = |number: c_uint, message: *mut msghdr| {
        let mut flags_now = flags & !libc::MSG_WAITFORONE;
        if number > 0 && limit.is_some_and(|limit| begin.elapsed() >= limit) {
            errno::set(libc::EAGAIN);
            return -1;
        }
        if number > 0 && flags & libc::MSG_WAITFORONE != 0 {
            flags_now |= libc::MSG_DONTWAIT;
        }
        // SAFETY: the caller's promise.
        unsafe { recvmsg(fd, message, flags_now) }
    };
    // SAFETY: the caller's promise, for each of the messages.
    unsafe { each(messages, count, one) }
}

/// Calls `one` for each message until it fails, and writes the lengths. How many went well; -1 if none
/// did.
///
/// # Safety
///
/// `messages` must be `count` valid messages.
unsafe fn each(
    messages: *mut mmsghdr,
    count: c_uint,
    one: impl Fn(c_uint, *mut msghdr) -> isize,
) -> c_int {
    let saved = errno::get();
    for number in 0..count {
        // SAFETY: within the caller's messages.
        let message = unsafe { messages.add(number as usize) };
        // SAFETY: the same; only its address is taken.
        let got = one(number, unsafe { &raw mut (*message).msg_hdr });
        if got < 0 {
            if number == 0 {
                return -1;
            }
            // What went well is told; a failure that lasts will be met by the next call.
            errno::set(saved);
            return number as c_int;
        }
        // SAFETY: the same. A datagram is shorter than 4 GiB.
        unsafe { (*message).msg_len = got as c_uint };
    }
    count as c_int
}
