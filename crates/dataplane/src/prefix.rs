//! An address prefix, and the two address families as array index.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    #[inline]
    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    /// The address length in bits.
    pub fn bits(self) -> u8 {
        match self {
            Family::V4 => 32,
            Family::V6 => 128,
        }
    }

    /// 0 for IPv4, 1 for IPv6.
    #[inline]
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The bits of an address as a number; an IPv4 address fills the lowest 32.
#[inline]
pub(crate) fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    }
}

/// The mask over [`address_bits`] of a prefix of `len` bits in a family.
#[inline]
pub(crate) fn prefix_mask(family: Family, len: u8) -> u128 {
    match family {
        Family::V4 => u128::from(u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0)),
        Family::V6 => u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0),
    }
}

/// Addresses of IPv4 that begin alike: their bits under a mask.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    bits: u32,
    mask: u32,
}

impl Block {
    /// That of every address, and that of none.
    pub(crate) const ALL: Block = Block { bits: 0, mask: 0 };
    pub(crate) const NONE: Block = Block { bits: 1, mask: 0 };

    /// Those that have their first bits in common with one, so many.
    #[inline(always)]
    pub(crate) fn of(address: u32, len: u32) -> Block {
        let mask = (u64::MAX << (u32::BITS - len.min(u32::BITS))) as u32;
        Block { bits: address & mask, mask }
    }

    #[inline(always)]
    pub(crate) fn has(self, address: u32) -> bool {
        address & self.mask == self.bits
    }
}

/// An address prefix; host bits are always zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// A prefix with its host bits cleared; `None` if `len` is longer than the address.
    pub fn new(address: IpAddr, len: u8) -> Option<Prefix> {
        let family = Family::of(address);
        if len > family.bits() {
            return None;
        }
        let bits = address_bits(address) & prefix_mask(family, len);
        let address = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::from_bits(bits as u32)),
            Family::V6 => IpAddr::V6(Ipv6Addr::from_bits(bits)),
        };
        Some(Prefix { address, len })
    }

    /// The prefix that holds this address alone.
    pub fn host(address: IpAddr) -> Prefix {
        Prefix { address, len: Family::of(address).bits() }
    }

    /// The prefix that holds every address of a family.
    pub const fn any(family: Family) -> Prefix {
        let address = match family {
            Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        Prefix { address, len: 0 }
    }

    /// The network address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length in bits. There is no `is_empty`: no prefix is empty.
    #[expect(clippy::len_without_is_empty, reason = "a length in bits, not of a container")]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// The family.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Whether the address lies in the prefix. Addresses of the other family never do.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        let family = self.family();
        family == Family::of(address)
            && (address_bits(address) ^ address_bits(self.address)) & prefix_mask(family, self.len)
                == 0
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefix(text: &str) -> Prefix {
        let (address, len) = text.split_once('/').unwrap();
        Prefix::new(address.parse().unwrap(), len.parse().unwrap()).unwrap()
    }

    #[test]
    fn clears_host_bits_and_refuses_long_lengths() {
        assert_eq!(prefix("10.1.2.3/8").to_string(), "10.0.0.0/8");
        assert_eq!(prefix("2001:db8::1/32").to_string(), "2001:db8::/32");
        assert_eq!(prefix("10.1.2.3/0"), Prefix::any(Family::V4));
        assert_eq!(prefix("::1/0"), Prefix::any(Family::V6));
        assert_eq!(Prefix::new("10.0.0.0".parse().unwrap(), 33), None);
        assert_eq!(Prefix::new("::".parse().unwrap(), 129), None);
    }

    #[test]
    fn contains_its_own_and_not_the_other_family() {
        assert!(prefix("10.0.0.0/8").contains("10.255.0.1".parse().unwrap()));
        assert!(!prefix("10.0.0.0/8").contains("11.0.0.0".parse().unwrap()));
        assert!(prefix("1.2.3.4/32").contains("1.2.3.4".parse().unwrap()));
        assert!(!prefix("0.0.0.0/0").contains("::".parse().unwrap()));
        assert!(prefix("::/0").contains("ffff::".parse().unwrap()));
        assert!(!prefix("::1/128").contains("::2".parse().unwrap()));
    }
}
