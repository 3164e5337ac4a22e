//! Addresses of packets whose routes are looked up together.

use arrayvec::ArrayVec;

use super::group::Group;
use crate::fib::MANY;
use crate::view::View;

/// Addresses of a family in the order of their packets; of packets that follow each other to, or from, one it is there once.
#[derive(Default)]
pub(super) struct Addresses<A>(ArrayVec<A, MANY>);

impl<A: PartialEq> Addresses<A> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes note of a packet's address; how many there are then.
    #[inline(always)]
    fn put(&mut self, address: A) -> usize {
        if self.0.last() != Some(&address) {
            self.0.push(address);
        }
        self.0.len()
    }
}

impl Addresses<u32> {
    /// Takes note of a packet's address.
    #[inline(always)]
    pub(super) fn note(&mut self, address: u32) -> Group {
        Group::last_of(self.put(address))
    }

    /// The codes of their routes in the table of a VRF, for which there is room.
    #[inline(always)]
    pub(super) fn codes<'c>(&self, vrf: u32, view: &View, codes: &'c mut [u32; MANY]) -> &'c [u32] {
        view.fib.codes_of_v4(vrf, &self.0, codes);
        &codes[..self.0.len()]
    }
}

impl Addresses<u128> {
    /// Takes note of a packet's address.
    #[inline(always)]
    pub(super) fn note(&mut self, address: u128) -> Group {
        Group::last_of_v6(self.put(address))
    }

    /// The same of IPv6.
    pub(super) fn codes<'c>(&self, vrf: u32, view: &View, codes: &'c mut [u32; MANY]) -> &'c [u32] {
        view.fib.codes_of_v6(vrf, &self.0, codes);
        &codes[..self.0.len()]
    }
}
