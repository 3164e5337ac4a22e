//! What a policy selects in 20 bytes for IPv4, so that it lies beside what decides.

use std::net::Ipv4Addr;

use wire::ipv4;

use super::fields::{Address, Fields, Shape};
use super::{PolicyConfig, Words};
use crate::prefix::{Family, Prefix};
use crate::selector::{PortMatch, Selector};

/// A [`Shape`] whose ports can be told in a byte, as nearly always; and what else lies in the same bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Brief<A, T> {
    source: A,
    destination: A,
    ports: u32,
    if_id: u32,
    pub(crate) beside: T,
    source_len: u8,
    destination_len: u8,
    protocol: u8,
    ports_counted: PortBits,
}

/// Which bits of the ports count: the place in [`PORT_MASKS`] of a mask over both.
#[derive(Clone, Copy, Debug)]
struct PortBits(u8);

/// Masks over both ports in which one port is in a range that a prefix can say, and the other is anything or a certain
/// one. What is behind those is none, so that every byte is a place.
static PORT_MASKS: [u32; 256] = port_masks();

/// So many masks are told: one port's prefix has none to all of its 16 bits, the other's none or all.
const TOLD: usize = 64;

const fn port_masks() -> [u32; 256] {
    let (mut masks, mut told, mut lens) = ([0; 256], 0, 0);
    while lens < 17 * 17 {
        let (source, destination) = (lens / 17, lens % 17);
        if source % 16 == 0 || destination % 16 == 0 {
            masks[told] =
                (0xffff_0000 >> source & 0xffff) << 16 | 0xffff_0000 >> destination & 0xffff;
            told += 1;
        }
        lens += 1;
    }
    assert!(told == TOLD);
    masks
}

impl PortBits {
    /// None.
    const NONE: PortBits = PortBits(0);

    /// Those of a mask over both, if it can be told.
    fn of(mask: u32) -> Option<PortBits> {
        let place = PORT_MASKS[..TOLD].iter().position(|told| *told == mask)?;
        Some(PortBits(place as u8))
    }

    #[inline(always)]
    fn mask(self) -> u32 {
        PORT_MASKS[usize::from(self.0)]
    }
}

/// Whether a [`Brief`] can tell all of a shape.
pub(crate) fn is_brief<A>(shape: &Shape<A>) -> bool {
    PortBits::of(shape.port_mask).is_some()
}

impl<A: Address, T> Brief<A, T> {
    /// All of a shape but, where they cannot be told, which bits of its ports count: then none do.
    pub(crate) fn with(shape: &Shape<A>, beside: T) -> Brief<A, T> {
        Brief {
            source: shape.source,
            destination: shape.destination,
            ports: shape.ports,
            if_id: shape.if_id,
            beside,
            source_len: shape.source_len,
            destination_len: shape.destination_len,
            protocol: shape.protocol,
            ports_counted: PortBits::of(shape.port_mask).unwrap_or(PortBits::NONE),
        }
    }

    /// Whether a flow is selected.
    #[inline(always)]
    pub(crate) fn selects(&self, flow: &Fields<A>) -> bool {
        self.shape().selects(flow)
    }

    /// The shape.
    #[inline(always)]
    pub(crate) fn shape(&self) -> Shape<A> {
        Shape {
            source: self.source,
            destination: self.destination,
            ports: self.ports,
            port_mask: self.ports_counted.mask(),
            if_id: self.if_id,
            source_len: self.source_len,
            destination_len: self.destination_len,
            protocol: self.protocol,
        }
    }
}

/// A [`Shape`] of IPv4 whose ports can be told so, as it stands in the last two pieces of a packet's header ([`Words`]): it is compared
/// with what was read of a packet, and nothing of either is taken apart. Where a header has what no policy looks at, it says which bits count:
///
/// ```text
///   bits of the source, and whether the protocol counts 8 · protocol 8 · bits of the destination 8 · of the ports 8 · source 32
///   destination 32 · ports 32
/// ```
#[derive(Clone, Copy, Debug)]
#[repr(C, packed(4))]
pub(super) struct BriefV4 {
    ends: [u64; 2],
    if_id: u32,
}

