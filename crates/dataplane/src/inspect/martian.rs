//! Martians: addresses that no packet on its way through a router comes from or goes to.

use std::net::IpAddr;

use wire::flow::Flow;

use crate::verdict::Verdict;

/// RFC 1812 §5.3.7, RFC 4291 §2.5.2–2.5.6: addresses that a router forwards neither from nor to.
#[inline]
pub(crate) fn check_addresses(flow: &Flow) -> Result<(), Verdict> {
    match may_be_martians(flow) {
        true => check_closely(flow),
        false => Ok(()),
    }
}

/// Whether either address begins as a martian's does.
#[inline(always)]
pub(crate) fn may_be_martians(flow: &Flow) -> bool {
    may_be_martian(flow.src) | may_be_martian(flow.dst)
}

#[cold]
fn check_closely(flow: &Flow) -> Result<(), Verdict> {
    if is_martian(flow.src) {
        return Err(Verdict::MartianSource);
    }
    if is_martian(flow.dst) {
        return Err(Verdict::MartianDestination);
    }
    Ok(())
}

/// Whether an address begins as a martian's does; nearly none does.
#[inline]
pub(super) fn may_be_martian(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => MARTIAN_BEGINNINGS[usize::from(v4.octets()[0])],
        // 0, fe, and ff.
        IpAddr::V6(v6) => v6.octets()[0].wrapping_add(2) <= 2,
    }
}

/// For each first octet of IPv4: 0, 127, 169, and 224 and up. Bytes and not bits, as every packet asks twice.
static MARTIAN_BEGINNINGS: [bool; 256] = {
    let mut beginnings = [false; 256];
    let mut first = 0;
    while first < beginnings.len() {
        beginnings[first] = matches!(first, 0 | 127 | 169 | 224..);
        first += 1;
    }
    beginnings
};

/// Whether a martian may go to this host all the same, to an address of its own: what it is talked to by a link-local
/// address is not forwarded. BGP of clouds' VPNs has such addresses, in 169.254/16.
#[cold]
pub(super) fn may_reach_host(flow: &Flow) -> bool {
    !is_nobodys(flow.src) && !is_nobodys(flow.dst)
}

fn is_martian(address: IpAddr) -> bool {
    let is_link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    is_link_local || is_nobodys(address)
}

/// Whether an address is no other host's, on a link or anywhere.
fn is_nobodys(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let first = v4.octets()[0];
            // 0/8 "this network", 127/8 loopback, 224/4 multicast, 240/4 reserved and broadcast.
            first == 0 || first == 127 || first >= 224
        }
        IpAddr::V6(v6) => v6.is_multicast() || v6.is_unspecified() || v6.is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    #[test]
    fn every_martian_begins_as_one() {
        for word in 0..=u16::MAX {
            let [a, b] = word.to_be_bytes();
            let v4 = IpAddr::V4(Ipv4Addr::new(a, b, 0, 1));
            assert!(may_be_martian(v4) || !is_martian(v4), "{v4}");
            for last in [0, 1] {
                let v6 = IpAddr::V6(Ipv6Addr::new(word, 0, 0, 0, 0, 0, 0, last));
                assert!(may_be_martian(v6) || !is_martian(v6), "{v6}");
            }
        }
        let few = [[10, 0, 0, 1], [192, 0, 2, 1], [198, 18, 0, 1], [100, 64, 0, 1]];
        assert!(few.iter().all(|octets| !may_be_martian(IpAddr::from(*octets))));
        for few in ["2001:db8::1", "fd00::1", "7f00::1"].map(|text| text.parse().unwrap()) {
            assert!(!may_be_martian(few), "{few}");
        }
    }
}
