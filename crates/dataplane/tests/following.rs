//! Packets that are sealed just as those before them were (`follow.rs`), against their stupid twins: the same
//! packets, of which each has a turn of its own and follows nobody. The same leaves, in the same order, and
//! everything is counted alike.

mod fixture;

use std::sync::Arc;

use dataplane::fib::{NextHop, Route};
use dataplane::nonce::NonceSpace;
use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
use dataplane::prefix::{Family, Prefix};
use dataplane::sa::{Sa, SaConfig};
use dataplane::selector::{PortMatch, Selector};
use dataplane::tunnel::TunnelName;
use dataplane::verdict::Verdict;
use dataplane::view::View;
use fixture::*;
use proptest::prelude::*;
use wire::{checksum, protocol};

/// An address of this host among those that the tunnel protects.
const LOCAL: &str = "10.2.0.77";
/// The port that passes in clear where ports matter.
const CLEAR_PORT: u16 = 53;
/// The port that is not forwarded where ports matter, and the one that is blocked for a while.
const FORBIDDEN_PORT: u16 = 54;
const BLOCKED_PORT: u16 = 5001;
/// Packets that wait for a turn, at most.
const WAITING_MAX: usize = 60;

/// What a gateway is like.
#[derive(Clone, Copy, Debug)]
struct Case {
    tunnel: Tunnel,
    /// There are policies of what is forwarded.
    forward: bool,
    /// A policy lets a port pass in clear.
    bypasses: bool,
    /// A policy of what is forwarded forbids a port.
    forbids: bool,
}

/// One packet, or what happens between two.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// UDP into the tunnel, to some of its hosts and ports.
    Plain { host: u8, port: u16, len: usize },
    /// The same with something about it.
    Odd(Odd),
    /// ESP from the other side, to the other port.
    Opened,
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
    fn waits(self) -> bool {
        matches!(self, Step::Plain { .. } | Step::Odd(_) | Step::Opened)
    }
}

#[derive(Clone, Copy, Debug)]
enum Odd {
    LastHop,
    ForHost,
    Elsewhere,
    Martian,
    Options,
    FirstFragment,
    LaterFragment,
    BadChecksum,
    NotForUs,
    Truncated,
    Padded,
    JustFits,
    TooBig,
    V6,
    Icmp,
    Congested,
}

const ODDS: [Odd; 16] = [
    Odd::LastHop,
    Odd::ForHost,
    Odd::Elsewhere,
    Odd::Martian,
    Odd::Options,
    Odd::FirstFragment,
    Odd::LaterFragment,
    Odd::BadChecksum,
    Odd::NotForUs,
    Odd::Truncated,
    Odd::Padded,
    Odd::JustFits,
    Odd::TooBig,
    Odd::V6,
    Odd::Icmp,
    Odd::Congested,
];

fn step() -> impl Strategy<Value = Step> {
    let special = prop::sample::select(&[CLEAR_PORT, FORBIDDEN_PORT, BLOCKED_PORT][..]);
    let port = prop_oneof![6 => Just(5000), 1 => special, 1 => 1u16..60_000];
    let plain = (0u8..3, port, 0usize..300);
    prop_oneof![
        60 => plain.prop_map(|(host, port, len)| Step::Plain { host, port, len }),
        4 => prop::sample::select(&ODDS[..]).prop_map(Step::Odd),
        3 => Just(Step::Opened),
        8 => Just(Step::Turn),
        1 => Just(Step::Rekey),
        1 => Just(Step::Publish),
        1 => any::<bool>().prop_map(Step::Block),
    ]
}

fn case() -> impl Strategy<Value = Case> {
    let often = prop::bool::weighted(0.8);
    let udp = prop_oneof![6 => Just(None), 1 => Just(Some((4500, 4500)))];
    let outer_v6 = prop::bool::weighted(0.1);
    (any::<[bool; 4]>(), udp, outer_v6, often).prop_map(
        |([extended, is_routed, bypasses, forbids], udp, outer_v6, forward)| {
            let if_id = if is_routed { 5 } else { 0 };
            let tunnel = Tunnel { extended, if_id, udp, outer_v6, ..PLAIN };
            Case { tunnel, forward, bypasses, forbids }
        },
    )
}