/// Beside the length of the source's prefix, that the protocol counts.
const BY_PROTOCOL: u8 = 1 << 6;

const DESTINATION_SHIFT: u32 = 16;
const PORTS_SHIFT: u32 = 24;

/// What each of the bytes that say which bits count comes to. What is behind those that are told is nothing, so that every byte is a
/// place.
struct Counting {
    source: [u64; 256],
    destination: [u64; 256],
    ports: [u64; 256],
}

static COUNTING: Counting = counting();

const fn counting() -> Counting {
    let mut counting = Counting { source: [0; 256], destination: [0; 256], ports: [0; 256] };
    let mut len = 0;
    while len <= u32::BITS as usize {
        let prefix = (u64::MAX << (u32::BITS as usize - len)) as u32;
        let [source, destination] = ipv4::Plain::ends_of(0, prefix, prefix, 0);
        let [protocol, _] = ipv4::Plain::ends_of(u8::MAX, 0, 0, 0);
        counting.source[len] = source;
        counting.source[len | BY_PROTOCOL as usize] = source | protocol;
        counting.destination[len] = destination;
        len += 1;
    }
    let mut place = 0;
    while place < TOLD {
        [_, counting.ports[place]] = ipv4::Plain::ends_of(0, 0, 0, PORT_MASKS[place]);
        place += 1;
    }
    counting
}

impl BriefV4 {
    /// What a policy selects, if it is of IPv4 and can be told so briefly.
    pub(super) fn of_config(config: &PolicyConfig) -> Option<BriefV4> {
        let shape = Shape::of(config);
        let is_it = config.selector.family() == Family::V4 && is_brief(&shape);
        is_it.then(|| BriefV4::with(&shape))
    }

    /// All of a shape but, where they cannot be told, which bits of its ports count: then none do.
    pub(super) fn with(shape: &Shape<u32>) -> BriefV4 {
        let Shape { source, destination, ports, if_id, .. } = *shape;
        let [first, second] = ipv4::Plain::ends_of(shape.protocol, source, destination, ports);
        let by_protocol = if shape.protocol == 0 { 0 } else { BY_PROTOCOL };
        let PortBits(port_bits) = PortBits::of(shape.port_mask).unwrap_or(PortBits::NONE);
        let counting = u64::from(shape.source_len | by_protocol)
            | u64::from(shape.destination_len) << DESTINATION_SHIFT
            | u64::from(port_bits) << PORTS_SHIFT;
        BriefV4 { ends: [first | counting, second], if_id }
    }

    /// Whether a flow is selected, through the tunnel of that number.
    #[inline(always)]
    pub(super) fn selects(&self, flow: Words, if_id: u32) -> bool {
        let BriefV4 { ends, if_id: own } = *self;
        let place = |shift| usize::from((ends[0] >> shift) as u8);
        let destination = COUNTING.destination[place(DESTINATION_SHIFT)];
        let ports = COUNTING.ports[place(PORTS_SHIFT)];
        let mask = Words([COUNTING.source[place(0)], destination | ports]);
        mask.agree(flow, Words(ends)) & (own == if_id)
    }

    /// The shape.
    pub(super) fn shape(&self) -> Shape<u32> {
        let BriefV4 { ends: [first, second], if_id } = *self;
        let Fields { source, destination, ports, protocol, .. } = Words([first, second]).fields();
        Shape {
            source,
            destination,
            ports,
            port_mask: PortBits((first >> PORTS_SHIFT) as u8).mask(),
            if_id,
            source_len: first as u8 & !BY_PROTOCOL,
            destination_len: (first >> DESTINATION_SHIFT) as u8,
            protocol,
        }
    }

    /// The `if_id`.
    pub(super) fn if_id(&self) -> u32 {
        self.if_id
    }

