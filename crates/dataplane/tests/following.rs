//! Packets that become just what those before them became (`follow.rs`), against their stupid twins: the same
//! packets where each turn has a view of its own, so that nobody follows. The same leaves, in the same order, and
//! everything is counted alike.

mod fixture;

use std::sync::Arc;

use dataplane::encapsulation::UdpEncapsulation;
use dataplane::fib::{NextHop, Route};
use dataplane::nonce::NonceSpace;
use dataplane::policy::{Action, Direction, Policy, PolicyConfig};
use dataplane::prefix::{Family, Prefix};
use dataplane::sa::{HardLimits, Sa, SaConfig};
use dataplane::selector::{PortMatch, Selector};
use dataplane::tunnel::TunnelName;
use dataplane::verdict::Verdict;
use dataplane::view::View;
use fixture::*;
use proptest::prelude::*;
use wire::ethernet::MacAddr;
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
    /// A policy drops what has no ports.
    drops_portless: bool,
    /// In the west each of the hosts that packets go to is behind a tunnel of its own, the last of them behind such a one.
    own: Option<Last>,
}

/// One tunnel.
const SIMPLE: Case = Case {
    tunnel: PLAIN,
    forward: true,
    bypasses: false,
    forbids: false,
    drops_portless: false,
    own: None,
};

/// What is special about the last of three tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Nothing,
    /// Another worker has used its SA.
    Shared,
    /// Its SA ends after some packets.
    Limited,
    /// It has few numbers left.
    Exhausted,
    Selective,
    InUdp,
    /// It is not there.
    Missing,
    /// Its policy wants an SA for each worker, or drops what it covers.
    WantsOwn,
    Dropped,
    /// There is no way to its far end, or nobody knows the far end's link address.
    Unreachable,
    Unresolved,
}

const LASTS: [Last; 11] = [
    Last::Nothing,
    Last::Shared,
    Last::Limited,
    Last::Exhausted,
    Last::Selective,
    Last::InUdp,
    Last::Missing,
    Last::WantsOwn,
    Last::Dropped,
    Last::Unreachable,
    Last::Unresolved,
];

/// One packet, or what happens between two.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// UDP into the tunnel, to some of its hosts and ports.
    Plain { host: u8, port: u16, len: usize },
    /// So many of one kind.
    Burst { host: u8, count: usize },
    /// One with something about it.
    Odd(Odd),
    /// A packet the other way, to the other port.
    Back,
    /// ESP with something about it.
    Esp(Esp),
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
        !matches!(self, Step::Turn | Step::Rekey | Step::Publish | Step::Block(_))
    }
}

