//! Addresses, selectors, SA identities and marks, as XFRM messages carry them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::number::{AF_INET, AF_INET6};

/// A 16-bit number in network byte order, aligned as C aligns it.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Be16(u16);

impl Be16 {
    /// From host order.
    pub const fn new(value: u16) -> Self {
        Self(value.to_be())
    }

    /// To host order.
    pub const fn get(self) -> u16 {
        u16::from_be(self.0)
    }
}

impl fmt::Debug for Be16 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// A 32-bit number in network byte order, aligned as C aligns it.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(transparent)]
pub struct Be32(u32);

impl Be32 {
    /// From host order.
    pub const fn new(value: u32) -> Self {
        Self(value.to_be())
    }

    /// To host order.
    pub const fn get(self) -> u32 {
        u32::from_be(self.0)
    }
}

impl fmt::Debug for Be32 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.get())
    }
}

/// `xfrm_address_t`: 16 bytes whose family is said elsewhere. IPv4 uses the first four.
#[derive(
    Clone, Copy, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C, align(4))]
pub struct Address(pub [u8; 16]);

impl Address {
    /// All zero: "any".
    pub const ANY: Self = Self([0; 16]);

    /// The address, read as `family` says; `None` when it is neither IPv4 nor IPv6.
    pub fn ip(&self, family: u16) -> Option<IpAddr> {
        match family {
            AF_INET => Some(Ipv4Addr::new(self.0[0], self.0[1], self.0[2], self.0[3]).into()),
            AF_INET6 => Some(Ipv6Addr::from(self.0).into()),
            _ => None,
        }
    }

    /// The address with the bytes that `family` does not use set to zero, so that equal addresses
    /// are equal bytes.
    pub fn canonical(&self, family: u16) -> Self {
        if family == AF_INET6 {
            return *self;
        }
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&self.0[..4]);
        Self(bytes)
    }

    /// Whether the first `prefix` bits are those of `network`. A prefix beyond 128 means 128.
    pub fn matches(&self, network: &Self, prefix: u8) -> bool {
        let bits = u32::from(prefix.min(128));
        let mask = if bits == 0 { 0 } else { u128::MAX << (128 - bits) };
        (u128::from_be_bytes(self.0) ^ u128::from_be_bytes(network.0)) & mask == 0
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => {
                let mut bytes = [0; 16];
                bytes[..4].copy_from_slice(&v4.octets());
                Self(bytes)
            }
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0[4..].iter().all(|&byte| byte == 0) {
            write!(f, "{}", Ipv4Addr::new(self.0[0], self.0[1], self.0[2], self.0[3]))
        } else {
            write!(f, "{}", Ipv6Addr::from(self.0))
        }
    }
}

/// The address family number of `ip`.
pub const fn family_of(ip: IpAddr) -> u16 {
    match ip {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    }
}

/// `xfrm_id`: what an inbound ESP packet names an SA by.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Id {
    /// Destination address.
    pub daddr: Address,
    /// Security parameter index.
    pub spi: Be32,
    /// IP protocol: ESP, AH or IPComp.
    pub proto: u8,
    /// Padding.
    pub pad: [u8; 3],
}

/// `xfrm_selector`: which packets a policy or an SA is for. Two selectors are the same to the
/// kernel when all 56 bytes are, padding included; `==` here says the same.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Selector {
    /// Destination address.
    pub daddr: Address,
    /// Source address.
    pub saddr: Address,
    /// Destination port, or ICMP code.
    pub dport: Be16,
    /// Its mask.
    pub dport_mask: Be16,
    /// Source port, or ICMP type.
    pub sport: Be16,
    /// Its mask.
    pub sport_mask: Be16,
    /// Address family.
    pub family: u16,
    /// Prefix length of the destination.
    pub prefixlen_d: u8,
    /// Prefix length of the source.
    pub prefixlen_s: u8,
    /// IP protocol, 0 for any.
    pub proto: u8,
    /// Padding.
    pub pad: [u8; 3],
    /// Interface index, 0 for any.
    pub ifindex: i32,
    /// Owner of the socket; not used by any kernel.
    pub user: u32,
}

/// `xfrm_mark`: a packet mark and which of its bits count.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Mark {
    /// Value.
    pub v: u32,
    /// Mask.
    pub m: u32,
}

impl Mark {
    /// Value under its own mask, which is what look-ups compare.
    pub const fn key(self) -> u32 {
        self.v & self.m
    }

    /// The mark without bits that its mask hides; one with such bits would accept nothing.
    pub const fn sanitized(self) -> Self {
        Self { v: self.key(), m: self.m }
    }

    /// Whether a packet or request with mark `key` meets this mark.
    pub const fn accepts(self, key: u32) -> bool {
        key & self.m == self.v
    }

    /// Whether it was set at all.
    pub const fn is_set(self) -> bool {
        self.v | self.m != 0
    }
}

/// `xfrm_address_filter`: which SAs a dump shall show.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct AddressFilter {
    /// Source network.
    pub saddr: Address,
    /// Destination network.
    pub daddr: Address,
    /// Address family, 0 for any.
    pub family: u16,
    /// Prefix length of the source.
    pub splen: u8,
    /// Prefix length of the destination.
    pub dplen: u8,
}

const _: () = assert!(size_of::<Id>() == 24 && align_of::<Id>() == 4);
const _: () = assert!(size_of::<Selector>() == 56 && align_of::<Selector>() == 4);
const _: () = assert!(size_of::<AddressFilter>() == 36);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_convert_and_match_by_prefix() {
        let v4: IpAddr = "192.0.2.1".parse().unwrap();
        let v6: IpAddr = "2001:db8::1".parse().unwrap();
        assert_eq!(Address::from(v4).ip(AF_INET), Some(v4));
        assert_eq!(Address::from(v6).ip(AF_INET6), Some(v6));
        assert_eq!(Address::from(v6).ip(7), None);
        let network = Address::from("192.0.2.0".parse::<IpAddr>().unwrap());
        assert!(Address::from(v4).matches(&network, 24));
        assert!(!Address::from(v4).matches(&network, 32));
        assert!(Address::from(v4).matches(&Address::ANY, 0));
        assert!(Address::from(v6).matches(&Address::from(v6), 255));
    }

    #[test]
    fn network_order_is_kept_in_memory() {
        assert_eq!(Be32::new(0x0102_0304).as_bytes(), [1, 2, 3, 4]);
        assert_eq!(Be16::new(0x0102).as_bytes(), [1, 2]);
        assert_eq!(Be32::new(7).get(), 7);
    }

    #[test]
    fn canonical_forgets_what_ipv4_does_not_use() {
        assert_eq!(Address([9; 16]).canonical(AF_INET), Address::from(IpAddr::from([9, 9, 9, 9])));
        assert_eq!(Address([9; 16]).canonical(AF_INET6), Address([9; 16]));
    }
}
