//! `epoll_ctl`: remembers which set waits for a socket, so that a new connection to a gateway that was
//! restarted can take the old one's place in it. `poll` and `select` name descriptors anew each
//! time and need nothing. One set per descriptor; the last one to watch it counts.

use libc::{c_int, epoll_event};

use crate::{next, table};

/// `epoll_ctl(2)`.
///
/// # Safety
///
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    // SAFETY: the caller's promise.
    let status = unsafe { next::epoll_ctl(set, operation, fd, event) };
    if status == 0
        && let Some(slot) = table::find(fd)
    {
        match operation {
            libc::EPOLL_CTL_DEL => slot.unwatch(set),
            // SAFETY: the kernel has just read it; it may lie unaligned.
            _ => slot.watch(set, unsafe { event.read_unaligned() }),
        }
    }
    status
}
