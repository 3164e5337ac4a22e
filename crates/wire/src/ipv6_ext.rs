//! IPv6 extension headers (RFC 8200 §4): hop-by-hop options, routing, destination options,
//! fragment. The walk ends at the first header that is none of these; AH and ESP end it too,
//! because to a security gateway they are protocols. Destination options are skipped, not
//! read: they are the destination's business.

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{Malformed, Overlay, protocol};

/// The longest chain that is followed. RFC 8200 §4.1 has an order in which at most five of
/// these headers appear once AH and ESP are taken out; three more tolerate repeated destination
/// options. A longer chain is only ever seen in attacks on parsers (RFC 8504 §5.3).
pub const MAX_EXTENSIONS: usize = 8;

/// The most hop-by-hop options that are read, padding not counted: the default of RFC 8504 §5.3.
pub const MAX_OPTIONS: usize = 8;

/// The most padding options in a row among them. Alignment never needs more than seven bytes
/// (RFC 8200 §4.2), and RFC 8504 §5.3 lets a node refuse more.
pub const MAX_PADDING: usize = 7;

const _: () = assert!(size_of::<Header>() == 2 && size_of::<Fragment>() == 8);

/// How every extension header but [`Fragment`] starts.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Header {
    next_header: u8,
    len: u8,
}

impl Overlay for Header {}

impl Header {
    /// What follows this header.
    #[inline]
    pub const fn next_header(&self) -> u8 {
        self.next_header
    }

    /// Length of the whole header in bytes: a multiple of eight, 8–2048.
    #[inline]
    pub const fn header_len(&self) -> usize {
        (self.len as usize + 1) * 8
    }
}

/// The fragment header (RFC 8200 §4.5).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct Fragment {
    next_header: u8,
    reserved: u8,
    offset_more: U16,
    id: U32,
}

impl Overlay for Fragment {}

impl Fragment {
    /// A fragment header; `offset` in bytes, a multiple of eight.
    pub const fn new(next_header: u8, offset: u16, more: bool, id: u32) -> Fragment {
        let offset_more = U16::new(offset & !7 | more as u16);
        Fragment { next_header, reserved: 0, offset_more, id: U32::new(id) }
    }

    /// What the fragmented part of the whole packet starts with.
    #[inline]
    pub const fn next_header(&self) -> u8 {
        self.next_header
    }

    /// Where this part stands in the fragmented part of the whole packet, in bytes.
    #[inline]
    pub fn offset(&self) -> u16 {
        self.offset_more.get() & !7
    }

    /// Whether this is not the last fragment.
    #[inline]
    pub fn more(&self) -> bool {
        self.offset_more.get() & 1 != 0
    }

    /// Names the packet the fragments belong to.
    #[inline]
    pub fn id(&self) -> u32 {
        self.id.get()
    }

    /// Whether the packet is whole all the same: an atomic fragment (RFC 6946).
    #[inline]
    pub fn is_atomic(&self) -> bool {
        self.offset() == 0 && !self.more()
    }
}

/// What a walk over the extension headers found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// What the chain ends in: a protocol, or, behind a fragment header that is not of a first
    /// fragment, whatever the fragmented part starts with.
    pub protocol: u8,
    /// Length of all extension headers in bytes.
    pub len: usize,
    /// The fragment header, if there is one.
    pub fragment: Option<Fragment>,
    /// Whether there are hop-by-hop options, a routing header or destination options.
    pub has_options: bool,
}

impl Chain {
    /// Follows the chain that starts with `next_header` through `payload`, which is the payload
    /// of an [`ipv6::Packet`](crate::ipv6::Packet).
    ///
    /// # Errors
    ///
    /// [`Malformed`], of the list in [`flow`](crate::flow) or because a header is cut off.
    pub fn walk(next_header: u8, payload: &[u8]) -> Result<Chain, Malformed> {
        let mut chain = Chain { protocol: next_header, ..Chain::default() };
        for index in 0..=MAX_EXTENSIONS {
            let rest = &payload[chain.len..];
            let step = match chain.protocol {
                // RFC 8200 §4.1: hop-by-hop options are recognised only right after the header.
                protocol::HOP_BY_HOP if index > 0 => return Err(Malformed::MisplacedExtension),
                protocol::FRAGMENT if chain.fragment.is_some() => {
                    return Err(Malformed::MisplacedExtension);
                }
                // The chain goes on, but so far only.
                protocol::HOP_BY_HOP
                | protocol::FRAGMENT
                | protocol::ROUTING
                | protocol::DESTINATION_OPTIONS
                    if index == MAX_EXTENSIONS =>
                {
                    return Err(Malformed::TooManyExtensions);
                }
                protocol::HOP_BY_HOP => chain.pass(rest, check_hop_by_hop),
                protocol::ROUTING => chain.pass(rest, check_routing),
                protocol::DESTINATION_OPTIONS => chain.pass(rest, |_| Ok(())),
                protocol::FRAGMENT => chain.pass_fragment(rest),
                _ => break,
            };
            step.map_err(|reason| chain.cut(reason))?;
            if chain.fragment.is_some_and(|fragment| fragment.offset() != 0) {
                break;
            }
        }
        Ok(chain)
    }

