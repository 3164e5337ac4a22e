//! The two gateways of the ruler: their tables.
//!
//! Everything is fixed, so that runs are repeatable. Nothing here measures.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use crypto::{Engine, KeyError, SharedKey};
use wire::ethernet::MacAddr;
use wire::{natt, protocol};

use super::{RulerError, Selection};
use crate::alarm::Alarm;
use crate::bundles::BUNDLES_MAX;
use crate::encapsulation::UdpEncapsulation;
use crate::fib::{NextHop, Route};
use crate::nonce::NonceSpace;
use crate::policy::{Action, Direction, Policy, PolicyConfig, Template};
use crate::prefix::{Family, Prefix};
use crate::sa::{HardLimits, Mode, Sa, SaConfig, SaFlags};
use crate::selector::{PortMatch, Selector};
use crate::spd::Spd;
use crate::tunnel::TunnelName;
use crate::view::{PortInfo, View};
use crate::vrfs::{PortVrf, Vrfs};

/// The SPI of the first tunnel; the others follow.
pub(crate) const SPI_FIRST: u32 = 0x100;

/// Where the destinations behind no tunnel begin.
const IN_CLEAR: Ipv4Addr = Ipv4Addr::new(12, 0, 0, 0);

/// Where all tunnels end.
pub(crate) const EAST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);

const RED: u16 = 0;
const BLACK: u16 = 1;
const MTU: u32 = 2000;
const KEY_LEN: usize = 32;
const WEST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The two ends of tunnels over IPv6.
const WEST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
const EAST_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 2);
pub(super) const HOST: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
pub(super) const HOST_V6: Ipv6Addr = Ipv6Addr::new(0xfd01, 0, 0, 0, 0, 0, 0, 1);
/// The UDP port that packets come from.
pub(super) const PORT: u16 = 0x1000;
/// The TCP port that is let pass where ports matter.
const BYPASSED_PORT: u16 = 179;
/// Where the far ends of a point-to-multipoint group begin.
const FAR_ENDS: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 0);
/// The packets, and the bytes, that libreswan lets an SA have, and those after which it wants to hear of it.
const FAR: u64 = 1 << 63;
const FAR_SOFT: u64 = 1 << 62;
/// Where ESP in UDP comes from and goes to.
const IN_UDP: UdpEncapsulation =
    UdpEncapsulation { source_port: natt::PORT, destination_port: natt::PORT };
/// The VRFs of ports and of tunnels, where there are VRFs.
const PORTS_VRF: u32 = 1;
const TUNNELS_VRF: u32 = 2;
/// The `if_id` of all tunnels of a point-to-multipoint group.
const GROUP: u32 = 1;
pub(super) const RED_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
pub(super) const BLACK_MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

/// The keys of the two gateways of a ruler: in each the SAs have keys of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// The SA's own, in both.
    Apart,
    /// One with the same bytes in all; the gateway that seals has it in one place, and leaves as little as it can in the caches
    /// of the one that opens.
    Alike,
}

impl Keys {
    /// A key with the bytes of a tunnel's, in a place of its own.
    fn make(self, engine: Engine, tunnel: usize) -> Result<SharedKey, KeyError> {
        let of = if self == Keys::Alike { 0 } else { tunnel };
        SharedKey::new(engine, &key_bytes(of))
    }
}

/// Distinct keys; this is no secret and no packet leaves the process.
pub(crate) fn key_bytes(tunnel: usize) -> [u8; KEY_LEN] {
    let mut key = [0x5a; KEY_LEN];
    key[..8].copy_from_slice(&(tunnel as u64).to_le_bytes());
    key
}

/// The destination behind a tunnel.
pub(super) fn destination(tunnel: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 0, 0, 0).to_bits() + tunnel as u32)
}

/// The same in IPv6, in a network of its own.
pub(super) fn destination_v6(tunnel: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd02, 0, (tunnel >> 16) as u16, tunnel as u16, 0, 0, 0, 1)
}

/// A destination behind no tunnel.
pub(super) fn in_clear(tunnel: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(IN_CLEAR.to_bits() + tunnel as u32)
}

/// The tunnel of a destination behind it.
pub(crate) fn tunnel_of(destination: [u8; 4]) -> usize {
    let number = u32::from_be_bytes(destination);
    number.wrapping_sub(Ipv4Addr::new(10, 0, 0, 0).to_bits()) as usize
}

fn spi(tunnel: usize) -> u32 {
    SPI_FIRST + tunnel as u32
}

