//! How tunnels are shared out to several daemons of a gateway.
//!
//! One daemon owns UDP port 500 of a host, so that the daemons of one gateway listen at ports of
//! their own, the same on both gateways; strongSwan then marks its packets as those of port 4500
//! (RFC 3948 §2.2), and a gateway passes IKE at any port to the kernel.

/// Tunnels that one charon has to choose from at most, unless asked otherwise. Both sides search
/// all they have for every handshake: measured, 8000 tunnels took 16 daemons 59 and 48 seconds of a
/// core, 4 daemons 87 and 73; each daemon more takes 10 MB.
const TUNNELS: u32 = 1000;
/// Most daemons per gateway: each takes some 10 MB and 30 threads before its first tunnel.
pub const SHARDS_MAX: u32 = 64;
/// Ports of the first of several daemons of a gateway; the next ones follow. Below the kernel's
/// ephemeral ports, and not 500 and 4500, which only one can have.
const PORT: u16 = 10_500;
const PORT_NAT: u16 = 14_500;

/// The daemons of a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shards {
    /// How many.
    pub count: u32,
    /// Tunnels of them all.
    pub tunnels: u32,
}

impl Shards {
    /// As many as keep every daemon quick.
    pub fn fitting(tunnels: u32) -> Shards {
        Shards { count: tunnels.div_ceil(TUNNELS).clamp(1, SHARDS_MAX), tunnels }
    }

    /// The daemon of tunnel `number`, from 1: each has consecutive ones, and as many as the others.
    pub fn of(&self, number: u32) -> u32 {
        (u64::from(number - 1) * u64::from(self.count) / u64::from(self.tunnels)) as u32
    }

    /// IKE ports of a daemon; nothing for the usual ones of an only one.
    pub fn ports(&self, shard: u32) -> Option<(u16, u16)> {
        let offset = shard as u16; // At most SHARDS_MAX.
        (self.count > 1).then_some((PORT + offset, PORT_NAT + offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunnels_are_shared_out_evenly() {
        for (tunnels, count) in [(1, 1), (7, 3), (8000, 4), (65_000, 64)] {
            let shards = Shards { count, tunnels };
            let mut sizes = vec![0; count as usize];
            (1..=tunnels).for_each(|number| sizes[shards.of(number) as usize] += 1);
            let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(most - least <= 1, "{tunnels} on {count}: {sizes:?}");
        }
    }

    #[test]
    fn only_several_daemons_need_ports_of_their_own() {
        assert_eq!(Shards::fitting(1000).ports(0), None);
        let shards = Shards::fitting(8000);
        assert_eq!((shards.count, shards.ports(3)), (8, Some((10_503, 14_503))));
        assert_eq!(Shards::fitting(1_000_000).count, 64);
    }
}
