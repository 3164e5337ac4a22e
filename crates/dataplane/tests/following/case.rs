//! What a gateway is like.

use std::sync::Arc;

use dataplane::bundles::Bundle;
use dataplane::encapsulation::UdpEncapsulation;
use dataplane::fib::{NextHop, Route};
use dataplane::nonce::NonceSpace;
use dataplane::policy::{Action, Direction, Policy, PolicyConfig, Template};
use dataplane::prefix::{Family, Prefix};
use dataplane::ruler::path::lead_to_vrfs;
use dataplane::sa::{HardLimits, Sa, SaConfig, SaFlags};
use dataplane::selector::{PortMatch, Selector};
use dataplane::tunnel::TunnelName;
use dataplane::view::View;
use dataplane::vrfs::{PortVrf, UNKNOWN, Vrfs};
use proptest::prelude::*;
use wire::ethernet::MacAddr;
use wire::protocol;

use super::clear::{THIRDS, Third};
use super::families::{self, Inside, complete};
use super::fixture::*;

/// An address of this host among those that the tunnel protects.
pub const LOCAL: &str = "10.2.0.77";
/// Another of its addresses, among those that tunnels end at over IPv6.
pub const LOCAL_V6: &str = "2001:db8::77";
/// Of the west's network what a far end has for itself.
pub const SPOKE: &str = "10.1.0.0/28";
/// The port that passes in clear where ports matter.
pub const CLEAR_PORT: u16 = 0x8035;
/// The port that is not forwarded where ports matter, and the one that is blocked for a while.
pub const FORBIDDEN_PORT: u16 = 54;
pub const BLOCKED_PORT: u16 = 5001;
/// In whose datagrams ESP comes and goes.
pub const IN_UDP: UdpEncapsulation = UdpEncapsulation { source_port: 4500, destination_port: 4500 };

/// The device of tunnels that are led elsewhere.
const DEVICE: u16 = HOST + 1;
/// Where the others are led to, and a table with other routes.
const TUNNELS: u32 = 2;
const APART: u32 = 3;

/// Limits that packets reach here, and such as they do not.
const FEW: HardLimits = HardLimits { packets: 12, ..HardLimits::NONE };
const MANY: HardLimits = HardLimits { packets: 1 << 40, bytes: 1 << 50 };

/// One of the hosts that packets go to, from 1.
pub fn host_of(n: u32) -> Prefix {
    Prefix::host(ip(&format!("10.2.0.{n}")))
}

/// What a gateway is like.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub tunnel: Tunnel,
    pub inside: Inside,
    /// There are policies of what is forwarded.
    pub forward: bool,
    /// A policy lets a port pass in clear.
    pub bypasses: bool,
    /// A policy of what is forwarded forbids a port.
    pub forbids: bool,
    /// A policy drops what has no ports.
    pub drops_portless: bool,
    /// Routes say who may come through tunnels of route mode, which far ends tell apart; where no policy does.
    pub is_hub: bool,
    /// Each of the hosts that packets go to has a tunnel of its own, the last of them such a one.
    pub own: Option<Last>,
    /// Those hosts are reached in clear, the third of them so.
    pub clear: Option<Third>,
    pub tables: Tables,
}

/// One tunnel.
pub const SIMPLE: Case = Case {
    tunnel: PLAIN,
    inside: Inside::V4,
    forward: true,
    bypasses: false,
    forbids: false,
    drops_portless: false,
    is_hub: false,
    own: None,
    clear: None,
    tables: Tables::Main,
};

/// The tables that packets are looked up in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tables {
    Main,
    /// Ports are led to one VRF and tunnels to another, and nothing is in the main table.
    Vrfs,
    /// The port towards the other gateway is led to one whose routes are others, or to one that nobody knows.
    PortApart,
    PortNowhere,
    /// So is the last tunnel, or the only one.
    TunnelApart,
    TunnelNowhere,
}

