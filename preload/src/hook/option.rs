//! `setsockopt`, `getsockopt`: options of netlink sockets.
//!
//! Options of `SOL_SOCKET` (buffer sizes, timeouts, filters) are real on the Unix socket; only what
//! it is asked about itself is answered as netlink would.

use libc::{c_int, c_void, socklen_t};

use crate::frame::Frame;
use crate::table::{NetlinkOption, Slot};
use crate::{answer, connection, errno, next, table};

/// Highest number of a group that a netlink address can name.
const GROUP_MAX: c_int = 32;

/// `setsockopt(2)`.
///
/// # Safety
///
/// `value` must be readable for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    match table::find(fd) {
        Some(slot) if level == libc::SOL_NETLINK => {
            if value.is_null() || (len as usize) < size_of::<c_int>() {
                return errno::fail(libc::EINVAL);
            }
            // SAFETY: readable for an int, as just checked against the caller's promise.
            let value = unsafe { value.cast::<c_int>().read_unaligned() };
            set_netlink(fd, slot, name, value)
        }
        // SAFETY: the caller's promise.
        _ => unsafe { next::setsockopt(fd, level, name, value, len) },
    }
}

fn set_netlink(fd: c_int, slot: &Slot, name: c_int, value: c_int) -> c_int {
    let option = match name {
        libc::NETLINK_CAP_ACK => NetlinkOption::CapAck,
        libc::NETLINK_EXT_ACK => NetlinkOption::ExtAck,
        libc::NETLINK_ADD_MEMBERSHIP | libc::NETLINK_DROP_MEMBERSHIP => {
            return join(fd, slot, value, name == libc::NETLINK_ADD_MEMBERSHIP);
        }
        // These change nothing for XFRM, or nothing a program notices.
        libc::NETLINK_PKTINFO
        | libc::NETLINK_BROADCAST_ERROR
        | libc::NETLINK_NO_ENOBUFS
        | libc::NETLINK_LISTEN_ALL_NSID
        | libc::NETLINK_GET_STRICT_CHK => return 0,
        _ => return errno::fail(libc::ENOPROTOOPT),
    };
    slot.set_option(option, value != 0);
    connection::tell(fd, Frame::Option { name: name as u32, on: value != 0 });
    0
}

fn join(fd: c_int, slot: &Slot, group: c_int, on: bool) -> c_int {
    if !(1..=GROUP_MAX).contains(&group) {
        return errno::fail(libc::EINVAL);
    }
    slot.change_groups(1 << (group - 1), on);
    connection::tell(fd, Frame::Membership { group: group as u32, on });
    if on {
        // As for `bind`.
        answer::synchronise(fd);
    }
    0
}

/// `getsockopt(2)`.
///
/// # Safety
///
/// `len` must be writable, `value` for as many bytes as it says.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    let own = table::find(fd).and_then(|slot| answer(slot, level, name));
    let Some(own) = own else {
        // SAFETY: the caller's promise.
        return unsafe { next::getsockopt(fd, level, name, value, len) };
    };
    let own = match own {
        Ok(own) => own,
        Err(reason) => return errno::fail(reason),
    };
    if value.is_null() || len.is_null() {
        return errno::fail(libc::EFAULT);
    }
    // SAFETY: the caller's promise.
    if (unsafe { len.read() } as usize) < size_of::<c_int>() {
        return errno::fail(libc::EINVAL);
    }
    // SAFETY: the caller's promise, and there is room for an int.
    unsafe {
        value.cast::<c_int>().write_unaligned(own);
        len.write(size_of::<c_int>() as socklen_t);
    }
    0
}

/// What an option is on a netlink socket; `None` if the Unix socket knows as well.
fn answer(slot: &Slot, level: c_int, name: c_int) -> Option<Result<c_int, c_int>> {
    let kind = if slot.is_datagram() { libc::SOCK_DGRAM } else { libc::SOCK_RAW };
    Some(match (level, name) {
        (libc::SOL_SOCKET, libc::SO_DOMAIN) => Ok(libc::AF_NETLINK),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(kind),
        (libc::SOL_SOCKET, libc::SO_PROTOCOL) => Ok(libc::NETLINK_XFRM),
        (libc::SOL_SOCKET, _) => return None,
        (libc::SOL_NETLINK, libc::NETLINK_CAP_ACK) => Ok(slot.option(NetlinkOption::CapAck).into()),
        (libc::SOL_NETLINK, libc::NETLINK_EXT_ACK) => Ok(slot.option(NetlinkOption::ExtAck).into()),
        _ => Err(libc::ENOPROTOOPT),
    })
}
