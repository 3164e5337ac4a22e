//! Address cycling: consecutive frames of a port visit different tunnels.
//!
//! Frame `n` belongs to tunnel `n mod T`, and every tunnel's own frames walk through its clients,
//! each of which talks to one host of the other side. A gateway therefore meets the worst case for
//! its caches: no two neighbouring frames share an SA, and a flow returns only after all others.

use std::net::IpAddr;

use thiserror::Error;

/// What one frame is addressed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Tunnel the frame has to take, from 0.
    pub tunnel: u32,
    /// Number of the client (tunnel and host together), from 0. A flow is one pair of addresses,
    /// and with the fixed UDP ports of a generator port one 5-tuple.
    pub flow: u32,
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
}

/// The ranges one port cycles through.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cycle {
    near: (IpAddr, u32),
    first_client: IpAddr,
    tunnel_stride: u128,
    tunnels: u32,
    clients_per_tunnel: u32,
    towards_clients: bool,
    pairs: Pairs,
    is_ordered_by_flow: bool,
}

/// Tunnels take turns at pairs of ranges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pairs {
    count: u32,
    /// From one pair's near hosts to the next one's, and the same of its clients.
    near_stride: u128,
    client_stride: u128,
}

/// Why ranges cannot be cycled through.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CycleError {
    /// A count of zero.
    #[error("{0} must be at least 1")]
    Zero(&'static str),
    /// The two sides are of different families.
    #[error("near addresses start at {0}, clients at {1}: one is IPv4, the other IPv6")]
    Families(IpAddr, IpAddr),
    /// More flows than can be numbered.
    #[error("{0} clients in all tunnels together, at most {max} are supported", max = u32::MAX)]
    Flows(u64),
    /// The range leaves the address family.
    #[error("{count} addresses from {first} on, {stride} apart, do not fit the address family")]
    Range {
        /// First address.
        first: IpAddr,
        /// How many.
        count: u64,
        /// Distance between neighbours.
        stride: u128,
    },
}

impl Cycle {
    /// A cycle over `near_hosts` addresses from `near` on one side and, on the other,
    /// `clients_per_tunnel` addresses from `first_client` on for each of `tunnels` tunnels, whose
    /// ranges lie `tunnel_stride` addresses apart.
    ///
    /// # Errors
    /// [`CycleError`] for a count of 0, two families, or more addresses than the family or 32 bits have.
    pub fn new(
        near: (IpAddr, u32),
        first_client: IpAddr,
        tunnel_stride: u128,
        tunnels: u32,
        clients_per_tunnel: u32,
    ) -> Result<Cycle, CycleError> {
        for (count, name) in [
            (near.1, "the number of near hosts"),
            (tunnels, "the number of tunnels"),
            (clients_per_tunnel, "the number of clients per tunnel"),
        ] {
            if count == 0 {
                return Err(CycleError::Zero(name));
            }
        }
        if near.0.is_ipv4() != first_client.is_ipv4() {
            return Err(CycleError::Families(near.0, first_client));
        }
        if tunnels.checked_mul(clients_per_tunnel).is_none() {
            return Err(CycleError::Flows(u64::from(tunnels) * u64::from(clients_per_tunnel)));
        }
        let last_client = u128::from(tunnels - 1)
            .checked_mul(tunnel_stride)
            .and_then(|offset| offset.checked_add(u128::from(clients_per_tunnel - 1)));
        for (first, offset, count, stride) in [
            (near.0, Some(u128::from(near.1 - 1)), u64::from(near.1), 1),
            (
                first_client,
                last_client,
                u64::from(tunnels) * u64::from(clients_per_tunnel),
                tunnel_stride,
            ),
        ] {
            offset.and_then(|offset| advance(first, offset)).ok_or(CycleError::Range {
                first,
                count,
                stride,
            })?;
        }
        Ok(Cycle {
            near,
            first_client,
            tunnel_stride,
            tunnels,
            clients_per_tunnel,
            towards_clients: true,
            pairs: Pairs { count: 1, near_stride: 0, client_stride: 0 },
            is_ordered_by_flow: false,
        })
    }

    /// The same with `count` pairs of ranges at which the tunnels take turns, the next ones so many
    /// addresses further on.
    ///
    /// # Errors
    /// [`CycleError`] for a count of 0, or if the last addresses do not fit the family.
    pub fn in_pairs(
        mut self,
        count: u32,
        near_stride: u128,
        client_stride: u128,
    ) -> Result<Cycle, CycleError> {
        let Some(more) = count.checked_sub(1) else {
            return Err(CycleError::Zero("the number of pairs"));
        };
        for (first, stride) in [(self.near.0, near_stride), (self.first_client, client_stride)] {
            u128::from(more)
                .checked_mul(stride)
                .and_then(|offset| advance(first, offset))
                .ok_or(CycleError::Range { first, count: count.into(), stride })?;
        }
        self.pairs = Pairs { count, near_stride, client_stride };
        Ok(self)
    }

    /// The same ranges with source and destination exchanged, for the port on the other side.
    pub fn reversed(mut self) -> Cycle {
        self.towards_clients = !self.towards_clients;
        self
    }

    /// The same where a tunnel keeps no order between its flows: it has an SA for each CPU.
    pub fn ordered_by_flow(mut self) -> Cycle {
        self.is_ordered_by_flow = true;
        self
    }

    /// Frames `n` of equal remainder modulo this many are kept in order: those of a tunnel, or of a
    /// flow.
    pub fn lanes(&self) -> u32 {
        match self.is_ordered_by_flow {
            false => self.tunnels,
            // Counted when the cycle was made.
            true => self.tunnels * self.clients_per_tunnel,
        }
    }

    /// Number of tunnels.
    pub fn tunnels(&self) -> u32 {
        self.tunnels
    }