pub const TABLES: [Tables; 6] = [
    Tables::Main,
    Tables::Vrfs,
    Tables::PortApart,
    Tables::PortNowhere,
    Tables::TunnelApart,
    Tables::TunnelNowhere,
];

/// What is special about the last of three tunnels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    Nothing,
    /// Another worker has used its SA.
    Shared,
    /// Its SA ends after some packets, or after more than ever come.
    Limited,
    Boundless,
    /// It has few numbers left.
    Exhausted,
    Selective,
    InUdp,
    /// The same from any port.
    InUdpFromAny,
    /// Its ends are of the other family.
    OtherFamily,
    /// A route leads IPv6 into it, too, but there is no SA or policy for that.
    OnlyV4,
    /// It is not there.
    Missing,
    /// Its policy wants an SA for each worker, who has none, or one, or one for a port; or drops what it covers.
    WantsOwn,
    HasOwn,
    HasSelectiveOwn,
    Dropped,
    /// There is no way to where its packets go, or nobody knows the link address there.
    Unreachable,
    Unresolved,
    /// What comes through it is not what the policy asks for, or no policy asks for it, but routes of route mode.
    Unwelcome,
    ByRoutes,
    /// What comes through it goes into another tunnel, by a route or a policy.
    Onward,
    Resealed,
    /// Its outer headers say something to the inner ones.
    Marked,
    /// It ends at an address that is no longer this host's.
    Elsewhere,
}

pub const LASTS: [Last; 23] = [
    Last::Nothing,
    Last::Shared,
    Last::Limited,
    Last::Boundless,
    Last::Exhausted,
    Last::Selective,
    Last::InUdp,
    Last::InUdpFromAny,
    Last::OtherFamily,
    Last::OnlyV4,
    Last::Missing,
    Last::WantsOwn,
    Last::HasOwn,
    Last::HasSelectiveOwn,
    Last::Dropped,
    Last::Unreachable,
    Last::Unresolved,
    Last::Unwelcome,
    Last::ByRoutes,
    Last::Onward,
    Last::Resealed,
    Last::Marked,
    Last::Elsewhere,
];

pub fn case() -> impl Strategy<Value = Case> {
    let often = prop::bool::weighted(0.8);
    let udp = vec![None, None, Some((4500, 4500)), Some((4500, 61_000))];
    let udp = prop::sample::select(udp);
    let outer_v6 = prop::bool::weighted(0.3);
    let own = prop::option::of(prop::sample::select(&LASTS[..]));
    let inside = prop_oneof![3 => Just(Inside::V4), 1 => Just(Inside::V6), 3 => Just(Inside::Both)];
    let tables = prop_oneof![1 => Just(Tables::Main), 1 => prop::sample::select(&TABLES[..])];
    (any::<[bool; 6]>(), udp, outer_v6, inside, often, own, tables).prop_map(
        |(
            [extended, is_routed, bypasses, forbids, drops_portless, is_hub],
            udp,
            outer_v6,
            inside,
            forward,
            own,
            tables,
        )| {
            let if_id = if is_routed { 5 } else { 0 };
            let tunnel = Tunnel { extended, if_id, udp, outer_v6, ..PLAIN };
            let case = Case { tunnel, inside, forward, own, ..SIMPLE };
            Case { bypasses, forbids, drops_portless, is_hub, tables, ..case }
        },
    )
}

/// What a gateway is like that forwards in clear what it has no tunnel for.
pub fn case_in_clear() -> impl Strategy<Value = Case> {
    let third = prop::sample::select(&THIRDS[..]);
    (case(), third).prop_map(|(case, third)| Case { own: None, clear: Some(third), ..case })
}

