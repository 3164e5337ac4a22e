//! `address/prefix`, as `ip` writes it: both an interface address and a network.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::traffic::advance;

/// An address and the length of its network's prefix. Host bits may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Net {
    address: IpAddr,
    prefix: u8,
}

/// Why a text is not a [`Net`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is not an address with a prefix length, such as 10.0.0.1/24 or fd00::1/64")]
pub struct NetError(String);

impl Net {
    /// An address with a prefix no longer than the address.
    pub fn new(address: IpAddr, prefix: u8) -> Option<Net> {
        (prefix <= bits(address)).then_some(Net { address, prefix })
    }

    /// The address as it was given.
    pub fn address(self) -> IpAddr {
        self.address
    }

    /// The length of the prefix.
    pub fn prefix(self) -> u8 {
        self.prefix
    }

    /// Whether it is IPv6.
    pub fn is_ipv6(self) -> bool {
        self.address.is_ipv6()
    }

    /// Whether no host bit is set.
    pub fn is_network(self) -> bool {
        to_number(self.address) & (self.size() - 1) == 0
    }

    /// Whether `address` lies in the network.
    pub fn contains(self, address: IpAddr) -> bool {
        self.is_ipv6() == address.is_ipv6()
            && (to_number(self.address) ^ to_number(address)) & !(self.size() - 1) == 0
    }

    /// Whether all of `other` lies in the network.
    pub fn covers(self, other: Net) -> bool {
        self.prefix <= other.prefix && self.contains(other.address)
    }

    /// The number of addresses, at most 2¹²⁷.
    pub fn size(self) -> u128 {
        1 << (bits(self.address) - self.prefix).min(127)
    }

    /// The `n`-th network of the same size after this one, if there is one.
    pub fn nth(self, n: u32) -> Option<Net> {
        self.further(self.size().checked_mul(u128::from(n))?)
    }

    /// The network of the same size whose address is so much greater.
    pub fn further(self, offset: u128) -> Option<Net> {
        Some(Net { address: advance(self.address, offset)?, prefix: self.prefix })
    }

    /// The same without host bits.
    pub fn network(self) -> Net {
        let hosts = self.size() - 1;
        let address = match self.address {
            IpAddr::V4(address) => IpAddr::V4((u32::from(address) & !(hosts as u32)).into()),
            IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !hosts).into()),
        };
        Net { address, prefix: self.prefix }
    }
}

fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// IPv4 addresses sit at the bottom, so that masks made from [`Net::size`] fit both families.
fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

impl FromStr for Net {
    type Err = NetError;

    fn from_str(text: &str) -> Result<Net, NetError> {
        text.split_once('/')
            .and_then(|(address, prefix)| Net::new(address.parse().ok()?, prefix.parse().ok()?))
            .ok_or_else(|| NetError(text.to_owned()))
    }
}

impl TryFrom<String> for Net {
    type Error = NetError;

    fn try_from(text: String) -> Result<Net, NetError> {
        text.parse()
    }
}

impl From<Net> for String {
    fn from(net: Net) -> String {
        net.to_string()
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().unwrap()
    }

    #[test]
    fn membership_in_both_families() {
        assert!(net("16.0.0.0/8").contains("16.255.255.255".parse().unwrap()));
        assert!(!net("16.0.0.0/8").contains("17.0.0.0".parse().unwrap()));
        assert!(!net("0.0.0.0/0").contains("::".parse().unwrap()));
        assert!(net("0.0.0.0/0").contains("255.1.2.3".parse().unwrap()));
        assert!(net("fd00::/64").contains("fd00::ffff".parse().unwrap()));
        assert!(!net("fd00::/64").contains("fd00:0:0:1::".parse().unwrap()));
        assert!(net("48.0.0.0/8").covers(net("48.1.0.0/24")));
        assert!(!net("48.1.0.0/24").covers(net("48.0.0.0/8")));
        assert!(net("48.1.0.0/24").is_network() && !net("48.1.0.1/24").is_network());
    }

    #[test]
    fn neighbours_of_the_same_size() {
        assert_eq!(net("48.0.0.0/24").nth(256), Some(net("48.1.0.0/24")));
        assert_eq!(net("255.255.255.0/24").nth(1), None);
        assert_eq!(net("fd00::/64").nth(2), Some(net("fd00:0:0:2::/64")));
        assert_eq!(net("10.0.0.1/32").nth(2), Some(net("10.0.0.3/32")));
        assert_eq!(net("123.2.1.2/16").network(), net("123.2.0.0/16"));
        assert_eq!(net("123.2.1.2/32").network(), net("123.2.1.2/32"));
        assert_eq!(net("fd00::1/64").network(), net("fd00::/64"));
    }

    #[test]
    fn what_is_not_a_net_is_refused() {
        for text in ["10.0.0.1", "10.0.0.1/33", "fd00::/129", "/8", "a/8", "10.0.0.0/-1"] {
            assert_eq!(text.parse::<Net>(), Err(NetError(text.into())));
        }
    }
}
