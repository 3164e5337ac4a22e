//! The stage against its stupid twin: every packet by itself, the policies asked one way and the routes
//! another.

use std::net::IpAddr;
use std::sync::Arc;

use crypto::{Engine, SharedKey};
use proptest::prelude::*;
use wire::flow::{Flow, Fragment};
use xsk::Umem;

use super::*;
use crate::batch::BatchMemory;
use crate::batch::tests::Belongings;
use crate::fib::{NextHop, Route};
use crate::policy::{PolicyConfig, Template};
use crate::prefix::{Family, Prefix};
use crate::sa::{HardLimits, SaConfig, SaFlags};
use crate::selector::PortMatch;
use crate::tunnel::{TunnelName, is_of};

/// The one address of this host.
const LOCAL: [u8; 4] = [10, 0, 0, 1];

fn one_by_one(flow: &Flow, sa: &Sa, view: &View) -> Option<Verdict> {
    let if_id = sa.config().if_id;
    let for_host = flow.dst == IpAddr::from(LOCAL);
    let direction = if for_host { Direction::In } else { Direction::Forward };
    let found = view.spd.lookup_of(if_id, direction, flow);
    match inspect_opened(flow, sa, found) {
        Err(Verdict::NoPolicy | Verdict::PolicyMismatch)
            if if_id != 0 && leads_back(flow.src, sa, view) => {}
        Err(verdict) => return Some(verdict),
        Ok(_) => {}
    }
    for_host.then_some(Verdict::HostUnreached)
}

fn leads_back(source: IpAddr, sa: &Sa, view: &View) -> bool {
    match view.fib.lookup(source) {
        Some(Route::Tunnel(number)) => is_of(sa, number, view),
        _ => false,
    }
}

/// Few addresses, so that routes and policies overlap and packets meet them.
fn address(bits: u8) -> IpAddr {
    [10, 0, bits >> 4 & 1, bits & 0b11].into()
}

/// One of three far ends.
fn far_end(bits: u8) -> IpAddr {
    [192, 0, 2, bits % 3].into()
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let lens = prop::sample::select(vec![0, 8, 24, 31, 32]);
    (any::<u8>(), lens).prop_map(|(bits, len)| Prefix::new(address(bits), len).unwrap())
}

fn name() -> impl Strategy<Value = TunnelName> {
    (1..3u32, prop::option::of(any::<u8>()))
        .prop_map(|(if_id, end)| TunnelName { if_id, remote: end.map(far_end) })
}

fn route() -> impl Strategy<Value = Route> {
    // More numbers than there are rows.
    prop_oneof![
        6 => (0..8u32).prop_map(Route::Tunnel),
        1 => Just(Route::Via(NextHop { port: 0, gateway: None })),
        1 => Just(Route::Blackhole),
    ]
}

fn policy() -> impl Strategy<Value = PolicyConfig> {
    let port = prop_oneof![3 => Just(PortMatch::ANY), 1 => Just(PortMatch::exactly(7))];
    let direction = prop::sample::select(vec![Direction::In, Direction::Forward]);
    (0..3u32, direction, prefix(), port, 0..6u8, any::<u32>()).prop_map(
        |(if_id, direction, source, source_port, what, priority)| {
            let selector = Selector { source, source_port, ..Selector::any(Family::V4) };
            let template = Template {
                mode: Mode::Tunnel,
                source: [0; 4].into(),
                destination: [0; 4].into(),
                spi: 0,
                reqid: u32::from(what % 3),
                optional: false,
            };
            let action = match what {
                0 => Action::Discard,
                1 => Action::Bypass,
                _ => Action::Protect { template, bundle: None },
            };
            PolicyConfig {
                if_id,
                priority,
                action,
                ..PolicyConfig::bypass(priority, direction, selector)
            }
        },
    )
}

/// What a view is made of.
#[derive(Clone, Debug)]
struct Tables {
    names: Vec<TunnelName>,
    routes: Vec<(Prefix, Route)>,
    policies: Vec<PolicyConfig>,
}

/// One that covers whatever goes on out of a tunnel.
fn policy_for_all() -> impl Strategy<Value = PolicyConfig> {
    (policy(), 1..3u32).prop_map(|(policy, if_id)| PolicyConfig {
        if_id,
        direction: Direction::Forward,
        selector: Selector::any(Family::V4),
        ..policy
    })
}

fn tables() -> impl Strategy<Value = Tables> {
    let names = prop::collection::vec(name(), 1..6);
    let routes = prop::collection::vec((prefix(), route()), 0..12);
    let policy = prop_oneof![3 => policy(), 1 => policy_for_all()];
    let policies = prop::collection::vec(policy, 0..8);
    (names, routes, policies).prop_map(|(names, routes, policies)| Tables {
        names,
        routes,
        policies,
    })
}

