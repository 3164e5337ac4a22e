//! Numbered packets through the tunnels, both ways, each of them counted where it arrives.
//!
//! A flow is one UDP conversation between two addresses; each side sends the numbers 0, 1, 2, … in
//! order at a steady pace. The report says which numbers never came and which came twice. It
//! measures no speed.

use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::topology::Namespace;

use super::pair::{Pair, Side};

/// The port that both sides use.
const PORT: u16 = 7000;
/// Bytes a receiver's socket may hold: it must not lose what a busy machine lets it read late.
const BUFFER: usize = 64 << 20;
/// Packets that have not come after so long of silence do not come.
const SILENCE: Duration = Duration::from_secs(3);

/// What became of one direction's packets.
#[derive(Clone, Debug, Default)]
pub struct Direction {
    /// Packets sent.
    pub sent: u64,
    /// Packets that came at least once.
    pub arrived: u64,
    /// (flow, number) of those that never came; flows count from 0.
    pub lost: Vec<(usize, u64)>,
    /// (flow, number) of those that came more than once.
    pub twice: Vec<(usize, u64)>,
}

impl Direction {
    /// Sees that none came twice, and that what was lost is at most one run of one flow: what was
    /// under way when something changed.
    #[track_caller]
    pub fn lost_in_one_run(&self) {
        assert!(self.twice.is_empty(), "{self:?}");
        let gaps = self.lost.windows(2).filter(|pair| pair[1].1 != pair[0].1 + 1).count();
        assert_eq!(gaps, 0, "{self:?}");
        // Those sent last arrived: it flows again.
        let last = self.lost.last().map_or(0, |lost| lost.1);
        assert!(last + 20 < self.sent, "{self:?}");
    }
}

/// Where one side of all flows is, and its address in each of them.
pub struct Place<'a> {
    /// The namespace that sends and receives.
    pub namespace: &'a Namespace,
    /// An address of that namespace for each flow, none of them twice.
    pub addresses: Vec<IpAddr>,
}

/// Traffic that runs until it is finished.
pub struct Numbered {
    stop: Arc<AtomicBool>,
    quiet: Arc<AtomicBool>,
    senders: Vec<JoinHandle<Vec<u64>>>,
    receivers: Vec<JoinHandle<Vec<Vec<u8>>>>,
    arrived: [Arc<AtomicU64>; 2],
}

impl Numbered {
    /// Starts both directions of the IPv4 networks `flows`, each flow with `pps` packets a second
    /// each way.
    pub fn start(pair: &Pair, flows: &[u8], pps: u32) -> Numbered {
        let place = |side: Side| Place {
            namespace: &pair.end(side).host,
            addresses: flows.iter().map(|n| address(&side.host(*n, false))).collect(),
        };
        Numbered::between([place(Side::West), place(Side::East)], pps)
    }

