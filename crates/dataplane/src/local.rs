//! The addresses of this host.
//!
//! Every packet is asked about, and nearly every answer is no. A few words say so for all but one
//! address in some hundred; only then is the table searched.

use std::net::IpAddr;

use crate::table::Table;

/// Words of the filter. 1024 bits let one foreign address in fifty through when the host has twenty.
const FILTER_WORDS: usize = 16;

/// A version of the set of addresses. Cloning is cheap; versions share what did not change.
#[derive(Clone, Default)]
pub struct Locals {
    table: Table<IpAddr, ()>,
    filter: [u64; FILTER_WORDS],
}

impl Locals {
    /// No address.
    pub fn new() -> Locals {
        Locals::default()
    }

    /// Whether an address is one of this host's.
    #[inline(always)]
    pub fn contains(&self, address: &IpAddr) -> bool {
        self.may_contain(address) && self.is_in_table(address)
    }

    /// Whether an address may be one of this host's: of nearly all others it is known at once.
    #[inline(always)]
    pub(crate) fn may_contain(&self, address: &IpAddr) -> bool {
        let (word, bit) = place(address);
        self.filter[word] & bit != 0
    }

    #[inline(never)]
    fn is_in_table(&self, address: &IpAddr) -> bool {
        self.table.get(address).is_some()
    }

    /// Adds an address.
    pub fn insert(&mut self, address: IpAddr) {
        let (word, bit) = place(&address);
        self.filter[word] |= bit;
        self.table.insert(address, ());
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        self.table.settle()
    }
}

/// Word and bit of an address. Whoever chooses addresses that share a bit with one of ours only makes
/// the table be searched.
#[inline(always)]
fn place(address: &IpAddr) -> (usize, u64) {
    let bits = match address {
        // In whichever order its bytes are.
        IpAddr::V4(v4) => u64::from(u32::from_ne_bytes(v4.octets())),
        IpAddr::V6(v6) => (v6.to_bits() >> 64) as u64 ^ v6.to_bits() as u64,
    };
    // 2^64 divided by the golden ratio: its upper bits depend on all of the address.
    let hash = bits.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((hash >> 60) as usize % FILTER_WORDS, 1 << (hash >> 54 & 63))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn address() -> impl Strategy<Value = IpAddr> {
        let v4 = (0..2000u32).prop_map(|n| IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
        let v6 = (0..2000u128).prop_map(|n| IpAddr::from((n << 64 | n).to_be_bytes()));
        prop_oneof![v4, v6]
    }

    proptest! {
        #[test]
        fn is_a_set(ours in prop::collection::vec(address(), 0..300),
                    others in prop::collection::vec(address(), 100)) {
            let mut locals = Locals::new();
            let twin: HashSet<IpAddr> = ours.iter().copied().collect();
            ours.iter().for_each(|address| locals.insert(*address));
            for address in others.iter().chain(&ours) {
                prop_assert_eq!(locals.contains(address), twin.contains(address));
            }
        }
    }

    #[test]
    fn few_foreign_addresses_reach_the_table() {
        let mut locals = Locals::new();
        (0..20u32).for_each(|n| locals.insert(IpAddr::from((0xc000_0201 + n * 777).to_be_bytes())));
        let passes = |n: &u32| {
            let (word, bit) = place(&IpAddr::from((0x0a00_0000 + n).to_be_bytes()));
            locals.filter[word] & bit != 0
        };
        let passed = (0..100_000).filter(passes).count();
        assert!(passed < 100_000 / 25, "{passed}");
    }
}
