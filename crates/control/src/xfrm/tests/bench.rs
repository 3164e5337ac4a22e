//! A server with one client, and requests to send to it.

use std::collections::HashMap;

use rustix::io::Errno;
use wire::xfrm::Builder;
use wire::xfrm::address::{Address, Be32, Selector, family_of};
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::attribute::AttributeIter;
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::message::{Message, fixed_len};
use wire::xfrm::netlink::{Datagram, Header, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR};
use wire::xfrm::number::{AF_INET, IPPROTO_ESP, attr, mode, msg};
use wire::xfrm::policy::{UserTmpl, UserpolicyId, UserpolicyInfo};
use wire::xfrm::replay::ReplayStateEsn;
use wire::xfrm::sa::{UsersaId, UsersaInfo, UserspiInfo};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::super::{
    Bytes, Change, Client, Counters, Delivery, Event, Handled, PolicyCounters, PolicyId,
    SaCounters, SaId, Server, Settings,
};

pub const NOW: u64 = 1_700_000_000;

/// Counters that a test sets by hand.
#[derive(Debug, Default)]
pub struct Figures {
    pub sas: HashMap<SaId, SaCounters>,
    pub policies: HashMap<PolicyId, PolicyCounters>,
}

impl Counters for Figures {
    fn sa(&self, id: SaId) -> Option<SaCounters> {
        self.sas.get(&id).cloned()
    }

    fn traffic(&self, id: SaId) -> Option<SaCounters> {
        let SaCounters { bytes, packets, total_bytes, total_packets, .. } = self.sa(id)?;
        Some(SaCounters { bytes, packets, total_bytes, total_packets, ..SaCounters::default() })
    }

    fn policy(&self, id: PolicyId) -> Option<PolicyCounters> {
        self.policies.get(&id).copied()
    }
}

pub struct Bench {
    pub server: Server,
    pub client: Client,
    pub now: u64,
    pub figures: Figures,
}

impl Bench {
    pub fn new() -> Self {
        let settings = Settings { cpus: 4, acquire_expires_s: 30, seed: 1 };
        Self {
            server: Server::new(settings),
            client: Client { port: 77, ext_ack: true, ..Client::default() },
            now: NOW,
            figures: Figures::default(),
        }
    }

    pub fn handle(&mut self, datagram: &[u8]) -> Handled {
        self.server.handle(&self.client, datagram, self.now, &self.figures)
    }

    pub fn send(&mut self, request: &Request) -> Answer {
        let handled = self.handle(&request.bytes());
        assert!(handled.dump.is_none() && handled.flush.is_none());
        Answer::new(handled.deliveries)
    }

    /// Sends and expects success; returns all that came back.
    #[track_caller]
    pub fn accept(&mut self, request: &Request) -> Answer {
        let answer = self.send(request);
        assert_eq!(answer.result(), Ok(()), "{request:?}");
        answer
    }

    /// Sends and expects this refusal.
    #[track_caller]
    pub fn refuse(&mut self, request: &Request, errno: Errno, text: &str) {
        let answer = self.send(request);
        assert_eq!(answer.result(), Err((errno, text.to_owned())), "{request:?}");
    }

    pub fn tick(&mut self, seconds: u64) -> Answer {
        self.now += seconds;
        let mut deliveries = self.server.tick(self.now, &self.figures);
        while self.server.has_more_due() {
            deliveries.extend(self.server.tick(self.now, &self.figures));
        }
        Answer::new(deliveries)
    }

    pub fn changes(&mut self) -> Vec<Change> {
        self.server.take_changes()
    }

    /// All parts of a dump.
    pub fn dump(&mut self, request: &Request) -> Vec<Bytes> {
        let handled = self.handle(&request.bytes());
        let mut parts: Vec<Bytes> = Answer::new(handled.deliveries).replies;
        let mut dump = handled.dump;
        while let Some(part) =
            dump.as_mut().and_then(|dump| self.server.dump_next(dump, &self.figures))
        {
            parts.push(part);
        }
        parts
    }
}

/// What came back.
#[derive(Debug)]
pub struct Answer {
    pub replies: Vec<Bytes>,
    pub events: Vec<Event>,
}

impl Answer {
    pub fn new(deliveries: Vec<Delivery>) -> Self {
        let (mut replies, mut events) = (Vec::new(), Vec::new());
        for delivery in deliveries {
            match delivery {
                Delivery::Reply(bytes) => replies.push(bytes),
                Delivery::Event(event) => events.push(event),
            }
        }
        Self { replies, events }
    }