impl Tables {
    fn view(&self) -> View {
        let mut view = View::default();
        view.local.insert(LOCAL.into());
        for name in &self.names {
            view.tunnels.join(*name);
        }
        for (prefix, route) in &self.routes {
            view.fib.insert(*prefix, *route);
        }
        for policy in &self.policies {
            view.spd.insert(Arc::new(Policy::new(policy.clone())));
        }
        view
    }
}

/// An SA of each `if_id`, far end and kind of selector, at these numbers.
fn sas() -> Vec<Sa> {
    let key = SharedKey::new(Engine::AwsLc, &[7; 16]).unwrap();
    let sa = |n: u8| {
        let narrow = Selector { source_port: PortMatch::exactly(7), ..Selector::any(Family::V4) };
        let config = SaConfig {
            spi: 0x101 + u32::from(n),
            mode: Mode::Tunnel,
            source: far_end(n / 3),
            destination: [192, 0, 2, 100].into(),
            reqid: 1 + u32::from(n % 2),
            key: key.clone(),
            salt: [0; 4],
            extended_sequence: true,
            replay_window: 64,
            selector: (n >= 9).then_some(narrow),
            flags: SaFlags::default(),
            encapsulation: None,
            limits: HardLimits::NONE,
            sent: 0,
            received: 0,
            received_bitmap: None,
            if_id: u32::from(n % 3),
            added_ns: 5,
        };
        Sa::new(config).unwrap()
    };
    (0..18).map(sa).collect()
}

fn flow() -> impl Strategy<Value = Flow> {
    let fragments = vec![Fragment::Whole, Fragment::Whole, Fragment::First, Fragment::Later];
    (any::<u8>(), any::<u8>(), 6..8u16, prop::sample::select(fragments)).prop_map(
        |(src, dst, port, fragment)| Flow {
            src: address(src),
            dst: address(dst),
            protocol: 17,
            src_port: if fragment == Fragment::Later { 0 } else { port },
            dst_port: 9,
            ttl: 64,
            tos: 0,
            header_len: 20,
            total_len: 100,
            fragment,
            has_options: false,
        },
    )
}

/// A flow, the SA that its packets come through, and how many of them follow each other.
fn burst() -> impl Strategy<Value = (Flow, usize, usize)> {
    (flow(), 0..18usize, 1..4usize)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn packets_together_end_as_each_does_by_itself(
        tables in prop::collection::vec(tables(), 1..4),
        bursts in prop::collection::vec(burst(), 1..60),
        times in prop::array::uniform3(prop::sample::select(vec![1, 2, 1 << 29])),
    ) {
        let umem = Umem::new(BATCH_PACKETS * 4, 2048, false).unwrap();
        let mut pool = umem.pool(0..BATCH_PACKETS * 4);
        // SAs outlive views, and so does what they remember; the twin's remember by themselves.
        let (sas, twins) = (sas(), sas());
        let mut worker = Belongings::new();
        let views: Vec<View> = tables.iter().map(Tables::view).collect();
        // Twice each, as the second time it is known who is welcome; half a second may pass in between.
        for (at, view) in views.iter().flat_map(|view| [view; 3]).enumerate() {
            let mut memory = BatchMemory::new();
            let mut batch = memory.begin();
            let packets = || bursts.iter().flat_map(|(flow, sa, count)| (0..*count).map(|_| (*flow, *sa)));
            batch.extend(packets().filter_map(|_| pool.take()), 0);
            prop_assert_eq!(batch.slots.len(), packets().count());
            for (slot, (flow, sa)) in batch.slots.iter_mut().zip(packets()) {
                (slot.flow, slot.inbound) = (flow, Some(&sas[sa]));
            }
            // As if another worker had opened them.
            batch.returned = batch.slots.len();
            inspect(&mut batch, view, &mut worker.turn(times[at % 3]));
            for (slot, (flow, sa)) in batch.slots.drain(..).zip(packets()) {
                let expected = one_by_one(&flow, &twins[sa], view);
                prop_assert_eq!(slot.verdict, expected, "{:?} through {:?}", flow, twins[sa]);
                pool.give(slot.frame);
            }
            memory.end(batch);
        }
    }
}

/// Policies outside of route mode, of one shape or of few.
fn plain_policy(one_shape: bool) -> impl Strategy<Value = PolicyConfig> {
    (policy(), 0..4u32).prop_map(move |(policy, priority)| {
        let host = Selector {
            source: Prefix::host(policy.selector.source.address()),
            ..Selector::any(Family::V4)
        };
        let selector = if one_shape { host } else { policy.selector };
        PolicyConfig { if_id: 0, direction: Direction::Forward, selector, priority, ..policy }
    })
}