#[derive(Clone, Copy, Debug)]
enum Odd {
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
    V6,
    Icmp,
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
enum Esp {
    Again,
    Late,
    TooLate,
    FarAhead,
    Forged,
    Padded,
    OddlyPadded,
    Dummy,
    OfNobody,
    ForOther,
    Short,
    Congested,
}

const ESPS: [Esp; 12] = [
    Esp::Again,
    Esp::Late,
    Esp::TooLate,
    Esp::FarAhead,
    Esp::Forged,
    Esp::Padded,
    Esp::OddlyPadded,
    Esp::Dummy,
    Esp::OfNobody,
    Esp::ForOther,
    Esp::Short,
    Esp::Congested,
];

const ODDS: [Odd; 22] = [
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
    Odd::V6,
    Odd::Icmp,
    Odd::Congested,
    Odd::WrongPort,
    Odd::TransitEsp,
    Odd::LastHopEsp,
    Odd::MartianEsp,
    Odd::EspForHost,
];

fn step() -> impl Strategy<Value = Step> {
    let special = prop::sample::select(&[CLEAR_PORT, FORBIDDEN_PORT, BLOCKED_PORT][..]);
    let port = prop_oneof![6 => Just(5000), 1 => special, 1 => 1u16..60_000];
    let plain = (0u8..3, port, 0usize..300);
    prop_oneof![
        60 => plain.prop_map(|(host, port, len)| Step::Plain { host, port, len }),
        4 => prop::sample::select(&ODDS[..]).prop_map(Step::Odd),
        2 => (0u8..3, 2usize..50).prop_map(|(host, count)| Step::Burst { host, count }),
        3 => Just(Step::Back),
        3 => prop::sample::select(&ESPS[..]).prop_map(Step::Esp),
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
    let own = prop::option::of(prop::sample::select(&LASTS[..]));
    (any::<[bool; 5]>(), udp, outer_v6, often, own).prop_map(
        |(
            [extended, is_routed, bypasses, forbids, drops_portless],
            udp,
            outer_v6,
            forward,
            own,
        )| {
            let if_id = if is_routed { 5 } else { 0 };
            let tunnel = Tunnel { extended, if_id, udp, outer_v6, ..PLAIN };
            Case { tunnel, forward, bypasses, forbids, drops_portless, own }
        },
    )
}

impl Case {
    fn view(&self, site: Site, nonces: &Arc<NonceSpace>) -> View {
        let mut view = self.tunnel.view(site, nonces);
        view.local.insert(ip(LOCAL));
        let router = NextHop { port: BLACK, gateway: Some(site.peer().outer(false)) };
        view.fib.insert(prefix("198.51.100.0/24"), Route::Via(router));
        view.neighbours.set(BLACK, site.peer().outer(false), OTHER_MAC);
        if !self.forward {
            view.spd.remove(&self.tunnel.policy(Direction::Forward, site)).unwrap();
        } else if self.tunnel.if_id != 0 {
            // What everything that comes through the tunnel is welcome by.
            let policy = self.tunnel.policy(Direction::Forward, site);
            view.spd.remove(&policy).unwrap();
            let policy = PolicyConfig { selector: Selector::any(Family::V4), ..policy };
            view.spd.insert(Arc::new(Policy::new(policy)));
        }
        let bypass = of_port(64, Direction::Out, CLEAR_PORT, Action::Bypass);
        let forbid = of_port(65, Direction::Forward, FORBIDDEN_PORT, Action::Discard);
        // Whatever has no ports has port 0.
        let portless = of_port(67, Direction::Out, 0, Action::Discard);
        let selector = Selector { protocol: 0, ..portless.selector };
        let portless = PolicyConfig { selector, ..portless };
        let policies =
            [(bypass, self.bypasses), (forbid, self.forbids), (portless, self.drops_portless)];
        for (policy, is_there) in policies {
            if is_there {
                view.spd.insert(Arc::new(Policy::new(policy)));
            }
        }
        if site == Site::East {
            // Its hosts are there without a router between, and no link takes more.
            view.fib
                .insert(prefix("10.2.0.0/24"), Route::Via(NextHop { port: RED, gateway: None }));
            for n in 1..=3 {
                view.neighbours.set(RED, ip(&format!("10.2.0.{n}")), MacAddr([2, 0, 0, 0, 1, n]));
            }
            let mut ports = view.ports.to_vec();
            ports[usize::from(RED)].mtu = 1446;
            view.ports = ports.into();
        } else if self.tunnel.if_id == 0 {
            // One of its hosts is also reached in clear, if a policy lets that be.
            view.fib.insert(Prefix::host(ip("10.2.0.1")), Route::Via(router));
        }
        if self.tunnel.if_id != 0 {
            let name = TunnelName { if_id: self.tunnel.if_id, remote: None };
            let row = view.tunnels.number(&name).unwrap();
            view.tunnels.set_slots(row, [Some(0); 2]);
        }
        if site == Site::West
            && let Some(last) = self.own
        {
            self.give_each_host_a_tunnel(last, &mut view, nonces);
        }
        view
    }

    /// Three tunnels, from which the slot 0 is left out.
    fn give_each_host_a_tunnel(&self, last: Last, view: &mut View, nonces: &Arc<NonceSpace>) {
        let policy = self.tunnel.policy(Direction::Out, Site::East);
        view.spd.remove(&policy).unwrap();
        for n in 1..=3 {
            let last = if n == 3 { last } else { Last::Nothing };
            let host = Prefix::host(ip(&format!("10.2.0.{n}")));
            let if_id = if self.tunnel.if_id == 0 { 0 } else { self.tunnel.if_id + n };
            if if_id != 0 {
                let row = view.tunnels.join(TunnelName { if_id, remote: None }).unwrap();
                view.tunnels.set_slots(row, [Some(n); 2]);
                view.fib.insert(host, Route::Tunnel(row));
            }
            let selector = Selector::between(Site::West.inner(false), host).unwrap();
            let own_sas = last == Last::WantsOwn;
            let Action::Protect { template, .. } = policy.action else { unreachable!() };
            let action = match last {
                Last::Dropped => Action::Discard,
                _ => Action::Protect { template, bundle: Some(n) },
            };
            let policy =
                PolicyConfig { index: 100 + n, selector, own_sas, if_id, action, ..policy };
            view.spd.insert(Arc::new(Policy::new(policy)));
            let far_end = match last {
                Last::Unreachable => ip("203.0.113.9"),
                _ => ip(&format!("192.0.2.{}", 100 + n)),
            };
            if last != Last::Unreachable {
                let hop = NextHop { port: BLACK, gateway: None };
                view.fib.insert(Prefix::host(far_end), Route::Via(hop));
            }
            if last != Last::Unresolved {
                view.neighbours.set(BLACK, far_end, MacAddr([2, 0, 0, 0, 2, n as u8]));
            }
            let sa = self.tunnel.sa(Site::East);
            let outer_v4 = SaConfig {
                source: Site::West.outer(false),
                destination: far_end,
                spi: 0x3000_0000 + n,
                if_id,
                ..sa
            };
            let sa = match last {
                Last::Limited => {
                    let limits = HardLimits { packets: 60, ..HardLimits::NONE };
                    SaConfig { limits, ..outer_v4 }
                }
                Last::Exhausted => {
                    let sent = u64::from(u32::MAX) - 60;
                    SaConfig { sent, extended_sequence: false, ..outer_v4 }
                }
                Last::Selective => {
                    let selector =
                        Selector { destination_port: PortMatch::exactly(5000), ..selector };
                    SaConfig { selector: Some(selector), ..outer_v4 }
                }
                Last::InUdp => SaConfig {
                    encapsulation: Some(UdpEncapsulation {
                        source_port: 4500,
                        destination_port: 4500,
                    }),
                    ..outer_v4
                },
                _ => outer_v4,
            };
            let sa = Arc::new(Sa::new(sa).unwrap());
            sa.arm(nonces).unwrap();
            if last == Last::Shared {
                sa.take_numbers().unwrap();
            }
            view.bundles.set(n, (last != Last::Missing).then_some(sa));
        }
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
        let ports = [4000u16, 5000].map(u16::to_be_bytes).concat();
        let payload = [&ports[..], &[0; 36]].concat();
        let esp = Packet { protocol: protocol::ESP, payload, ..packet.clone() };
        match self {
            Odd::LastHop => Packet { ttl: 1, ..packet }.frame(RED),
            Odd::ForHost => Packet { dst: ip(LOCAL), ..packet }.frame(RED),
            Odd::Elsewhere => Packet { dst: ip("198.51.100.7"), ..packet }.frame(RED),
            Odd::Martian => Packet { src: ip("127.0.0.1"), ..packet }.frame(RED),
            Odd::Spoofed => Packet { src: ip("10.9.9.9"), ..packet }.frame(RED),
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
            Odd::WrongPort => packet.frame(RED),
            Odd::TransitEsp => esp.frame(RED),
            Odd::LastHopEsp => Packet { ttl: 1, ..esp }.frame(RED),
            Odd::MartianEsp => Packet { src: ip("127.0.0.1"), ..esp }.frame(RED),
            Odd::EspForHost => Packet { dst: ip(LOCAL), ..esp }.frame(RED),
            Odd::Congested => Packet { tos: 0xff, dont_fragment: true, ..packet }.frame(RED),
        }
    }
}

impl Esp {
    /// The frame around a packet with the next number, which it takes.
    fn frame(self, sa: &SaConfig, next: &mut u64) -> Vec<u8> {
        let inner = udp(1, 5000, 40).bytes();
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
        let seal = Seal::sequence(number);
        let mut frame = match self {
            Esp::Padded => Seal { tfc: 8, ..seal },
            Esp::OddlyPadded => Seal { padding: Some(vec![7; 2]), ..seal },
            Esp::Dummy => Seal { next_header: protocol::NO_NEXT_HEADER, ..seal },
            Esp::Congested => Seal { outer_tos: 3, ..seal },
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
            Esp::Short => {
                let esp = [&sa.spi.to_be_bytes()[..], &[0; 20]].concat();
                let outer = Packet::udp(sa.source, sa.destination, 0, 0, 0);
                frame = Packet { protocol: protocol::ESP, payload: esp, ..outer }.frame(BLACK);
            }
            _ => {}
        }
        frame
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
    fn new(site: Site, case: &Case) -> Side {
        let nonces = nonces();
        let gateway = Gateway::new(case.view(site, &nonces));
        let sas = (0..=3).filter_map(|slot| gateway.view.bundles.get(slot).cloned()).collect();
        Side { gateway, nonces, sas, left: Default::default() }
    }

    /// Forwards frames in one turn.
    fn forward(&mut self, frames: &[(u16, Vec<u8>)]) {
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

    fn rekey(&mut self, towards: Site, case: &Case) {
        let spi = towards.spi() + self.sas.len() as u32;
        let slot = if towards == Site::East && case.own.is_some() { 1 } else { 0 };
        let if_id = self.gateway.view.bundles.get(slot).unwrap().if_id();
        let config = SaConfig { spi, if_id, ..case.tunnel.sa(towards) };
        let sa = Arc::new(Sa::new(config).unwrap());
        sa.arm(&self.nonces).unwrap();
        self.sas.push(sa.clone());
        self.gateway.change(|view| {
            view.bundles.set(slot, Some(sa));
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
    fn counted(&self) -> (Vec<u64>, Vec<Vec<u64>>, Vec<[u64; 3]>) {
        let snapshot = self.gateway.snapshot();
        // An old packet is one or the other, as the packets before it in the batch were accepted or not.
        let old = [
            Verdict::Replayed,
            Verdict::ReplayOld,
            Verdict::SequenceZero,
            Verdict::IntegrityFailed,
        ];
        let verdicts = Verdict::ALL.iter().filter(|verdict| !old.contains(verdict));
        let verdicts = verdicts.map(|verdict| snapshot.of(*verdict));
        let refused = old.iter().map(|verdict| snapshot.of(*verdict)).sum();
        let sas = self.sas.iter().chain(self.gateway.view.sad.iter()).map(|sa| {
            let stats = sa.stats();
            let old = stats.replayed + stats.replay_old + stats.integrity_failed;
            let numbers = [stats.sent, stats.received, u64::from(stats.replay_bitmap[0])];
            let counts = [stats.usage.packets, stats.usage.bytes, stats.other_errors, old];
            [&numbers[..], &counts].concat()
        });
        // A policy that welcomes all that comes through a tunnel is asked twice a second.
        let is_counted = |policy: &&Arc<Policy>| policy.config().if_id == 0;
        let policies = self.gateway.view.spd.iter().filter(is_counted).map(|policy| {
            let usage = policy.usage();
            [u64::from(policy.config().index), usage.packets, usage.bytes]
        });
        let by_sa = [snapshot.own_sa, snapshot.fallback_sa];
        let received =
            [snapshot.received, snapshot.received_bytes, refused].into_iter().chain(by_sa);
        // They are in no order.
        let mut policies: Vec<_> = policies.collect();
        policies.sort_unstable();
        (verdicts.chain(received).collect(), sas.collect(), policies)
    }
}

/// What steps bring to the gateway of a site, where most packets go to the east.
struct Arrivals {
    site: Site,
    case: Case,
    /// The number of the next ESP packet.
    next: u64,
}

impl Arrivals {
    fn frame(&mut self, step: Step) -> (u16, Vec<u8>) {
        let there = match step {
            Step::Plain { host, port, len } => udp(host, port, len).frame(RED),
            Step::Odd(odd) => odd.frame(),
            Step::Esp(esp) => {
                return (BLACK, esp.frame(&self.case.tunnel.sa(self.site), &mut self.next));
            }
            _ => {
                let back = Packet::towards(Site::West, false, 20).bytes();
                return match self.site {
                    Site::West => (BLACK, self.sealed(&back)),
                    Site::East => (RED, frame(RED, &back)),
                };
            }
        };
        match self.site {
            Site::West if matches!(step, Step::Odd(Odd::WrongPort)) => (BLACK, there),
            Site::West => (RED, there),
            // All that is behind the link header has been sealed.
            Site::East => (BLACK, self.sealed(&there[14..])),
        }
    }

    fn sealed(&mut self, inner: &[u8]) -> Vec<u8> {
        self.next += 1;
        let next_header = if inner[0] >> 4 == 6 { protocol::IPV6 } else { protocol::IPV4 };
        let seal = Seal { next_header, ..Seal::sequence(self.next - 1) };
        seal.frame(&self.case.tunnel.sa(self.site), inner)
    }
}

/// The steps at a site: for packets that follow, and for such that each lead.
fn run(site: Site, case: Case, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let (mut following, mut leading) = (Side::new(site, &case), Side::new(site, &case));
    let mut arrivals = Arrivals { site, case, next: 1 };
    let mut waiting = Vec::new();
    let each = |step| match step {
        Step::Burst { host, count } => vec![Step::Plain { host, port: 5000, len: 90 }; count],
        one => vec![one],
    };
    for step in steps.into_iter().chain([Step::Turn]).flat_map(each) {
        if step.waits() {
            waiting.push(arrivals.frame(step));
        }
        if !step.waits() || waiting.len() == WAITING_MAX {
            following.forward(&waiting);
            // What a view says may have changed, so nobody follows.
            leading.gateway.change(|_| {});
            leading.forward(&waiting);
            waiting.clear();
        }
        for side in [&mut following, &mut leading] {
            match step {
                Step::Rekey => side.rekey(site.peer(), &case),
                Step::Publish => side.gateway.change(|_| {}),
                Step::Block(on) => side.block(on),
                _ => {}
            }
        }
    }
    for (followed, led) in following.left.iter().zip(&leading.left) {
        let same = followed.iter().zip(led).take_while(|(one, other)| one == other).count();
        prop_assert_eq!(followed.get(same), led.get(same), "packet {}", same);
    }
    prop_assert_eq!(following.counted(), leading.counted());
    prop_assert_eq!(leading.gateway.snapshot().followed, 0);
    Ok(())
}

proptest! {
    #[test]
    fn whoever_follows_is_sealed_as_who_leads(
        case in case(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(Site::West, case, steps)?;
    }

    #[test]
    fn whoever_follows_is_opened_as_who_leads(
        case in case(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        run(Site::East, case, steps)?;
    }
}

/// As many as may follow do.
#[test]
fn most_of_a_fat_tunnels_packets_are_sealed_as_those_before() {
    for (forward, if_id) in [(false, 0), (true, 0), (false, 5), (true, 5)] {
        let case = Case { tunnel: Tunnel { if_id, ..PLAIN }, forward, ..SIMPLE };
        let mut side = Side::new(Site::West, &case);
        let frames: Vec<_> =
            (0..60u16).map(|n| (RED, udp(n as u8 % 2, 5000 + n, 100).frame(RED))).collect();
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 0, "there is nobody to follow yet");
        side.forward(&frames);
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 120, "{case:?}");
        // A view that may say something else ends the trail, and the next turn leaves another.
        side.gateway.change(|_| {});
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 120);
        side.forward(&frames);
        assert_eq!(side.gateway.snapshot().followed, 180);
        assert_eq!(side.gateway.snapshot().of(Verdict::Sealed), 300);
    }
}

#[test]
fn most_of_a_fat_tunnels_packets_are_opened_as_those_before() {
    for if_id in [0, 5] {
        let tunnel = Tunnel { if_id, ..PLAIN };
        let case = Case { tunnel, forward: true, ..SIMPLE };
        let mut side = Side::new(Site::East, &case);
        let mut arrivals = Arrivals { site: Site::East, case, next: 1 };
        for followed in [0, 60, 120] {
            let mut one = |port| arrivals.frame(Step::Plain { host: 0, port, len: 100 });
            let frames: Vec<_> = (0..60).map(|n| one(5000 + n)).collect();
            side.forward(&frames);
            assert_eq!(side.gateway.snapshot().followed, followed, "{case:?}");
        }
        // The last of them once more: none is opened, whoever they follow.
        let again = arrivals.sealed(&udp(0, 5000, 100).bytes());
        side.forward(&[(BLACK, again.clone()), (BLACK, again.clone()), (BLACK, again)]);
        let snapshot = side.gateway.snapshot();
        assert_eq!((snapshot.of(Verdict::Opened), snapshot.of(Verdict::Replayed)), (181, 2));
    }
}

/// So do those of many tunnels, whichever each is for, and by the word of policies or of routes.
#[test]
fn most_packets_of_many_tunnels_need_no_stages() {
    for (forward, if_id) in [(false, 0), (true, 0), (false, 5), (true, 5)] {
        let case =
            Case { tunnel: Tunnel { if_id, ..PLAIN }, forward, own: Some(Last::Nothing), ..SIMPLE };
        let mut side = Side::new(Site::West, &case);
        let frames: Vec<_> =
            (0..60u16).map(|n| (RED, udp((n % 3) as u8, 5000 + n, 100).frame(RED))).collect();
        for followed in [0, 60, 120] {
            side.forward(&frames);
            assert_eq!(side.gateway.snapshot().followed, followed, "{case:?}");
        }
        // Few packets before one that takes the stages do so as well.
        let odd = (RED, Odd::LastHop.frame());
        let of = |count: usize| {
            [&frames[..count], std::slice::from_ref(&odd), &frames[count..59]].concat()
        };
        side.forward(&of(7));
        assert_eq!(side.gateway.snapshot().followed, 120);
        side.forward(&of(8));
        assert_eq!(side.gateway.snapshot().followed, 128);
        assert_eq!(side.gateway.snapshot().of(Verdict::Sealed), 3 * 60 + 2 * 59);
    }
}
