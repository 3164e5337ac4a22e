//! How packets find their tunnel, and what is special about them.

use super::{SIZE_MIN, SIZE_MIN_V6};

/// How a packet to be sealed finds its tunnel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// There is none: a route for each destination, and packets leave in clear. The ceiling of what
    /// the path can be; only the sealing side can be measured, which seals nothing then.
    Plain,
    /// By policies, one for each tunnel and direction.
    Policy,
    /// By policies of two shapes, behind one that lets a port pass in clear and before one that drops the rest: four tables.
    PolicyShapes,
    /// By policies of several shapes, every packet of a tunnel of a flow that was not there before, so
    /// that each is a look-up in the database of policies.
    PolicyUncached,
    /// By policies, behind others of so many shapes that what was found is remembered for each flow.
    PolicyCached,
    /// The same, while a policy that is about none of the packets is added or removed in every
    /// millisecond of the measured time.
    PolicyChanging,
    /// By policies, with SAs that have limits in packets and bytes, too far away for any packet, as libreswan's have.
    PolicyLimited,
    /// By policies, with ESP in UDP, as through NATs.
    PolicyInUdp,
    /// By policies, through tunnels over IPv6.
    PolicyOverV6,
    /// By policies, of IPv6 inside.
    PolicyV6,
    /// By policies of both families, each second packet of IPv6.
    PolicyDual,
    /// By policies that say nothing of each second packet, which is of no tunnel and goes on in clear.
    PolicySplit,
    /// By policies, of senders that know of ECN and say ECT(1) (RFC 9331), and some packets are marked on their way.
    PolicyMarked,
    /// By policies, and some packets come for an SA that is not there.
    PolicyStray,
    /// By policies, and some packets are fragments from another host.
    PolicyFragments,
    /// By policies, and some packets have options and are from another host.
    PolicyOptions,
    /// By policies, of packets of GRE.
    PolicyGre,
    /// By routes into tunnels, each with an `if_id` of its own (point-to-point).
    P2p,
    /// The same, and each second packet is led into no tunnel.
    P2pSplit,
    /// The same as point-to-point, with ports in one VRF and tunnels in another.
    P2pVrf,
    /// By routes into tunnels of one `if_id`, each with ends of its own (point-to-multipoint).
    P2mp,
}

impl Selection {
    /// Every way.
    pub const ALL: [Selection; 21] = [
        Selection::Plain,
        Selection::Policy,
        Selection::PolicyShapes,
        Selection::PolicyUncached,
        Selection::PolicyCached,
        Selection::PolicyChanging,
        Selection::PolicyLimited,
        Selection::PolicyInUdp,
        Selection::PolicyOverV6,
        Selection::PolicyV6,
        Selection::PolicyDual,
        Selection::PolicySplit,
        Selection::PolicyMarked,
        Selection::PolicyStray,
        Selection::PolicyFragments,
        Selection::PolicyOptions,
        Selection::PolicyGre,
        Selection::P2p,
        Selection::P2pSplit,
        Selection::P2pVrf,
        Selection::P2mp,
    ];

    /// Whether packets of IPv4, and of IPv6, find their tunnel so.
    pub(crate) fn families(self) -> [bool; 2] {
        match self {
            Selection::PolicyV6 => [false, true],
            Selection::PolicyDual => [true, true],
            _ => [true, false],
        }
    }

    /// Whether routes lead into the tunnels.
    pub(super) fn is_by_routes(self) -> bool {
        self.is_p2p() || self == Selection::P2mp
    }

    /// Whether those have an `if_id` each.
    pub(super) fn is_p2p(self) -> bool {
        matches!(self, Selection::P2p | Selection::P2pSplit | Selection::P2pVrf)
    }

    /// Whether each second packet is of no tunnel.
    pub(super) fn is_split(self) -> bool {
        matches!(self, Selection::PolicySplit | Selection::P2pSplit)
    }

    /// Bytes of the smallest inner packet: IP and UDP headers.
    pub(super) fn size_min(self) -> usize {
        let [_, v6] = self.families();
        if v6 { SIZE_MIN_V6 } else { SIZE_MIN }
    }

    /// The name used on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Selection::Plain => "plain",
            Selection::Policy => "policy",
            Selection::PolicyShapes => "policy-shapes",
            Selection::PolicyUncached => "policy-uncached",
            Selection::PolicyCached => "policy-cached",
            Selection::PolicyChanging => "policy-changing",
            Selection::PolicyLimited => "policy-limited",
            Selection::PolicyInUdp => "policy-udp",
            Selection::PolicyOverV6 => "policy-over-v6",
            Selection::PolicyV6 => "policy-v6",
            Selection::PolicyDual => "policy-dual",
            Selection::PolicySplit => "policy-split",
            Selection::PolicyMarked => "policy-marked",
            Selection::PolicyStray => "policy-stray",
            Selection::PolicyFragments => "policy-fragments",
            Selection::PolicyOptions => "policy-options",
            Selection::PolicyGre => "policy-gre",
            Selection::P2p => "p2p",
            Selection::P2pSplit => "p2p-split",
            Selection::P2pVrf => "p2p-vrf",
            Selection::P2mp => "p2mp",
        }
    }
}
