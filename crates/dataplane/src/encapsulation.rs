//! UDP encapsulation of ESP (RFC 3948): which ports an SA uses, and on which ports of this host such
//! packets arrive.
//!
//! It reads and writes no packet; `classify`, `accept` and `envelope` do.

use std::net::IpAddr;
use std::sync::Arc;

/// The UDP header around an SA's ESP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpEncapsulation {
    /// Source port of sealed packets, and the one that opened packets are expected from; 0 if they
    /// may come from any, as those of SAs for one CPU each do (RFC 9611).
    pub source_port: u16,
    /// Destination port of sealed packets. Opened ones may come to any port of [`PortSet`].
    pub destination_port: u16,
}

impl UdpEncapsulation {
    /// That of an SA without.
    pub(crate) const NONE: UdpEncapsulation =
        UdpEncapsulation { source_port: 0, destination_port: 0 };

    /// Whether an authentic packet came from elsewhere than the SA says, as it does when a NAT on
    /// the way was restarted or the peer moved.
    #[inline]
    pub(crate) fn moved(&self, expected: IpAddr, source: IpAddr, port: u16) -> bool {
        self.source_port != 0 && (port != self.source_port || source != expected)
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

    /// The ports in which the set differs from another, and whether this one has them.
    pub fn changed_since<'a>(
        &'a self,
        other: &'a PortSet,
    ) -> impl Iterator<Item = (u16, bool)> + 'a {
        let words = if Arc::ptr_eq(&self.0, &other.0) { 0 } else { WORDS };
        (0..words).flat_map(move |at| {
            let (ours, theirs) = (self.0[at], other.0[at]);
            (0..64u16)
                .filter(move |bit| (ours ^ theirs) >> bit & 1 != 0)
                .map(move |bit| (at as u16 * 64 + bit, ours >> bit & 1 != 0))
        })
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
        let mut other = set.clone();
        assert_eq!(other.changed_since(&set).count(), 0);
        other.set(500, false);
        other.set(4500, true);
        let changed: Vec<(u16, bool)> = other.changed_since(&set).collect();
        assert_eq!(changed, [(500, false), (4500, true)]);
        assert!(!(0..=u16::MAX).any(|port| before.contains(port)));
    }

    #[test]
    fn a_move_is_another_port_or_another_address_where_one_is_expected() {
        let (home, away) = (IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 9]));
        let mut encapsulation = UdpEncapsulation { source_port: 4500, destination_port: 4500 };
        assert!(!encapsulation.moved(home, home, 4500));
        assert!(encapsulation.moved(home, home, 4501));
        assert!(encapsulation.moved(home, away, 4500));
        encapsulation.source_port = 0;
        assert!(!encapsulation.moved(home, away, 4501));
    }
}
