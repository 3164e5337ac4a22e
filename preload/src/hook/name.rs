//! `bind`, `connect`, `getsockname`, `getpeername`: addresses of netlink sockets.

use libc::{c_int, sockaddr, socklen_t};

use crate::frame::Frame;
use crate::{address, answer, connection, errno, next, table};

/// `bind(2)`. Port 0 leaves the choice to us, once; the groups replace what was joined before, and are listened to
/// when the call returns.
///
/// # Safety
///
/// `address` must be readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    let Some(slot) = table::find(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::bind(fd, address, len) };
    };
    // SAFETY: the caller's promise.
    let (wanted, groups) = match unsafe { address::read(address, len) } {
        Ok(address) => address,
        Err(reason) => return errno::fail(reason),
    };
    let port = match slot.port() {
        Some(bound) if wanted != 0 && wanted != bound => return errno::fail(libc::EINVAL),
        Some(bound) => bound,
        None if wanted == 0 => table::choose_port(fd),
        None => wanted,
    };
    slot.set_groups(groups);
    slot.bind(port);
    connection::tell(fd, Frame::Bind { port, groups });
    if groups != 0 {
        // What happens from now on is heard, whoever causes it: other sockets' requests do not wait for us.
        answer::synchronise(fd);
    }
    0
}

/// `connect(2)`. The only peer is the kernel, which we are.
///
/// # Safety
///
/// `address` must be readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn connect(
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> c_int {
    if table::find(fd).is_some() {
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { next::connect(fd, address, len) }
}

/// `getsockname(2)`.
///
/// # Safety
///
/// `len` must be writable, `address` for as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    let Some(slot) = table::find(fd) else {
        // SAFETY: the caller's promise.
        return unsafe { next::getsockname(fd, address, len) };
    };
    // SAFETY: the caller's promise.
    unsafe { address::write(address, len, slot.port().unwrap_or(0), slot.groups()) };
    0
}

/// `getpeername(2)`: the kernel, port 0.
///
/// # Safety
///
/// `len` must be writable, `address` for as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if table::find(fd).is_none() {
        // SAFETY: the caller's promise.
        return unsafe { next::getpeername(fd, address, len) };
    }
    // SAFETY: the caller's promise.
    unsafe { address::write(address, len, 0, 0) };
    0
}