    /// The selector, without bits of ports that do not count.
    pub(super) fn selector(&self) -> Selector {
        let shape = self.shape();
        let prefix = |bits, len| {
            let address = Ipv4Addr::from_bits(bits).into();
            Prefix::new(address, len).unwrap_or(Prefix::host(address))
        };
        let [source_port, destination_port] = [16, 0].map(|shift| PortMatch {
            port: (shape.ports >> shift) as u16,
            mask: (shape.port_mask >> shift) as u16,
        });
        Selector {
            source: prefix(shape.source, shape.source_len),
            destination: prefix(shape.destination, shape.destination_len),
            protocol: shape.protocol,
            source_port,
            destination_port,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The masks over a port that a prefix says, none and all bits among them.
    fn prefixes() -> impl Iterator<Item = u16> {
        (0..=16).map(|len| (0xffff_0000_u32 >> len) as u16)
    }

    #[test]
    fn one_range_of_ports_is_told_and_two_are_not() {
        let is_range = |mask: u16| !matches!(mask, 0 | u16::MAX);
        for (source, destination) in
            prefixes().flat_map(|one| prefixes().map(move |two| (one, two)))
        {
            let mask = u32::from(source) << 16 | u32::from(destination);
            let told = PortBits::of(mask).map(PortBits::mask);
            assert_eq!(told, (!is_range(source) || !is_range(destination)).then_some(mask));
        }
        // What no prefix says, though it selects a range now and then.
        for mask in [0x0000_0001, 0x7fff_0000, 0xffff_fffd] {
            assert!(PortBits::of(mask).is_none());
        }
    }

    /// Any shape that can be told, and a flow of its own in which a few bits are others, with its tunnel.
    fn shape_and_flow() -> impl Strategy<Value = (Shape<u32>, Fields<u32>, u32)> {
        let lens = (0..=32u8, 0..=32u8, 0..TOLD as u8, prop_oneof![Just(0), any::<u8>()]);
        let differs = prop::collection::vec((0..5usize, 0..32u32), 0..3);
        let value = (any::<u32>(), any::<u32>(), any::<u32>(), 0..2u32, any::<u8>());
        (lens, value, differs).prop_map(
            |((source_len, destination_len, ports, protocol), value, differs)| {
                let (source, destination, all_ports, if_id, other) = value;
                let port_mask = PortBits(ports).mask();
                let shape = Shape {
                    source: source & u32::prefix(source_len),
                    destination: destination & u32::prefix(destination_len),
                    ports: all_ports & port_mask,
                    port_mask,
                    if_id,
                    source_len,
                    destination_len,
                    protocol,
                };
                let mut words = [source, destination, all_ports, if_id];
                let mut protocol = if protocol == 0 { other } else { protocol };
                for (field, bit) in differs {
                    match words.get_mut(field) {
                        Some(word) => *word ^= 1 << bit,
                        None => protocol ^= 1 << (bit % 8),
                    }
                }
                let [source, destination, ports, if_id] = words;
                let value = Shape { source, destination, ports, if_id, protocol, ..shape }.value();
                (shape, value, if_id)
            },
        )
    }

    proptest! {
        #[test]
        fn words_of_a_header_are_selected_as_fields_are((shape, flow, if_id) in shape_and_flow()) {
            let brief = BriefV4::with(&shape);
            prop_assert_eq!(brief.shape(), shape);
            let selects = shape.selects(&flow);
            prop_assert!(is_brief(&shape));
            prop_assert_eq!(Brief::with(&shape, ()).selects(&flow), selects);
            // Of what else is in a packet's words, hops and checksum, nothing counts.
            let Fields { source, destination, ports, protocol, .. } = flow;
            let [first, second] = ipv4::Plain::ends_of(protocol, source, destination, ports);
            for beside in [0, 0xffff_00ff, 0x1234_0040] {
                let words = Words([first | beside, second]);
                prop_assert_eq!(brief.selects(words, if_id), selects);
            }
        }
    }
}