impl Case {
    pub fn view(&self, site: Site, nonces: &Arc<NonceSpace>) -> View {
        let mut view = self.tunnel.view(site, nonces);
        view.local.insert(ip(LOCAL));
        view.local.insert(ip(LOCAL_V6));
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
        let range = PortMatch { port: CLEAR_PORT & 0xf000, mask: 0xf000 };
        let selector = Selector { destination_port: range, ..bypass.selector };
        let bypass = PolicyConfig { selector, ..bypass };
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
        if self.is_hub && self.tunnel.if_id != 0 && site == Site::East {
            // From all others a route leads into the tunnel without a far end.
            let remote = Some(self.tunnel.sa(site).source);
            let name = TunnelName { if_id: self.tunnel.if_id, remote };
            let row = view.tunnels.join(name).unwrap();
            view.fib.insert(prefix(SPOKE), Route::Tunnel(row));
        }
        match (self.own, site) {
            (Some(last), Site::West) => self.give_each_host_a_tunnel(last, &mut view, nonces),
            (Some(last), Site::East) => self.reach_each_host_by_a_tunnel(last, &mut view),
            (None, _) => {}
        }
        if let (Some(third), Site::West) = (self.clear, site) {
            third.reach_in_clear(&mut view);
        }
        if self.inside != Inside::V4 {
            complete(&mut view);
            if self.own == Some(Last::OnlyV4) && site == Site::West {
                let policies: Vec<_> = view.spd.iter().map(|policy| policy.config()).collect();
                let is_it = |policy: &&PolicyConfig| policy.index == families::INDEX + 103;
                policies.iter().filter(is_it).for_each(|policy| drop(view.spd.remove(policy)));
            }
        }
        self.tables.lead(self, router, &mut view);
        view
    }

    /// The SA by which packets come to a host of the east, from 1, that has one of its own.
    pub fn sa_to(&self, n: u32) -> SaConfig {
        let Some(last) = self.own else { return self.tunnel.sa(Site::East) };
        let last = if n == 3 { last } else { Last::Nothing };
        let sa = self.tunnel_of(last).sa(Site::East);
        let is_same = sa.if_id == 0 || last == Last::ByRoutes || self.is_hub;
        let if_id = if is_same { sa.if_id } else { sa.if_id + n };
        let sa = SaConfig { spi: sa.spi + n, reqid: sa.reqid + n, if_id, ..sa };
        match last {
            Last::Limited => SaConfig { limits: FEW, ..sa },
            Last::Boundless => SaConfig { limits: MANY, ..sa },
            Last::Selective => SaConfig { selector: Some(Case::to_port(n)), ..sa },
            Last::InUdp => SaConfig { encapsulation: Some(IN_UDP), ..sa },
            Last::InUdpFromAny => {
                let udp = UdpEncapsulation { source_port: 0, ..IN_UDP };
                SaConfig { encapsulation: Some(udp), ..sa }
            }
            Last::Marked => {
                SaConfig { flags: SaFlags { decap_dscp: true, ..SaFlags::default() }, ..sa }
            }
            Last::Elsewhere => {
                let elsewhere =
                    if sa.destination.is_ipv4() { "192.0.2.77" } else { "2001:db8::78" };
                SaConfig { destination: ip(elsewhere), ..sa }
            }
            _ => sa,
        }
    }

    /// A tunnel beside the one that is there.
    fn tunnel_of(&self, last: Last) -> Tunnel {
        let is_other = last == Last::OtherFamily;
        Tunnel { outer_v6: self.tunnel.outer_v6 != is_other, ..self.tunnel }
    }