    /// Steps over one header of the common form once `check` has accepted its bytes.
    fn pass(
        &mut self,
        rest: &[u8],
        check: impl FnOnce(&[u8]) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let (header, _) = Header::over(rest)?;
        check(rest.get(..header.header_len()).ok_or(Malformed::Truncated)?)?;
        self.protocol = header.next_header();
        self.len += header.header_len();
        self.has_options = true;
        Ok(())
    }

    fn pass_fragment(&mut self, rest: &[u8]) -> Result<(), Malformed> {
        let (fragment, rest) = Fragment::over(rest)?;
        // RFC 8200 §4.5: the reassembled payload must not exceed 65 535 bytes.
        if usize::from(fragment.offset()) + rest.len() > usize::from(u16::MAX) {
            return Err(Malformed::OversizeFragment);
        }
        self.protocol = fragment.next_header();
        self.len += Fragment::LEN;
        self.fragment = Some(*fragment);
        Ok(())
    }

    /// A chain cut off inside a first fragment is an attack by its own name (RFC 7112 §5).
    fn cut(&self, reason: Malformed) -> Malformed {
        match (reason, self.fragment) {
            (Malformed::Truncated, Some(first)) if first.more() => Malformed::TinyFragment,
            _ => reason,
        }
    }
}

/// A place between two headers of a packet that [`flow::parse`](crate::flow::parse) accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joint {
    /// Where the later one starts, in bytes from the packet's.
    pub offset: usize,
    /// Where the byte is that says what the later one is.
    pub link: usize,
}

impl Joint {
    /// Behind the fixed header, whose next header field is its seventh byte (RFC 8200 §3).
    const FIRST: Joint = Joint { offset: crate::ipv6::HEADER_LEN, link: 6 };

    /// The joint behind the next extension header; `None` if there is no such or the packet ends.
    fn next(self, packet: &[u8]) -> Option<Joint> {
        let rest = packet.get(self.offset..)?;
        let len = match *packet.get(self.link)? {
            protocol::HOP_BY_HOP | protocol::ROUTING | protocol::DESTINATION_OPTIONS => {
                Header::over(rest).ok()?.0.header_len()
            }
            protocol::FRAGMENT => Fragment::LEN,
            _ => return None,
        };
        (len <= rest.len()).then_some(Joint { offset: self.offset + len, link: self.offset })
    }

    /// The joint behind the headers that routers on the way look at, and behind destination options
    /// unless they follow a routing header: where Linux inserts ESP and AH (`xfrm6_hdr_offset`).
    pub fn behind_routed(packet: &[u8]) -> Option<Joint> {
        let (mut joint, mut routed) = (Joint::FIRST, false);
        loop {
            match *packet.get(joint.link)? {
                protocol::HOP_BY_HOP => {}
                protocol::ROUTING => routed = true,
                protocol::DESTINATION_OPTIONS if !routed => {}
                _ => return Some(joint),
            }
            joint = joint.next(packet)?;
        }
    }

    /// The joint at `offset`; `None` if no header starts there.
    pub fn at(packet: &[u8], offset: usize) -> Option<Joint> {
        let mut joint = Joint::FIRST;
        while joint.offset < offset {
            joint = joint.next(packet)?;
        }
        (joint.offset == offset).then_some(joint)
    }
}

/// `header` is a whole routing header. Type 0 with segments left is refused (RFC 5095 §3).
fn check_routing(header: &[u8]) -> Result<(), Malformed> {
    match header {
        [_, _, 0, segments_left, ..] if *segments_left > 0 => Err(Malformed::SourceRoute),
        _ => Ok(()),
    }
}

/// `header` is a whole hop-by-hop header. Its options must fill it exactly and none may be a
/// Jumbo Payload: with a payload length that is not zero that is an error (RFC 2675 §3).
fn check_hop_by_hop(header: &[u8]) -> Result<(), Malformed> {
    const JUMBO_PAYLOAD: u8 = 0xc2;
    let (mut options, mut padding) = (0, 0);
    for option in Options::of(header) {
        let option = option?;
        if option.kind == JUMBO_PAYLOAD {
            return Err(Malformed::Jumbogram);
        }
        (options, padding) =
            if option.is_padding() { (options, padding + 1) } else { (options + 1, 0) };
        if options > MAX_OPTIONS || padding > MAX_PADDING {
            return Err(Malformed::TooManyOptions);
        }
    }
    Ok(())
}

