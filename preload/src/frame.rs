//! What the server is told beside the program's requests: frames shaped like netlink messages.
//!
//! None of them is answered but `Lost`. Their types lie above every netlink type, except for `Sync` and
//! `Lost`, which are netlink's own no-operation.

use libc::c_int;

/// A frame on its way to the server.
#[derive(Clone, Copy)]
pub enum Frame {
    /// The socket was bound.
    Bind {
        /// `nl_pid`.
        port: u32,
        /// Mask of groups.
        groups: u32,
    },
    /// The socket joined or left one group.
    Membership {
        /// Its number, from 1.
        group: u32,
        /// Joined.
        on: bool,
    },
    /// A `SOL_NETLINK` option was set.
    Option {
        /// Its number.
        name: u32,
        /// Its value.
        on: bool,
    },
    /// Nothing. When the server has taken another, it has answered everything before the first.
    Sync,
    /// Nothing that wants to be acknowledged. The acknowledgement comes before all that is sent later, wakes who
    /// waits for the socket, and tells the hook that receives it that messages were lost.
    Lost,
}

/// What `Lost` is known by beside its type: no program numbers its requests so high.
const LOST: u32 = u32::MAX;

/// Length of its acknowledgement: a header, a word, and the header that is acknowledged.
pub const LOST_LEN: usize = 36;

/// Longest frame: a netlink header and two words.
pub const FRAME_LEN_MAX: usize = 24;

const BIND: u16 = 0xfff0;
const MEMBERSHIP: u16 = 0xfff1;
const OPTION: u16 = 0xfff2;

impl Frame {
    /// Its bytes and how many of them count.
    pub fn bytes(self) -> ([u8; FRAME_LEN_MAX], usize) {
        let (kind, words) = match self {
            Self::Bind { port, groups } => (BIND, Some([port, groups])),
            Self::Membership { group, on } => (MEMBERSHIP, Some([group, u32::from(on)])),
            Self::Option { name, on } => (OPTION, Some([name, u32::from(on)])),
            Self::Sync | Self::Lost => (libc::NLMSG_NOOP as u16, None),
        };
        let len = if words.is_some() { FRAME_LEN_MAX } else { 16 };
        let mut bytes = [0; FRAME_LEN_MAX];
        bytes[0..4].copy_from_slice(&(len as u32).to_ne_bytes());
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        if let Some([first, second]) = words {
            bytes[16..20].copy_from_slice(&first.to_ne_bytes());
            bytes[20..24].copy_from_slice(&second.to_ne_bytes());
        }
        if let Self::Lost = self {
            bytes[6..8]
                .copy_from_slice(&((libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16).to_ne_bytes());
            bytes[8..12].copy_from_slice(&LOST.to_ne_bytes());
        }
        (bytes, len)
    }
}

/// Whether a message is the acknowledgement of `Lost`.
pub fn tells_lost(message: &[u8; LOST_LEN]) -> bool {
    let (bytes, len) = Frame::Lost.bytes();
    let kind = u16::from_ne_bytes([message[4], message[5]]);
    c_int::from(kind) == libc::NLMSG_ERROR && message[20..] == bytes[..len]
}

#[cfg(test)]
mod tests {
    use wire::xfrm::netlink::{
        HEADER_LEN, Header, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR, NLMSG_NOOP,
    };
    use wire::xfrm::shim;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    #[test]
    fn frames_are_what_the_server_understands() {
        let cap_ack = Frame::Option { name: libc::NETLINK_CAP_ACK as u32, on: true };
        let ext_ack = Frame::Option { name: libc::NETLINK_EXT_ACK as u32, on: false };
        for (frame, understood) in [
            (Frame::Bind { port: 0x0102_0304, groups: 0xc3 }, shim::Frame::bind(0x0102_0304, 0xc3)),
            (Frame::Membership { group: 7, on: true }, shim::Frame::new(shim::MEMBERSHIP, 7, 1)),
            (cap_ack, shim::Frame::new(shim::OPTION, shim::OPTION_CAP_ACK, 1)),
            (ext_ack, shim::Frame::new(shim::OPTION, shim::OPTION_EXT_ACK, 0)),
        ] {
            let (bytes, len) = frame.bytes();
            assert_eq!(&bytes[..len], understood.as_bytes());
        }
        assert_eq!(size_of::<shim::Frame>(), FRAME_LEN_MAX);
    }

    #[test]
    fn a_sync_frame_is_a_bare_header_without_request_flag() {
        let (bytes, len) = Frame::Sync.bytes();
        let bare = Header { len: HEADER_LEN as u32, kind: NLMSG_NOOP, ..Header::default() };
        assert_eq!(Header::read_from_bytes(&bytes[..len]), Ok(bare));
    }

    #[test]
    fn what_tells_of_lost_messages_is_the_acknowledgement_of_a_request_for_nothing() {
        let (bytes, len) = Frame::Lost.bytes();
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let request =
            Header { len: HEADER_LEN as u32, kind: NLMSG_NOOP, flags, seq: u32::MAX, pid: 0 };
        assert_eq!(Header::read_from_bytes(&bytes[..len]), Ok(request));
        let head = Header { len: LOST_LEN as u32, kind: NLMSG_ERROR, ..request };
        let acknowledged = |quoted: Header| -> [u8; LOST_LEN] {
            [head.as_bytes(), &[0; 4], quoted.as_bytes()].concat().try_into().unwrap()
        };
        assert!(tells_lost(&acknowledged(request)));
        assert!(!tells_lost(&acknowledged(Header { seq: 1, ..request })));
        assert!(!tells_lost(&acknowledged(Header { kind: 0x11, ..request })));
    }
}
