//! Random IP packets: well formed, with every header the path may meet, and then damaged.

use proptest::collection::vec;
use proptest::prelude::*;
use wire::{Overlay, checksum, ipv4, ipv6, ipv6_ext, protocol};

/// Protocols and next headers that matter, and any other.
fn next_header() -> impl Strategy<Value = u8> {
    use protocol::*;
    prop_oneof![
        6 => prop::sample::select(vec![TCP, UDP, ICMP, ICMPV6, ESP]),
        2 => prop::sample::select(vec![GRE, SCTP, DCCP, UDP_LITE, AH, MOBILITY, NO_NEXT_HEADER]),
        1 => any::<u8>(),
    ]
}

/// What a transport starts with: any bytes, often long enough for its header.
fn transport() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![1 => vec(any::<u8>(), 0..24), 4 => vec(any::<u8>(), 24..120)]
}

/// A fragment's place: whole, first, later, the forged one of RFC 3128, the far end.
fn place() -> impl Strategy<Value = (u16, bool)> {
    prop_oneof![
        6 => Just((0, false)),
        2 => Just((0, true)),
        2 => (1u16..0x1fff, any::<bool>()).prop_map(|(units, more)| (units * 8, more)),
        1 => Just((8, true)),
        1 => Just((0xfff8, false)),
    ]
}

fn options_v4() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        6 => Just(vec![]),
        2 => Just(vec![148, 4, 0, 0]),
        1 => Just(vec![1, 131, 7, 4, 10, 0, 0, 1]),
        1 => Just(vec![1, 137, 7, 8, 10, 0, 0, 1]),
        1 => vec(any::<[u8; 4]>(), 1..10).prop_map(|words| words.concat()),
    ]
}

/// An IPv4 packet whose lengths and checksum are right.
pub fn packet_v4() -> impl Strategy<Value = Vec<u8>> {
    let header = (any::<[u8; 8]>(), any::<u8>(), any::<u8>(), any::<bool>(), any::<u16>());
    (header, next_header(), options_v4(), place(), transport()).prop_map(
        |((addresses, ttl, tos, dont_fragment, id), protocol, options, (offset, more), data)| {
            let [a, b, c, d, e, f, g, h] = addresses;
            let template =
                ipv4::Template::new([a, b, c, d].into(), [e, f, g, h].into(), protocol, ttl);
            let total_len = (20 + options.len() + data.len()) as u16;
            let header = template.stamp(total_len, id, tos, dont_fragment);
            let mut packet = vec![0; 20];
            header.emit(&mut packet).unwrap();
            packet[0] += (options.len() / 4) as u8;
            packet[6] |= u8::from(more) << 5 | (offset >> 11) as u8;
            packet[7] = (offset >> 3) as u8;
            packet.extend(options);
            packet.extend(data);
            mend_checksum(&mut packet);
            packet
        },
    )
}

/// Puts the right checksum into an IPv4 header, if there is a whole one.
fn mend_checksum(packet: &mut [u8]) {
    let header_len = usize::from(packet[0] & 0x0f) * 4;
    if header_len >= 12
        && let Some(header) = packet.get_mut(..header_len)
    {
        header[10..12].fill(0);
        let checksum = checksum::of(header);
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
    }
}

/// One extension header with its number; its first byte is still to be set.
fn extension() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let options = prop_oneof![
        Just(vec![0, 0, 1, 4, 0, 0, 0, 0]),
        Just(vec![0, 0, 5, 2, 0, 0, 1, 0]),
        Just(vec![0, 0, 0xc2, 4, 0, 1, 0, 0]),
        Just([&[0, 1][..], &[0; 14]].concat()),
        any::<[u8; 6]>().prop_map(|bytes| [&[0, 0], &bytes[..]].concat()),
        any::<[u8; 14]>().prop_map(|bytes| [&[0, 1], &bytes[..]].concat()),
    ];
    let routing = (any::<[u8; 4]>(), 0u8..5, 0u8..3)
        .prop_map(|(bytes, kind, left)| [&[0, 0, kind, left], &bytes[..]].concat());
    let fragment = (place(), any::<u32>()).prop_map(|((offset, more), id)| {
        let mut bytes = vec![0; 8];
        ipv6_ext::Fragment::new(0, offset, more, id).emit(&mut bytes).unwrap();
        bytes
    });
    prop_oneof![
        4 => options.prop_map(|bytes| (protocol::DESTINATION_OPTIONS, bytes)),
        2 => routing.prop_map(|bytes| (protocol::ROUTING, bytes)),
        4 => fragment.prop_map(|bytes| (protocol::FRAGMENT, bytes)),
    ]
}