    /// Three tunnels beside the one that is there.
    fn reach_each_host_by_a_tunnel(&self, last: Last, view: &mut View) {
        let policy = self.tunnel.policy(Direction::Forward, Site::East);
        view.spd.remove(&policy);
        view.encapsulation_ports.set(IN_UDP.destination_port, true);
        for n in 1..=3 {
            let last = if n == 3 { last } else { Last::Nothing };
            let host = host_of(n);
            let sa = self.sa_to(n);
            let Action::Protect { bundle, .. } = policy.action else { unreachable!() };
            let template = self.tunnel_of(last).template(Site::East);
            let reqid = if last == Last::Unwelcome { sa.reqid + 9 } else { sa.reqid };
            let action = match last {
                Last::Dropped => Action::Discard,
                _ => Action::Protect { template: Template { reqid, ..template }, bundle },
            };
            let selector = match sa.if_id {
                0 => Selector::between(Site::West.inner(false), host).unwrap(),
                _ => Selector::any(Family::V4),
            };
            let if_id = sa.if_id;
            let policy = PolicyConfig { index: 100 + n, selector, if_id, action, ..policy };
            if self.forward && last != Last::ByRoutes {
                view.spd.insert(Arc::new(Policy::new(policy)));
            }
            let sa = Arc::new(Sa::new(sa).unwrap());
            if last == Last::Shared {
                sa.take_numbers().unwrap_err();
            }
            if last != Last::Missing {
                view.sad.insert(sa);
            }
            let nobody = NextHop { port: RED, gateway: Some(ip("10.2.0.99")) };
            match last {
                Last::Unreachable => drop(view.fib.insert(host, Route::Unreachable)),
                Last::Unresolved => drop(view.fib.insert(host, Route::Via(nobody))),
                Last::Onward => {
                    let name = TunnelName { if_id: 77, remote: None };
                    let row = view.tunnels.join(name).unwrap();
                    view.tunnels.set_slots(row, [Some(0); 2]);
                    view.fib.insert(host, Route::Tunnel(row));
                }
                Last::Resealed => {
                    let out = self.tunnel.policy(Direction::Out, Site::West);
                    let selector = Selector::between(Site::West.inner(false), host).unwrap();
                    let out = PolicyConfig { index: 200, selector, if_id: 0, ..out };
                    view.spd.insert(Arc::new(Policy::new(out)));
                }
                _ => {}
            }
        }
    }

    /// What is for a host, and one of its ports.
    fn to_port(n: u32) -> Selector {
        let selector = Selector::between(Site::West.inner(false), host_of(n)).unwrap();
        Selector { destination_port: PortMatch::exactly(5000), ..selector }
    }

