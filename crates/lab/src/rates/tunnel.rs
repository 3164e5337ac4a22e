//! The requests of one tunnel, as an IKE daemon sends them.
//!
//! Attributes and flags are those of strongSwan's `kernel-netlink` plugin (AES-256-GCM with ESN). The
//! addresses are this bench's own: the tunnels carry nothing, they are only installed.
//!
//! A datagram holds one request, as daemons send them, or several, as libmnl's batches do.

use std::net::Ipv4Addr;

use wire::xfrm::address::{Address, Be32, Id, Selector};
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::{Header, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, align};
use wire::xfrm::number::{AF_INET, IPPROTO_ESP, attr, direction, mode, msg, sa_flag};
use wire::xfrm::policy::{UserTmpl, UserpolicyId, UserpolicyInfo};
use wire::xfrm::replay::ReplayStateEsn;
use wire::xfrm::sa::{UsersaFlush, UsersaId, UsersaInfo, UserspiInfo};
use wire::xfrm::{Builder, builder};
use zerocopy::{FromBytes, IntoBytes};

use crate::recipe::test_key;

/// Most tunnels: as many peers as 198.18.0.0/15 has, of which the last quarter is left to rekeying.
pub const TUNNELS_MAX: u32 = 100_000;
/// Our endpoint, of all tunnels.
const ENDPOINT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The peers' endpoints count up from here.
const PEERS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
/// What is behind us, of all tunnels.
const OWN_NETWORK: (Ipv4Addr, u8) = (Ipv4Addr::new(172, 16, 0, 0), 12);
/// What is behind the peers: a /27 each, of which 100.64.0.0/10 has 131 072.
const PEER_NETWORKS: (Ipv4Addr, u8) = (Ipv4Addr::new(100, 64, 0, 0), 27);
/// Our own SPIs of outbound SAs, which the peer would choose, count up from here.
const OUTBOUND_SPIS: u32 = 0x0100_0000;
/// Where strongSwan looks for inbound SPIs.
const INBOUND_SPIS: (u32, u32) = (0xc000_0000, 0xcfff_ffff);
/// strongSwan's replay windows, if nobody sets one: of an SA that receives, and of one that sends. Both
/// bitmaps are one word.
const WINDOWS: (u32, u32) = (32, 1);
/// AES-256 and the salt of RFC 4106 §4.
const KEY_BYTES: usize = 36;
/// strongSwan's priority for such a selector; any other would do.
const PRIORITY: u32 = 379_519;
/// The keys' seed; they protect nothing.
const SEED: u64 = 1;

/// The directions in which an IKE daemon installs a tunnel's policies.
pub const DIRECTIONS: [u8; 3] = [direction::OUT, direction::IN, direction::FWD];

/// One tunnel and the SPIs that it has at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Its number, from 0.
    pub number: u32,
    /// SPI of the SA that receives; 0 before it is installed.
    pub inbound: u32,
    /// SPI of the SA that sends.
    pub outbound: u32,
}

/// Writes requests, with sequence numbers that count up.
#[derive(Debug, Default)]
pub struct Requests {
    bytes: Vec<u8>,
    sequence: u32,
    spis: u32,
    packing: bool,
}

impl Tunnel {
    /// A tunnel without SAs.
    pub fn new(number: u32) -> Tunnel {
        Tunnel { number, inbound: 0, outbound: 0 }
    }

    fn peer(&self) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(PEERS) + self.number)
    }

    /// The outer addresses, source first, of the SA that receives or sends.
    fn endpoints(&self, inbound: bool) -> (Address, Address) {
        let (own, peer) = (address(ENDPOINT), address(self.peer()));
        if inbound { (peer, own) } else { (own, peer) }
    }

    fn selector(&self, dir: u8) -> Selector {
        let (first, prefix) = PEER_NETWORKS;
        let step = 1 << (32 - u32::from(prefix));
        let other = (address(Ipv4Addr::from(u32::from(first) + self.number * step)), prefix);
        let own = (address(OWN_NETWORK.0), OWN_NETWORK.1);
        let (source, destination) = if dir == direction::OUT { (own, other) } else { (other, own) };
        Selector {
            saddr: source.0,
            prefixlen_s: source.1,
            daddr: destination.0,
            prefixlen_d: destination.1,
            family: AF_INET,
            ..Selector::default()
        }
    }

    fn sa(&self, inbound: bool) -> UsersaInfo {
        let (saddr, daddr) = self.endpoints(inbound);
        let spi = if inbound { self.inbound } else { self.outbound };
        UsersaInfo {
            id: Id { daddr, spi: Be32::new(spi), proto: IPPROTO_ESP, ..Id::default() },
            saddr,
            lft: LifetimeConfig::UNLIMITED,
            reqid: self.number + 1,
            family: AF_INET,
            mode: mode::TUNNEL,
            flags: sa_flag::ESN | sa_flag::AF_UNSPEC,
            ..UsersaInfo::default()
        }
    }

    fn sa_id(&self, inbound: bool) -> UsersaId {
        let info = self.sa(inbound);
        let Id { daddr, spi, .. } = info.id;
        UsersaId { daddr, spi, family: AF_INET, proto: IPPROTO_ESP, pad: 0 }
    }
}

