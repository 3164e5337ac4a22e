//! What comes to a gateway.

use std::net::IpAddr;

use dataplane::sa::SaConfig;
use proptest::prelude::*;
use wire::{ipv4, protocol};

use super::case::{BLOCKED_PORT, CLEAR_PORT, Case, FORBIDDEN_PORT, IN_UDP, LOCAL, LOCAL_V6};
use super::families::{self, Inside, likeness};
use super::fixture::*;

/// One packet, or what happens between two.
#[derive(Clone, Copy, Debug)]
pub enum Step {
    /// UDP into the tunnel, to some of its hosts and ports. Where there are both families, it is of the one or the other.
    Plain { v6: bool, host: u8, port: u16, len: usize },
    /// So many of one kind.
    Burst { v6: bool, host: u8, count: usize },
    /// Of another protocol than UDP, what is carried beginning with these bytes.
    Protocol { v6: bool, host: u8, protocol: u8, begin: [u8; 4] },
    /// Part of a packet of IPv4: what is said of parts, and the protocol of all.
    Part { host: u8, bits: u16, protocol: u8 },
    /// UDP into the tunnel with one byte changed: of all, or of what is in the tunnel.
    Changed { v6: bool, host: u8, change: Change, is_inside: bool },
    /// One with something about it.
    Odd(bool, Odd),
    /// A packet the other way, to the other port.
    Back(bool),
    /// ESP to one of its hosts with something about it.
    Esp(bool, u8, Esp),
    /// What waits is forwarded.
    Turn,
    /// Another SA takes the place of the one that seals.
    Rekey,
    /// A view that says the same.
    Publish,
    /// A port is blocked from now on, or no more.
    Block(bool),
}

impl Step {
    /// Whether it is a packet.
    pub fn waits(self) -> bool {
        !matches!(self, Step::Turn | Step::Rekey | Step::Publish | Step::Block(_))
    }
}

/// Another byte somewhere in a frame, with the checksum of the header of IPv4 behind the link header mended or not.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub at: usize,
    pub to: u8,
    pub mends: bool,
}

impl Change {
    /// Of a frame from so many bytes on.
    fn make(self, mut frame: Vec<u8>, from: usize) -> Vec<u8> {
        let at = from + self.at % (frame.len() - from);
        frame[at] = self.to;
        if self.mends {
            ipv4::mend_checksum(&mut frame[14..]);
        }
        frame
    }
}

#[derive(Clone, Copy, Debug)]
pub enum Odd {
    LastHop,
    ForHost,
    Elsewhere,
    Martian,
    Spoofed,
    Options,
    FirstFragment,
    LaterFragment,
    BadChecksum,
    NotForUs,
    Truncated,
    Padded,
    JustFits,
    TooBig,
    OtherFamily,
    /// With a version that the frame does not say, or none says.
    Version,
    NoVersion,
    /// ICMP, and such with a code of 0.
    Icmp,
    Echo,
    Congested,
    /// By the other port, but for this one.
    WrongPort,
    /// ESP of others, whose SPI looks like ports.
    TransitEsp,
    /// The same on its last hop, or of and for whom no packet is forwarded.
    LastHopEsp,
    MartianEsp,
    EspForHost,
}

#[derive(Clone, Copy, Debug)]
pub enum Esp {
    Again,
    Late,
    TooLate,
    FarAhead,
    Forged,
    Padded,
    OddlyPadded,
    Dummy,
    /// What is inside is of another family than is said, or is cut off, or has something between its headers.
    Misnamed,
    Cut,
    Between,
    OfNobody,
    ForOther,
    Short,
    /// A frame with bytes behind the packet, or with fewer than it says.
    LinkPadded,
    Truncated,
    /// Over IPv6: behind an extension header, as if it were another protocol, with another version, or with nothing behind the header.
    Extended,
    Mislabelled,
    Version,
    Empty,
    Congested,
    /// Capable of ECN: as it was sent, marked on its way, or marked in the other way.
    Capable,
    Marked,
    MarkedOtherwise,
    WrongPort,
    /// Where what is expected in UDP comes without, and the other way round.
    Mistaken,
    /// In UDP: from elsewhere, or another port; to another port where ESP comes, or one where none does.
    Moved,
    MovedPort,
    OtherPort,
    HostsPort,
    /// A datagram with bytes behind it, or with fewer than it says, or with something else in it.
    Trailed,
    CutShort,
    Ike,
    Keepalive,
}