/// All tunnels in a fixed random order.
pub(crate) fn random_order(tunnels: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..tunnels as u32).collect();
    // Fisher and Yates, with Knuth's MMIX constants.
    let mut state = 1u64;
    for last in (1..tunnels).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        order.swap(last, (state >> 33) as usize % (last + 1));
    }
    order
}

/// Where packets into a tunnel come from in a point-to-multipoint group, in which each far end has a
/// network of its own.
pub(super) fn source(tunnel: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(11, 0, 0, 0).to_bits() + tunnel as u32)
}

/// What a tunnel's SA is between, and its `if_id`.
struct Ends {
    west: IpAddr,
    east: IpAddr,
    if_id: u32,
}

/// In a point-to-multipoint group the gateway that seals has a far end for each tunnel. So has the one that
/// opens, and one address of its own, to which the packets are led in between ([`lead_to_hub`]).
fn ends(selection: Selection, tunnel: usize) -> Ends {
    let numbered = |first: Ipv4Addr| Ipv4Addr::from_bits(first.to_bits() + tunnel as u32).into();
    match selection {
        Selection::P2mp => Ends {
            west: numbered(Ipv4Addr::new(100, 64, 0, 0)),
            east: numbered(FAR_ENDS),
            if_id: GROUP,
        },
        one if one.is_p2p() => {
            Ends { west: WEST.into(), east: EAST.into(), if_id: 1 + tunnel as u32 }
        }
        Selection::PolicyOverV6 => Ends { west: WEST_V6.into(), east: EAST_V6.into(), if_id: 0 },
        _ => Ends { west: WEST.into(), east: EAST.into(), if_id: 0 },
    }
}

/// The SA of one tunnel. Each gateway has its own, which are made one after the other as control makes them: none is to find in
/// the cache what the other has just used.
fn sa(selection: Selection, ends: Ends, tunnel: usize, key: SharedKey) -> Result<Sa, RulerError> {
    let Ends { west, east, if_id } = ends;
    let is_limited = selection == Selection::PolicyLimited;
    let far = HardLimits { packets: FAR, bytes: FAR };
    let is_in_udp = selection == Selection::PolicyInUdp;
    let config = SaConfig {
        spi: spi(tunnel),
        mode: Mode::Tunnel,
        source: west,
        destination: east,
        reqid: 1 + tunnel as u32,
        key,
        salt: [7; 4],
        extended_sequence: true,
        replay_window: 64,
        selector: None,
        flags: SaFlags::default(),
        encapsulation: is_in_udp.then_some(IN_UDP),
        limits: if is_limited { far } else { HardLimits::NONE },
        sent: 0,
        received: 0,
        received_bitmap: None,
        if_id,
        added_ns: 1,
    };
    let alarm = || Alarm::new(tunnel as u64, (FAR_SOFT, FAR_SOFT), (FAR, FAR));
    let sa = Sa::new(config).map_err(|error| RulerError::Request(error.to_string()))?;
    Ok(sa.with_alarm(is_limited.then(alarm)))
}

/// The policies of one tunnel's packets.
fn policies(
    selection: Selection,
    tunnel: usize,
    direction: Direction,
) -> impl Iterator<Item = Arc<Policy>> {
    let [v4, v6] = selection.families();
    let v4 = v4.then(|| policy(selection, tunnel, direction));
    v4.into_iter().chain(v6.then(|| policy_v6(selection, tunnel, direction)))
}

/// That of its packets of IPv6.
fn policy_v6(selection: Selection, tunnel: usize, direction: Direction) -> Arc<Policy> {
    let [source, destination] = [(HOST_V6, 128), (destination_v6(tunnel), 64)];
    let prefix = |(address, len): (Ipv6Addr, u8)| {
        Prefix::new(address.into(), len).unwrap_or(Prefix::host(address.into()))
    };
    let selector = Selector {
        source: prefix(source),
        destination: prefix(destination),
        ..Selector::any(Family::V6)
    };
    protect(tunnel, direction, selector, ends(selection, tunnel))
}

/// That of its packets of IPv4. They may have two shapes, or, where no cache is to help, eight, among which the
/// database has to find the right one.
fn policy(selection: Selection, tunnel: usize, direction: Direction) -> Arc<Policy> {
    let less = match selection {
        Selection::PolicyShapes => tunnel % 2,
        // Another host beside the usual one.
        Selection::PolicyFragments | Selection::PolicyOptions => 1,
        Selection::PolicyUncached => tunnel % 8,
        _ => 0,
    };
    let host = Prefix::host(HOST.into());
    let selector = Selector {
        source: Prefix::new(HOST.into(), 32 - less as u8).unwrap_or(host),
        destination: Prefix::host(destination(tunnel).into()),
        ..Selector::any(Family::V4)
    };
    protect(tunnel, direction, selector, ends(selection, tunnel))
}