impl Requests {
    /// The datagram that was written last.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// An SPI that no SA of this bench has had.
    pub fn fresh_spi(&mut self) -> u32 {
        self.spis += 1;
        OUTBOUND_SPIS + self.spis
    }

    /// ALLOCSPI for the inbound SA.
    pub fn allocate(&mut self, tunnel: &Tunnel) {
        let info = UsersaInfo { flags: 0, ..Tunnel { inbound: 0, ..*tunnel }.sa(true) };
        let (min, max) = INBOUND_SPIS;
        let message = self.begin(msg::ALLOCSPI, NLM_F_REQUEST);
        message.fixed(&UserspiInfo { info, min, max }).finish();
    }

    /// UPDSA, which completes the inbound SA.
    pub fn complete_inbound(&mut self, tunnel: &Tunnel) {
        self.install(msg::UPDSA, tunnel, true);
    }

    /// NEWSA for the outbound SA.
    pub fn add_outbound(&mut self, tunnel: &Tunnel) {
        self.install(msg::NEWSA, tunnel, false);
    }

    fn install(&mut self, kind: u16, tunnel: &Tunnel, inbound: bool) {
        let info = tunnel.sa(inbound);
        let head = AlgorithmAead {
            name: Name::new("rfc4106(gcm(aes))"),
            key_len: 8 * KEY_BYTES as u32,
            icv_len: 128,
        };
        let key = test_key(SEED, info.id.spi.get(), KEY_BYTES);
        let replay_window = if inbound { WINDOWS.0 } else { WINDOWS.1 };
        let window = ReplayStateEsn { bmp_len: 1, replay_window, ..ReplayStateEsn::default() };
        let bitmap = [0_u32; 1];
        self.begin(kind, NLM_F_REQUEST | NLM_F_ACK)
            .fixed(&info)
            .attribute_parts(attr::ALG_AEAD, &[head.as_bytes(), &key])
            .attribute_parts(attr::REPLAY_ESN_VAL, &[window.as_bytes(), bitmap.as_bytes()])
            .finish();
    }

    /// GETSA of one of the two SAs.
    pub fn get_sa(&mut self, tunnel: &Tunnel, inbound: bool) {
        self.begin(msg::GETSA, NLM_F_REQUEST).fixed(&tunnel.sa_id(inbound)).finish();
    }

    /// DELSA of one of the two SAs.
    pub fn delete_sa(&mut self, tunnel: &Tunnel, inbound: bool) {
        self.begin(msg::DELSA, NLM_F_REQUEST | NLM_F_ACK).fixed(&tunnel.sa_id(inbound)).finish();
    }

    /// NEWPOLICY or, for a policy that is there already, UPDPOLICY.
    pub fn policy(&mut self, kind: u16, tunnel: &Tunnel, dir: u8) {
        let (saddr, daddr) = tunnel.endpoints(dir != direction::OUT);
        let spi = if dir == direction::OUT { tunnel.outbound } else { 0 };
        let info = UserpolicyInfo {
            sel: tunnel.selector(dir),
            lft: LifetimeConfig::UNLIMITED,
            priority: PRIORITY,
            dir,
            ..UserpolicyInfo::default()
        };
        let template = UserTmpl {
            id: Id { daddr, spi: Be32::new(spi), proto: IPPROTO_ESP, ..Id::default() },
            family: AF_INET,
            saddr,
            reqid: tunnel.number + 1,
            mode: mode::TUNNEL,
            aalgos: u32::MAX,
            ealgos: u32::MAX,
            calgos: u32::MAX,
            ..UserTmpl::default()
        };
        let message = self.begin(kind, NLM_F_REQUEST | NLM_F_ACK);
        message.fixed(&info).attribute(attr::TMPL, &template).finish();
    }

    /// DELPOLICY.
    pub fn delete_policy(&mut self, tunnel: &Tunnel, dir: u8) {
        let id = UserpolicyId { sel: tunnel.selector(dir), dir, ..UserpolicyId::default() };
        self.begin(msg::DELPOLICY, NLM_F_REQUEST | NLM_F_ACK).fixed(&id).finish();
    }

    /// GETSA of all SAs.
    pub fn list_sas(&mut self) {
        self.begin(msg::GETSA, NLM_F_REQUEST | NLM_F_DUMP).finish();
    }