pub const ESPS: [Esp; 34] = [
    Esp::Again,
    Esp::Late,
    Esp::TooLate,
    Esp::FarAhead,
    Esp::Forged,
    Esp::Padded,
    Esp::OddlyPadded,
    Esp::Dummy,
    Esp::Misnamed,
    Esp::Cut,
    Esp::Between,
    Esp::OfNobody,
    Esp::ForOther,
    Esp::Short,
    Esp::LinkPadded,
    Esp::Truncated,
    Esp::Extended,
    Esp::Mislabelled,
    Esp::Version,
    Esp::Empty,
    Esp::Congested,
    Esp::Capable,
    Esp::Marked,
    Esp::MarkedOtherwise,
    Esp::WrongPort,
    Esp::Mistaken,
    Esp::Moved,
    Esp::MovedPort,
    Esp::OtherPort,
    Esp::HostsPort,
    Esp::Trailed,
    Esp::CutShort,
    Esp::Ike,
    Esp::Keepalive,
];

pub const ODDS: [Odd; 25] = [
    Odd::LastHop,
    Odd::ForHost,
    Odd::Elsewhere,
    Odd::Martian,
    Odd::Spoofed,
    Odd::Options,
    Odd::FirstFragment,
    Odd::LaterFragment,
    Odd::BadChecksum,
    Odd::NotForUs,
    Odd::Truncated,
    Odd::Padded,
    Odd::JustFits,
    Odd::TooBig,
    Odd::OtherFamily,
    Odd::Version,
    Odd::NoVersion,
    Odd::Icmp,
    Odd::Echo,
    Odd::Congested,
    Odd::WrongPort,
    Odd::TransitEsp,
    Odd::LastHopEsp,
    Odd::MartianEsp,
    Odd::EspForHost,
];

/// Protocols that are read in one way or another, and some that are not read.
pub const PROTOCOLS: [u8; 11] = [
    protocol::TCP,
    protocol::SCTP,
    protocol::DCCP,
    protocol::UDP_LITE,
    protocol::GRE,
    protocol::IPV4,
    protocol::AH,
    protocol::MOBILITY,
    protocol::NO_NEXT_HEADER,
    89,
    253,
];

pub fn step() -> impl Strategy<Value = Step> {
    let special = prop::sample::select(&[CLEAR_PORT, FORBIDDEN_PORT, BLOCKED_PORT][..]);
    let port = prop_oneof![6 => Just(5000), 1 => special, 1 => 1u16..60_000];
    let plain = (any::<bool>(), 0u8..3, port, 0usize..300);
    let plain = plain.prop_map(|(v6, host, port, len)| Step::Plain { v6, host, port, len });
    let burst = (any::<bool>(), 0u8..3, 2usize..50);
    let odd = (any::<bool>(), prop::sample::select(&ODDS[..]));
    let esp = (any::<bool>(), 0u8..3, prop::sample::select(&ESPS[..]));
    let protocols = prop::sample::select(&PROTOCOLS[..]);
    // In GRE the third bit says that there is a key.
    let begin = prop_oneof![Just([0; 4]), Just([0x20, 0, 8, 0]), any::<[u8; 4]>()];
    let protocol = (any::<bool>(), 0u8..3, protocols.clone(), begin);
    // Of parts of eight bytes where it begins, whether there are more, and whether it must not be one.
    let bits = (prop_oneof![Just(0u16), Just(1), 2u16..200, Just(0x1fff)], any::<[bool; 2]>());
    let bits = bits.prop_map(|(at, [more, not])| at | u16::from(more) << 13 | u16::from(not) << 14);
    // Most bytes that say something are at the beginning, and many of them by single bits.
    let at = prop_oneof![4 => 0usize..80, 1 => any::<usize>()];
    let to = prop_oneof![any::<u8>(), (0u32..8).prop_map(|bit| 1 << bit)];
    let change = (at, to, any::<bool>()).prop_map(|(at, to, mends)| Change { at, to, mends });
    let changed = (any::<bool>(), 0u8..3, change, any::<bool>());
    let udp = prop_oneof![2 => Just(protocol::UDP), 1 => protocols];
    let part = (0u8..3, bits, udp);
    prop_oneof![
        60 => plain,
        3 => protocol.prop_map(|(v6, host, protocol, begin)| Step::Protocol { v6, host, protocol, begin }),
        5 => part.prop_map(|(host, bits, protocol)| Step::Part { host, bits, protocol }),
        4 => changed.prop_map(|(v6, host, change, is_inside)| Step::Changed { v6, host, change, is_inside }),
        4 => odd.prop_map(|(v6, odd)| Step::Odd(v6, odd)),
        2 => burst.prop_map(|(v6, host, count)| Step::Burst { v6, host, count }),
        3 => any::<bool>().prop_map(Step::Back),
        3 => esp.prop_map(|(v6, host, esp)| Step::Esp(v6, host, esp)),
        8 => Just(Step::Turn),
        1 => Just(Step::Rekey),
        1 => Just(Step::Publish),
        1 => any::<bool>().prop_map(Step::Block),
    ]
}