/// Flows through one SA that follow each other. Nearly always the SA is one without `if_id` and selector, and packets are whole
/// and go on; what differs within a burst is at most one thing.
fn mostly_plain_burst() -> impl Strategy<Value = Vec<(Flow, usize)>> {
    let kinds =
        prop_oneof![15 => Just(0), 15 => Just(1), 15 => Just(2), 1 => Just(3), 2 => Just(4)];
    (burst(), kinds).prop_map(|((flow, sa, count), kind)| {
        let onward = if flow.dst == IpAddr::from(LOCAL) { address(2) } else { flow.dst };
        let plain = Flow { fragment: Fragment::Whole, dst: onward, ..flow };
        let last = match kind {
            1 => Flow { src_port: 13 - plain.src_port, ..plain },
            2 => Flow { src: flow.dst, ..plain },
            3 => Flow { dst: LOCAL.into(), ..plain },
            _ => plain,
        };
        let sa = if kind == 4 { sa } else { sa % 3 * 3 };
        (0..count).map(|at| (if at + 1 == count { last } else { plain }, sa)).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn what_goes_on_is_let_in_and_counted_as_each_is_by_itself(
        policies in any::<bool>().prop_flat_map(|one| prop::collection::vec(plain_policy(one), 1..12)),
        bursts in prop::collection::vec((mostly_plain_burst(), prop::bool::weighted(0.1)), 1..24),
    ) {
        let policies = (0u32..).zip(policies).map(|(index, policy)| {
            PolicyConfig { index, position: index.into(), ..policy }
        });
        let tables = Tables { names: Vec::new(), routes: Vec::new(), policies: policies.collect() };
        let views = [tables.view(), tables.view()];
        let Some(many) = views[0].spd.side_of(Direction::Forward, false).many() else { return Ok(()) };
        let umem = Umem::new(4 * BATCH_PACKETS, 2048, false).unwrap();
        let mut pool = umem.pool(0..4 * BATCH_PACKETS);
        let sas = [sas(), sas()];
        let mut worker = Belongings::new();
        let mut turn = worker.turn(1);
        let packets: Vec<_> = bursts.iter()
            .flat_map(|(burst, decided)| burst.iter().map(|(flow, sa)| (*flow, *sa, *decided)))
            .take(BATCH_PACKETS)
            .collect();
        let mut memory = [BatchMemory::new(), BatchMemory::new()];
        let mut batches = memory.each_mut().map(BatchMemory::begin);
        for (batch, sas) in batches.iter_mut().zip(&sas) {
            for (flow, sa, decided) in &packets {
                batch.extend(pool.take().into_iter(), 0);
                let slot = batch.slots.last_mut().unwrap();
                (slot.flow, slot.inbound) = (*flow, Some(&sas[*sa]));
                slot.verdict = decided.then_some(Verdict::NotForUs);
            }
        }
        let [together, alone] = &mut batches;
        let is_plain = |(flow, sa, decided): &(Flow, usize, bool)| {
            *decided || [0, 3, 6].contains(sa) && flow.fragment == Fragment::Whole && flow.dst != IpAddr::from(LOCAL)
        };
        let done = forwarded::all(&mut together.slots, many, &views[0], &mut turn);
        prop_assert_eq!(done, packets.iter().all(is_plain));
        if done {
            for slot in alone.slots.iter_mut().filter(|slot| slot.verdict.is_none()) {
                let found = views[1].spd.lookup(Direction::Forward, &slot.flow);
                forwarded::inspect_rest(std::slice::from_mut(slot), found, &views[1], &mut turn);
            }
            for (together, alone) in together.slots.iter().zip(&alone.slots) {
                prop_assert_eq!(together.verdict, alone.verdict);
            }
        } else {
            // The long way finds everything as it was.
            for (slot, (.., decided)) in together.slots.iter().zip(&packets) {
                prop_assert_eq!(slot.verdict, decided.then_some(Verdict::NotForUs));
            }
        }
        let used = views.each_ref().map(|view| {
            let mut used: Vec<_> = view.spd.iter().map(|policy| (policy.index(), policy.usage().packets)).collect();
            used.sort_unstable();
            used
        });
        prop_assert_eq!(&used[0], &used[1]);
        let slots = batches.iter_mut().flat_map(|batch| batch.slots.drain(..));
        slots.for_each(|slot| pool.give(slot.frame));
    }
}
