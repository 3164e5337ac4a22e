//! `dup`, `fcntl`, `close` and their relatives: copies and ends of descriptors.

use libc::{c_int, c_uint, c_void};

use crate::{errno, next, table};

/// `dup(2)`.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: plain arguments.
    copied(fd, unsafe { next::dup(fd) })
}

/// `dup2(2)`.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: plain arguments.
    let got = unsafe { next::dup2(fd, to) };
    if got == fd { got } else { replaced(fd, got) }
}

/// `dup3(2)`.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: plain arguments.
    replaced(fd, unsafe { next::dup3(fd, to, flags) })
}

/// `fcntl(2)`. The third argument, of whatever type, is one word in this ABI.
///
/// # Safety
///
/// As in C, by command.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let got = unsafe { next::fcntl(fd, command, argument) };
    if is_copy(command) { copied(fd, got) } else { got }
}

/// What `fcntl` is called in programs with 64-bit file offsets.
///
/// # Safety
///
/// As in C, by command.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    let got = unsafe { next::fcntl64(fd, command, argument) };
    if is_copy(command) { copied(fd, got) } else { got }
}

fn is_copy(command: c_int) -> bool {
    matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC)
}

/// `close(2)`. Forgotten first: once closed, the number may be another thread's.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    table::forget(fd);
    // SAFETY: plain arguments.
    unsafe { next::close(fd) }
}

/// `close_range(2)`.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags as c_uint & libc::CLOSE_RANGE_CLOEXEC == 0 {
        table::forget_range(first, last);
    }
    // SAFETY: plain arguments.
    unsafe { next::close_range(first, last, flags) }
}

/// `closefrom(3)`, which libc builds of the same system call.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(lowest: c_int) {
    let saved = errno::get();
    let first = lowest.max(0) as c_uint;
    table::forget_range(first, c_uint::MAX);
    // SAFETY: plain arguments.
    unsafe { next::close_range(first, c_uint::MAX, 0) };
    errno::set(saved);
}

/// After a call that made `got` of `fd`, or failed.
fn copied(fd: c_int, got: c_int) -> c_int {
    if let Some(slot) = table::find(fd)
        && got >= 0
        && !table::copy(slot, got)
    {
        // SAFETY: the descriptor is new and nobody else knows it.
        unsafe { next::close(got) };
        return errno::fail(libc::EMFILE);
    }
    got
}

/// The same where `got` may have been something else before.
fn replaced(fd: c_int, got: c_int) -> c_int {
    if got >= 0 && table::find(fd).is_none() {
        table::forget(got);
    }
    copied(fd, got)
}
