//! A scripted XFRM server: records what it is told, and answers by a table instead of an SAD.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, listen, recv, send, socket_with,
};
use wire::xfrm::shim;

/// How long the slow answers take: long enough that a program that does not wait sees nothing.
const SLOW: Duration = Duration::from_millis(50);

/// How long the server has a request before it hangs up: longer than who is not answered waits.
const STALL: Duration = Duration::from_secs(3);

/// How long it takes to hang up: what is sent meanwhile stays unread, which the program is told.
const CLOSING: Duration = Duration::from_millis(20);

/// How long the server is away: longer than a request waits for it.
const AWAY: Duration = Duration::from_secs(8);

/// One frame that the server got: its type, and what follows the netlink header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub kind: u16,
    pub body: Vec<u8>,
}

impl Received {
    /// The words of a control frame.
    pub fn words(&self) -> Vec<u32> {
        self.body.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect()
    }
}

/// The server; it ends with the test program.
pub struct Server {
    pub path: PathBuf,
    received: Arc<Mutex<Vec<Received>>>,
    connections: Arc<Mutex<Vec<Arc<OwnedFd>>>>,
}

/// Datagrams that answer one request, before sequence number and port are filled in.
pub type Script = HashMap<u16, Vec<Vec<u8>>>;

impl Server {
    /// Listens under a name of its own in the temporary directory.
    pub fn start(name: &str, script: Script) -> Self {
        let path = std::env::temp_dir().join(format!("xfrm-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener =
            socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
                .unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 64).unwrap();
        let server = Self { path, received: Arc::default(), connections: Arc::default() };
        let (received, connections) = (server.received.clone(), server.connections.clone());
        let script = Arc::new(script);
        let path = server.path.clone();
        thread::spawn(move || {
            while let Ok(connection) = accept_with(&listener, SocketFlags::CLOEXEC) {
                let connection = Arc::new(connection);
                connections.lock().unwrap().push(connection.clone());
                let (received, script, path) = (received.clone(), script.clone(), path.clone());
                let all = connections.clone();
                thread::spawn(move || {
                    serve(&connection, &received, &script, &path);
                    all.lock().unwrap().retain(|one| !Arc::ptr_eq(one, &connection));
                });
            }
        });
        server
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Everything received so far.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }

    /// Waits for a frame that meets a condition.
    pub fn await_frame(&self, condition: impl Fn(&Received) -> bool) -> Received {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(found) = self.received().into_iter().find(&condition) {
                return found;
            }
            assert!(Instant::now() < deadline, "no such frame in {:?}", self.received());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sends a datagram to every program that is connected.
    pub fn broadcast(&self, datagram: &[u8]) {
        for connection in self.connections.lock().unwrap().iter() {
            let _ = send(&**connection, datagram, SendFlags::NOSIGNAL);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A netlink message.
pub fn message(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = (16 + body.len() as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// An error message that quotes a request without a body.
pub fn error(errno: i32) -> Vec<u8> {
    let mut body = (-errno).to_ne_bytes().to_vec();
    body.extend([0; 16]);
    message(2, 0, &body)
}

const NOTHING: u16 = 1;
const HANG_UP: u16 = 0x20;
const HANG_UP_ONCE: u16 = 0x26;
const GO_AWAY: u16 = 0x27;
const STALL_ONCE: u16 = 0x29;
const HELD: u16 = 0x2a;
const RELEASE_ONCE: u16 = 0x2b;

/// As the gateway does, in turns: what is there is read up to a frame that asks for nothing, and then answered.
fn serve(connection: &OwnedFd, received: &Mutex<Vec<Received>>, script: &Script, path: &Path) {
    let mut port = 0;
    let mut buffer = [0; 65536];
    let (mut answers, mut held): (Vec<Vec<u8>>, Vec<Vec<u8>>) = Default::default();
    loop {
        let flags = if answers.is_empty() { RecvFlags::empty() } else { RecvFlags::DONTWAIT };
        let len = recv(connection, &mut buffer[..], flags).map_or(0, |(_, len)| len);
        if len == 0 && answers.is_empty() {
            break;
        }
        let mut rest = &buffer[..len];
        while rest.len() >= 16 {
            let size = u32::from_ne_bytes(rest[0..4].try_into().unwrap()) as usize;
            let Some(one) = rest.get(..size).filter(|one| one.len() >= 16) else { break };
            let kind = u16::from_ne_bytes([one[4], one[5]]);
            received.lock().unwrap().push(Received { kind, body: one[16..].to_vec() });
            if kind == shim::BIND {
                port = u32::from_ne_bytes(one[16..20].try_into().unwrap());
            }
            let times = received.lock().unwrap().iter().filter(|one| one.kind == kind).count();
            match kind {
                GO_AWAY if times == 1 => return go_away(connection, path),
                STALL_ONCE if times % 2 == 1 => return thread::sleep(STALL),
                RELEASE_ONCE if times % 2 == 1 => {
                    held.iter().for_each(|datagram| put(connection, datagram));
                    return thread::sleep(CLOSING);
                }
                HANG_UP_ONCE if times % 2 == 1 => return thread::sleep(CLOSING),
                HANG_UP => return,
                HELD => {
                    reply(&mut held, one, port, script);
                    break;
                }
                _ => {}
            }
            if kind < shim::BIND {
                reply(&mut answers, one, port, script);
            }
            rest = &rest[size.next_multiple_of(4).min(rest.len())..];
        }
        let ends_turn = len == 0 || buffer[4..6] == NOTHING.to_ne_bytes();
        if !ends_turn {
            continue;
        }
        answers.drain(..).for_each(|datagram| put(connection, &datagram));
    }
}

fn put(connection: &OwnedFd, datagram: &[u8]) {
    let _ = send(connection, datagram, SendFlags::NOSIGNAL);
}

/// Nobody finds the server for a while, and it hangs up.
fn go_away(connection: &OwnedFd, path: &Path) {
    let hidden = path.with_extension("away");
    std::fs::rename(path, &hidden).unwrap();
    let _ = rustix::net::shutdown(connection, rustix::net::Shutdown::Both);
    thread::sleep(AWAY);
    let _ = std::fs::rename(&hidden, path);
}

fn reply(queue: &mut Vec<Vec<u8>>, request: &[u8], port: u32, script: &Script) {
    let kind = u16::from_ne_bytes([request[4], request[5]]);
    let flags = u16::from_ne_bytes([request[6], request[7]]);
    let answers = match (script.get(&kind), flags) {
        (Some(answers), _) => answers.clone(),
        // Without a script, a deletion is refused unless it wants to be acknowledged.
        (None, flags) if flags & 4 != 0 => slowly(vec![error(0)]),
        (None, _) if kind == 0x11 => slowly(vec![error(3)]),
        (None, flags) if flags & 1 != 0 => slowly(Vec::new()),
        (None, _) => Vec::new(),
    };
    for mut datagram in answers {
        let event = datagram[4..6] == request[4..6] || datagram[4..6] == [4, 0];
        if !event {
            stamp(&mut datagram, request, port);
        }
        queue.push(datagram);
    }
    // A flush that is acknowledged comes after its event.
    if script.contains_key(&kind) && flags & 4 != 0 {
        let mut datagram = slowly(vec![error(0)]).remove(0);
        stamp(&mut datagram, request, port);
        queue.push(datagram);
    }
}

/// Fills sequence number and port into every message of a datagram, and into errors the header that they quote.
fn stamp(datagram: &mut [u8], request: &[u8], port: u32) {
    let mut at = 0;
    while at + 16 <= datagram.len() {
        datagram[at + 8..at + 12].copy_from_slice(&request[8..12]);
        datagram[at + 12..at + 16].copy_from_slice(&port.to_ne_bytes());
        if datagram[at + 4..at + 6] == [2, 0] {
            datagram[at + 20..at + 36].copy_from_slice(&request[..16]);
        }
        at += u32::from_ne_bytes(datagram[at..at + 4].try_into().unwrap()) as usize;
    }
}

fn slowly(answers: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    thread::sleep(SLOW);
    answers
}
