//! Addresses of netlink sockets, as programs pass and expect them.

use libc::{c_int, sockaddr, sockaddr_nl, socklen_t};

/// Length of every netlink address.
pub const ADDRESS_LEN: socklen_t = size_of::<sockaddr_nl>() as socklen_t;

/// Port and groups of an address that a program gave, or the errno that netlink refuses it with.
///
/// # Safety
///
/// `address` must be null or readable for `len` bytes.
pub unsafe fn read(address: *const sockaddr, len: socklen_t) -> Result<(u32, u32), c_int> {
    if address.is_null() {
        return Err(libc::EFAULT);
    }
    if len < ADDRESS_LEN {
        return Err(libc::EINVAL);
    }
    // SAFETY: readable for the whole structure, as just checked against the caller's promise; it
    // may lie unaligned, and every bit pattern is a value.
    let address = unsafe { address.cast::<sockaddr_nl>().read_unaligned() };
    if c_int::from(address.nl_family) != libc::AF_NETLINK {
        return Err(libc::EINVAL);
    }
    Ok((address.nl_pid, address.nl_groups))
}

/// Gives a program an address: as much as fits, and how long it is.
///
/// # Safety
///
/// Both pointers may be null; else `len` must be writable, and `address` for as many bytes as
/// `len` says.
pub unsafe fn write(address: *mut sockaddr, len: *mut socklen_t, port: u32, groups: u32) {
    if address.is_null() || len.is_null() {
        return;
    }
    // SAFETY: the caller's promise.
    let room = unsafe { len.read() };
    // SAFETY: `write_name` writes at most `room` bytes.
    let written = unsafe { write_name(address.cast(), room, port, groups) };
    // SAFETY: the caller's promise.
    unsafe { len.write(written) };
}

/// The same for the name of a message. Returns the full length.
///
/// # Safety
///
/// `name` must be writable for `room` bytes.
pub unsafe fn write_name(
    name: *mut libc::c_void,
    room: socklen_t,
    port: u32,
    groups: u32,
) -> socklen_t {
    // SAFETY: a structure of integers, for which zeros are a value.
    let mut address: sockaddr_nl = unsafe { std::mem::zeroed() };
    address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
    address.nl_pid = port;
    address.nl_groups = groups;
    let fits = room.min(ADDRESS_LEN) as usize;
    // SAFETY: at most the length of either side; the program's buffer is no part of our stack.
    unsafe {
        std::ptr::copy_nonoverlapping((&raw const address).cast::<u8>(), name.cast::<u8>(), fits);
    }
    ADDRESS_LEN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_comes_back() {
        let mut bytes = [0xff_u8; 16];
        let mut len = bytes.len() as socklen_t;
        // SAFETY: a buffer of 16 bytes and its length.
        unsafe { write(bytes.as_mut_ptr().cast(), &raw mut len, 7, 0xc3) };
        assert_eq!(len, 12);
        assert_eq!(bytes[12..], [0xff; 4]);
        // SAFETY: as above.
        assert_eq!(unsafe { read(bytes.as_ptr().cast(), len) }, Ok((7, 0xc3)));
    }

    #[test]
    fn a_short_buffer_gets_what_fits() {
        let mut bytes = [0xff_u8; 12];
        let mut len = 6;
        // SAFETY: more room than the length says.
        unsafe { write(bytes.as_mut_ptr().cast(), &raw mut len, 7, 0) };
        assert_eq!(len, 12);
        assert_eq!(bytes, [16, 0, 0, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn what_is_no_netlink_address_is_refused() {
        let bytes = [16_u8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        let unix = [1_u8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0];
        // SAFETY: all lengths are within the buffers.
        unsafe {
            assert_eq!(read(bytes.as_ptr().cast(), 11), Err(libc::EINVAL));
            assert_eq!(read(unix.as_ptr().cast(), 12), Err(libc::EINVAL));
            assert_eq!(read(std::ptr::null(), 12), Err(libc::EFAULT));
        }
    }
}