    /// The error message among the replies; none is success.
    pub fn result(&self) -> Result<(), (Errno, String)> {
        let error = self.replies.iter().find(|reply| header(reply).kind == NLMSG_ERROR);
        error.map_or(Ok(()), |error| result_of(error))
    }

    /// The groups and types of the events.
    pub fn kinds(&self) -> Vec<(u32, u16)> {
        self.events.iter().map(|event| (event.group, header(&event.bytes).kind)).collect()
    }
}

pub fn header(bytes: &[u8]) -> Header {
    Header::read_from_prefix(bytes).unwrap().0
}

/// The messages of a datagram, which must be nothing else.
#[track_caller]
pub fn messages(bytes: &[u8]) -> Vec<Message<'_>> {
    let messages: Vec<_> = Datagram::new(bytes).collect();
    let total: usize = messages.iter().map(|(_, bytes)| bytes.len().next_multiple_of(4)).sum();
    assert_eq!(total, bytes.len().next_multiple_of(4));
    let parse = |(header, bytes): (Header, _)| {
        // Nobody checks the length of a NEWSADINFO, because it only ever comes from a kernel.
        let fixed = match header.kind {
            msg::NEWSADINFO => 4,
            kind => fixed_len(kind).unwrap_or(4),
        };
        Message::new(header, bytes, fixed).unwrap()
    };
    messages.into_iter().map(parse).collect()
}

/// The attributes of the only message of a datagram.
pub fn attributes(bytes: &[u8]) -> HashMap<u16, Vec<u8>> {
    messages(bytes)[0].attributes().map(|a| (a.kind, a.payload.to_vec())).collect()
}

/// The error number and the text of an error message.
pub fn result_of(bytes: &[u8]) -> Result<(), (Errno, String)> {
    let code = i32::read_from_bytes(&bytes[16..20]).unwrap();
    if code == 0 {
        return Ok(());
    }
    let text = error_attributes(bytes).remove(&1).unwrap_or_default();
    let text = String::from_utf8(text).unwrap().trim_end_matches('\0').to_owned();
    Err((Errno::from_raw_os_error(-code), text))
}

/// The attributes behind the quoted request.
pub fn error_attributes(bytes: &[u8]) -> HashMap<u16, Vec<u8>> {
    let head = header(bytes);
    if head.flags & 0x200 == 0 {
        return HashMap::new();
    }
    let quoted = if head.flags & 0x100 != 0 { 16 } else { header(&bytes[20..]).len as usize };
    let tail = &bytes[20 + quoted.next_multiple_of(4)..];
    AttributeIter::new(tail).map(|a| (a.kind, a.payload.to_vec())).collect()
}

/// A request under construction.
#[derive(Clone)]
pub struct Request {
    pub header: Header,
    pub fixed: Vec<u8>,
    pub attributes: Vec<(u16, Vec<u8>)>,
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<_> = self.attributes.iter().map(|(kind, _)| kind).collect();
        write!(f, "{} with {kinds:?}", wire::xfrm::message::name(self.header.kind))
    }
}

impl Request {
    pub fn new<T: IntoBytes + Immutable>(kind: u16, fixed: &T) -> Self {
        let flags = NLM_F_REQUEST | NLM_F_ACK;
        let header = Header { kind, flags, seq: 5, ..Header::default() };
        Self { header, fixed: fixed.as_bytes().to_vec(), attributes: Vec::new() }
    }

    pub fn with<T: IntoBytes + Immutable + ?Sized>(mut self, kind: u16, value: &T) -> Self {
        self.attributes.push((kind, value.as_bytes().to_vec()));
        self
    }

    pub fn without(mut self, kind: u16) -> Self {
        self.attributes.retain(|(other, _)| *other != kind);
        self
    }

    pub fn flags(mut self, flags: u16) -> Self {
        self.header.flags = flags;
        self
    }

    pub fn change<T: FromBytes + IntoBytes + Immutable>(
        mut self,
        edit: impl FnOnce(&mut T),
    ) -> Self {
        let mut fixed = T::read_from_bytes(&self.fixed).unwrap();
        edit(&mut fixed);
        self.fixed = fixed.as_bytes().to_vec();
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut message = Builder::new(&mut out, self.header).raw(&self.fixed);
        for (kind, value) in &self.attributes {
            message = message.attribute_parts(*kind, &[value]);
        }
        message.finish();
        out
    }
}

