//! `socket`: where an XFRM socket begins.

use libc::c_int;

use crate::{connection, errno, next, table};

/// Bits of a socket's type that are flags.
const TYPE_FLAGS: c_int = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;

/// `socket(2)`.
///
/// # Safety
///
/// None beyond C's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    let netlink_kind = matches!(kind & !TYPE_FLAGS, libc::SOCK_RAW | libc::SOCK_DGRAM);
    if domain != libc::AF_NETLINK || protocol != libc::NETLINK_XFRM || !netlink_kind {
        // SAFETY: plain arguments.
        return unsafe { next::socket(domain, kind, protocol) };
    }
    let saved = errno::get();
    let fd = connection::open(kind & TYPE_FLAGS);
    if fd < 0 {
        return fd;
    }
    if !table::open(fd, kind & !TYPE_FLAGS == libc::SOCK_DGRAM) {
        // SAFETY: the descriptor is ours and nobody else knows it.
        unsafe { next::close(fd) };
        return errno::fail(libc::EMFILE);
    }
    if let Some(slot) = table::find(fd) {
        connection::introduce(fd, slot);
    }
    errno::set(saved);
    fd
}