pub fn udp(host: u8, port: u16, len: usize) -> Packet {
    Packet::udp(Site::West.host(false), ip(&format!("10.2.0.{}", host + 1)), 4000, port, len)
}

/// An IPv4 packet with other bytes in its header, and a right checksum.
fn with(mut bytes: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for (at, byte) in changes {
        bytes[*at] = *byte;
    }
    assert!(ipv4::mend_checksum(&mut bytes));
    bytes
}

/// A packet of IPv6 with an extension header in front of what it carries, of eight bytes, the third and fourth of which are these.
fn between(bytes: &[u8], kind: u8, word: u16) -> Vec<u8> {
    let [high, low] = word.to_be_bytes();
    let options = kind == protocol::DESTINATION_OPTIONS;
    let extension = [bytes[6], 0, if options { 1 } else { high }, if options { 4 } else { low }];
    let mut packet = [&bytes[..40], &extension, &[0; 4], &bytes[40..]].concat();
    let len = (packet.len() - 40) as u16;
    packet[4..6].copy_from_slice(&len.to_be_bytes());
    packet[6] = kind;
    packet
}

impl Odd {
    pub fn frame(self, v6: bool) -> Vec<u8> {
        let of_family = |packet: Packet| if v6 { families::packet(packet) } else { packet };
        let packet = of_family(udp(1, 5000, 40));
        let bytes = packet.bytes();
        let header_len = if v6 { 40 } else { 20 };
        // Outer headers of IPv4, ESP and its trailer and ICV take 54 to 57 bytes.
        let of_len = |len: usize| of_family(udp(1, 5000, len - header_len - 8)).frame(RED);
        let ports = [4000u16, 5000].map(u16::to_be_bytes).concat();
        let payload = [&ports[..], &[0; 36]].concat();
        let esp = Packet { protocol: protocol::ESP, payload, ..packet.clone() };
        let at = |address: &str| if v6 { likeness(ip(address)) } else { ip(address) };
        match self {
            Odd::LastHop => Packet { ttl: 1, ..packet }.frame(RED),
            Odd::ForHost => Packet { dst: at(LOCAL), ..packet }.frame(RED),
            Odd::Elsewhere => Packet { dst: at("198.51.100.7"), ..packet }.frame(RED),
            Odd::Martian => Packet { src: at("127.0.0.1"), ..packet }.frame(RED),
            Odd::Spoofed => Packet { src: at("10.9.9.9"), ..packet }.frame(RED),
            Odd::Options if v6 => frame(RED, &between(&bytes, protocol::DESTINATION_OPTIONS, 0)),
            Odd::FirstFragment if v6 => frame(RED, &between(&bytes, protocol::FRAGMENT, 1)),
            Odd::LaterFragment if v6 => frame(RED, &between(&bytes, protocol::FRAGMENT, 3 << 3)),
            // There is no checksum, but a length.
            Odd::BadChecksum if v6 => {
                let mut bytes = bytes;
                bytes[4] ^= 0x55;
                frame(RED, &bytes)
            }
            Odd::Options => {
                let options = [&bytes[..20], &[1, 1, 1, 0], &bytes[20..]].concat();
                let len = options.len() as u8;
                frame(RED, &with(options, &[(0, 0x46), (3, len)]))
            }
            Odd::FirstFragment => frame(RED, &with(bytes, &[(6, 0x20), (7, 0)])),
            Odd::LaterFragment => frame(RED, &with(bytes, &[(6, 0), (7, 3)])),
            Odd::BadChecksum => {
                let mut bytes = bytes;
                bytes[10] ^= 0x55;
                frame(RED, &bytes)
            }
            Odd::NotForUs => packet.frame(BLACK),
            Odd::Truncated => frame(RED, &bytes[..bytes.len() - 5]),
            Odd::Padded => [packet.frame(RED), vec![0xee; 9]].concat(),
            Odd::JustFits => of_len(1446),
            Odd::TooBig => of_len(1447),
            Odd::OtherFamily => Packet::towards(Site::East, !v6, 10).frame(RED),
            Odd::Version => {
                let mut other = packet.frame(RED);
                other[14] ^= 0x20;
                other
            }
            Odd::NoVersion => {
                let mut other = packet.frame(RED);
                other[14] |= 0x10;
                other
            }
            Odd::Icmp | Odd::Echo => {
                let protocol = if v6 { protocol::ICMPV6 } else { protocol::ICMP };
                let code = if matches!(self, Odd::Echo) { 0 } else { 8 };
                let payload = [&[8, code], &[8; 14][..]].concat();
                Packet { protocol, payload, ..packet }.frame(RED)
            }
            Odd::WrongPort => packet.frame(RED),
            Odd::TransitEsp => esp.frame(RED),
            Odd::LastHopEsp => Packet { ttl: 1, ..esp }.frame(RED),
            Odd::MartianEsp => Packet { src: at("127.0.0.1"), ..esp }.frame(RED),
            Odd::EspForHost => Packet { dst: at(LOCAL), ..esp }.frame(RED),
            Odd::Congested => Packet { tos: 0xff, dont_fragment: true, ..packet }.frame(RED),
        }
    }
}