/// The chain of an IPv6 packet: usually none or a short one, hop-by-hop in front or not.
fn chain() -> impl Strategy<Value = Vec<(u8, Vec<u8>)>> {
    let extensions = prop_oneof![
        4 => Just(vec![]),
        8 => vec(extension(), 1..4),
        1 => vec(extension(), 7..11),
    ];
    (extensions, prop::bool::weighted(0.2)).prop_map(|(mut extensions, hop_by_hop)| {
        if let (true, Some((number, _))) = (hop_by_hop, extensions.first_mut())
            && *number == protocol::DESTINATION_OPTIONS
        {
            *number = protocol::HOP_BY_HOP;
        }
        extensions
    })
}

/// An IPv6 packet whose lengths are right.
pub fn packet_v6() -> impl Strategy<Value = Vec<u8>> {
    let header = (any::<u128>(), any::<u128>(), any::<u8>(), any::<u8>(), any::<u32>());
    (header, chain(), next_header(), transport()).prop_map(
        |((source, destination, hop_limit, class, label), mut chain, last, data)| {
            let numbers: Vec<u8> = chain.iter().map(|(number, _)| *number).chain([last]).collect();
            for ((_, bytes), next) in chain.iter_mut().zip(&numbers[1..]) {
                bytes[0] = *next;
            }
            let body: Vec<u8> =
                chain.into_iter().flat_map(|(_, bytes)| bytes).chain(data).collect();
            let template =
                ipv6::Template::new(source.into(), destination.into(), numbers[0], hop_limit);
            let mut packet = vec![0; 40];
            template.stamp(body.len() as u16, class, label).emit(&mut packet).unwrap();
            packet.extend(body);
            packet
        },
    )
}

/// What happens to a packet on its way to a parser.
#[derive(Clone, Debug)]
pub enum Damage {
    None,
    Byte(prop::sample::Index, u8),
    Cut(prop::sample::Index),
    Padding(Vec<u8>),
}

/// A well formed packet, or one with a byte changed (the IPv4 checksum mended half of the
/// time), an end cut off, or padding behind it.
pub fn packet() -> impl Strategy<Value = Vec<u8>> {
    let damage = prop_oneof![
        3 => Just(Damage::None),
        4 => any::<(prop::sample::Index, u8)>().prop_map(|(at, byte)| Damage::Byte(at, byte)),
        1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
        1 => vec(any::<u8>(), 1..20).prop_map(Damage::Padding),
    ];
    (prop_oneof![packet_v4(), packet_v6()], damage, any::<bool>()).prop_map(
        |(mut packet, damage, mend)| {
            match damage {
                Damage::None => (),
                // Headers are where damage counts: stay within the first 80 bytes.
                Damage::Byte(at, byte) => {
                    let at = at.index(packet.len().min(80));
                    packet[at] = byte;
                }
                Damage::Cut(at) => packet.truncate(at.index(packet.len())),
                Damage::Padding(bytes) => packet.extend(bytes),
            }
            if mend && packet.first().is_some_and(|byte| byte >> 4 == 4) {
                mend_checksum(&mut packet);
            }
            packet
        },
    )
}

/// A frame with up to three tags of any kind around a packet.
pub fn frame() -> impl Strategy<Value = Vec<u8>> {
    let types = prop::sample::select(vec![0x8100u16, 0x8100, 0x88a8, 0x9100, 0x88e5, 0x0800]);
    let tags = prop_oneof![Just(vec![]), vec((types, any::<u16>()), 1..4)];
    (any::<[u8; 12]>(), tags, packet()).prop_map(|(addresses, tags, packet)| {
        let mut frame = addresses.to_vec();
        for (ethertype, tci) in tags {
            frame.extend(ethertype.to_be_bytes());
            frame.extend(tci.to_be_bytes());
        }
        let is_v6 = packet.first().is_some_and(|byte| byte >> 4 == 6);
        frame.extend(if is_v6 { [0x86, 0xdd] } else { [0x08, 0x00] });
        frame.extend(packet);
        frame
    })
}
