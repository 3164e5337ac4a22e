//! Keys of tables with 100 000 entries: a few bytes in place, more of them elsewhere.
//!
//! What names a tunnel's ends or a flow takes four bytes for an IPv4 address and sixteen for an IPv6
//! address. A key with room for the longest is mostly empty.

use std::net::IpAddr;

use arrayvec::ArrayVec;

/// The bytes of a key: up to `N` in place.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Short<const N: usize>(Bytes<N>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Bytes<const N: usize> {
    /// How many, and then zeros.
    Here(u8, [u8; N]),
    /// Always more than `N`. Twice boxed, to take one word here.
    #[allow(clippy::box_collection)]
    There(Box<Vec<u8>>),
}

impl<const N: usize> Short<N> {
    /// A key of these bytes.
    pub fn new(bytes: &[u8]) -> Short<N> {
        let mut here = [0; N];
        match here.get_mut(..bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                Short(Bytes::Here(bytes.len() as u8, here))
            }
            None => Short(Bytes::There(Box::new(bytes.to_vec()))),
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.0 {
            Bytes::Here(len, bytes) => bytes.get(..usize::from(*len)).unwrap_or_default(),
            Bytes::There(bytes) => bytes,
        }
    }
}

/// The most that a key is made of: two addresses of IPv6, and twelve bytes.
pub const KEY_BYTES_MAX: usize = 12 + 2 * 16;

/// What a key is being made of, where it costs nothing.
pub type Parts = ArrayVec<u8, KEY_BYTES_MAX>;

/// Appends bytes, for which there is room.
pub fn put(parts: &mut Parts, bytes: &[u8]) {
    parts.extend(bytes.iter().copied());
}

/// Appends an address, whose family its length tells.
pub fn put_address(parts: &mut Parts, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => put(parts, &v4.octets()),
        IpAddr::V6(v6) => put(parts, &v6.octets()),
    }
}

/// Takes an address of a family off the front.
pub fn take_address(bytes: &mut &[u8], is_ipv4: bool) -> Option<IpAddr> {
    if is_ipv4 {
        let (first, rest) = bytes.split_first_chunk::<4>()?;
        *bytes = rest;
        return Some(IpAddr::from(*first));
    }
    let (first, rest) = bytes.split_first_chunk::<16>()?;
    *bytes = rest;
    Some(IpAddr::from(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_any_length_are_what_they_are() {
        for len in 0..40u8 {
            let bytes: Vec<u8> = (0..len).collect();
            let key = Short::<14>::new(&bytes);
            assert_eq!(key.bytes(), bytes);
            assert_eq!(key, Short::new(&bytes));
            assert_ne!(key, Short::new(&[&bytes[..], &[0]].concat()));
        }
        assert_eq!((size_of::<Short<14>>(), size_of::<Short<22>>()), (16, 24));
    }

    #[test]
    fn addresses_come_back() {
        for text in ["192.0.2.1", "2001:db8::1"] {
            let address: IpAddr = text.parse().unwrap();
            let mut parts = Parts::new();
            put_address(&mut parts, address);
            let mut rest = &parts[..];
            assert_eq!(take_address(&mut rest, address.is_ipv4()), Some(address));
            assert!(rest.is_empty() && take_address(&mut rest, true).is_none());
        }
    }
}
