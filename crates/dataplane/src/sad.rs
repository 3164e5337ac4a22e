//! The inbound SA database: which SA opens a packet.
//!
//! Keyed by SPI and outer destination (RFC 4301 §4.1, unicast SAs). Whatever else control knows of
//! an SA (marks, larval states, outbound SAs) is not here.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cpu::prefetch_count;
use crate::prefix::address_bits;
use crate::sa::Sa;
use crate::table::Table;

/// SPI and outer destination, as numbers that hash quickly: family and SPI, then the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64, u64, u64);

impl Key {
    #[inline]
    pub(crate) fn new(spi: u32, destination: IpAddr) -> Key {
        let (family, bits) = (u64::from(destination.is_ipv6()), address_bits(destination));
        Key(family << 32 | u64::from(spi), (bits >> 64) as u64, bits as u64)
    }
}

/// A version of the inbound SA database. Cloning is cheap; versions share what did not change.
#[derive(Clone)]
pub struct Sad {
    table: Table<Key, Arc<Sa>>,
}

impl Sad {
    /// An empty database.
    pub fn new() -> Sad {
        Sad { table: Table::fetching(prefetch_count) }
    }

    /// The SA that a received packet names.
    #[inline]
    pub fn get(&self, spi: u32, destination: IpAddr) -> Option<&Arc<Sa>> {
        self.table.get(&Key::new(spi, destination))
    }

    /// Asks for the memory that [`get_hashed`](Sad::get_hashed) will read; the key's hash.
    #[inline]
    pub(crate) fn prefetch(&self, key: &Key) -> u64 {
        self.table.prefetch(key)
    }

    /// As [`get`](Sad::get), with the hash that [`prefetch`](Sad::prefetch) returned.
    #[inline]
    pub(crate) fn get_hashed(&self, hash: u64, key: &Key) -> Option<&Arc<Sa>> {
        self.table.get_hashed(hash, key)
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        self.table.settle()
    }

    /// Adds an SA, or replaces the one with its SPI and destination, which is returned.
    pub fn insert(&mut self, sa: Arc<Sa>) -> Option<Arc<Sa>> {
        self.table.insert(Key::new(sa.config().spi, sa.config().destination), sa)
    }

    /// Removes an SA.
    pub fn remove(&mut self, spi: u32, destination: IpAddr) -> Option<Arc<Sa>> {
        self.table.remove(&Key::new(spi, destination))
    }

    /// How many SAs there are.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Every SA, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.table.iter().map(|(_, sa)| sa)
    }
}

impl Default for Sad {
    fn default() -> Sad {
        Sad::new()
    }
}