    /// Number of different clients, which is the number of flows.
    pub fn flows(&self) -> u64 {
        u64::from(self.tunnels) * u64::from(self.clients_per_tunnel)
    }

    /// The addresses of frame `n`.
    pub fn addresses(&self, n: u64) -> Addresses {
        let tunnels = u64::from(self.tunnels);
        // Both remainders are below a u32.
        let tunnel = (n % tunnels) as u32;
        let host = ((n / tunnels) % u64::from(self.clients_per_tunnel)) as u32;
        let (pair, own) = (tunnel % self.pairs.count, tunnel / self.pairs.count);
        let offset = u128::from(pair) * self.pairs.client_stride
            + u128::from(own) * self.tunnel_stride
            + u128::from(host);
        let client = unchecked_advance(self.first_client, offset);
        let flow = tunnel * self.clients_per_tunnel + host;
        let offset = u128::from(pair) * self.pairs.near_stride + u128::from(flow % self.near.1);
        let near = unchecked_advance(self.near.0, offset);
        let (src, dst) = if self.towards_clients { (near, client) } else { (client, near) };
        Addresses { tunnel, flow, src, dst }
    }
}

/// `address + offset`, if that is still an address.
pub(crate) fn advance(address: IpAddr, offset: u128) -> Option<IpAddr> {
    match address {
        IpAddr::V4(a) => {
            let sum = u128::from(u32::from(a)).checked_add(offset)?;
            Some(IpAddr::V4(u32::try_from(sum).ok()?.into()))
        }
        IpAddr::V6(a) => Some(IpAddr::V6(u128::from(a).checked_add(offset)?.into())),
    }
}

/// [`advance`] within a range that [`Cycle::new`] has checked as a whole.
fn unchecked_advance(address: IpAddr, offset: u128) -> IpAddr {
    match address {
        IpAddr::V4(a) => IpAddr::V4(u32::from(a).wrapping_add(offset as u32).into()),
        IpAddr::V6(a) => IpAddr::V6(u128::from(a).wrapping_add(offset).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn published() -> Cycle {
        let near = ("16.0.0.1".parse().unwrap(), 254);
        Cycle::new(near, "48.0.0.1".parse().unwrap(), 256, 500, 240).unwrap()
    }

    #[test]
    fn neighbours_take_different_tunnels_and_all_clients_are_visited() {
        let cycle = published();
        let mut clients = HashSet::new();
        for n in 0..cycle.flows() {
            let here = cycle.addresses(n);
            assert_ne!(here.tunnel, cycle.addresses(n + 1).tunnel);
            clients.insert(here.dst);
        }
        assert_eq!(clients.len(), 120_000);
        assert_eq!(cycle.addresses(0).src, "16.0.0.1".parse::<IpAddr>().unwrap());
        assert_eq!(cycle.addresses(1).dst, "48.0.1.1".parse::<IpAddr>().unwrap());
        assert_eq!(cycle.addresses(500).dst, "48.0.0.2".parse::<IpAddr>().unwrap());
        assert_eq!(cycle.addresses(499).dst, "48.1.243.1".parse::<IpAddr>().unwrap());
    }

    #[test]
    fn the_other_port_sends_the_same_pairs_back() {
        let (there, back) = (published(), published().reversed());
        for n in [0, 1, 499, 500, 119_999, 120_000, u64::MAX] {
            let (a, b) = (there.addresses(n), back.addresses(n));
            assert_eq!((a.src, a.dst, a.flow), (b.dst, b.src, b.flow));
        }
    }

    #[test]
    fn a_lane_is_a_tunnel_or_a_flow() {
        assert_eq!(published().lanes(), 500);
        let cycle = published().ordered_by_flow();
        assert_eq!(u64::from(cycle.lanes()), cycle.flows());
        for n in [0, 1, 499, 500, 119_999] {
            let (here, later) = (cycle.addresses(n), cycle.addresses(n + cycle.flows()));
            assert_eq!((here.flow, here.dst), (later.flow, later.dst));
        }
    }

    #[test]
    fn tunnels_take_turns_at_pairs_of_ranges() {
        let cycle = published().in_pairs(2, 1 << 24, 1 << 24).unwrap();
        let at = |n| {
            let frame = cycle.addresses(n);
            (frame.tunnel, frame.src.to_string(), frame.dst.to_string())
        };
        assert_eq!(at(0), (0, "16.0.0.1".into(), "48.0.0.1".into()));
        assert_eq!(at(1), (1, "17.0.0.241".into(), "49.0.0.1".into()));
        assert_eq!(at(2), (2, "16.0.0.227".into(), "48.0.1.1".into()));
        assert_eq!(at(3).2, "49.0.1.1");
        assert!(published().in_pairs(0, 1, 1).is_err());
        assert!(published().in_pairs(2, 1 << 24, 208 << 24).is_err());
    }

    #[test]
    fn ranges_that_leave_the_family_are_refused() {
        let near: IpAddr = "16.0.0.1".parse().unwrap();
        let clients: IpAddr = "255.255.0.1".parse().unwrap();
        assert!(Cycle::new((near, 1), clients, 256, 256, 254).is_ok());
        assert_eq!(
            Cycle::new((near, 1), clients, 256, 257, 254).unwrap_err().to_string(),
            "65278 addresses from 255.255.0.1 on, 256 apart, do not fit the address family"
        );
        assert_eq!(
            Cycle::new((near, 1), "fd00::1".parse().unwrap(), 256, 1, 1),
            Err(CycleError::Families(near, "fd00::1".parse().unwrap()))
        );
        assert_eq!(
            Cycle::new((near, 0), clients, 1, 1, 1),
            Err(CycleError::Zero("the number of near hosts"))
        );
    }
}