/// One option of a hop-by-hop or destination options header (RFC 8200 §4.2), padding included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opt<'a> {
    /// The type byte. 0 and 1 are padding.
    pub kind: u8,
    /// What follows the type and length bytes.
    pub data: &'a [u8],
}

impl Opt<'_> {
    /// Whether the option only fills space: Pad1 or PadN.
    #[inline]
    pub const fn is_padding(&self) -> bool {
        self.kind <= 1
    }
}

/// Iterator over options. After an error it ends.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    rest: &'a [u8],
}

impl<'a> Options<'a> {
    /// The options in `header`, which is a whole options header.
    pub fn of(header: &'a [u8]) -> Options<'a> {
        Options { rest: header.get(Header::LEN..).unwrap_or(&[]) }
    }
}

impl<'a> Iterator for Options<'a> {
    type Item = Result<Opt<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        const PAD1: u8 = 0;
        let (kind, data, rest) = match *self.rest {
            [] => return None,
            [PAD1, ref rest @ ..] => (PAD1, Some(&rest[..0]), rest),
            [kind, len, ref rest @ ..] => match rest.split_at_checked(usize::from(len)) {
                Some((data, rest)) => (kind, Some(data), rest),
                None => (kind, None, &rest[..0]),
            },
            [kind] => (kind, None, &self.rest[..0]),
        };
        self.rest = rest;
        Some(data.map(|data| Opt { kind, data }).ok_or(Malformed::BadOption))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The chain of a multicast listener report: hop-by-hop with router alert and PadN, then four
    /// bytes of ICMPv6.
    const PACKET_BYTES: [u8; 12] =
        [0x3a, 0x00, 0x05, 0x02, 0x00, 0x00, 0x01, 0x00, 0x8f, 0x00, 0xab, 0xcd];

    fn fragment(next_header: u8, offset: u16, more: bool) -> Vec<u8> {
        Fragment::new(next_header, offset, more, 7).as_bytes().to_vec()
    }

    #[test]
    fn packet_bytes() {
        let chain = Chain::walk(protocol::HOP_BY_HOP, &PACKET_BYTES).unwrap();
        let expected =
            Chain { protocol: protocol::ICMPV6, len: 8, fragment: None, has_options: true };
        assert_eq!(chain, expected);
        let options: Vec<_> = Options::of(&PACKET_BYTES[..8]).collect();
        let alert = Ok(Opt { kind: 5, data: &[0, 0] });
        assert_eq!(options, [alert, Ok(Opt { kind: 1, data: &[] })]);
    }

    #[test]
    fn no_chain() {
        let chain = Chain::walk(protocol::UDP, &[]).unwrap();
        assert_eq!(chain, Chain { protocol: protocol::UDP, ..Chain::default() });
        for ends in [protocol::ESP, protocol::AH, protocol::NO_NEXT_HEADER, protocol::MOBILITY] {
            assert_eq!(Chain::walk(ends, &PACKET_BYTES).unwrap().len, 0);
        }
    }

    #[test]
    fn fragments() {
        // First: the chain goes on behind the fragment header.
        let first = [fragment(60, 0, true), vec![17, 0, 1, 4, 0, 0, 0, 0], vec![0; 8]].concat();
        let chain = Chain::walk(protocol::FRAGMENT, &first).unwrap();
        assert_eq!((chain.protocol, chain.len, chain.has_options), (protocol::UDP, 16, true));
        assert!(!chain.fragment.unwrap().is_atomic());
        // Later: it ends, since what follows is not a header.
        let later = [fragment(60, 1448, false), vec![17, 0, 1, 4, 0, 0, 0, 0]].concat();
        let chain = Chain::walk(protocol::FRAGMENT, &later).unwrap();
        assert_eq!((chain.protocol, chain.len, chain.has_options), (60, 8, false));
        let found = chain.fragment.unwrap();
        assert_eq!((found.offset(), found.more(), found.id()), (1448, false, 7));
        // Cut: a first fragment must hold its chain.
        for len in 8..16 {
            let cut = Chain::walk(protocol::FRAGMENT, &first[..len]);
            assert_eq!(cut, Err(Malformed::TinyFragment), "{len}");
        }
        let atomic = [fragment(60, 0, false), vec![17]].concat();
        assert_eq!(Chain::walk(protocol::FRAGMENT, &atomic), Err(Malformed::Truncated));
        let oversize = [fragment(17, 65528, false), vec![0; 8]].concat();
        assert_eq!(Chain::walk(protocol::FRAGMENT, &oversize), Err(Malformed::OversizeFragment));
    }