    /// Starts both directions between the west place and the east one, address by address.
    pub fn between(places: [Place<'_>; 2], pps: u32) -> Numbered {
        let stop = Arc::new(AtomicBool::new(false));
        let quiet = Arc::new(AtomicBool::new(false));
        let arrived = [Arc::default(), Arc::default()];
        let [west, east] = &places;
        let mut receivers = Vec::new();
        for ((here, there), arrived) in [(east, west), (west, east)].into_iter().zip(&arrived) {
            let socket = receiver(here);
            let (quiet, arrived) = (quiet.clone(), Arc::clone(arrived));
            let from = there.addresses.clone();
            receivers.push(std::thread::spawn(move || receive(&socket, &from, &quiet, &arrived)));
        }
        let mut senders = Vec::new();
        for (here, there) in [(west, east), (east, west)] {
            let ends = here.addresses.iter().zip(&there.addresses);
            let sockets = ends.map(|(own, far)| sender(here.namespace, *own, *far)).collect();
            let stop = stop.clone();
            senders.push(std::thread::spawn(move || send(sockets, pps, &stop)));
        }
        Numbered { stop, quiet, senders, receivers, arrived }
    }

    /// Packets that came so far, west to east and east to west.
    pub fn arrived(&self) -> [u64; 2] {
        self.arrived.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    /// Ends the sending, waits for what is under way, and counts: west to east, east to west.
    pub fn finish(mut self) -> [Direction; 2] {
        self.stop.store(true, Ordering::Relaxed);
        let sent: Vec<Vec<u64>> =
            self.senders.drain(..).map(|thread| thread.join().expect("a sender")).collect();
        let expected: u64 = sent.iter().flatten().sum();
        let mut last = (0, Instant::now());
        loop {
            let count = self.arrived.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            if count != last.0 {
                last = (count, Instant::now());
            }
            if count >= expected || last.1.elapsed() > SILENCE {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Half a second more, in which a duplicate of the last ones would come.
        std::thread::sleep(Duration::from_millis(500));
        self.quiet.store(true, Ordering::Relaxed);
        let seen: Vec<Vec<Vec<u8>>> =
            self.receivers.drain(..).map(|thread| thread.join().expect("a receiver")).collect();
        std::array::from_fn(|at| count(&sent[at], &seen[at]))
    }
}

impl Drop for Numbered {
    /// A test that fails leaves no thread behind that sends into namespaces that are gone.
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.quiet.store(true, Ordering::Relaxed);
        self.senders.drain(..).for_each(|thread| drop(thread.join()));
        self.receivers.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn count(sent: &[u64], seen: &[Vec<u8>]) -> Direction {
    let mut direction = Direction::default();
    for (flow, (sent, seen)) in sent.iter().zip(seen).enumerate() {
        direction.sent += sent;
        for number in 0..*sent {
            match seen.get(number as usize).copied().unwrap_or(0) {
                0 => direction.lost.push((flow, number)),
                times => {
                    direction.arrived += 1;
                    if times > 1 {
                        direction.twice.push((flow, number));
                    }
                }
            }
        }
    }
    direction
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn receiver(place: &Place<'_>) -> UdpSocket {
    // Bound to `::` it receives IPv4 as well.
    let any = if place.addresses.iter().any(IpAddr::is_ipv6) { "::" } else { "0.0.0.0" };
    let bind = || UdpSocket::bind((any, PORT)).expect("a socket");
    let socket = place.namespace.scope(bind).expect("the namespace");
    rustix::net::sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER).expect("a buffer");
    socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a timeout");
    socket
}

fn sender(namespace: &Namespace, own: IpAddr, far: IpAddr) -> UdpSocket {
    let open = || {
        // Not the receiver's port: this socket's queue would swallow what is for the receiver.
        let socket = UdpSocket::bind((own, PORT + 1)).expect("a socket");
        socket.connect((far, PORT)).expect("a way");
        socket
    };
    namespace.scope(open).expect("the namespace")
}

fn send(sockets: Vec<UdpSocket>, pps: u32, stop: &AtomicBool) -> Vec<u64> {
    let gap = Duration::from_secs(1) / (pps * sockets.len() as u32);
    let mut sent = vec![0_u64; sockets.len()];
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        for (socket, number) in sockets.iter().zip(&mut sent) {
            let mut packet = [0x5a; 100];
            packet[..8].copy_from_slice(&number.to_be_bytes());
            socket.send(&packet).expect("the host's kernel takes packets");
            *number += 1;
            due += gap;
            if let Some(rest) = due.checked_duration_since(Instant::now()) {
                std::thread::sleep(rest);
            } else {
                // A busy machine: what was missed is not sent in a burst.
                due = Instant::now();
            }
        }
    }
    sent
}

fn receive(
    socket: &UdpSocket,
    flows: &[IpAddr],
    quiet: &AtomicBool,
    arrived: &AtomicU64,
) -> Vec<Vec<u8>> {
    let mut seen = vec![Vec::new(); flows.len()];
    let mut packet = [0; 2048];
    while !quiet.load(Ordering::Relaxed) {
        let Ok((_, from)) = socket.recv_from(&mut packet) else { continue };
        let from = from.ip().to_canonical();
        let Some(at) = flows.iter().position(|flow| *flow == from) else { continue };
        let number = u64::from_be_bytes(packet[..8].try_into().expect("eight bytes")) as usize;
        let seen: &mut Vec<u8> = &mut seen[at];
        if seen.len() <= number {
            seen.resize(number + 1, 0);
        }
        seen[number] = seen[number].saturating_add(1);
        arrived.fetch_add(1, Ordering::Relaxed);
    }
    seen
}
