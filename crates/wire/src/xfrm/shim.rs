//! What the preload library tells the server beside a program's requests: frames in the shape of netlink
//! messages, of types above all of netlink's. None is answered.
//!
//! The library has numbers of its own, as it depends on nothing; its tests compare them with these.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::netlink::Header;

/// The program bound its socket: `nl_pid`, mask of groups.
pub const BIND: u16 = 0xfff0;
/// The program joined or left a group: its number, whether it joined.
pub const MEMBERSHIP: u16 = 0xfff1;
/// The program set an option of its netlink socket: its number, whether it is on.
pub const OPTION: u16 = 0xfff2;

/// `NETLINK_CAP_ACK`: errors do not quote the request.
pub const OPTION_CAP_ACK: u32 = 10;
/// `NETLINK_EXT_ACK`: errors carry texts.
pub const OPTION_EXT_ACK: u32 = 11;

/// One frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Frame {
    /// Its type and length; the rest is 0.
    pub header: Header,
    /// What its type says, first.
    pub first: u32,
    /// What its type says, second.
    pub second: u32,
}

impl Frame {
    /// One of a type.
    pub const fn new(kind: u16, first: u32, second: u32) -> Frame {
        let len = size_of::<Frame>() as u32;
        Frame { header: Header { len, kind, flags: 0, seq: 0, pid: 0 }, first, second }
    }

    /// The program bound its socket to a port and to a mask of groups.
    pub const fn bind(port: u32, groups: u32) -> Frame {
        Frame::new(BIND, port, groups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_a_header_and_two_words() {
        let frame = Frame::bind(0x0102_0304, 0xc3);
        let mut expected = vec![24, 0, 0, 0, 0xf0, 0xff, 0, 0];
        expected.extend([0; 8]);
        expected.extend([4, 3, 2, 1, 0xc3, 0, 0, 0]);
        assert_eq!(frame.as_bytes(), expected);
        assert_eq!(Frame::read_from_bytes(&expected), Ok(frame));
    }
}