/// What the data of packets begins with that came in such ESP: one with the same is between the same hosts, inside and outside.
pub const ESP: u8 = 0xc0;

impl Esp {
    /// The frame around a packet with the next number, which it takes.
    fn frame(self, v6: bool, host: u8, sa: &SaConfig, next: &mut u64) -> Vec<u8> {
        let (tos, outer_tos) = match self {
            Esp::Congested => (0, 3),
            Esp::Capable => (2, 2),
            Esp::Marked => (2, 3),
            Esp::MarkedOtherwise => (2, 1),
            _ => (0, 0),
        };
        let mut inner = Packet { tos, ..udp(1, 5000, 40) };
        inner.payload[8..10].copy_from_slice(&[ESP + self as u8, host]);
        let inner = if v6 { families::packet(inner) } else { inner }.bytes();
        let inner = match self {
            Esp::Cut => inner[..inner.len() - 3].to_vec(),
            Esp::Between if v6 => between(&inner, protocol::DESTINATION_OPTIONS, 0),
            _ => inner,
        };
        let is_named_v6 = v6 != matches!(self, Esp::Misnamed);
        let next_header = if is_named_v6 { protocol::IPV6 } else { protocol::IPV4 };
        let number = match self {
            Esp::Again => next.saturating_sub(1),
            Esp::Late => next.saturating_sub(20),
            Esp::TooLate => next.saturating_sub(70),
            Esp::FarAhead => {
                *next += 100;
                *next
            }
            _ => *next,
        };
        *next += u64::from(number == *next);
        let seal = Seal { outer_tos, next_header, ..Seal::sequence(number) };
        let sa = &self.on_its_way(sa);
        let mut frame = match self {
            Esp::Padded => Seal { tfc: 8, ..seal },
            Esp::OddlyPadded => Seal { padding: Some(vec![7; 2]), ..seal },
            Esp::Dummy => Seal { next_header: protocol::NO_NEXT_HEADER, ..seal },
            _ => seal,
        }
        .frame(sa, &inner);
        match self {
            Esp::Forged => *frame.last_mut().unwrap() ^= 1,
            Esp::OfNobody => {
                let wrong = SaConfig { spi: 0x3333, ..sa.clone() };
                frame = Seal::sequence(number).frame(&wrong, &inner);
            }
            // Another address of this host, for which the SA is not.
            Esp::ForOther if sa.destination.is_ipv4() => {
                let [a, b, c, d] = [10, 2, 0, 77];
                let packet = with(frame[14..].to_vec(), &[(16, a), (17, b), (18, c), (19, d)]);
                frame.splice(14.., packet);
            }
            Esp::ForOther => {
                let IpAddr::V6(other) = ip(LOCAL_V6) else { unreachable!() };
                frame[38..54].copy_from_slice(&other.octets());
            }
            Esp::LinkPadded => frame.extend([0xee; 9]),
            Esp::Truncated => frame.truncate(frame.len() - 5),
            Esp::Extended if sa.source.is_ipv6() => {
                let next = std::mem::replace(&mut frame[20], protocol::DESTINATION_OPTIONS);
                frame.splice(54..54, [next, 0, 1, 4, 0, 0, 0, 0]);
                let len = (frame.len() - 54) as u16;
                frame[18..20].copy_from_slice(&len.to_be_bytes());
            }
            Esp::Mislabelled if sa.source.is_ipv6() => frame[20] = protocol::UDP,
            Esp::Version if sa.source.is_ipv6() => frame[14] ^= 0x10,
            Esp::Empty if sa.source.is_ipv6() => frame[18..20].fill(0),
            Esp::Short => {
                let esp = [&sa.spi.to_be_bytes()[..], &[0; 20]].concat();
                let outer = Packet::udp(sa.source, sa.destination, 0, 0, 0);
                frame = Packet { protocol: protocol::ESP, payload: esp, ..outer }.frame(BLACK);
            }
            Esp::Trailed | Esp::CutShort | Esp::Ike | Esp::Keepalive
                if sa.encapsulation.is_some() && sa.source.is_ipv4() =>
            {
                frame = frame[..14].iter().copied().chain(self.datagram(&frame[14..])).collect();
            }
            _ => {}
        }
        frame
    }

