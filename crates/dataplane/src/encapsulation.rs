//! UDP encapsulation of ESP (RFC 3948): which ports an SA uses, and on which ports of this host such
//! packets arrive.
//!
//! It reads and writes no packet; `classify` and `seal` do.

use std::net::IpAddr;
use std::sync::Arc;

/// The UDP header around an SA's ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpEncapsulation {
    /// Source port of sealed packets, and the one that opened packets are expected from.
    pub source_port: u16,
    /// Destination port of sealed packets. Opened ones may come to any port of [`PortSet`].
    pub destination_port: u16,
    /// Whether control wants to hear that authentic packets come from another address or port.
    pub announce_mapping: bool,
}

impl UdpEncapsulation {
    /// Whether an authentic packet came from elsewhere than the SA says, as it does when a NAT on
    /// the way was restarted or the peer moved.
    #[inline]
    pub(crate) fn moved(&self, expected: IpAddr, source: IpAddr, port: u16) -> bool {
        self.announce_mapping && (port != self.source_port || source != expected)
    }
}

/// Words of 64 ports each.
const WORDS: usize = (1 << 16) / 64;

/// UDP ports on which ESP arrives. A bit each, as it is asked for every datagram that reaches a
/// worker; versions share their 8 KiB until one of them is changed.
#[derive(Clone)]
pub struct PortSet(Arc<[u64; WORDS]>);

impl Default for PortSet {
    fn default() -> Self {
        PortSet(Arc::new([0; WORDS]))
    }
}

impl PortSet {
    /// Whether the port is in the set.
    #[inline]
    pub fn contains(&self, port: u16) -> bool {
        self.0[usize::from(port) / 64] >> (port % 64) & 1 != 0
    }

    /// Puts a port into the set, or takes it out.
    pub fn set(&mut self, port: u16, present: bool) {
        if self.contains(port) != present {
            Arc::make_mut(&mut self.0)[usize::from(port) / 64] ^= 1 << (port % 64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_port_is_a_member_by_itself_and_versions_are_apart() {
        let mut set = PortSet::default();
        let before = set.clone();
        for port in [0, 63, 64, 500, 4500, u16::MAX] {
            set.set(port, true);
            set.set(port, true);
            assert!(set.contains(port));
        }
        let members: Vec<u16> = (0..=u16::MAX).filter(|port| set.contains(*port)).collect();
        assert_eq!(members, [0, 63, 64, 500, 4500, u16::MAX]);
        set.set(4500, false);
        set.set(4500, false);
        assert!(!set.contains(4500) && set.contains(500));
        assert!(!(0..=u16::MAX).any(|port| before.contains(port)));
    }

    #[test]
    fn a_move_is_another_port_or_another_address_where_somebody_asks() {
        let (home, away) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 9]));
        let mut encapsulation =
            UdpEncapsulation { source_port: 4500, destination_port: 4500, announce_mapping: true };
        assert!(!encapsulation.moved(home, home, 4500));
        assert!(encapsulation.moved(home, home, 4501));
        assert!(encapsulation.moved(home, away, 4500));
        encapsulation.announce_mapping = false;
        assert!(!encapsulation.moved(home, away, 4501));
    }
}