pub fn address(text: &str) -> Address {
    text.parse::<std::net::IpAddr>().unwrap().into()
}

pub fn usersa(spi: u32) -> UsersaInfo {
    let mut info = UsersaInfo {
        saddr: address("192.0.2.1"),
        lft: LifetimeConfig::UNLIMITED,
        reqid: 1,
        family: AF_INET,
        mode: mode::TUNNEL,
        ..UsersaInfo::default()
    };
    info.id.daddr = address("192.0.2.2");
    info.id.spi = Be32::new(spi);
    info.id.proto = IPPROTO_ESP;
    info
}

/// The value of an AEAD attribute.
pub fn aead(name: &str, key: &[u8], icv_bits: u32) -> Vec<u8> {
    let head =
        AlgorithmAead { name: Name::new(name), key_len: key.len() as u32 * 8, icv_len: icv_bits };
    [head.as_bytes(), key].concat()
}

pub const KEY: [u8; 20] = *b"0123456789abcdefsalt";

pub fn new_sa(spi: u32) -> Request {
    let value = aead("rfc4106(gcm(aes))", &KEY, 128);
    Request::new(msg::NEWSA, &usersa(spi)).with(attr::ALG_AEAD, &value[..])
}

pub fn update_sa(spi: u32) -> Request {
    let mut request = new_sa(spi);
    request.header.kind = msg::UPDSA;
    request
}

pub fn sa_id(spi: u32) -> UsersaId {
    let info = usersa(spi);
    UsersaId { daddr: info.id.daddr, spi: info.id.spi, family: AF_INET, proto: IPPROTO_ESP, pad: 0 }
}

pub fn delete_sa(spi: u32) -> Request {
    Request::new(msg::DELSA, &sa_id(spi))
}

/// Without NLM_F_ACK, so that the answer is the SA alone.
pub fn get_sa(spi: u32) -> Request {
    Request::new(msg::GETSA, &sa_id(spi)).flags(NLM_F_REQUEST)
}

/// From 10.1.0.0/16 to the given /32.
pub fn selector(destination: &str) -> Selector {
    let ip: std::net::IpAddr = destination.parse().unwrap();
    Selector {
        daddr: ip.into(),
        saddr: address("10.1.0.0"),
        family: family_of(ip),
        prefixlen_d: 32,
        prefixlen_s: 16,
        ..Selector::default()
    }
}

pub fn template() -> UserTmpl {
    let info = usersa(0);
    UserTmpl {
        id: info.id,
        family: AF_INET,
        saddr: info.saddr,
        reqid: 1,
        mode: mode::TUNNEL,
        aalgos: u32::MAX,
        ealgos: u32::MAX,
        calgos: u32::MAX,
        ..UserTmpl::default()
    }
}

pub fn new_policy(destination: &str, dir: u8) -> Request {
    let info = UserpolicyInfo {
        sel: selector(destination),
        lft: LifetimeConfig::UNLIMITED,
        dir,
        ..UserpolicyInfo::default()
    };
    Request::new(msg::NEWPOLICY, &info).with(attr::TMPL, &template())
}

pub fn policy_id(kind: u16, destination: &str, dir: u8) -> Request {
    let id = UserpolicyId { sel: selector(destination), dir, ..UserpolicyId::default() };
    Request::new(kind, &id)
}

pub fn policy_index(kind: u16, index: u32, dir: u8) -> Request {
    Request::new(kind, &UserpolicyId { index, dir, ..UserpolicyId::default() })
}

pub fn allocate(min: u32, max: u32) -> Request {
    let request = UserspiInfo { info: usersa(0), min, max };
    Request::new(msg::ALLOCSPI, &request).flags(NLM_F_REQUEST)
}

/// A wide window's attribute, without packets.
pub fn esn(window: u32, words: u32) -> Vec<u8> {
    let head =
        ReplayStateEsn { bmp_len: words, replay_window: window, ..ReplayStateEsn::default() };
    [head.as_bytes(), &vec![0; words as usize * 4]].concat()
}

/// What GETSA shows of an SA.
pub fn shown_sa(bench: &mut Bench, spi: u32) -> UsersaInfo {
    let answer = bench.send(&get_sa(spi));
    messages(&answer.replies[0])[0].fixed().unwrap()
}