    #[test]
    fn headers_out_of_place() {
        let hop_by_hop_second = [[0, 0, 1, 4, 0, 0, 0, 0], [59, 0, 1, 4, 0, 0, 0, 0]].concat();
        let walked = Chain::walk(protocol::DESTINATION_OPTIONS, &hop_by_hop_second);
        assert_eq!(walked, Err(Malformed::MisplacedExtension));
        let twice = [fragment(protocol::FRAGMENT, 0, true), fragment(17, 0, true)].concat();
        let walked = Chain::walk(protocol::FRAGMENT, &twice);
        assert_eq!(walked, Err(Malformed::MisplacedExtension));
    }

    #[test]
    fn chains_are_bounded() {
        let one = [protocol::DESTINATION_OPTIONS, 0, 1, 4, 0, 0, 0, 0];
        let mut chain = one.repeat(MAX_EXTENSIONS);
        let last = (MAX_EXTENSIONS - 1) * 8;
        chain[last] = protocol::TCP;
        let walked = Chain::walk(protocol::DESTINATION_OPTIONS, &chain).unwrap();
        assert_eq!((walked.protocol, walked.len), (protocol::TCP, MAX_EXTENSIONS * 8));
        chain[last] = protocol::DESTINATION_OPTIONS;
        chain.extend(one);
        let walked = Chain::walk(protocol::DESTINATION_OPTIONS, &chain);
        assert_eq!(walked, Err(Malformed::TooManyExtensions));
    }

    #[test]
    fn source_routes() {
        let mut routing = [17, 2, 0, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8];
        let walk = |bytes: &[u8]| Chain::walk(protocol::ROUTING, bytes);
        assert_eq!(walk(&routing), Err(Malformed::SourceRoute));
        routing[3] = 0;
        assert_eq!(walk(&routing).unwrap().len, 24);
        // Segment routing is for the nodes on its list, not for a router between them.
        routing[2..4].copy_from_slice(&[4, 1]);
        assert!(walk(&routing).unwrap().has_options);
    }

    #[test]
    fn hop_by_hop_options() {
        let walk = |bytes: &[u8]| Chain::walk(protocol::HOP_BY_HOP, bytes).map(|chain| chain.len);
        assert_eq!(walk(&[17, 0, 0xc2, 4, 0, 1, 0, 0]), Err(Malformed::Jumbogram));
        assert_eq!(walk(&[17, 0, 1, 5, 0, 0, 0, 0]), Err(Malformed::BadOption));
        assert_eq!(walk(&[17, 0, 1, 3, 0, 0, 0, 1]), Err(Malformed::BadOption));
        assert_eq!(walk(&[17, 0, 0, 0, 0, 0, 0, 0]), Ok(8));
        let header = |options: &[u8]| {
            let mut bytes = vec![17, 3];
            bytes.extend(options);
            bytes.resize(30, 5);
            bytes.extend([1, 0]);
            bytes
        };
        // Seven times Pad1, a router alert, seven times Pad1, then five options of no length.
        let mut options = [[0; 7].as_slice(), &[5, 2, 0, 0], &[0; 7], &[5, 0].repeat(5)].concat();
        assert_eq!(walk(&header(&options)), Ok(32));
        options[7] = 1;
        assert_eq!(walk(&header(&options)), Err(Malformed::TooManyOptions));
        let eight = [5, 0].repeat(8);
        assert_eq!(walk(&header(&[&eight[..], &[1, 10], &[0; 10]].concat())), Ok(32));
        let nine = [5, 0].repeat(9);
        let walked = walk(&header(&[&nine[..], &[1, 8], &[0; 8]].concat()));
        assert_eq!(walked, Err(Malformed::TooManyOptions));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(
            next in prop::sample::select(vec![0u8, 43, 44, 60, 17]),
            bytes in prop::collection::vec(prop_oneof![
                Just(0u8), Just(43), Just(44), Just(60), Just(1), any::<u8>()
            ], 0..200),
        ) {
            if let Ok(chain) = Chain::walk(next, &bytes) {
                prop_assert!(chain.len <= bytes.len());
            }
        }

        #[test]
        fn fragment_headers_parse_back(next: u8, offset: u16, more: bool, id: u32) {
            let mut bytes = [0; 8];
            Fragment::new(next, offset, more, id).emit(&mut bytes).unwrap();
            let (fragment, _) = Fragment::over(&bytes).unwrap();
            prop_assert_eq!((fragment.next_header(), fragment.id()), (next, id));
            prop_assert_eq!((fragment.offset(), fragment.more()), (offset & !7, more));
        }
    }
}
