//! What an IKE daemon does with the XFRM interface when a peer moves, and nothing else of one: it
//! hears MAPPING and moves SAs, one message at a time, as strongSwan does.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType};
use wire::xfrm::Builder;
use wire::xfrm::address::Be16;
use wire::xfrm::attribute::AttributeIter;
use wire::xfrm::event::UserMapping;
use wire::xfrm::netlink::{Header, NLM_F_ACK, NLM_F_REQUEST, NLMSG_ERROR};
use wire::xfrm::number::{attr, group, msg};
use wire::xfrm::sa::{AeventId, EncapTmpl, UsersaId, UsersaInfo};
use wire::xfrm::shim;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// How long an answer may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Pause before and after DELSA, so that packets fall into the gaps of a move: a fast daemon on an idle
/// machine leaves none to see.
const PAUSE: Duration = Duration::from_millis(5);

const HEADER_LEN: usize = size_of::<Header>();

/// A connection to a gateway's XFRM socket.
pub struct Connection(OwnedFd);

impl Connection {
    /// Connects, and listens for the groups of a mask.
    pub fn open(gateway: &str, groups: u32) -> Connection {
        let path = Path::new("/run/peregrine").join(gateway).join("xfrm.sock");
        let fd = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
        let connection = Connection(fd.expect("a socket"));
        let address = SocketAddrUnix::new(path).expect("a short path");
        rustix::net::connect(&connection.0, &address).expect("the gateway listens");
        connection.send(shim::Frame::bind(std::process::id(), groups).as_bytes());
        connection
    }

    fn send(&self, bytes: &[u8]) {
        let sent = rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL).expect("it is sent");
        assert_eq!(sent, bytes.len());
    }

    /// The next message, if one comes within the time.
    fn receive(&self, patience: Duration) -> Option<(Header, Vec<u8>)> {
        let (borrowed, end) = (self.0.as_fd(), Instant::now() + patience);
        let mut fds = [PollFd::new(&borrowed, PollFlags::IN)];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let timeout =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            match poll(&mut fds, Some(&timeout)) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(0) => return None,
                Ok(_) => break,
                Err(errno) => panic!("poll: {errno}"),
            }
        }
        let mut buffer = vec![0; 1 << 16];
        let (_, len) = rustix::net::recv(&self.0, &mut buffer[..], RecvFlags::empty())
            .expect("a message is read");
        buffer.truncate(len);
        let (header, _) = Header::read_from_prefix(&buffer).expect("a header");
        Some((header, buffer.split_off(HEADER_LEN)))
    }

    /// Sends a request; the answer, which is not a refusal.
    fn ask<T: IntoBytes + Immutable>(
        &self,
        kind: u16,
        fixed: &T,
        attributes: &[(u16, Vec<u8>)],
    ) -> Vec<u8> {
        let mut bytes = Vec::new();
        let acknowledged = matches!(kind, msg::NEWSA | msg::DELSA);
        let flags = NLM_F_REQUEST | if acknowledged { NLM_F_ACK } else { 0 };
        let header = Header { kind, flags, seq: 1, ..Header::default() };
        let mut message = Builder::new(&mut bytes, header).fixed(fixed);
        for (kind, value) in attributes {
            message = message.attribute_parts(*kind, &[value]);
        }
        message.finish();
        self.send(&bytes);
        let (header, body) = self.receive(PATIENCE).expect("an answer");
        if header.kind == NLMSG_ERROR {
            let code = i32::read_from_prefix(&body).expect("a code").0;
            assert_eq!(code, 0, "request {kind:#x}");
        }
        body
    }
}

/// The daemon: one connection to listen on, one to ask on.
pub struct Daemon {
    events: Connection,
    requests: Connection,
}

/// Where an SA's peer is now.
#[derive(Clone, Copy, Debug)]
pub enum Peer {
    /// It sends from this port.
    SendsFrom(u16),
    /// It receives on this port.
    ReceivesOn(u16),
}

impl Daemon {
    /// Listens for MAPPING.
    pub fn start(gateway: &str) -> Daemon {
        let mask = 1 << (group::MAPPING - 1);
        Daemon { events: Connection::open(gateway, mask), requests: Connection::open(gateway, 0) }
    }

    /// The next MAPPING.
    pub fn mapping(&self) -> UserMapping {
        let (header, body) = self.events.receive(PATIENCE).expect("a mapping is announced");
        assert_eq!((header.kind, header.pid), (msg::MAPPING, 0));
        UserMapping::read_from_bytes(&body).expect("the body of a mapping")
    }

    /// Throws away the MAPPINGs that wait.
    pub fn forget_mappings(&self) {
        while self.events.receive(Duration::ZERO).is_some() {}
    }

    /// Moves an SA, as strongSwan's `update_sa` does: what it is (GETSA), its numbers (GETAE), away
    /// with it (DELSA), and there it is again (NEWSA). The time between the last two.
    pub fn move_sa(&self, id: &UsersaId, peer: Peer) -> Duration {
        let body = self.requests.ask(msg::GETSA, id, &[]);
        let (info, rest) = UsersaInfo::read_from_prefix(&body).expect("an SA");
        let numbers = AeventId { sa_id: *id, ..AeventId::default() };
        let body = self.requests.ask(msg::GETAE, &numbers, &[]);
        let (_, numbers) = AeventId::read_from_prefix(&body).expect("an SA's numbers");
        let of = |bytes: &[u8]| -> Vec<(u16, Vec<u8>)> {
            let entries = AttributeIter::new(bytes);
            entries.map(|one| (one.kind, one.payload.to_vec())).collect()
        };
        let replay = [attr::REPLAY_VAL, attr::REPLAY_ESN_VAL, attr::LTIME_VAL];
        let mut attributes = of(rest);
        attributes.retain(|(kind, _)| !replay.contains(kind) && *kind != attr::LASTUSED);
        attributes.extend(of(numbers).into_iter().filter(|(kind, _)| replay.contains(kind)));
        let encap = attributes.iter_mut().find(|(kind, _)| *kind == attr::ENCAP);
        let (_, encap) = encap.expect("an SA in UDP");
        let mut ports = EncapTmpl::read_from_bytes(encap).expect("its ports");
        match peer {
            Peer::SendsFrom(port) => ports.encap_sport = Be16::new(port),
            Peer::ReceivesOn(port) => ports.encap_dport = Be16::new(port),
        }
        *encap = ports.as_bytes().to_vec();
        thread::sleep(PAUSE);
        let deleted = Instant::now();
        self.requests.ask(msg::DELSA, id, &[]);
        thread::sleep(PAUSE);
        self.requests.ask(msg::NEWSA, &info, &attributes);
        deleted.elapsed()
    }
}