    /// Three tunnels, from which the slot 0 is left out.
    fn give_each_host_a_tunnel(&self, last: Last, view: &mut View, nonces: &Arc<NonceSpace>) {
        let policy = self.tunnel.policy(Direction::Out, Site::East);
        view.spd.remove(&policy).unwrap();
        for n in 1..=3 {
            let last = if n == 3 { last } else { Last::Nothing };
            let host = host_of(n);
            let if_id = if self.tunnel.if_id == 0 { 0 } else { self.tunnel.if_id + n };
            if if_id != 0 {
                let row = view.tunnels.join(TunnelName { if_id, remote: None }).unwrap();
                view.tunnels.set_slots(row, [Some(n), (last != Last::OnlyV4).then_some(n)]);
                view.fib.insert(host, Route::Tunnel(row));
            }
            let selector = Selector::between(Site::West.inner(false), host).unwrap();
            let wants_own = [Last::WantsOwn, Last::HasOwn, Last::HasSelectiveOwn];
            let own_sas = wants_own.contains(&last);
            let Action::Protect { template, .. } = policy.action else { unreachable!() };
            let action = match last {
                Last::Dropped => Action::Discard,
                _ => Action::Protect { template, bundle: Some(n) },
            };
            let policy =
                PolicyConfig { index: 100 + n, selector, own_sas, if_id, action, ..policy };
            view.spd.insert(Arc::new(Policy::new(policy)));
            let is_over_v6 = self.tunnel_of(last).outer_v6;
            let far_end = match (last, is_over_v6) {
                (Last::Unreachable, false) => ip("203.0.113.9"),
                (Last::Unreachable, true) => ip("2001:db8:ffff::9"),
                (_, false) => ip(&format!("192.0.2.{}", 100 + n)),
                (_, true) => ip(&format!("2001:db8::{}", 100 + n)),
            };
            if last != Last::Unreachable {
                let hop = NextHop { port: BLACK, gateway: None };
                view.fib.insert(Prefix::host(far_end), Route::Via(hop));
            }
            if last != Last::Unresolved {
                view.neighbours.set(BLACK, far_end, MacAddr([2, 0, 0, 0, 2, n as u8]));
            }
            let sa = self.tunnel.sa(Site::East);
            let own_sa = SaConfig {
                source: Site::West.outer(is_over_v6),
                destination: far_end,
                spi: 0x3000_0000 + n,
                if_id,
                ..sa
            };
            let sa = match last {
                Last::Limited => SaConfig { limits: FEW, ..own_sa },
                Last::Boundless => SaConfig { limits: MANY, ..own_sa },
                Last::Exhausted => {
                    let sent = u64::from(u32::MAX) - 60;
                    SaConfig { sent, extended_sequence: false, ..own_sa }
                }
                Last::Selective => SaConfig { selector: Some(Case::to_port(n)), ..own_sa },
                Last::InUdp | Last::InUdpFromAny => {
                    SaConfig { encapsulation: Some(IN_UDP), ..own_sa }
                }
                _ => own_sa,
            };
            let armed = |sa: SaConfig| {
                let sa = Arc::new(Sa::new(sa).unwrap());
                sa.arm(nonces).unwrap();
                sa
            };
            let own = SaConfig { spi: sa.spi + 0x100, ..sa.clone() };
            let own = match last {
                Last::HasOwn => Some(armed(own)),
                Last::HasSelectiveOwn => {
                    Some(armed(SaConfig { selector: Some(Case::to_port(n)), ..own }))
                }
                _ => None,
            };
            let sa = armed(sa);
            if last == Last::Shared {
                sa.take_numbers().unwrap();
            }
            let bundle = Bundle::new((last != Last::Missing).then_some(sa), vec![own]);
            view.bundles.set_bundle(n, bundle);
        }
    }
}

impl Tables {
    /// Leads ports and tunnels of a case to VRFs.
    fn lead(self, case: &Case, router: NextHop, view: &mut View) {
        if self == Tables::Main {
            return;
        }
        // Whoever is apart has other routes: to the other gateway instead of here, and nowhere instead of there.
        let routes: Vec<_> = view.fib.iter().collect();
        for (prefix, route) in routes {
            let other = match route {
                Route::Via(hop) if hop.port == RED => Route::Via(router),
                Route::Via(_) => Route::Blackhole,
                other => other,
            };
            view.fib.insert_in(APART, prefix, other);
        }
        lead_to_vrfs(view);
        let usual = view.vrfs.port(RED);
        let to = |vrf| PortVrf { inner: vrf, outer: vrf };
        let (mut ports, mut device) = (vec![usual; usize::from(DEVICE)], to(TUNNELS));
        match self {
            Tables::Main | Tables::Vrfs => {}
            Tables::PortApart => ports[usize::from(BLACK)] = to(APART),
            Tables::PortNowhere => ports[usize::from(BLACK)] = to(UNKNOWN),
            Tables::TunnelApart => device = to(APART),
            Tables::TunnelNowhere => device = to(UNKNOWN),
        }
        ports.push(device);
        view.vrfs = Vrfs::new(ports, TUNNELS);
        let last = if case.own.is_some() && !case.is_hub { 3 } else { 0 };
        if case.tunnel.if_id != 0 {
            view.tunnels.set_device(case.tunnel.if_id + last, DEVICE);
        }
    }
}

/// A policy of a port, before all others.
pub fn of_port(index: u32, direction: Direction, port: u16, action: Action) -> PolicyConfig {
    let selector = Selector {
        protocol: protocol::UDP,
        destination_port: PortMatch::exactly(port),
        ..Selector::any(Family::V4)
    };
    PolicyConfig { priority: 1, action, ..PolicyConfig::bypass(index, direction, selector) }
}
