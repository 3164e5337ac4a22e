//! The inbound SA database: which SA opens a packet.
//!
//! Keyed by SPI and outer destination (RFC 4301 §4.1, unicast SAs). Whatever else control knows of
//! an SA (marks, larval states, outbound SAs) is not here.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crate::cpu::Cache;
use crate::sa::Sa;
use crate::table::{Home, Table};

/// SPI and outer destination, as small as they go: four of IPv4 lie in a cache line with their SAs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    V4(KeyV4),
    V6(KeyV6),
}

/// The SPI in the upper half.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyV4(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyV6 {
    high: u64,
    low: u64,
    spi: u32,
}

impl Key {
    #[inline]
    pub(crate) fn new(spi: u32, destination: IpAddr) -> Key {
        match destination {
            IpAddr::V4(v4) => Key::V4(KeyV4::new(spi, v4)),
            IpAddr::V6(v6) => Key::V6(KeyV6::new(spi, v6)),
        }
    }
}

impl KeyV4 {
    #[inline]
    fn new(spi: u32, destination: Ipv4Addr) -> KeyV4 {
        KeyV4(u64::from(spi) << 32 | u64::from(destination.to_bits()))
    }
}

impl KeyV6 {
    fn new(spi: u32, destination: Ipv6Addr) -> KeyV6 {
        let bits = destination.to_bits();
        KeyV6 { high: (bits >> 64) as u64, low: bits as u64, spi }
    }
}

/// The name of an SA of IPv4 that was asked for.
#[derive(Clone, Copy)]
pub(crate) struct AskedV4<'a> {
    key: KeyV4,
    hash: u64,
    home: Home<'a, KeyV4, Arc<Sa>, 4>,
}

/// A version of the inbound SA database. Cloning is cheap; versions share what did not change.
#[derive(Clone)]
pub struct Sad {
    v4: Table<KeyV4, Arc<Sa>, 4>,
    v6: Table<KeyV6, Arc<Sa>>,
}

const _: () = assert!(Table::<KeyV4, Arc<Sa>, 4>::LINE_LEN == 64);
const _: () = assert!(Table::<KeyV6, Arc<Sa>>::LINE_LEN == 64);

impl Sad {
    /// An empty database.
    pub fn new() -> Sad {
        Sad { v4: Table::new(), v6: Table::new() }
    }

    /// The SA that a received packet names.
    #[inline]
    pub fn get(&self, spi: u32, destination: IpAddr) -> Option<&Arc<Sa>> {
        match Key::new(spi, destination) {
            Key::V4(key) => self.v4.get(&key),
            Key::V6(key) => self.v6.get(&key),
        }
    }

    /// Asks for the memory that [`get_hashed`](Sad::get_hashed) will read; the key's hash.
    #[inline]
    pub(crate) fn prefetch(&self, key: &Key, cache: Cache) -> u64 {
        match key {
            Key::V4(key) => self.v4.prefetch(key, cache),
            Key::V6(key) => self.v6.prefetch(key, cache),
        }
    }

    /// As [`get`](Sad::get), with the hash that [`prefetch`](Sad::prefetch) returned.
    #[inline]
    pub(crate) fn get_hashed(&self, hash: u64, key: &Key) -> Option<&Arc<Sa>> {
        match key {
            Key::V4(key) => self.v4.get_hashed(hash, key),
            Key::V6(key) => self.v6.get_hashed(hash, key),
        }
    }

    /// Asks for the memory that [`find_v4`](Sad::find_v4) will mostly read.
    #[inline(always)]
    pub(crate) fn ask_v4(&self, spi: u32, destination: Ipv4Addr, cache: Cache) -> AskedV4<'_> {
        let key = KeyV4::new(spi, destination);
        let hash = self.v4.hash(&key);
        AskedV4 { key, hash, home: self.v4.ask(hash, cache) }
    }

    /// The SA that was asked for.
    #[inline(always)]
    pub(crate) fn find_v4<'a>(
        &'a self,
        AskedV4 { key, hash, home }: AskedV4<'a>,
    ) -> Option<&'a Arc<Sa>> {
        self.v4.find_from(home, hash, move |found| *found == key).map(|(_, sa)| sa)
    }

    /// See [`Table::settle`].
    pub(crate) fn settle(&mut self) -> bool {
        self.v4.settle() | self.v6.settle()
    }

    /// Adds an SA, or replaces the one with its SPI and destination, which is returned.
    pub fn insert(&mut self, sa: Arc<Sa>) -> Option<Arc<Sa>> {
        match Key::new(sa.spi(), sa.destination()) {
            Key::V4(key) => self.v4.insert(key, sa),
            Key::V6(key) => self.v6.insert(key, sa),
        }
    }

    /// Removes an SA.
    pub fn remove(&mut self, spi: u32, destination: IpAddr) -> Option<Arc<Sa>> {
        match Key::new(spi, destination) {
            Key::V4(key) => self.v4.remove(&key),
            Key::V6(key) => self.v6.remove(&key),
        }
    }

    /// How many SAs there are.
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every SA, in no order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Sa>> {
        self.v4.iter().map(|(_, sa)| sa).chain(self.v6.iter().map(|(_, sa)| sa))
    }
}

impl Default for Sad {
    fn default() -> Sad {
        Sad::new()
    }
}