impl Case {
    fn view(&self, nonces: &Arc<NonceSpace>) -> View {
        let mut view = self.tunnel.view(Site::West, nonces);
        view.local.insert(ip(LOCAL));
        let router = NextHop { port: BLACK, gateway: Some(Site::East.outer(false)) };
        view.fib.insert(prefix("198.51.100.0/24"), Route::Via(router));
        view.neighbours.set(BLACK, Site::East.outer(false), OTHER_MAC);
        if !self.forward {
            view.spd.remove(&self.tunnel.policy(Direction::Forward, Site::West)).unwrap();
        }
        let bypass = of_port(64, Direction::Out, CLEAR_PORT, Action::Bypass);
        let forbid = of_port(65, Direction::Forward, FORBIDDEN_PORT, Action::Discard);
        for (policy, is_there) in [(bypass, self.bypasses), (forbid, self.forbids)] {
            if is_there {
                view.spd.insert(Arc::new(Policy::new(policy)));
            }
        }
        if self.tunnel.if_id == 0 {
            // One of its hosts is also reached in clear, if a policy lets that be.
            view.fib.insert(Prefix::host(ip("10.2.0.1")), Route::Via(router));
        } else {
            let name = TunnelName { if_id: self.tunnel.if_id, remote: None };
            let row = view.tunnels.number(&name).unwrap();
            view.tunnels.set_slots(row, [Some(0); 2]);
        }
        view
    }
}

/// A policy of a port, before all others.
fn of_port(index: u32, direction: Direction, port: u16, action: Action) -> PolicyConfig {
    let selector = Selector {
        protocol: protocol::UDP,
        destination_port: PortMatch::exactly(port),
        ..Selector::any(Family::V4)
    };
    PolicyConfig { priority: 1, action, ..PolicyConfig::bypass(index, direction, selector) }
}

fn udp(host: u8, port: u16, len: usize) -> Packet {
    Packet::udp(Site::West.host(false), ip(&format!("10.2.0.{}", host + 1)), 4000, port, len)
}

/// An IPv4 packet with other bytes in its header, and a right checksum.
fn with(mut bytes: Vec<u8>, changes: &[(usize, u8)]) -> Vec<u8> {
    for (at, byte) in changes {
        bytes[*at] = *byte;
    }
    bytes[10..12].fill(0);
    let header_len = usize::from(bytes[0] & 0xf) * 4;
    let sum = checksum::Sum::ZERO.bytes(&bytes[..header_len]).checksum();
    bytes[10..12].copy_from_slice(&sum.to_be_bytes());
    bytes
}

impl Odd {
    fn frame(self) -> Vec<u8> {
        let packet = udp(1, 5000, 40);
        let bytes = packet.bytes();
        // Outer headers of IPv4, ESP and its trailer and ICV take 54 to 57 bytes.
        let of_len = |len: usize| udp(1, 5000, len - 28).frame(RED);
        match self {
            Odd::LastHop => Packet { ttl: 1, ..packet }.frame(RED),
            Odd::ForHost => Packet { dst: ip(LOCAL), ..packet }.frame(RED),
            Odd::Elsewhere => Packet { dst: ip("198.51.100.7"), ..packet }.frame(RED),
            Odd::Martian => Packet { src: ip("127.0.0.1"), ..packet }.frame(RED),
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
            Odd::V6 => Packet::towards(Site::East, true, 10).frame(RED),
            Odd::Icmp => {
                Packet { protocol: protocol::ICMP, payload: vec![8; 16], ..packet }.frame(RED)
            }
            Odd::Congested => Packet { tos: 0xff, dont_fragment: true, ..packet }.frame(RED),
        }
    }
}

/// A gateway, and what left it.
struct Side {
    gateway: Gateway,
    nonces: Arc<NonceSpace>,
    /// Every SA that sealed.
    sas: Vec<Arc<Sa>>,
    left: [Vec<Vec<u8>>; 2],
}

impl Side {
    fn new(case: &Case) -> Side {
        let nonces = nonces();
        let gateway = Gateway::new(case.view(&nonces));
        let sas = vec![gateway.outbound().clone()];
        Side { gateway, nonces, sas, left: Default::default() }
    }

    /// Forwards frames, so many in a turn.
    fn forward(&mut self, frames: &[(u16, Vec<u8>)], in_turn: usize) {
        for frames in frames.chunks(in_turn) {
            for (port, frame) in frames {
                self.gateway.inject(*port, frame);
            }
            assert_eq!(self.gateway.worker.turn(), frames.len());
            for port in [RED, BLACK] {
                while let Some(frame) = self.gateway.collect(port) {
                    self.left[usize::from(port)].push(frame);
                }
            }
        }
    }