    /// Where a packet by an SA comes from and goes to.
    fn on_its_way(self, sa: &SaConfig) -> SaConfig {
        let mut sa = sa.clone();
        if matches!(self, Esp::Mistaken) {
            sa.encapsulation = if sa.encapsulation.is_some() { None } else { Some(IN_UDP) };
        } else if matches!(self, Esp::Moved) && sa.source.is_ipv4() {
            sa.source = ip("203.0.113.50");
        }
        if let Some(udp) = &mut sa.encapsulation {
            match self {
                Esp::MovedPort => udp.source_port = 1024,
                Esp::OtherPort => udp.destination_port = IN_UDP.destination_port,
                Esp::HostsPort => udp.destination_port = 500,
                _ => {}
            }
        }
        sa
    }

    /// Another datagram in the place of one.
    fn datagram(self, packet: &[u8]) -> Vec<u8> {
        let (headers, esp) = packet.split_at(28);
        let payload = match self {
            Esp::Trailed => [esp, &[0xee; 7]].concat(),
            Esp::CutShort => esp[..esp.len() - 3].to_vec(),
            Esp::Ike => [&[0; 4], esp].concat(),
            _ => vec![0xff],
        };
        let len = headers.len() + payload.len();
        let mut packet =
            with([headers, &payload].concat(), &[(2, (len >> 8) as u8), (3, len as u8)]);
        if matches!(self, Esp::Ike | Esp::Keepalive) {
            packet[24..26].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        }
        packet
    }
}

