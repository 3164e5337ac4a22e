//! Who answers to an address on a port: the link-layer address of each neighbour.
//!
//! The kernel resolves neighbours; control copies what it learns. A worker that uses an entry
//! leaves a mark, so that control can keep entries in use fresh in the kernel. An address that is
//! not here is asked for by an [`Event`](crate::event::Event).

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use wire::ethernet::MacAddr;

use crate::table::Table;

/// Port index and address.
type Key = (u16, IpAddr);

/// The link-layer address, and whether it was used lately: shared by all versions, and kept over a
/// change of the address.
type Neighbour = (MacAddr, Arc<AtomicBool>);

/// A version of the neighbour table. Cloning is cheap; versions share what did not change.
#[derive(Clone, Default)]
pub struct Neighbours {
    table: Table<Key, Neighbour>,
}

impl Neighbours {
    /// An empty table.
    pub fn new() -> Neighbours {
        Neighbours::default()
    }

    /// The link-layer address of a neighbour, marked as used.
    #[inline]
    pub fn resolve(&self, port: u16, address: IpAddr) -> Option<MacAddr> {
        let (mac, used) = self.table.get(&(port, address))?;
        // Reading first keeps the line shared between workers.
        if !used.load(Relaxed) {
            used.store(true, Relaxed);
        }
        Some(*mac)
    }

    /// The link-layer address of a neighbour, for people: it is not marked.
    pub fn mac(&self, port: u16, address: IpAddr) -> Option<MacAddr> {
        self.table.get(&(port, address)).map(|(mac, _)| *mac)
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        self.table.settle()
    }

    /// Adds a neighbour or changes its link-layer address.
    pub fn set(&mut self, port: u16, address: IpAddr, mac: MacAddr) {
        let used = match self.table.get(&(port, address)) {
            Some((known, _)) if *known == mac => return,
            Some((_, used)) => used.clone(),
            None => Arc::default(),
        };
        self.table.insert((port, address), (mac, used));
    }

    /// Removes a neighbour; whether it was there.
    pub fn remove(&mut self, port: u16, address: IpAddr) -> bool {
        self.table.remove(&(port, address)).is_some()
    }

    /// Every neighbour, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u16, IpAddr, MacAddr)> {
        self.table.iter().map(|((port, address), (mac, _))| (*port, *address, *mac))
    }

    /// The neighbours used since the last call, each once.
    pub fn take_used(&self) -> impl Iterator<Item = (u16, IpAddr)> {
        self.table
            .iter()
            .filter(|(_, (_, used))| used.swap(false, Relaxed))
            .map(|((port, address), _)| (*port, *address))
    }

    /// How many neighbours there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resolves_marks_and_forgets() {
        let (a, b) = ("10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap());
        let mut table = Neighbours::new();
        table.set(0, a, MacAddr([2; 6]));
        table.set(1, b, MacAddr([4; 6]));
        assert_eq!(table.resolve(1, a), None, "another port");
        assert_eq!(table.resolve(0, a), Some(MacAddr([2; 6])));
        assert_eq!(table.take_used().collect::<Vec<_>>(), [(0, a)]);
        assert_eq!(table.mac(1, b), Some(MacAddr([4; 6])));
        assert_eq!(table.take_used().count(), 0);

        let old = table.clone();
        table.set(0, a, MacAddr([8; 6]));
        assert_eq!(old.resolve(0, a), Some(MacAddr([2; 6])));
        assert_eq!(table.resolve(0, a), Some(MacAddr([8; 6])));
        assert_eq!(table.take_used().count(), 1, "the mark is shared between versions");

        assert!(table.remove(1, b) && !table.remove(1, b));
        assert_eq!((table.len(), old.len(), table.is_empty()), (1, 2, false));
        assert_eq!(table.iter().collect::<Vec<_>>(), [(0, a, MacAddr([8; 6]))]);
    }
}