/// A policy before all tunnels', which selects none of their packets.
fn other(index: u32, direction: Direction, lens: [u8; 2]) -> Option<Arc<Policy>> {
    let nets = [Ipv4Addr::new(20, 1, 1, 1), Ipv4Addr::new(30, 1, 1, 1)];
    let [source, destination] = [0, 1].map(|end| Prefix::new(nets[end].into(), lens[end]));
    let selector = Selector::between(source?, destination?)?;
    let index = 8 * (BUNDLES_MAX + index) + direction as u32;
    let config = PolicyConfig::bypass(index, direction, selector);
    Some(Arc::new(Policy::new(PolicyConfig { priority: 1, position: index.into(), ..config })))
}

/// A policy before all tunnels', which lets a port pass that none of their packets is for, and one behind them, which drops
/// what is left.
fn put_around(direction: Direction, spd: &mut Spd) {
    let any = Selector::any(Family::V4);
    let destination_port = PortMatch::exactly(BYPASSED_PORT);
    let port = Selector { protocol: protocol::TCP, destination_port, ..any };
    let [bypass, rest] = [(1, port), (2, any)].map(|(number, selector)| {
        PolicyConfig::bypass(8 * (BUNDLES_MAX + number), direction, selector)
    });
    let rest = PolicyConfig { priority: u32::MAX, action: Action::Discard, ..rest };
    for config in [PolicyConfig { priority: 1, ..bypass }, rest] {
        spd.insert(Arc::new(Policy::new(config)));
    }
}

/// Where packets are to be remembered: policies of many shapes within each other, of which no few tables
/// can be made.
fn put_others(selection: Selection, direction: Direction, view: &mut View) {
    if selection == Selection::PolicyShapes {
        put_around(direction, &mut view.spd);
    }
    if !matches!(selection, Selection::PolicyCached | Selection::PolicyChanging) {
        return;
    }
    let lens = (18..32).flat_map(|source| (8..20).map(move |destination| [source, destination]));
    let others = lens.zip(0..).filter_map(|(lens, index)| other(index, direction, lens));
    others.for_each(|policy| {
        view.spd.insert(policy);
    });
}

/// Adds a policy of a direction, or removes it the next time.
pub(super) fn change(view: &mut View, direction: Direction, number: u32) {
    let Some(policy) = other(1000 + number / 2, direction, [32, 32]) else { return };
    if number.is_multiple_of(2) {
        view.spd.insert(policy);
    } else {
        view.spd.remove(&policy.config());
    }
}

fn protect(tunnel: usize, direction: Direction, selector: Selector, ends: Ends) -> Arc<Policy> {
    let Ends { west, east, if_id } = ends;
    let template = Template {
        mode: Mode::Tunnel,
        source: west,
        destination: east,
        spi: 0,
        reqid: 1 + tunnel as u32,
        optional: false,
    };
    let bundle = (direction == Direction::Out).then_some(tunnel as u32);
    Arc::new(Policy::new(PolicyConfig {
        own_sas: false,
        if_id,
        // Apart by direction and by family.
        index: 8 * (1 + tunnel as u32) + 4 * selector.family() as u32 + direction as u32,
        direction,
        selector,
        priority: 1000,
        position: tunnel as u64,
        action: Action::Protect { template, bundle },
    }))
}

