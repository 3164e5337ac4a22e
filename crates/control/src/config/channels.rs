//! How many receive queues of an interface are in use: the kernel's ethtool netlink family.
//!
//! `IFLA_NUM_RX_QUEUES` tells how many an interface was created with, which for a veth is one per
//! possible CPU of which one is active; `/sys/class/net` tells the truth, but only about the
//! network namespace it was mounted in. This family tells the truth about the caller's namespace.
//!
//! This file does not change the number of queues.

use std::io;

use netlink_packet_core::{
    DefaultNla, Emitable, NLA_F_NESTED, NLM_F_REQUEST, NlasIterator, parse_u16, parse_u32,
};
use netlink_sys::protocols::NETLINK_GENERIC;

use crate::route_feed::socket::NetlinkSocket;

/// The controller's family and its one request (linux/genetlink.h).
const GENL_ID_CTRL: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
/// The ethtool family (linux/ethtool_netlink.h).
const ETHTOOL_GENL_NAME: &[u8] = b"ethtool\0";
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_A_CHANNELS_HEADER: u16 = 1;
const ETHTOOL_A_HEADER_DEV_INDEX: u16 = 1;
const ETHTOOL_A_CHANNELS_RX_COUNT: u16 = 6;
const ETHTOOL_A_CHANNELS_COMBINED_COUNT: u16 = 9;
/// `struct genlmsghdr`: command, version, two bytes reserved.
const GENL_HEADER_BYTES: usize = 4;

/// A conversation with the ethtool family.
pub(super) struct ReceiveQueues {
    socket: NetlinkSocket,
    family: u16,
}

impl ReceiveQueues {
    /// Finds the family; an error when the kernel has none (before 5.6, or built without).
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = NetlinkSocket::open(NETLINK_GENERIC, 0)?;
        let name = DefaultNla::new(CTRL_ATTR_FAMILY_NAME, ETHTOOL_GENL_NAME.to_vec());
        let reply = ask(&mut socket, GENL_ID_CTRL, CTRL_CMD_GETFAMILY, &name)?;
        let id = find(&reply, CTRL_ATTR_FAMILY_ID).and_then(|v| parse_u16(&v).ok());
        let family = id.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Self { socket, family })
    }

    /// Receive queues in use: those of their own and those combined with a transmit queue. `None`
    /// when the driver does not tell.
    pub(super) fn of(&mut self, ifindex: u32) -> io::Result<Option<u32>> {
        let index = DefaultNla::new(ETHTOOL_A_HEADER_DEV_INDEX, ifindex.to_ne_bytes().to_vec());
        let header = DefaultNla::new(ETHTOOL_A_CHANNELS_HEADER | NLA_F_NESTED, bytes(&index));
        let reply = ask(&mut self.socket, self.family, ETHTOOL_MSG_CHANNELS_GET, &header)?;
        let count = |kind| find(&reply, kind).and_then(|value| parse_u32(&value).ok()).unwrap_or(0);
        let queues = count(ETHTOOL_A_CHANNELS_RX_COUNT) + count(ETHTOOL_A_CHANNELS_COMBINED_COUNT);
        Ok((queues > 0).then_some(queues))
    }
}

/// One request with one attribute; the payload of its reply.
fn ask(
    socket: &mut NetlinkSocket,
    family: u16,
    command: u8,
    attribute: &DefaultNla,
) -> io::Result<Vec<u8>> {
    let mut payload = vec![command, 1, 0, 0];
    payload.extend(bytes(attribute));
    let sequence = socket.send(family, NLM_F_REQUEST, &payload)?;
    socket.reply(sequence, family)
}

fn bytes(attribute: &DefaultNla) -> Vec<u8> {
    let mut bytes = vec![0; attribute.buffer_len()];
    attribute.emit(&mut bytes);
    bytes
}

/// The value of an attribute in a reply.
fn find(reply: &[u8], kind: u16) -> Option<Vec<u8>> {
    let attributes = reply.get(GENL_HEADER_BYTES..)?;
    let found = NlasIterator::new(attributes).filter_map(Result::ok).find(|a| a.kind() == kind)?;
    Some(found.value().to_vec())
}
