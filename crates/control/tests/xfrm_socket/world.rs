//! A server on a socket of its own, and programs that connect to it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use control::xfrm::{Clients, Server, Settings};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, connect, recv, send, socket,
};
use wire::xfrm::Builder;
use wire::xfrm::address::Be32;
use wire::xfrm::algorithm::{AlgorithmAead, Name};
use wire::xfrm::lifetime::LifetimeConfig;
use wire::xfrm::netlink::{
    Datagram, Header, NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR,
};
use wire::xfrm::number::{AF_INET, IPPROTO_ESP, attr, mode, msg};
use wire::xfrm::sa::{UsersaFlush, UsersaId, UsersaInfo};
use wire::xfrm::shim;
use zerocopy::{FromBytes, IntoBytes};

pub const NOW: u64 = 1_700_000_000;
/// No step of any test takes this long unless something hangs.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct World {
    pub directory: tempfile::TempDir,
    pub path: PathBuf,
    pub server: Server,
    pub clients: Clients,
}

impl World {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("instance/xfrm.sock");
        let clients = Clients::bind(&path).unwrap();
        Self { directory, path, server: Server::new(Settings::default()), clients }
    }

    /// Lets the server work until it has nothing to do.
    pub fn settle(&mut self) {
        let started = Instant::now();
        while readable(&self.clients) {
            self.clients.on_ready(&mut self.server, &mut (), NOW);
            assert!(started.elapsed() < PATIENCE, "the server is never done");
        }
    }

    /// One turn, whether or not there is more to do.
    pub fn turn(&mut self) {
        self.clients.on_ready(&mut self.server, &mut (), NOW);
    }

    pub fn connect(&mut self) -> Program {
        let program = Program { fd: connect_to(&self.path).unwrap() };
        self.settle();
        program
    }

    /// Installs SAs directly, so that dumps have something to show.
    pub fn fill(&mut self, count: u32) {
        for spi in 1..=count {
            self.server.handle(&Default::default(), &new_sa(spi), NOW, &());
        }
    }
}

pub fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&zero)).unwrap() > 0
}

pub fn connect_to(path: &Path) -> rustix::io::Result<OwnedFd> {
    let fd = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None)?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    Ok(fd)
}

pub struct Program {
    pub fd: OwnedFd,
}

impl Program {
    pub fn send(&self, bytes: &[u8]) {
        assert_eq!(self.try_send(bytes), Ok(bytes.len()));
    }

    pub fn try_send(&self, bytes: &[u8]) -> rustix::io::Result<usize> {
        send(&self.fd, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
    }

    pub fn bind(&self, port: u32, groups: u32) {
        self.send(shim::Frame::bind(port, groups).as_bytes());
    }

    pub fn control(&self, kind: u16, first: u32, second: u32) {
        self.send(shim::Frame::new(kind, first, second).as_bytes());
    }

    /// The next datagram, if it is there; no bytes when the connection is closed.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; 128 * 1024];
        match recv(&self.fd, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((_, len)) => Some(buffer[..len].to_vec()),
            Err(Errno::AGAIN) => None,
            Err(Errno::CONNRESET) => Some(Vec::new()),
            Err(errno) => panic!("{errno}"),
        }
    }

    pub fn is_closed(&self) -> bool {
        self.receive().is_some_and(|bytes| bytes.is_empty())
    }

    /// The error number of the next datagram, which must be an error message.
    #[track_caller]
    pub fn errno(&self) -> i32 {
        let bytes = self.receive().expect("an answer");
        assert_eq!(header(&bytes).kind, NLMSG_ERROR);
        i32::read_from_bytes(&bytes[16..20]).unwrap()
    }
}

pub fn header(bytes: &[u8]) -> Header {
    Header::read_from_prefix(bytes).unwrap().0
}

pub fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let header = Header { kind, flags: flags | NLM_F_REQUEST, seq: 3, ..Header::default() };
    Builder::new(&mut out, header).raw(body).finish();
    out
}

pub fn new_sa(spi: u32) -> Vec<u8> {
    new_sa_that_lasts(spi, 0)
}

/// One that expires after so many seconds, 0 for never.
pub fn new_sa_that_lasts(spi: u32, seconds: u64) -> Vec<u8> {
    let mut info = UsersaInfo {
        lft: LifetimeConfig::UNLIMITED,
        family: AF_INET,
        mode: mode::TUNNEL,
        ..UsersaInfo::default()
    };
    info.lft.hard_add_expires_seconds = seconds;
    info.id.spi = Be32::new(spi);
    info.id.proto = IPPROTO_ESP;
    let head = AlgorithmAead { name: Name::new("rfc4106(gcm(aes))"), key_len: 160, icv_len: 128 };
    let header = Header { kind: msg::NEWSA, flags: NLM_F_REQUEST | NLM_F_ACK, ..Header::default() };
    let mut out = Vec::new();
    Builder::new(&mut out, header)
        .fixed(&info)
        .attribute_parts(attr::ALG_AEAD, &[head.as_bytes(), &[7; 20]])
        .finish();
    out
}

pub fn delete_sa(spi: u32) -> Vec<u8> {
    let id = UsersaId {
        spi: Be32::new(spi),
        family: AF_INET,
        proto: IPPROTO_ESP,
        ..UsersaId::default()
    };
    request(msg::DELSA, NLM_F_ACK, id.as_bytes())
}

pub fn dump() -> Vec<u8> {
    request(msg::GETSA, NLM_F_DUMP, &[])
}

pub fn flush() -> Vec<u8> {
    request(msg::FLUSHSA, NLM_F_ACK, UsersaFlush::default().as_bytes())
}

/// Reads a dump to its end; returns the number of entries.
pub fn read_dump(world: &mut World, program: &Program) -> usize {
    let started = Instant::now();
    let mut entries = 0;
    loop {
        world.settle();
        while let Some(part) = program.receive() {
            assert!(part.len() <= 4096);
            for (header, _) in Datagram::new(&part) {
                if header.kind == NLMSG_DONE {
                    return entries;
                }
                entries += 1;
            }
        }
        assert!(started.elapsed() < PATIENCE, "the dump does not end");
    }
}