/// The tables of the gateway that seals, or forwards in clear.
pub(crate) fn west_view(
    selection: Selection,
    engine: Engine,
    tunnels: usize,
    keys: Keys,
) -> Result<View, RulerError> {
    let one = (keys == Keys::Alike).then(|| keys.make(engine, 0)).transpose()?;
    // Epochs counted in memory: these keys and IVs never leave the process.
    let mut epoch = 0;
    let nonces = NonceSpace::new(move || {
        epoch += 1;
        Ok(epoch)
    })?;
    let mut view = base_view();
    put_others(selection, Direction::Out, &mut view);
    view.local.insert(WEST.into());
    for tunnel in 0..tunnels {
        let host = Prefix::host(destination(tunnel).into());
        if selection == Selection::Plain {
            view.fib.insert(host, via(BLACK, EAST.into()));
            continue;
        }
        let key = one.clone().map_or_else(|| keys.make(engine, tunnel), Ok)?;
        let sa = Arc::new(sa(selection, ends(selection, tunnel), tunnel, key)?);
        sa.arm(&nonces)?;
        view.bundles.set(tunnel as u32, Some(sa));
        if !selection.is_by_routes() {
            for policy in policies(selection, tunnel, Direction::Out) {
                view.spd.insert(policy);
            }
            continue;
        }
        let Ends { east, if_id, .. } = ends(selection, tunnel);
        let remote = (selection == Selection::P2mp).then_some(east);
        if let Some(row) = view.tunnels.join(TunnelName { if_id, remote }) {
            view.tunnels.set_slots(row, [Some(tunnel as u32), None]);
            view.fib.insert(host, Route::Tunnel(row));
        }
    }
    if selection == Selection::P2mp {
        // All far ends are behind one router.
        let far_ends = Prefix::new(FAR_ENDS.into(), 12).unwrap_or(Prefix::any(Family::V4));
        view.fib.insert(far_ends, via(BLACK, EAST.into()));
    }
    if selection.is_split() {
        let others = Prefix::new(IN_CLEAR.into(), 8).unwrap_or(Prefix::any(Family::V4));
        view.fib.insert(others, via(BLACK, EAST.into()));
    }
    for east in [EAST.into(), EAST_V6.into()] {
        view.fib.insert(Prefix::host(east), via(BLACK, east));
        view.neighbours.set(BLACK, east, BLACK_MAC);
    }
    if selection == Selection::P2pVrf {
        lead_to_vrfs(&mut view);
    }
    Ok(view)
}

/// The tables of the gateway that opens.
pub(crate) fn east_view(
    selection: Selection,
    engine: Engine,
    tunnels: usize,
    keys: Keys,
) -> Result<View, RulerError> {
    let mut view = base_view();
    put_others(selection, Direction::Forward, &mut view);
    view.local.insert(EAST.into());
    view.local.insert(EAST_V6.into());
    view.encapsulation_ports.set(natt::PORT, true);
    for tunnel in 0..tunnels {
        let Ends { west, east, if_id } = ends(selection, tunnel);
        let east = if selection == Selection::P2mp { EAST.into() } else { east };
        let led = Ends { west, east, if_id };
        view.sad.insert(Arc::new(sa(selection, led, tunnel, keys.make(engine, tunnel)?)?));
        if selection == Selection::P2mp {
            // No policy: the routes say whose packets are welcome.
            if let Some(row) = view.tunnels.join(TunnelName { if_id, remote: Some(west) }) {
                view.fib.insert(Prefix::host(source(tunnel).into()), Route::Tunnel(row));
            }
            continue;
        }
        // A tunnel of route mode lets everything in that its peer sends, as IKE daemons ask for.
        let everything = Selector::any(Family::V4);
        if selection.is_by_routes() {
            let ends = ends(selection, tunnel);
            view.spd.insert(protect(tunnel, Direction::Forward, everything, ends));
            continue;
        }
        for policy in policies(selection, tunnel, Direction::Forward) {
            view.spd.insert(policy);
        }
    }
    for family in [Family::V4, Family::V6] {
        view.fib.insert(Prefix::any(family), via(RED, HOST.into()));
    }
    view.neighbours.set(RED, HOST.into(), RED_MAC);
    if selection == Selection::P2pVrf {
        lead_to_vrfs(&mut view);
    }
    Ok(view)
}

/// Leads the ports to one VRF and the tunnels to another, each with all routes that there are in the main table, which is empty then.
pub fn lead_to_vrfs(view: &mut View) {
    let routes: Vec<_> = view.fib.iter().collect();
    for (prefix, route) in routes {
        view.fib.remove(prefix);
        view.fib.insert_in(PORTS_VRF, prefix, route);
        view.fib.insert_in(TUNNELS_VRF, prefix, route);
    }
    let led = PortVrf { inner: PORTS_VRF, outer: PORTS_VRF };
    view.vrfs = Vrfs::new(vec![led; view.ports.len()], TUNNELS_VRF);
}

fn base_view() -> View {
    let port =
        |name: &str, mac| PortInfo { ifindex: 0, name: name.to_owned(), mac, mtu: MTU, up: true };
    View { ports: [port("red", RED_MAC), port("black", BLACK_MAC)].into(), ..View::default() }
}

fn via(port: u16, gateway: IpAddr) -> Route {
    Route::Via(NextHop { port, gateway: Some(gateway) })
}
