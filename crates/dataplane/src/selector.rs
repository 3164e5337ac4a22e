//! Which flows an SA or a policy is about, with XFRM's meaning of every field.

use wire::flow::Flow;

use crate::prefix::{Family, Prefix};

/// A port and the bits of it that count; mask 0 matches every port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PortMatch {
    /// The port's bits under the mask.
    pub port: u16,
    /// The bits that must agree.
    pub mask: u16,
}

impl PortMatch {
    /// Matches every port.
    pub const ANY: PortMatch = PortMatch { port: 0, mask: 0 };

    /// Matches one port.
    pub fn exactly(port: u16) -> PortMatch {
        PortMatch { port, mask: u16::MAX }
    }

    /// Whether a port agrees under the mask.
    #[inline]
    pub fn matches(&self, port: u16) -> bool {
        (self.port ^ port) & self.mask == 0
    }
}

/// What `struct xfrm_selector` selects. Ports are the type and code of ICMP, as in Linux.
///
/// The interface index of the kernel's selector is not here: a selector applies on every port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Selector {
    /// Source addresses; its family is the selector's.
    pub source: Prefix,
    /// Destination addresses, of the same family as `source`.
    pub destination: Prefix,
    /// The transport protocol; 0 matches all.
    pub protocol: u8,
    /// Source port, or ICMP type.
    pub source_port: PortMatch,
    /// Destination port, or ICMP code.
    pub destination_port: PortMatch,
}

impl Selector {
    /// Selects all traffic between two prefixes; `None` if their families differ.
    pub fn between(source: Prefix, destination: Prefix) -> Option<Selector> {
        (source.family() == destination.family()).then_some(Selector {
            source,
            destination,
            protocol: 0,
            source_port: PortMatch::ANY,
            destination_port: PortMatch::ANY,
        })
    }

    /// Selects every flow of a family.
    pub const fn any(family: Family) -> Selector {
        Selector {
            source: Prefix::any(family),
            destination: Prefix::any(family),
            protocol: 0,
            source_port: PortMatch::ANY,
            destination_port: PortMatch::ANY,
        }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        self.source.family()
    }

    /// Whether any bit of a port matters.
    #[inline]
    pub fn selects_ports(&self) -> bool {
        (self.source_port.mask | self.destination_port.mask) != 0
    }

    /// Whether a flow is selected, its ports included.
    #[inline]
    pub fn matches(&self, flow: &Flow) -> bool {
        self.matches_without_ports(flow)
            && self.source_port.matches(flow.src_port)
            && self.destination_port.matches(flow.dst_port)
    }

    /// Whether a flow is selected as far as its addresses and its protocol tell.
    #[inline]
    pub fn matches_without_ports(&self, flow: &Flow) -> bool {
        self.source.contains(flow.src)
            && self.destination.contains(flow.dst)
            && (self.protocol == 0 || self.protocol == flow.protocol)
    }
}
