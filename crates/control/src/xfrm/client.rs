//! What the server must know of who asks.

/// One client, as far as answers depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Its netlink port (`nl_pid`); replies carry it.
    pub port: u32,
    /// It wants texts with errors (`NETLINK_EXT_ACK`).
    pub ext_ack: bool,
    /// It does not want its request quoted (`NETLINK_CAP_ACK`).
    pub cap_ack: bool,
    /// It has not read its last dump to the end.
    pub dumping: bool,
}