/// What steps bring to the gateway of a site, where most packets go to the east.
pub struct Arrivals {
    site: Site,
    case: Case,
    /// The number of the next ESP packet to each host.
    next: [u64; 3],
}

impl Arrivals {
    pub fn new(site: Site, case: Case) -> Arrivals {
        Arrivals { site, case, next: [1; 3] }
    }

    pub fn frame(&mut self, step: Step) -> (u16, Vec<u8>) {
        let is_v6 = |v6: bool| match self.case.inside {
            Inside::V4 => false,
            Inside::V6 => true,
            Inside::Both => v6,
        };
        let of_family = |v6, packet| if is_v6(v6) { families::packet(packet) } else { packet };
        let (host, there) = match step {
            Step::Plain { v6, host, port, len } => {
                let packet = udp(host, port, len);
                let src = if self.case.is_hub { ip(Arrivals::source(port)) } else { packet.src };
                (host, of_family(v6, Packet { src, ..packet }).frame(RED))
            }
            Step::Protocol { v6, host, protocol, begin } => {
                let packet = of_family(v6, udp(host, 5000, 40));
                let payload = [&begin, &packet.payload[4..]].concat();
                (host, Packet { protocol, payload, ..packet }.frame(RED))
            }
            Step::Part { host, bits, protocol } => {
                let bytes = Packet { protocol, ..udp(host, 5000, 40) }.bytes();
                let [high, low] = bits.to_be_bytes();
                (host, frame(RED, &with(bytes, &[(6, high), (7, low)])))
            }
            Step::Changed { v6, host, change, is_inside } => {
                let packet = of_family(v6, udp(host, 5000, 40)).frame(RED);
                match self.site {
                    Site::East if !is_inside => {
                        let sealed = self.sealed(host, &packet[14..]);
                        return (BLACK, change.make(sealed, 0));
                    }
                    Site::East => (host, change.make(packet, 14)),
                    Site::West => (host, change.make(packet, 0)),
                }
            }
            Step::Odd(v6, odd) => (1, odd.frame(is_v6(v6))),
            Step::Esp(v6, host, esp) => {
                let v6 = is_v6(v6);
                let (sa, next) = self.esp(host);
                let port = if matches!(esp, Esp::WrongPort) { RED } else { BLACK };
                return (port, esp.frame(v6, host, &sa, next));
            }
            _ => {
                let v6 = matches!(step, Step::Back(true));
                let back = Packet::towards(Site::West, is_v6(v6), 20).bytes();
                return match self.site {
                    Site::West => (BLACK, self.sealed(1, &back)),
                    Site::East => (RED, frame(RED, &back)),
                };
            }
        };
        match self.site {
            Site::West if matches!(step, Step::Odd(_, Odd::WrongPort)) => (BLACK, there),
            Site::West => (RED, there),
            // All that is behind the link header has been sealed.
            Site::East => (BLACK, self.sealed(host, &there[14..])),
        }
    }

    /// Of whom a packet to a port is, where routes say who that may be: mostly of one, some of his neighbour, and some of
    /// others.
    fn source(port: u16) -> &'static str {
        ["10.1.0.1", "10.1.0.9", "10.1.0.77", "10.1.9.1"][usize::from(port % 4)]
    }

    /// The SA by which packets come to a host, and the number of the next.
    fn esp(&mut self, host: u8) -> (SaConfig, &mut u64) {
        let has_own = self.site == Site::East && self.case.own.is_some();
        let (sa, at) = match self.site {
            Site::East => (self.case.sa_to(u32::from(host) + 1), host),
            Site::West => (self.case.tunnel.sa(Site::West), 0),
        };
        (sa, &mut self.next[if has_own { usize::from(at) } else { 0 }])
    }

    pub fn sealed(&mut self, host: u8, inner: &[u8]) -> Vec<u8> {
        let (sa, next) = self.esp(host);
        *next += 1;
        let next_header = if inner[0] >> 4 == 6 { protocol::IPV6 } else { protocol::IPV4 };
        Seal { next_header, ..Seal::sequence(*next - 1) }.frame(&sa, inner)
    }
}
