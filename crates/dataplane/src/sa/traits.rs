//! What is so or not of an SA, in a bit each.

use super::{Mode, SaConfig, SaFlags};

/// What is so of an SA.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Traits(u8);

const TRANSPORT: u8 = 1;
const V6: u8 = 1 << 1;
const ENCAPSULATED: u8 = 1 << 2;
const NO_ECN: u8 = 1 << 3;
const DECAP_DSCP: u8 = 1 << 4;
const DONT_ENCAP_DSCP: u8 = 1 << 5;
const NO_PMTU_DISCOVERY: u8 = 1 << 6;
const SIMPLE: u8 = 1 << 7;

impl Traits {
    pub(super) fn of(config: &SaConfig) -> Traits {
        let flags = &config.flags;
        let (is_tunnel, is_v6) = (config.mode == Mode::Tunnel, config.destination.is_ipv6());
        let traits = [
            (TRANSPORT, !is_tunnel),
            (V6, is_v6),
            (ENCAPSULATED, config.encapsulation.is_some()),
            (NO_ECN, flags.no_ecn),
            (DECAP_DSCP, flags.decap_dscp),
            (DONT_ENCAP_DSCP, flags.dont_encap_dscp),
            (NO_PMTU_DISCOVERY, flags.no_pmtu_discovery),
            (SIMPLE, is_tunnel && !(is_v6 && config.encapsulation.is_some())),
        ];
        let so = traits.into_iter().filter(|(_, is_so)| *is_so);
        Traits(so.fold(0, |bits, (bit, _)| bits | bit))
    }

    #[inline(always)]
    fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }

    #[inline(always)]
    pub(crate) fn mode(self) -> Mode {
        if self.has(TRANSPORT) { Mode::Transport } else { Mode::Tunnel }
    }

    /// Whether its ends are of IPv6.
    #[inline(always)]
    pub(crate) fn is_v6(self) -> bool {
        self.has(V6)
    }

    /// Whether it is a tunnel as nearly all are: its ends are of IPv4, and there is no UDP around its ESP.
    #[inline(always)]
    pub(crate) fn is_usual(self) -> bool {
        !self.has(TRANSPORT | V6 | ENCAPSULATED)
    }

    /// Whether it is a tunnel whose envelopes are made of what it says itself: all but those with UDP over IPv6, whose checksum
    /// covers what is encrypted.
    #[inline(always)]
    pub(crate) fn is_simple(self) -> bool {
        self.has(SIMPLE)
    }

    /// Whether there is UDP around its ESP.
    #[inline(always)]
    pub(crate) fn is_encapsulated(self) -> bool {
        self.has(ENCAPSULATED)
    }

    /// Whether sealing its packets takes what that of most does not.
    #[inline(always)]
    pub(super) fn needs_more(self) -> bool {
        self.has(V6 | ENCAPSULATED)
    }

    #[inline(always)]
    pub(crate) fn flags(self) -> SaFlags {
        SaFlags {
            no_ecn: self.has(NO_ECN),
            decap_dscp: self.has(DECAP_DSCP),
            dont_encap_dscp: self.has(DONT_ENCAP_DSCP),
            no_pmtu_discovery: self.has(NO_PMTU_DISCOVERY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encapsulation::UdpEncapsulation;
    use crate::sa::tests::config;

    #[test]
    fn each_is_told_from_the_others() {
        for bits in 0..1u8 << 7 {
            let is_so = |bit: u8| bits >> bit & 1 != 0;
            let flags = SaFlags {
                no_ecn: is_so(0),
                decap_dscp: is_so(1),
                dont_encap_dscp: is_so(2),
                no_pmtu_discovery: is_so(3),
            };
            let mode = if is_so(4) { Mode::Transport } else { Mode::Tunnel };
            let destination = if is_so(5) { "2001:db8::2" } else { "192.0.2.2" };
            let encapsulation = is_so(6).then_some(UdpEncapsulation::NONE);
            let destination = destination.parse().unwrap();
            let config = SaConfig { flags, mode, destination, encapsulation, ..config() };
            let traits = Traits::of(&config);
            assert_eq!((traits.flags(), traits.mode()), (flags, mode));
            assert_eq!((traits.is_v6(), traits.is_encapsulated()), (is_so(5), is_so(6)));
            assert_eq!(traits.is_usual(), !is_so(4) && !is_so(5) && !is_so(6));
            assert_eq!(traits.is_simple(), !(is_so(4) || is_so(5) && is_so(6)));
            assert_eq!(traits.needs_more(), is_so(5) || is_so(6));
        }
    }
}