    fn rekey(&mut self, case: &Case) {
        let spi = Site::East.spi() + self.sas.len() as u32;
        let config = SaConfig { spi, ..case.tunnel.sa(Site::East) };
        let sa = Arc::new(Sa::new(config).unwrap());
        sa.arm(&self.nonces).unwrap();
        self.sas.push(sa.clone());
        self.gateway.change(|view| {
            view.bundles.set(0, Some(sa));
        });
    }

    fn block(&mut self, on: bool) {
        let policy = of_port(66, Direction::Out, BLOCKED_PORT, Action::Discard);
        self.gateway.change(|view| match on {
            true => drop(view.spd.insert(Arc::new(Policy::new(policy)))),
            false => drop(view.spd.remove(&policy)),
        });
    }

    /// What was counted, but for the turns.
    fn counted(&self) -> (Vec<u64>, Vec<[u64; 5]>, Vec<[u64; 3]>) {
        let snapshot = self.gateway.snapshot();
        let verdicts = Verdict::ALL.iter().map(|verdict| snapshot.of(*verdict));
        let sas = self.sas.iter().map(|sa| {
            let stats = sa.stats();
            [
                stats.sent,
                stats.usage.packets,
                stats.usage.bytes,
                stats.other_errors,
                stats.integrity_failed,
            ]
        });
        let policies = self.gateway.view.spd.iter().map(|policy| {
            let usage = policy.usage();
            [u64::from(policy.config().index), usage.packets, usage.bytes]
        });
        let received = [snapshot.received, snapshot.received_bytes];
        (verdicts.chain(received).collect(), sas.collect(), policies.collect())
    }
}

proptest! {
    #[test]
    fn whoever_follows_ends_as_if_alone(
        case in case(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let (mut together, mut alone) = (Side::new(&case), Side::new(&case));
        let (mut waiting, mut opened) = (Vec::new(), 0);
        for step in steps.into_iter().chain([Step::Turn]) {
            match step {
                Step::Plain { host, port, len } => waiting.push((RED, udp(host, port, len).frame(RED))),
                Step::Odd(odd) => waiting.push((RED, odd.frame())),
                Step::Opened => {
                    opened += 1;
                    let inner = Packet::towards(Site::West, false, 20).bytes();
                    let sealed = Seal::sequence(opened).packet(&case.tunnel.sa(Site::West), &inner);
                    waiting.push((BLACK, frame(BLACK, &sealed)));
                }
                _ => {}
            }
            if !step.waits() || waiting.len() == WAITING_MAX {
                together.forward(&waiting, WAITING_MAX);
                alone.forward(&waiting, 1);
                waiting.clear();
            }
            for side in [&mut together, &mut alone] {
                match step {
                    Step::Rekey => side.rekey(&case),
                    Step::Publish => side.gateway.change(|_| {}),
                    Step::Block(on) => side.block(on),
                    _ => {}
                }
            }
        }
        prop_assert_eq!(&together.left, &alone.left);
        prop_assert_eq!(together.counted(), alone.counted());
        prop_assert_eq!(alone.gateway.snapshot().followed, 0);
    }
}

/// As many as may follow do.
#[test]
fn most_of_a_fat_tunnels_packets_follow() {
    for (forward, if_id) in [(false, 0), (true, 0), (false, 5), (true, 5)] {
        let case =
            Case { tunnel: Tunnel { if_id, ..PLAIN }, forward, bypasses: false, forbids: false };
        let mut side = Side::new(&case);
        let frames: Vec<_> =
            (0..60u16).map(|n| (RED, udp(n as u8 % 2, 5000 + n, 100).frame(RED))).collect();
        side.forward(&frames, 60);
        assert_eq!(side.gateway.snapshot().followed, 0, "there is nobody to follow yet");
        side.forward(&frames, 60);
        side.forward(&frames, 60);
        assert_eq!(side.gateway.snapshot().followed, 120, "{case:?}");
        // A view that may say something else ends the trail, and the next turn leaves another.
        side.gateway.change(|_| {});
        side.forward(&frames, 60);
        assert_eq!(side.gateway.snapshot().followed, 120);
        side.forward(&frames, 60);
        assert_eq!(side.gateway.snapshot().followed, 180);
        assert_eq!(side.gateway.snapshot().of(Verdict::Sealed), 300);
    }
}
