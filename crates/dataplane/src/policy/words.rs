//! What policies look at in a flow of IPv4, as a packet's header has it.

use std::hash::{Hash, Hasher};

use wire::flow;
use wire::ipv4;

use super::fields::Fields;

/// What a flow of IPv4 outside of route mode has in its fields, or a mask over it, as it stands in the last two pieces of a packet's
/// header ([`ipv4::Plain::ends`]): so nothing is taken apart and put together again. It hashes as its fields do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words(pub(super) [u64; 2]);

impl Words {
    #[inline(always)]
    pub(crate) fn of(fields: &Fields<u32>) -> Words {
        let (source, destination) = (fields.source, fields.destination);
        Words(ipv4::Plain::ends_of(fields.protocol, source, destination, fields.ports))
    }

    /// Those of the packet that has a header, and beside them what no mask looks at.
    #[inline(always)]
    pub(crate) fn of_header(header: &ipv4::Plain) -> Words {
        match flow::shows_ports(header.protocol()) {
            true => Words(header.ends()),
            false => Words::of_portless(header.ends()),
        }
    }

    /// The same where a packet has no ports where others have them. Told of its ends, which registers hold: a header would be written to
    /// memory for each packet that has ports as well.
    #[cold]
    fn of_portless(ends: [u64; 2]) -> Words {
        Words::of(&Fields::of(&flow::of_plain_v4(&ipv4::Plain::with_ends(ends)), 0))
    }

    #[inline(always)]
    pub(crate) fn under(self, mask: Words) -> Words {
        let (Words([second, third]), Words(mask)) = (self, mask);
        Words([second & mask[0], third & mask[1]])
    }

    /// Whether two differ in nothing that this mask looks at.
    #[inline(always)]
    pub(crate) fn agree(self, one: Words, other: Words) -> bool {
        let (Words(mask), Words(one), Words(other)) = (self, one, other);
        ((one[0] ^ other[0]) & mask[0] | (one[1] ^ other[1]) & mask[1]) == 0
    }

    /// The mask that looks at every bit of the addresses as well.
    #[inline(always)]
    pub(crate) fn with_all_addresses(self) -> Words {
        let addresses = ipv4::Plain::ends_of(0, u32::MAX, u32::MAX, 0);
        let Words([second, third]) = self;
        Words([second | addresses[0], third | addresses[1]])
    }

    #[inline(always)]
    pub(crate) fn fields(self) -> Fields<u32> {
        let Words([second, third]) = self;
        Fields {
            source: ((second >> 32) as u32).swap_bytes(),
            destination: (third as u32).swap_bytes(),
            ports: ((third >> 32) as u32).swap_bytes(),
            if_id: 0,
            protocol: (second >> 8) as u8,
        }
    }
}

impl Hash for Words {
    #[inline(always)]
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Words([second, third]) = self;
        state.write_u64(*second);
        state.write_u64(*third);
    }
}