    /// FLUSHSA of all protocols.
    pub fn flush_sas(&mut self) {
        let all = UsersaFlush { proto: 0 };
        self.begin(msg::FLUSHSA, NLM_F_REQUEST | NLM_F_ACK).fixed(&all).finish();
    }

    /// FLUSHPOLICY.
    pub fn flush_policies(&mut self) {
        self.begin(msg::FLUSHPOLICY, NLM_F_REQUEST | NLM_F_ACK).finish();
    }

    /// GETSADINFO: a question that needs no table.
    pub fn sad_info(&mut self) {
        self.begin(msg::GETSADINFO, NLM_F_REQUEST).fixed(&u32::MAX).finish();
    }

    /// One datagram of several requests. Of those that would be acknowledged only the last is: the
    /// others are answered if they are refused.
    pub fn pack(&mut self, write: impl FnOnce(&mut Requests)) {
        self.bytes.clear();
        self.packing = true;
        write(self);
        self.packing = false;
        acknowledge_last(&mut self.bytes);
    }

    fn begin(&mut self, kind: u16, flags: u16) -> builder::Builder<'_> {
        if !self.packing {
            self.bytes.clear();
        }
        self.sequence = self.sequence.wrapping_add(1);
        let header = Header { kind, flags, seq: self.sequence, ..Header::default() };
        Builder::new(&mut self.bytes, header)
    }
}

/// Has no message of a datagram acknowledged but the last.
fn acknowledge_last(datagram: &mut [u8]) {
    let (mut start, end) = (0, datagram.len());
    while let Ok((header, _)) = Header::mut_from_prefix(&mut datagram[start..]) {
        start += align(header.len as usize);
        if start >= end {
            return;
        }
        header.flags &= !NLM_F_ACK;
    }
}

fn address(ip: Ipv4Addr) -> Address {
    std::net::IpAddr::V4(ip).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::xfrm::Message;
    use wire::xfrm::message::fixed_len;

    #[test]
    fn the_last_tunnel_has_addresses_of_its_own() {
        let last = Tunnel::new(TUNNELS_MAX - 1);
        assert!(last.peer() < Ipv4Addr::new(198, 20, 0, 0));
        let network = last.selector(direction::OUT).daddr.ip(AF_INET).unwrap();
        assert!(network < std::net::IpAddr::from([100, 128, 0, 0]), "{network}");
        assert_ne!(last.selector(direction::IN), Tunnel::new(0).selector(direction::IN));
    }

    #[test]
    fn the_last_request_of_a_datagram_is_acknowledged_for_all() {
        let mut requests = Requests::default();
        let tunnel = Tunnel { number: 7, inbound: 0xc000_0001, outbound: requests.fresh_spi() };
        requests.sad_info();
        requests.pack(|requests| {
            requests.allocate(&tunnel);
            requests.add_outbound(&tunnel);
            requests.policy(msg::NEWPOLICY, &tunnel, direction::OUT);
            requests.policy(msg::NEWPOLICY, &tunnel, direction::FWD);
        });
        let messages = wire::xfrm::Datagram::new(requests.bytes());
        let found: Vec<(u16, u32, bool)> = messages
            .map(|(header, _)| (header.kind, header.seq, header.flags & NLM_F_ACK != 0))
            .collect();
        let expected = [
            (msg::ALLOCSPI, 2, false),
            (msg::NEWSA, 3, false),
            (msg::NEWPOLICY, 4, false),
            (msg::NEWPOLICY, 5, true),
        ];
        assert_eq!(found, expected);
        requests.sad_info();
        assert_eq!(wire::xfrm::Datagram::new(requests.bytes()).count(), 1);
    }

    #[test]
    fn requests_are_whole_messages_numbered_in_order() {
        let mut requests = Requests::default();
        let tunnel = Tunnel { number: 7, inbound: 0xc000_0001, outbound: requests.fresh_spi() };
        let writers: [fn(&mut Requests, &Tunnel); 6] = [
            Requests::allocate,
            Requests::complete_inbound,
            Requests::add_outbound,
            |requests, tunnel| requests.get_sa(tunnel, true),
            |requests, tunnel| requests.policy(msg::NEWPOLICY, tunnel, direction::FWD),
            |requests, tunnel| requests.delete_policy(tunnel, direction::OUT),
        ];
        for (number, write) in (1..).zip(writers) {
            write(&mut requests, &tunnel);
            let mut messages = wire::xfrm::Datagram::new(requests.bytes());
            let (header, bytes) = messages.next().unwrap();
            assert_eq!((header.seq, messages.next()), (number, None));
            assert!(Message::new(header, bytes, fixed_len(header.kind).unwrap()).is_some());
        }
    }
}
